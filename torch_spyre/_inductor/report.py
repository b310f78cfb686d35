"""The cost report: modelled time and traffic of each kernel and operation. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_spyre import _C
from torch_spyre.backend.lower import lower
from torch_spyre.backend.program import encode
from torch_spyre.ir.bundle import Bundle


@dataclass(frozen=True)
class OpCost:
    """One step of a kernel."""

    op: str
    buffer: str
    source: str
    cores: int
    nanoseconds: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True)
class KernelCost:
    """What a launch of a kernel takes by the card's clock."""

    name: str
    nanoseconds: int
    bytes_read: int
    bytes_written: int
    ops: tuple[OpCost, ...]


def kernel_cost(name: str, bundle: Bundle, origins: Sequence[tuple[str, str, str]]) -> KernelCost:
    """The figures of the program that the card will load, as the card derives them."""
    figures = _C._card.figures(encode(lower(bundle)))
    ops = tuple(
        OpCost(
            op,
            buffer,
            source,
            step["cores"],
            step["nanoseconds"],
            step["bytes_read"],
            step["bytes_written"],
        )
        for (op, buffer, source), step in zip(origins, figures["steps"], strict=True)
    )
    return KernelCost(
        name, figures["nanoseconds"], figures["bytes_read"], figures["bytes_written"], ops
    )


def text(kernels: Sequence[KernelCost]) -> str:
    """A table for people."""
    lines = []
    for kernel in kernels:
        lines.append(
            f"{kernel.name}: {kernel.nanoseconds / 1000:.3f} us, "
            f"reads {kernel.bytes_read:,} bytes, writes {kernel.bytes_written:,} bytes"
        )
        lines += [
            f"  {cost.op:<14} {cost.buffer:<10} {cost.cores:>2} cores "
            f"{cost.nanoseconds / 1000:>10.3f} us {cost.bytes_read:>12,} r "
            f"{cost.bytes_written:>12,} w  {cost.source}"
            for cost in kernel.ops
        ]
    return "\n".join(lines)
