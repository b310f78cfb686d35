"""How a step goes through its views, and along which dimensions cores may divide it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch_spyre import ir
from torch_spyre.backend.program import STICK_BYTES, TABLE_ROWS, Lanes, Mask, StepKind
from torch_spyre.ops.nests import is_linear, shareable
from torch_spyre.ops.plan import Sizes
from torch_spyre.ops.views import View

_LANES = {"vector": Lanes.VECTOR, "first": Lanes.FIRST, "element": Lanes.ELEMENT}


@dataclass(frozen=True)
class Walk:
    """How a step goes through one view, in device elements (host elements for an index)."""

    offset: int
    strides: Sizes
    lanes: Lanes
    tiles: int = 1
    tile_stride: int = 0
    tail_tiles: int = 0


def from_aligned(walk: ir.Walk) -> Walk:
    return Walk(
        walk.offset,
        walk.strides,
        _LANES[walk.lanes],
        walk.tiles,
        walk.tile_stride,
        walk.tail_tiles,
    )


def element_walks(nest: ir.Nest) -> list[Walk]:
    pairs = zip(nest.offsets, nest.strides, strict=True)
    return [Walk(offset, strides, Lanes.ELEMENT) for offset, strides in pairs]


def table_walk(table: View) -> tuple[Walk, tuple[Mask, ...]]:
    """How a step reaches the elements of a 1-D dense view by index, and how many there are."""
    (rows,) = table.size
    if not is_linear(table.storage) or (rows > 1 and table.stride != (1,)):
        raise ValueError(f"a table is a dense view of one dimension, not {table}")
    walk = Walk(table.offset, (), Lanes.ELEMENT, tiles=max(rows, 1), tile_stride=1)
    return walk, (Mask(dim=TABLE_ROWS, valid=rows),)


def sharing(
    kind: StepKind, extents: Sizes, views: Sequence[tuple[View, Walk]], row_dim: int | None
) -> tuple[tuple[bool, ...] | None, int]:
    """The dimensions along which cores may divide a step (None: all), and the sticks it has.

    Two cores must not write the same stick. They may read the same one, but then it is read
    twice, so dimensions that go from stick to stick on all sides come first.
    """
    if kind is StepKind.SCATTER:  # its order decides: one core, cut only where it spans too much
        return (True, *(False for _ in extents[1:])), 0
    into, walk = views[-1]
    free = tuple(dim != row_dim for dim in range(len(extents)))
    if walk.lanes is not Lanes.ELEMENT:
        return None if row_dim is None else free, prod(extents) * max(w.tiles for _, w in views)
    lanes = STICK_BYTES // into.format.nbytes
    write = shareable(extents, walk.strides or (0,), walk.offset, lanes)
    write = tuple(map(all, zip(write, free, strict=True)))
    reads = [_by_sticks(view, walk) for view, walk in views[:-1]]
    both = tuple(all(dim) for dim in zip(write, *reads, strict=True))
    is_enough = any(n > 1 for n, is_ok in zip(extents, both, strict=True) if is_ok)
    return both if is_enough else write, prod(extents) * into.format.nbytes // STICK_BYTES


def _by_sticks(view: View, walk: Walk) -> tuple[bool, ...]:
    """The dimensions along which a walk goes from stick to stick."""
    return tuple(step * view.format.nbytes % STICK_BYTES == 0 for step in walk.strides or (0,))


def span_of(view: View, walk: Walk) -> ir.Span:
    """How far a step reaches into a view: per dimension, and within one iteration."""
    nbytes = view.format.nbytes
    strides = tuple(step * nbytes for step in walk.strides or (0,))
    return ir.Span(strides, (walk.tiles - 1) * walk.tile_stride * nbytes + STICK_BYTES)
