"""What people see of a compile: logs, the plan as text, and files beside Inductor's own.

`TORCH_COMPILE_DEBUG=1` writes a folder `spyre` into Inductor's debug directory: the plan, the
OpSpecs, the cost report, what each pass changed (`pass_log.py`), and per kernel a bundle that
`spyre run` replays. `TORCH_LOGS` shows the same as text (`logging_config.py`).
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from torch_spyre.backend.replay import write_views
from torch_spyre.ir.spec_text import kernel_text
from torch_spyre.logging_config import get_artifact_logger, get_logger, is_wanted

from . import config, report
from .graph import Buffer, SpyreGraph
from .pass_log import debug_folder

if TYPE_CHECKING:
    from .plan import Kernels

log = get_logger()
codegen_log = get_logger("codegen")
plan_log = get_artifact_logger("spyre_plan")
opspec_log = get_artifact_logger("spyre_opspec")
cost_log = get_artifact_logger("spyre_cost")


def show(kernels: Kernels, graph: SpyreGraph) -> None:
    """Log, print and write whatever was asked for; costs nothing otherwise."""
    log.info("%s: operations %d, kernels %d", graph.name, len(graph.ops), len(kernels.kernels))
    if is_wanted(plan_log):
        plan_log.debug("plan of %s\n%s", graph.name, plan_text(graph))
    for i, kernel in enumerate(kernels.kernels):
        if is_wanted(codegen_log, logging.INFO):
            names = ", ".join(op.opcode for op in kernel.draft.ops)
            codegen_log.info("%s, kernel %d: %s", graph.name, i, names)
        if is_wanted(opspec_log):
            opspec_log.debug("kernel %d\n%s", i, kernel_text(kernel.draft.spec, sources=True))
    folder = debug_folder()
    if folder is None and not config.dump_cost and not is_wanted(cost_log):
        return
    costs = report.text(
        [report.kernel_cost(f"kernel_{i}", k.bundle) for i, k in enumerate(kernels.kernels)]
    )
    if is_wanted(cost_log):
        cost_log.debug("%s", costs)
    if config.dump_cost:
        print(costs, file=sys.stderr)
    if folder is not None:
        _write(folder, kernels, graph, costs)


def _write(folder: Path, kernels: Kernels, graph: SpyreGraph, costs: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.txt").write_text(plan_text(graph) + "\n")
    (folder / "cost_report.txt").write_text(costs + "\n")
    for i, kernel in enumerate(kernels.kernels):
        target = folder / f"kernel_{i}"
        kernel.bundle.write(target)
        write_views(target, kernel.views)
        (target / "opspecs.txt").write_text(kernel_text(kernel.draft.spec, sources=True) + "\n")


# ---- Text ---------------------------------------------------------------------------------------


def plan_text(graph: SpyreGraph) -> str:
    """Buffers with their layouts and places, and operations with their divisions."""
    lines = ["buffers"]
    lines += [f"  {buffer.describe()}  {_place(buffer)}" for buffer in graph.buffers.values()]
    kernel = -1
    for op in graph.ops:
        if op.kernel != kernel:
            kernel = op.kernel
            lines.append(f"kernel {kernel}")
        lines.append(f"  {op.describe()}  slices {list(op.slices)}")
    return "\n".join(lines)


def _place(buffer: Buffer) -> str:
    if buffer.place is None:
        return f"LPDDR5 ({buffer.why_not_lx})" if buffer.why_not_lx else "LPDDR5"
    where = f"{buffer.place.component} {buffer.place.index}"
    return f"{where} ({buffer.why_not_lx})" if buffer.why_not_lx else where
