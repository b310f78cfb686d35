"""Iteration dimensions of a gather: rows of a table, whole sticks at a time, named by an index.

For the alignment the row is one more loop, which only the table moves along; afterwards it is left
to the index. The index is read element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .align import SPARSE, align
from .coordinates import coordinates
from .storage import Access, Storage
from .walks import NeedsCopy, Walk

TABLE, INDEX, RESULT = 0, 1, 2


@dataclass(frozen=True)
class GatherAligned:
    """An iteration in whole sticks of the result; the table's walk is that of row 0."""

    extents: tuple[int, ...]
    stick_dim: int | None
    lanes: int
    operands: tuple[Walk, Walk, Walk]  # table, index ("element"), result
    rows: int
    row_stride: int  # of the table, in device elements
    row_dim: int  # the device dimension of the table that counts rows
    length: int | None
    variables: tuple[int | None, ...]


def align_gather(
    extents: Sequence[int],
    table: Access,
    index: Access,
    result: Access,
    *,
    rows: int,
    row_stride: int,
) -> GatherAligned | NeedsCopy:
    """Find the dimensions of a gather, or the access (0: table, 1: index, 2: result) in the way.

    `table` is the access for an index of 0, `row_stride` the host elements from row to row. What
    is in the way of a table whose rows are no device dimension of their own is the table.

    >>> table = Storage(device_size=(2, 1000, 64), stride_map=(64, 128, 1), numel=128000)
    >>> index = Storage(device_size=(1, 32), stride_map=(32, 1), numel=5)
    >>> out = Storage(device_size=(2, 5, 64), stride_map=(64, 128, 1), numel=640)
    >>> plan = align_gather(
    ...     (5, 128),
    ...     Access(table, 0, (0, 1)),
    ...     Access(index, 0, (1, 0)),
    ...     Access(out, 0, (128, 1)),
    ...     rows=1000,
    ...     row_stride=128,
    ... )
    >>> plan.extents, plan.row_stride, plan.operands[1].strides
    ((2, 5), 64, (0, 1))
    """
    accesses = [
        replace(access, strides=(stride, *access.strides))
        for access, stride in zip((table, index, result), (row_stride, 0, 0), strict=True)
    ]
    plan = align(
        (rows, *extents),
        accesses,
        (RESULT,),
        lead=RESULT,
        reduced=(0,),
        elements=(INDEX,),
        merged=False,
    )
    if isinstance(plan, NeedsCopy):
        return _name_the_obstacle(plan, extents, (table, index, result))
    if plan.stick_dim is not None and plan.operands[TABLE].lanes == "first":
        # A gather moves sticks as they are: it does not repeat an element along one.
        return NeedsCopy(RESULT, "the table stands still along its sticks", stick=SPARSE)
    storage = table.storage
    assert storage is not None
    step, row_dim = 0, 0
    if rows > 1 and 0 not in extents:
        moves = _row_dimension(storage, plan.operands[TABLE], plan.extents, plan.reduced)
        if moves is None:
            return NeedsCopy(TABLE, "its rows are no device dimension of their own")
        step, row_dim = moves
    kept = [i for i in range(len(plan.extents)) if i not in plan.reduced]
    walks = [walk._replace(strides=tuple(walk.strides[i] for i in kept)) for walk in plan.operands]
    return GatherAligned(
        extents=tuple(plan.extents[i] for i in kept),
        stick_dim=None if plan.stick_dim is None else kept.index(plan.stick_dim),
        lanes=plan.lanes,
        operands=(walks[TABLE], walks[INDEX], walks[RESULT]),
        rows=rows,
        row_stride=step,
        row_dim=row_dim,
        length=plan.length,
        variables=tuple(_of_caller(plan.variables[i]) for i in kept),
    )


def _of_caller(variable: int | None) -> int | None:
    """The caller's number of a loop variable; the loop of rows has none."""
    return variable - 1 if variable else None


def _name_the_obstacle(
    plan: NeedsCopy, extents: Sequence[int], accesses: tuple[Access, Access, Access]
) -> NeedsCopy:
    table, index, result = accesses
    assert result.storage is not None
    stick = [
        i
        for i, (extent, step) in enumerate(zip(extents, result.strides, strict=True))
        if extent > 1 and step == result.storage.stride_map[-1]
    ]
    if stick and index.strides[stick[0]]:
        # No copy of an input would help: lanes of one stick can't come from different rows.
        along_rows = [
            i
            for i, extent in enumerate(extents)
            if extent > 1 and table.strides[i] and not index.strides[i]
        ]
        return NeedsCopy(
            RESULT,
            f"loop variable {stick[0]} runs along its sticks, but the index moves along it",
            stick[0],
            stick=along_rows[-1] if along_rows else SPARSE,
        )
    hint = plan.stick if plan.stick in (None, SPARSE) else _of_caller(plan.stick)
    return replace(plan, variable=_of_caller(plan.variable), stick=hint)


def _row_dimension(
    storage: Storage, walk: Walk, extents: Sequence[int], rows: Sequence[int]
) -> tuple[int, int] | None:
    """Stride and device dimension of the table's rows; None if they are not one dimension."""
    if len(rows) != 1:
        return None
    step = walk.strides[rows[0]]
    where = coordinates(storage, walk.offset, (step,), (extents[rows[0]],))
    moving = [dim for dim, along in enumerate(where) if along.coefficients != (0,)]
    if len(moving) != 1 or where[moving[0]].coefficients != (1,):
        return None
    return step, moving[0]
