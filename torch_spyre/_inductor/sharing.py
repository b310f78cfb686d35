"""Which core touches which part of a tensor: the question behind every scratchpad decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple, TypeAlias

from torch_spyre.ir.arguments import Plan, core_shares
from torch_spyre.ir.coordinates import core_boxes
from torch_spyre.ir.spec import Coordinate

from .graph import Fit, Op, Sizes


class Box(NamedTuple):
    """Lowest and highest coordinate per device dimension, the lanes left out; both included."""

    low: Sizes
    high: Sizes

    def holds(self, other: Box) -> bool:
        return all(a <= b for a, b in zip(self.low, other.low, strict=True)) and all(
            a >= b for a, b in zip(self.high, other.high, strict=True)
        )

    @property
    def volume(self) -> int:
        return prod(high - low + 1 for low, high in zip(self.low, self.high, strict=True))

    def overlaps(self, other: Box) -> bool:
        return all(a <= b for a, b in zip(self.low, other.high, strict=True)) and all(
            a >= b for a, b in zip(self.high, other.low, strict=True)
        )

    def around(self, other: Box) -> Box:
        """The smallest box that holds both."""
        return Box(
            tuple(map(min, zip(self.low, other.low, strict=True))),
            tuple(map(max, zip(self.high, other.high, strict=True))),
        )


Boxes: TypeAlias = tuple[Box, ...]  # per core


class Volume(NamedTuple):
    """Sticks that are touched by the busiest core, and by all; what several touch counts once."""

    largest: int
    together: int


class Division(NamedTuple):
    """Slices per dimension, and the order in which cores count through them."""

    slices: Sizes
    order: Sizes = ()


def boxes(op: Op, operand: int, division: Division | None = None) -> Boxes:
    """Per core, in core order: the part of a tensor operand that it touches."""
    assert op.fit is not None
    return boxes_of(op.fit, operand, division or Division(op.slices, op.core_order))


def boxes_of(fit: Fit, operand: int, division: Division) -> Boxes:
    """The same for an operation that is given by how it walks sticks."""
    return _boxes(fit.plan, fit.where[operand][:-1], division)


@lru_cache(maxsize=16384)
def _boxes(plan: Plan, where: tuple[Coordinate, ...], division: Division) -> Boxes:
    starts, extents = core_shares(plan, division.slices)
    found = core_boxes(where, starts, extents)
    made = tuple(
        Box(tuple(low for low, _ in found[i]), tuple(high for _, high in found[i]))
        for i in _core_order(division)
    )
    return _one_of_each.setdefault(made, made)


# Equal boxes are one object, so that what was found out about two of them is quickly looked up.
_one_of_each: dict[Boxes, Boxes] = {}
_served: dict[tuple[int, int], bool] = {}
_joined: dict[tuple[int, ...], Boxes | None] = {}
_volumes: dict[int, Volume] = {}
_MOST_KNOWN = 1 << 18


def forget_boxes() -> None:
    """Between plans, where much has been looked at."""
    if len(_served) > _MOST_KNOWN or len(_one_of_each) > _MOST_KNOWN:
        _served.clear()
        _joined.clear()
        _volumes.clear()
        _one_of_each.clear()
        _boxes.cache_clear()


def volume(boxes: Boxes) -> Volume:
    """Of boxes that `boxes` gave."""
    known = _volumes.get(id(boxes))
    if known is None:
        distinct = sum(box.volume for box in set(boxes))
        known = _volumes[id(boxes)] = Volume(max(box.volume for box in boxes), distinct)
    return known


def together(parts: Sequence[Boxes]) -> Boxes | None:
    """What each core has of a tensor that several operations write; None if a core lacks a part of
    the box around its own, or wrote it twice. Writing the very same again, on all cores alike, as
    accumulators do, is no second part."""
    parts = list(dict.fromkeys(parts))
    if len(parts) == 1:
        return parts[0]
    key = tuple(map(id, parts))
    if key not in _joined:
        _joined[key] = _together(parts)
    return _joined[key]


def _together(parts: Sequence[Boxes]) -> Boxes | None:
    if len({len(boxes) for boxes in parts}) != 1:
        return None
    hulls = []
    for own in zip(*parts, strict=True):
        hull = own[0]
        for i, box in enumerate(own[1:], 1):
            if any(box.overlaps(other) for other in own[:i]):
                return None
            hull = hull.around(box)
        if hull.volume != sum(box.volume for box in own):
            return None
        hulls.append(hull)
    made = tuple(hulls)
    return _one_of_each.setdefault(made, made)


def can_serve(owners: Boxes, readers: Boxes) -> bool:
    """`LocalSlice.why_not` in short, of boxes that `boxes` gave."""
    if owners is readers:
        return True
    key = id(owners), id(readers)
    known = _served.get(key)
    if known is None:
        known = _served[key] = LocalSlice(owners).why_not(readers) is None
    return known


@lru_cache(maxsize=4096)
def _core_order(division: Division) -> tuple[int, ...]:
    """For each core, the number of its slice in the dimensions' own row-major order."""
    slices, order = division
    dims = (*order, *(i for i in range(len(slices)) if i not in order))
    strides = [prod(slices[i + 1 :]) for i in range(len(slices))]
    return tuple(
        sum(place * strides[i] for place, i in zip(row, dims, strict=True))
        for row in product(*(range(slices[i]) for i in dims))
    )


def widest(uses: Sequence[tuple[Op, int]]) -> tuple[Op, int]:
    """The use that touches the most; the first of equals."""

    return max(uses, key=lambda use: boxes(*use)[0].volume)


@dataclass(frozen=True)
class LocalSlice:
    """What a core holds of a tensor in its scratchpad: the box of its writer."""

    owners: Boxes

    @property
    def size(self) -> Sizes:
        """Device dimensions of the largest slice, the lanes left out."""
        ranges = [
            [high - low + 1 for low, high in zip(box.low, box.high, strict=True)]
            for box in self.owners
        ]
        return tuple(map(max, zip(*ranges, strict=True)))

    def why_not(self, readers: Boxes) -> str | None:
        """Why these reads can't be served from the cores' own scratchpads; None if they can."""
        if self.owners is readers:  # by far the most frequent
            return None
        if len(readers) > len(self.owners):
            return f"{len(readers)} cores read what {len(self.owners)} cores own"
        shift = None
        for core, (own, read) in enumerate(zip(self.owners, readers, strict=False)):
            if not own.holds(read):
                return f"core {core} reads {_text(read)} but owns {_text(own)}"
            delta = tuple(a - b for a, b in zip(read.low, own.low, strict=True))
            if shift is not None and delta != shift:
                return f"core {core} starts elsewhere in its slice than core 0"
            shift = delta
        return None

    def shift(self, readers: Sequence[Box]) -> Sizes:
        """Where a reader starts in the slice, per device dimension."""
        return tuple(a - b for a, b in zip(readers[0].low, self.owners[0].low, strict=True))


def _text(box: Box) -> str:
    return "×".join(f"{a}..{b}" for a, b in zip(box.low, box.high, strict=True)) or "all"


def matching_division(owners: Sequence[Box], op: Op, operand: int) -> Division | None:
    """The division with which every core touches just what it owns; None if there is none.

    Along each device dimension the owners' parts say into how many slices it is cut; the iteration
    dimension that moves along it must be cut alike. Where several do (heads and the sticks of a
    head), it is the one with the longest steps. The dimension whose parts change least from core to
    core counts first.
    """
    assert op.fit is not None
    slices = [1] * len(op.fit.extents)
    runs: dict[int, int] = {}
    for d, coordinate in enumerate(op.fit.where[operand][:-1]):
        parts = [(box.low[d], box.high[d]) for box in owners]
        count = len(set(parts))
        if count == 1:
            continue
        if not coordinate.terms:
            return None
        dim = max(coordinate.terms, key=lambda term: abs(term.coefficient)).variable
        if op.fit.extents[dim] < count or slices[dim] not in (1, count):
            return None
        slices[dim] = count
        runs[dim] = next(i for i, part in enumerate(parts) if part != parts[0])
    order = tuple(sorted(runs, key=lambda dim: -runs[dim]))
    return Division(tuple(slices), order if order != tuple(sorted(order)) else ())
