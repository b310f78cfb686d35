"""From alignments to what an OpSpec says: iteration space and device coordinates of arguments.

An alignment counts the stick dimension (and a matmul's lane dimension) in sticks of its widest
operand. An OpSpec counts them in elements, and each argument divides by the lanes of its own
format: `floor(c/32)`, `Mod(c, 32)` for an fp32 result next to fp16 inputs. Alignments must have
been made with `merged=False`: a joined dimension runs through several device dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from .align import Aligned
from .align_gather import GatherAligned
from .align_matmul import MatmulAligned
from .coordinates import coordinates
from .spec import Coordinate
from .splits import core_slices
from .storage import Storage
from .terms import Term
from .walks import Walk

Plan: TypeAlias = Aligned | MatmulAligned | GatherAligned


def space_extents(plan: Plan) -> tuple[int, ...]:
    """The extents of the iteration space as an OpSpec has them."""
    lengths = _lengths(plan)
    return tuple(lengths.get(i, extent) for i, extent in enumerate(plan.extents))


def core_shares(
    plan: Plan, slices: Sequence[int]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Starts and extents of each core's part, counted as `space_extents` are."""
    lengths = _lengths(plan)
    starts, extents = [], []
    for start, extent in core_slices(plan.extents, slices):
        first, size = list(start), list(extent)
        for dim, length in lengths.items():
            first[dim] *= plan.lanes
            size[dim] = min(size[dim] * plan.lanes, length - first[dim])
        starts.append(tuple(first))
        extents.append(tuple(size))
    return starts, extents


def device_coordinates(
    plan: Aligned | MatmulAligned, storages: Sequence[Storage]
) -> tuple[tuple[Coordinate, ...], ...]:
    """Where an iteration finds each operand, in the order of the alignment's accesses."""
    operands = list(zip(plan.operands, storages, strict=True))
    if isinstance(plan, Aligned):
        return tuple(
            _along_sticks(plan, walk, storage, plan.stick_dim) for walk, storage in operands
        )
    a, b, c = operands
    # B goes along the lane dimension element by element: k is outside of its sticks.
    rows = list(b[0].strides)
    rows[plan.lane] = plan.row_stride
    by_row = b[0]._replace(strides=tuple(rows))
    return (
        _along_sticks(plan, *a, plan.lane),
        _along_sticks(plan, by_row, b[1], plan.stick),
        _along_sticks(plan, *c, plan.stick),
    )


def gather_coordinates(
    plan: GatherAligned, storages: Sequence[Storage], index_argument: int = 1
) -> tuple[tuple[Coordinate, ...], ...]:
    """Of table, index and result; the dimension of the table's rows is left to the index."""
    table, index, result = (
        _along_sticks(plan, walk, storage, plan.stick_dim)
        for walk, storage in zip(plan.operands, storages, strict=True)
    )
    row = table[plan.row_dim]._replace(indirect=index_argument)
    return (*table[: plan.row_dim], row, *table[plan.row_dim + 1 :]), index, result


def element_coordinates(
    storage: Storage, offset: int, strides: Sequence[int], extents: Sequence[int]
) -> tuple[Coordinate, ...]:
    """Of a walk element by element: an operand of a restickify."""
    return tuple(
        Coordinate(where.offset, _terms(where.coefficients))
        for where in coordinates(storage, offset, strides, extents)
    )


def _lengths(plan: Plan) -> dict[int, int]:
    """Dimensions that count sticks, with their elements."""
    if isinstance(plan, MatmulAligned):
        return {plan.stick: plan.n_length, plan.lane: plan.k_length}
    if plan.stick_dim is None or plan.length is None:
        return {}
    return {plan.stick_dim: plan.length}


def _along_sticks(
    plan: Plan, walk: Walk, storage: Storage, lane_dim: int | None
) -> tuple[Coordinate, ...]:
    """Coordinates of an operand whose sticks, if it is a vector, follow dimension `lane_dim`."""
    extents, strides = list(space_extents(plan)), list(walk.strides)
    own = storage.elems_per_stick
    if walk.lanes != "vector" or lane_dim is None:
        return element_coordinates(storage, walk.offset, strides, extents)
    strides[lane_dim] //= walk.tiles
    extents[lane_dim] = -(-extents[lane_dim] // own)
    *outer, lane = coordinates(storage, walk.offset, strides, extents)
    if lane.offset or any(lane.coefficients):
        raise ValueError(f"{walk} does not walk whole sticks of {storage.device_size}")
    return (
        *(Coordinate(where.offset, _terms(where.coefficients, lane_dim, own)) for where in outer),
        Coordinate(0, (Term(lane_dim, 1, modulo=own),)),
    )


def _terms(
    coefficients: Sequence[int], lane_dim: int | None = None, lanes: int = 1
) -> tuple[Term, ...]:
    return tuple(
        Term(dim, coefficient, floordiv=lanes if dim == lane_dim else 1)
        for dim, coefficient in enumerate(coefficients)
        if coefficient
    )
