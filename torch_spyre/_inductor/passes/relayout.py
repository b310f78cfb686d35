"""Relayout: a tensor goes from the scratchpads of those who made it to those of its readers.

Cores that make a tensor own a grid of boxes of it; cores that read it want another grid. Where the
boxes of one are made of whole boxes of the other along each dimension, every reader collects its
box in equal parts, each of which lies in the scratchpad of one owner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import NamedTuple, TypeAlias

from torch_spyre import ir
from torch_spyre.ir.spec import Coordinate
from torch_spyre.ir.terms import Term

from ..graph import Buffer, Collection, Fit, Op, Read, Sizes
from ..sharing import Box, Boxes, LocalSlice, boxes, can_serve, widest

Use: TypeAlias = tuple[Op, int]  # an operation that reads a tensor, and as which of its operands


def relayouts(
    writer: Op, uses: Sequence[Use], target: Callable[[], Buffer]
) -> list[tuple[Op, list[Use]]]:
    """Copies of what an operation makes for uses on other cores, each with those that it serves.

    Uses that no relayout can serve are left out. `target` makes a buffer for a copy.
    """
    assert writer.fit is not None
    owners = boxes(writer, len(writer.tensors) - 1)
    left = [
        use for use in uses if use[0].loops == writer.loops and not can_serve(owners, boxes(*use))
    ]
    found = []
    while left:
        wanted = boxes(*widest(left))
        served = [use for use in left if can_serve(wanted, boxes(*use))]
        op = relayout(writer.output, target, owners, wanted, writer)
        if op is not None:
            reader, _ = served[0]
            op.why = f"for {reader.opcode}: {LocalSlice(owners).why_not(wanted)}"
            found.append((op, served))
        left = [use for use in left if use not in served]
    return found


def relayout(
    source: Read, target: Callable[[], Buffer], owners: Boxes, readers: Boxes, like: Op
) -> Op | None:
    """The operation that fills a buffer with the boxes of its readers, core by core, from those of
    its owners; None if these are no grids, or grids that do not nest.

    It stands in the loops of `like`. In them both tensors have one part at a time.
    """
    storage = source.buffer.storage
    assert storage is not None
    ways = _ways(owners, readers)
    if ways is None:
        return None
    space = _space(ways, readers)
    if space is None:
        return None
    lanes = storage.elems_per_stick
    stick = len(space)
    dims = list(enumerate(space))
    moving = [(i, dim) for i, dim in dims if dim.is_inside]
    where = tuple(Coordinate(way.start, _terms(dims, d)) for d, way in enumerate(ways))
    inside = tuple(Coordinate(way.inside, _terms(moving, d)) for d, way in enumerate(ways))
    lane = Coordinate(0, (Term(stick, 1, modulo=lanes),))
    # Sticks are copied whole, so that they need not be counted. Loops move nothing: both buffers
    # have one part at a time, in one place.
    strides = [storage.device_strides[dim.d] * dim.step for dim in space]
    offset = sum(way.start * storage.device_strides[d] for d, way in enumerate(ways))
    walk = ir.Walk(offset, (*strides, 0), "vector", 1, 0, 0)
    extents = (*(dim.extent for dim in space), 1)
    plan = ir.Aligned(extents, stick, lanes, (walk, walk), (), lanes, (None,) * len(extents))
    buffer = target()
    return Op(
        buffer.copy_opcode,
        "relayout",
        like.extents,
        [source],
        source._replace(buffer=buffer),
        origin=like.origin,
        node=like.node,
        fit=Fit(plan, ((*where, lane), (*where, lane))),
        slices=(*(dim.extent if dim.is_divided else 1 for dim in space), 1),
        kernel=like.kernel,
        tiles=tuple(tile._replace(dim=stick) for tile in like.tiles),
        collection=Collection(
            _nearest_owners(ways, owners, readers),
            tuple(i for i, dim in enumerate(space) if dim.is_part),
            (*inside, lane),
        ),
    )


# ---- Grids --------------------------------------------------------------------------------------


class _Parts(NamedTuple):
    """Equal parts of a device dimension, one after the other."""

    start: int
    length: int
    slices: int


class _Way(NamedTuple):
    """How the readers' parts of one device dimension come out of the owners'.

    Either `within` of them lie in each of the owners', or each is made of `parts` of the owners'.
    """

    start: int  # of the first reader's part
    inside: int  # where that begins in its owner's
    length: int  # of a reader's part
    slices: int  # readers' parts
    owned: _Parts
    within: int = 1
    parts: int = 1


class _Dim(NamedTuple):
    """An iteration dimension of the copy, along a device dimension."""

    d: int
    extent: int
    step: int  # positions of the device dimension; 0: cores that want the same
    is_divided: bool = False
    is_part: bool = False
    is_inside: bool = False  # moves within an owner's slice


def _grid(boxes: Boxes) -> list[_Parts] | None:
    """The parts of each device dimension, if all boxes together are a grid of equal ones."""
    found = []
    for low, high in zip(
        zip(*(box.low for box in boxes), strict=True),
        zip(*(box.high for box in boxes), strict=True),
        strict=True,
    ):
        parts = sorted(set(zip(low, high, strict=True)))
        start, length = parts[0][0], parts[0][1] - parts[0][0] + 1
        if any(
            part != (start + i * length, start + (i + 1) * length - 1)
            for i, part in enumerate(parts)
        ):
            return None
        found.append(_Parts(start, length, len(parts)))
    return found if len(set(boxes)) == prod(parts.slices for parts in found) else None


def _ways(owners: Boxes, readers: Boxes) -> list[_Way] | None:
    owned, wanted = _grid(owners), _grid(readers)
    if owned is None or wanted is None:
        return None
    ways = [_way(*pair) for pair in zip(owned, wanted, strict=True)]
    return None if None in ways else [way for way in ways if way is not None]


def _way(owned: _Parts, wanted: _Parts) -> _Way | None:
    first = wanted.start - owned.start
    if first < 0 or first + wanted.length * wanted.slices > owned.length * owned.slices:
        return None
    inside = first % owned.length
    way = _Way(wanted.start, inside, wanted.length, wanted.slices, owned)
    if inside + wanted.length * wanted.slices <= owned.length:  # all in one
        return way._replace(within=wanted.slices)
    if inside:
        return None
    if owned.length % wanted.length == 0:
        within = owned.length // wanted.length
        return way._replace(within=within) if wanted.slices % within == 0 else None
    if wanted.length % owned.length == 0:
        return way._replace(parts=wanted.length // owned.length)
    return None


# ---- The copy -----------------------------------------------------------------------------------


def _space(ways: Sequence[_Way], readers: Boxes) -> list[_Dim] | None:
    """What cores divide, in their order; then the parts; then the sticks of a part."""
    space = _divided(ways, readers)
    if space is None:
        return None
    for d, way in enumerate(ways):
        if way.parts > 1:
            space.append(_Dim(d, way.parts, way.owned.length, is_part=True))
    for d, way in enumerate(ways):
        length = way.length // way.parts
        if length > 1:
            space.append(_Dim(d, length, 1, is_inside=True))
    return space


def _divided(ways: Sequence[_Way], readers: Boxes) -> list[_Dim] | None:
    """The dimension whose part changes from core to core is the innermost one; where none changes,
    neighbours want the same."""
    runs = {
        next(i for i, box in enumerate(readers) if box.low[d] != readers[0].low[d]): d
        for d, way in enumerate(ways)
        if way.slices > 1
    }
    dims: list[_Dim] = []  # innermost first
    cores = 1
    for run, d in sorted(runs.items()):
        if run % cores:
            return None
        if run > cores:
            dims.append(_Dim(0, run // cores, 0, is_divided=True))
        way = ways[d]
        inner = _Dim(d, way.within, way.length, is_divided=True, is_inside=True)
        outer = _Dim(d, way.slices // way.within, way.length * way.within, is_divided=True)
        dims += [dim for dim in (inner, outer) if dim.extent > 1]
        cores = run * way.slices
    if len(readers) % cores:
        return None
    if len(readers) > cores:
        dims.append(_Dim(0, len(readers) // cores, 0, is_divided=True))
    dims.reverse()
    return dims if _lows(ways, dims) == [box.low for box in readers] else None


def _lows(ways: Sequence[_Way], divided: Sequence[_Dim]) -> list[Sizes]:
    """Where each core's box begins."""
    found = []
    for row in product(*(range(dim.extent) for dim in divided)):
        low = [way.start for way in ways]
        for place, dim in zip(row, divided, strict=True):
            low[dim.d] += place * dim.step
        found.append(tuple(low))
    return found


def _terms(dims: Sequence[tuple[int, _Dim]], d: int) -> tuple[Term, ...]:
    return tuple(Term(i, dim.step) for i, dim in dims if dim.d == d and dim.step)


# ---- Owners -------------------------------------------------------------------------------------


def _nearest_owners(ways: Sequence[_Way], owners: Boxes, readers: Boxes) -> tuple[Sizes, ...]:
    """For each reader's parts in turn, of the cores that have it the nearest on the ring."""
    having: dict[Sizes, list[int]] = {}
    for core, box in enumerate(owners):
        having.setdefault(box.low, []).append(core)
    parts = list(product(*(range(way.parts) for way in ways)))
    return tuple(
        tuple(
            min(having[_owner_of(ways, box, part)], key=lambda owner: (_hops(owner, core), owner))
            for part in parts
        )
        for core, box in enumerate(readers)
    )


def _owner_of(ways: Sequence[_Way], box: Box, part: Sizes) -> Sizes:
    """Where the owner's box begins that holds a part of a reader's."""
    found = []
    for way, low, number in zip(ways, box.low, part, strict=True):
        at = low + number * way.owned.length - way.owned.start
        found.append(low + number * way.owned.length - at % way.owned.length)
    return tuple(found)


def _hops(a: int, b: int) -> int:
    """Between two cores, the shorter way round."""
    return min((a - b) % ir.CORES, (b - a) % ir.CORES)
