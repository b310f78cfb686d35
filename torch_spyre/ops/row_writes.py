"""Rows of a tensor written where an index says, in place: `index_copy_`, `x[:, index] = rows`.

What a static KV cache does at every step. Whole sticks go straight to their rows; what has no such
form (rows along the sticks, part of a storage, several indices) is left to the trace, which works
element by element on a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from torch_spyre import ir
from torch_spyre.ops.emitter import Emitter
from torch_spyre.ops.formats import INT32
from torch_spyre.ops.inference import broadcast, has_repeats
from torch_spyre.ops.plan import Argument, Launch, Plan, TensorMeta
from torch_spyre.ops.views import View, Word, order_with_stick, view_of


class _Write(NamedTuple):
    x: TensorMeta
    dim: int
    places: TensorMeta
    source: TensorMeta
    may_be_negative: bool


def plan_row_writes(name: str, args: Sequence[Argument]) -> Plan | None:
    """The plan of an operation that writes rows in place; None if it is not one."""
    write = _write(name, args)
    if write is None or not _is_plain(write):
        return None
    rows = write.x.size[write.dim]
    size = (*write.x.size[: write.dim], *write.places.size, *write.x.size[write.dim + 1 :])
    if broadcast([size, write.source.size]) != size or prod(size) == 0:
        return None
    emitter = Emitter()
    table, source = view_of(write.x), view_of(write.source).broadcast(size)
    index = _counted_from_start(emitter, view_of(write.places), rows, write.may_be_negative)
    nest = _aligned(table, index, source, write.dim)
    if nest is None and table.stick_dim not in (None, write.dim):
        order = order_with_stick(len(size), table.stick_dim)
        rearranged = emitter.temp(size, source.dtype, order)
        emitter.copy(source, rearranged)
        source = rearranged
        nest = _aligned(table, index, source, write.dim)
    if nest is None:
        return None
    emitter.scatter_rows(nest, source, index, table)
    program, symbols = emitter.finish()
    return Plan((Launch(program, symbols),), (_result(name, args),), emitter.temp_bytes)


def _write(name: str, args: Sequence[Argument]) -> _Write | None:
    given: Sequence[Any] = args
    if name == "aten::index_copy.out":
        x, dim, places, source, out = given
        is_in_place = out.alias == x.index and (out.size, out.stride) == (x.size, x.stride)
        if not is_in_place or out.distance != 0:
            return None
    elif name == "aten::_index_put_impl_":
        x, (*others, places), source, accumulate, _ = given
        dim = len(others)
        if accumulate or any(other is not None for other in others):
            return None
    else:
        return None
    if not all(isinstance(tensor, TensorMeta) for tensor in (x, places, source)) or not x.size:
        return None
    may_be_negative = name == "aten::_index_put_impl_"
    return _Write(x, dim % len(x.size), places, source, may_be_negative)


def _result(name: str, args: Sequence[Argument]) -> int:
    written = args[-1] if name == "aten::index_copy.out" else args[0]
    assert isinstance(written, TensorMeta)
    return written.index


def _is_plain(write: _Write) -> bool:
    """Is it one list of rows of a whole storage that nobody else here reads?"""
    x, index, source = write.x, write.places, write.source
    return (
        len(index.size) == 1
        and not index.dtype.is_floating_point
        and view_of(index).format == INT32
        and source.dtype is x.dtype
        and x.offset == 0
        and x.storage_numel == prod(x.size)
        and not has_repeats(x)
        and all(tensor.alias in (-1, tensor.index) for tensor in (index, source))
    )


def _counted_from_start(emitter: Emitter, index: View, rows: int, may_be_negative: bool) -> View:
    if not may_be_negative:
        return index
    is_negative = emitter.apply("lt_int", [index, Word(INT32, bits=0)])
    from_end = emitter.apply("add_int", [index, Word(INT32, bits=rows)])
    return emitter.apply("where_int", [is_negative, from_end, index])


def _aligned(table: View, index: View, source: View, dim: int) -> ir.GatherAligned | None:
    """The reverse of a gather: where that would read sticks of the table, this writes them."""
    at_row = tuple(0 if i == dim else step for i, step in enumerate(table.stride))
    along = tuple(index.stride[0] if i == dim else 0 for i in range(len(source.size)))
    plan = ir.align_gather(
        source.size,
        ir.Access(table.storage, table.offset, at_row),
        ir.Access(index.storage, index.offset, along),
        source.access(),
        rows=table.size[dim],
        row_stride=table.stride[dim],
    )
    if isinstance(plan, ir.NeedsCopy) or plan.operands[0].lanes != "vector":
        return None
    return plan
