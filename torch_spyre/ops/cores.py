"""Which core does what in one step, and where its operands start for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from torch_spyre import ir
from torch_spyre.backend.program import CORES, STICK_BYTES
from torch_spyre.ops.plan import Sizes

# Below this a core costs more to start than it saves.
STICKS_PER_CORE = 8


@dataclass(frozen=True)
class Slices:
    """The part of each core, in core order: where it starts and how large it is."""

    starts: tuple[Sizes, ...]
    extents: tuple[Sizes, ...]

    @property
    def extent_rows(self) -> tuple[Sizes, ...]:
        """One row if all cores have the same extents, else one per core."""
        return self.extents[:1] if len(set(self.extents)) == 1 else self.extents

    def bases(self, offset: int, strides: Sizes) -> Sizes:
        """Where each core starts; one entry if they all start at the same place."""
        bases = tuple(offset + sum(map(int.__mul__, start, strides)) for start in self.starts)
        return bases[:1] if len(set(bases)) == 1 else bases

    def reach(self, strides: Sizes) -> int:
        """The furthest that any core gets from the common offset."""
        return max(
            sum((s + n - 1) * step for s, n, step in zip(start, extent, strides, strict=True))
            for start, extent in zip(self.starts, self.extents, strict=True)
        )

    def reaching(self, dim: int | None, extents: Sizes) -> int:
        """A mask of the cores whose part is the last one along a dimension."""
        if dim is None:
            return 0
        mask = 0
        for core, (start, extent) in enumerate(zip(self.starts, self.extents, strict=True)):
            if start[dim] + extent[dim] == extents[dim]:
                mask |= 1 << core
        return mask


def divide(
    extents: Sizes,
    byte_strides: Sequence[Sizes],
    *,
    sticks: int,
    splittable: Sequence[bool] | None = None,
) -> Iterator[Slices]:
    """Divide a step among the cores; more than one part where a core's span would not suffice.

    `byte_strides` has an entry per operand in device memory. Dimensions that are not `splittable`
    stay whole: two cores must not write the same stick.
    """
    dims = [d for d in range(len(extents)) if splittable is None or splittable[d]]
    spans = []
    for strides in byte_strides:
        whole = [d for d in range(len(extents)) if d not in dims]
        inner = sum(abs(strides[d]) * (extents[d] - 1) for d in whole)
        spans.append(ir.Span(tuple(strides[d] for d in dims), inner + STICK_BYTES))
    cores = min(CORES, max(1, sticks // STICKS_PER_CORE))
    for chunk in ir.chunks([extents[d] for d in dims], cores, spans):
        if prod(chunk.slices) == 1 and len(dims) == len(extents):
            yield Slices((chunk.starts,), (chunk.extents,))
            continue
        starts, sizes = [], []
        for part_start, part_size in ir.core_slices(chunk.extents, chunk.slices):
            start, size = [0] * len(extents), list(extents)
            for d, at, offset, n in zip(dims, chunk.starts, part_start, part_size, strict=True):
                start[d], size[d] = at + offset, n
            starts.append(tuple(start))
            sizes.append(tuple(size))
        yield Slices(tuple(starts), tuple(sizes))
