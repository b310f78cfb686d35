"""Which bytes the operands of steps touch, as far as ordering them has to know."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from torch_spyre.backend.program import CORES, STICK_BYTES, Lanes, Operand, Space, Step

# (stride, count) per dimension, largest stride first; the last one is (1, bytes in a row).
Box = tuple[tuple[int, int], ...]
# A stride and the smallest and the largest number of steps along it.
Range = tuple[int, int, int]


@dataclass(frozen=True)
class Footprint:
    """The bytes of one operand of a step, per core; a superset where a stick's tail is missing."""

    space: Space
    symbol: int
    is_write: bool
    cores: int
    bases: tuple[int, ...]  # per core, or one for all
    boxes: tuple[Box, ...]  # likewise, relative to the base
    low: int  # over all cores and all iterations of the loops
    high: int
    loop_strides: tuple[int, ...]
    counts: tuple[int, ...]  # of the enclosing loops, outermost first
    loops: tuple[int, ...]  # a number for the iteration of each that this stands for

    def overlaps(self, other: Footprint) -> bool:
        """May the two have a byte in common, on whatever cores?"""
        return (
            self.space is other.space
            and (self.space is Space.LX or self.symbol == other.symbol)
            and self.low < other.high
            and other.low < self.high
        )

    def stays_on_its_cores(self, other: Footprint) -> bool:
        """Does each core touch only bytes that no other core touches through `other`?"""
        if self.cores == other.cores and self.cores.bit_count() == 1:
            return True
        together = _common(self.loops, other.loops)
        is_same_iteration = together == len(self.loops) == len(other.loops)
        if (
            is_same_iteration
            and len(self.bases) > 1
            and (self.cores, self.bases, self.boxes, self.loop_strides)
            == (other.cores, other.bases, other.boxes, other.loop_strides)
        ):
            return True
        loops = _loop_ranges(self, other, together)
        gap = self.bases[0] - other.bases[0]
        return _are_apart(self.shape, other.shape, gap, loops)

    @cached_property
    def shape(self) -> Shape:
        """Which bytes each core touches, wherever the whole lies."""
        first = self.bases[0]
        return self.cores, tuple(base - first for base in self.bases), self.boxes


# Cores, where they start relative to the first, and their boxes.
Shape = tuple[int, tuple[int, ...], tuple[Box, ...]]


@functools.lru_cache(maxsize=4096)
def _are_apart(a: Shape, b: Shape, gap: int, loops: tuple[Range, ...]) -> bool:
    """Does no core of one touch a byte that another core of the other touches?"""
    pairs = {
        (gap + base - other_base, box, other_box)
        for core, base, box in _parts(a)
        for other_core, other_base, other_box in _parts(b)
        if core != other_core
    }
    return not any(_may_meet(box, other_box, gap, loops) for gap, box, other_box in pairs)


def _parts(shape: Shape) -> Iterator[tuple[int, int, Box]]:
    """Core, where it starts, and its bytes from there."""
    mask, bases, boxes = shape
    cores = [core for core in range(CORES) if mask >> core & 1]
    for slot, core in enumerate(cores):
        yield core, bases[slot % len(bases)], boxes[slot % len(boxes)]


def _loop_ranges(a: Footprint, b: Footprint, together: int) -> tuple[Range, ...]:
    """How far loops may move b's bytes relative to a's."""
    found = []
    for level, count in enumerate(a.counts if len(a.counts) > len(b.counts) else b.counts):
        step_a = a.loop_strides[level] if level < len(a.loop_strides) else 0
        step_b = b.loop_strides[level] if level < len(b.loop_strides) else 0
        if level < together:
            found.append((step_b - step_a, 0, count - 1))
        else:
            found += [(step_b, 0, count - 1), (step_a, 1 - count, 0)]
    return tuple(r for r in found if r[0])


@functools.lru_cache(maxsize=16384)
def _may_meet(a: Box, b: Box, gap: int, loops: tuple[Range, ...]) -> bool:
    """Is there a byte in a, `gap` bytes further on, and in b? Never a wrong no."""
    ranges: dict[int, list[int]] = {}
    steps = [(-stride, 0, count - 1) for stride, count in a]
    steps += [(stride, 0, count - 1) for stride, count in b]
    for stride, least, most in (*steps, *loops):
        if stride < 0:
            stride, least, most = -stride, -most, -least
        known = ranges.setdefault(stride, [0, 0])
        known[0] += least
        known[1] += most
    dims = [(s, least, most) for s, (least, most) in sorted(ranges.items(), reverse=True)]
    return _Search(dims).reaches(gap, 0)


class _Search:
    """Is a distance a sum of steps within their ranges? Largest strides first, so few choices."""

    def __init__(self, dims: list[Range]) -> None:
        self.dims = dims
        self.budget = 2000
        # What the strides from each position on can add up to.
        self.least, self.most = [0], [0]
        for stride, least, most in reversed(dims):
            self.least.insert(0, self.least[0] + stride * least)
            self.most.insert(0, self.most[0] + stride * most)

    def reaches(self, distance: int, position: int) -> bool:
        self.budget -= 1
        if not self.least[position] <= distance <= self.most[position]:
            return False
        if position == len(self.dims) or self.budget < 0:
            return True
        stride, least, most = self.dims[position]
        first = max(least, -((self.most[position + 1] - distance) // stride))
        last = min(most, (distance - self.least[position + 1]) // stride)
        return any(
            self.reaches(distance - steps * stride, position + 1)
            for steps in range(first, last + 1)
        )


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """How many enclosing loops the two are in the same iteration of."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


def reach(box: Box) -> tuple[int, int]:
    """The first byte and the one behind the last, relative to the base."""
    low = high = 0
    for stride, count in box:
        if stride > 0:
            high += stride * (count - 1)
        else:
            low += stride * (count - 1)
    return low, high + 1


@functools.lru_cache(maxsize=8192)
def box_of(
    strides: tuple[int, ...], extents: tuple[int, ...], tiles: int, tile_stride: int, unit: int
) -> Box:
    """The set of bytes in a canonical form: equal sets of plain nests give equal boxes."""
    dims = [(s, n) for s, n in zip(strides, extents, strict=True) if s and n > 1]
    if tiles > 1:
        dims.append((tile_stride, tiles))
    dims.sort(key=lambda dim: abs(dim[0]))
    merged = [(1, unit)]
    for stride, count in dims:
        inner, inner_count = merged[-1]
        if stride == inner * inner_count:
            merged[-1] = (inner, inner_count * count)
        else:
            merged.append((stride, count))
    return tuple(reversed(merged))


def _stick_run(
    operand: Operand, bases: tuple[int, ...], extents: tuple[int, ...], element_bytes: int
) -> int:
    """Bytes of the whole sticks that a walk by elements touches at each step between sticks.

    A stick is the unit of transfer: to write one element is to read and write the stick it is in.
    """
    steps = zip(operand.strides, extents, strict=True)
    inside = sum(stride * (n - 1) for stride, n in steps if stride % STICK_BYTES)
    last = max(base % STICK_BYTES for base in bases) + inside + element_bytes
    return -(-last // STICK_BYTES) * STICK_BYTES


def footprint(
    step: Step,
    operand: Operand,
    lanes: int,
    element_bytes: int,
    counts: tuple[int, ...],
    is_write: bool,
    row_bytes: tuple[int, int] = (0, 1),
) -> Footprint:
    """What an operand touches; `counts` are those of the enclosing loops.

    `row_bytes`: a further stride and count, for the rows of k of a matmul's second operand and
    the rows of a gather's table.
    """
    tiles = 1
    tile_stride = operand.tile_stride
    if row_bytes[1] > 1:
        tile_stride, tiles = row_bytes
    elif operand.lanes is Lanes.VECTOR:
        tiles = max(lanes * element_bytes // STICK_BYTES, 1)
    bases, strides = operand.bases, operand.strides
    units = [STICK_BYTES] * len(step.extents)
    if operand.lanes is Lanes.ELEMENT:
        is_per_core = len(bases) == len(step.extents)
        own = [(base,) for base in bases] if is_per_core else [bases] * len(step.extents)
        units = [
            _stick_run(operand, starts_of_row, row, element_bytes)
            for starts_of_row, row in zip(own, step.extents, strict=True)
        ]
        bases = tuple(base - base % STICK_BYTES for base in bases)
        strides = tuple(0 if stride % STICK_BYTES else stride for stride in strides)
    boxes = tuple(
        box_of(strides, row, tiles, tile_stride, unit)
        for row, unit in zip(step.extents, units, strict=True)
    )
    reaches = [reach(box) for box in boxes]
    if len(reaches) == 1:
        low, high = min(bases) + reaches[0][0], max(bases) + reaches[0][1]
    else:
        starts = bases * (len(reaches) // len(bases))
        low = min(base + first for base, (first, _) in zip(starts, reaches, strict=True))
        high = max(base + last for base, (_, last) in zip(starts, reaches, strict=True))
    for stride, count in zip(operand.loop_strides, counts, strict=True):
        if stride > 0:
            high += stride * (count - 1)
        else:
            low += stride * (count - 1)
    return Footprint(
        operand.space,
        operand.symbol,
        is_write,
        step.cores,
        bases,
        boxes,
        low,
        high,
        operand.loop_strides,
        counts,
        (),
    )
