"""What people see of a compile: logs, the plan as text, and files beside Inductor's own.

`TORCH_COMPILE_DEBUG=1` writes a folder `spyre` into Inductor's debug directory: the plan, the
OpSpecs, the cost report, and per kernel a bundle that `spyre run` replays. `SPYRE_INDUCTOR_LOG=1`
logs.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from torch._inductor import config as inductor_config
from torch._inductor.virtualized import V

from torch_spyre.backend.replay import write_views
from torch_spyre.ir.spec_text import kernel_text

from . import config, report
from .graph import Buffer, SpyreGraph

if TYPE_CHECKING:
    from .plan import Kernels

log = logging.getLogger("torch_spyre.inductor")


def set_up_logging() -> None:
    """Follow SPYRE_INDUCTOR_LOG, SPYRE_INDUCTOR_LOG_LEVEL and SPYRE_LOG_FILE."""
    if os.environ.get("SPYRE_INDUCTOR_LOG", "0").strip().lower() not in ("1", "true", "on"):
        return
    name = os.environ.get("SPYRE_INDUCTOR_LOG_LEVEL", "INFO").strip().upper()
    levels = logging.getLevelNamesMapping()
    if name not in levels:
        raise ValueError(
            f"environment variable SPYRE_INDUCTOR_LOG_LEVEL={name!r} is not valid: expected one of "
            f"{', '.join(sorted(levels))}"
        )
    path = os.environ.get("SPYRE_LOG_FILE")
    handler: logging.Handler = logging.FileHandler(path) if path else logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(levels[name])
    log.propagate = False


def show(kernels: Kernels, graph: SpyreGraph) -> None:
    """Log, print and write whatever was asked for; costs nothing otherwise."""
    if log.isEnabledFor(logging.DEBUG):
        log.debug("plan of %s\n%s", graph.name, plan_text(graph))
    is_traced = inductor_config.trace.enabled and V.debug._path is not None
    if not is_traced and not config.dump_cost:
        return
    costs = [
        report.kernel_cost(f"kernel_{i}", kernel.bundle) for i, kernel in enumerate(kernels.kernels)
    ]
    if config.dump_cost:
        print(report.text(costs), file=sys.stderr)
    if is_traced:
        _write(Path(V.debug.filename("spyre")), kernels, graph, report.text(costs))


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
