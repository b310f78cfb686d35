"""The cost report: modelled time, traffic and bound of each kernel and operation.

It changes nothing. The figures are those of the program that the card will load.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_spyre.backend.compile import step_infos
from torch_spyre.backend.cost import KernelCost, StepCost, program_cost
from torch_spyre.backend.lower import lower
from torch_spyre.backend.program import encode
from torch_spyre.ir.bundle import Bundle


def kernel_cost(name: str, bundle: Bundle) -> KernelCost:
    """What the card will take for a launch of a bundle."""
    return program_cost(name, encode(lower(bundle)), step_infos(bundle), bundle.pool_bytes)


_COLUMNS = (
    ("cores", 5),
    ("time", 10),
    ("LPDDR5 read", 14),
    ("written", 12),
    ("LX read", 12),
    ("written", 12),
    ("ring", 10),
    ("PT", 9),
    ("SFP", 9),
    ("LPDDR5", 9),
    ("LX", 9),
    ("ring", 9),
)
_NAME = 28
_LEGEND = """\
Times in us, modelled: time = max(PT, SFP, LPDDR5, LX) + ring. Bytes of LPDDR5 and of the ring are
those of all cores, bytes of LX those of the busiest core. Visits of a loop are added up."""


def text(kernels: Sequence[KernelCost]) -> str:
    """A table for people: a line per kernel, and under it one per operation."""
    heading = " ".join(f"{name:>{width}}" for name, width in _COLUMNS)
    lines = [_LEGEND, f"{'kernel, operation, buffer':{_NAME}}{heading}  bound by"]
    for kernel in kernels:
        lines.append(_line(kernel.name, kernel, ""))
        lines += [_line(f"  {_label(step)}", step, step.source) for step in kernel.steps]
    return "\n".join(lines)


def _label(step: StepCost) -> str:
    times = f" x{step.visits}" if step.visits > 1 else ""
    return f"{step.operation}{times} {step.buffer}".rstrip()


def _line(label: str, cost: KernelCost | StepCost, source: str) -> str:
    units = cost.units
    counts = (
        cost.bytes_read,
        cost.bytes_written,
        cost.lx_read,
        cost.lx_written,
        cost.ring_bytes,
    )
    times = (units.pt, units.sfp, units.memory, units.lx, units.ring)
    cells = [
        str(cost.cores),
        f"{cost.microseconds:.3f}",
        *(f"{count:,}" for count in counts),
        *(f"{time:.3f}" for time in times),
    ]
    aligned = " ".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, _COLUMNS, strict=True))
    return f"{label:{_NAME}}{aligned}  {cost.bound:8} {source}".rstrip()
