"""Which core does what in one step, and where its operands start for it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from torch_spyre import ir
from torch_spyre.backend.program import CORES
from torch_spyre.ops.plan import Sizes, UnsupportedError

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
        """The furthest that any core gets from the common offset; strides may step back."""
        return max(
            sum(
                start * step + max((extent - 1) * step, 0)
                for start, extent, step in zip(starts, extents, strides, strict=True)
            )
            for starts, extents in zip(self.starts, self.extents, strict=True)
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


@functools.lru_cache(maxsize=1024)
def divide(
    extents: Sizes,
    operands: tuple[ir.Span, ...],
    sticks: int,
    splittable: tuple[bool, ...] | None = None,
) -> tuple[Slices, ...]:
    """Divide a step among the cores; more than one part where a core's span would not suffice.

    `operands` are those in device memory. Dimensions that are not `splittable` stay whole: two
    cores must not write the same stick.
    """
    dims = [d for d in range(len(extents)) if splittable is None or splittable[d]]
    whole = [d for d in range(len(extents)) if d not in dims]
    spans = []
    for strides, size in operands:
        inner = sum(abs(strides[d]) * (extents[d] - 1) for d in whole)
        spans.append(ir.Span(tuple(strides[d] for d in dims), inner + size))
    cores = min(CORES, max(1, sticks // STICKS_PER_CORE))
    try:
        chunks = ir.chunks([extents[d] for d in dims], cores, spans)
    except ValueError as error:  # one iteration alone spans too much
        raise UnsupportedError(str(error)) from error
    return tuple(_slices(extents, dims, chunk) for chunk in chunks)


def _slices(extents: Sizes, dims: Sequence[int], chunk: ir.Chunk) -> Slices:
    """The parts of a chunk that was divided along `dims` only."""
    starts, sizes = [], []
    for part_start, part_size in ir.core_slices(chunk.extents, chunk.slices):
        start, size = [0] * len(extents), list(extents)
        for d, at, offset, n in zip(dims, chunk.starts, part_start, part_size, strict=True):
            start[d], size[d] = at + offset, n
        starts.append(tuple(start))
        sizes.append(tuple(size))
    return Slices(tuple(starts), tuple(sizes))
