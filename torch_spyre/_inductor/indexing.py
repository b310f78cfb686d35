"""Lowerings of what reads or writes where an index says: rows of tensors in the card's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.lowering import lowerings
from torch._inductor.virtualized import V, ops

from . import externs

aten = torch.ops.aten


def addressable(x: ir.TensorBox) -> ir.TensorBox:
    """The tensor with its rows along dimensions of its buffer, copied if they are not: a row that
    an index names must have an address on the card, and start with a stick."""
    found = ir.ExternKernel.realize_input(x)
    if isinstance(found, ir.ReinterpretView) and not _has_rows_of_its_buffer(found):
        found = ir.ExternKernel.copy_input(x)
    return found if isinstance(found, ir.TensorBox) else ir.TensorBox(found)


def _in_memory(x: ir.TensorBox, *indices: ir.TensorBox | None) -> ir.TensorBox:
    """The tensor, read from a buffer if data says where.

    Inductor computes what is made of nothing but counters and constants where it is read. That
    has a value for every index; the card refuses one that is outside of a buffer.
    """
    if x.get_read_names() or not any(map(_is_data, indices)):
        return x
    found = ir.ExternKernel.realize_input(x)
    if not isinstance(found, ir.ReinterpretView):
        found.freeze_layout()
        found = ir.ReinterpretView(data=found, layout=found.get_layout())
    return ir.TensorBox(found)


def _has_rows_of_its_buffer(view: ir.ReinterpretView) -> bool:
    whole = view.unwrap_view()
    known = list(zip(whole.get_size(), whole.get_stride(), strict=True))
    sizes = V.graph.sizevars
    own = zip(view.get_size(), view.get_stride(), strict=True)
    return _starts_with_a_row(view.get_layout().offset, whole.get_stride()) and all(
        sizes.statically_known_equals(n, 1)
        or any(step == its and sizes.statically_known_leq(n, most) for most, its in known)
        for n, step in own
    )


def _starts_with_a_row(offset: Any, strides: Sequence[Any]) -> bool:
    if not all(isinstance(n, int | sympy.Integer) for n in [offset, *strides]):
        return offset == 0
    for step in sorted((int(step) for step in strides if step > 1), reverse=True):
        offset = int(offset) % step
    return bool(offset == 0)


def _index(x: ir.TensorBox, indices: Sequence[ir.TensorBox | None]) -> Any:
    """A buffer of its own: a gather takes one index, so a gather of a gather is two."""
    if any(index is not None and not _is_integer(index) for index in indices):
        return externs.extern(V.graph.current_node.target)(x, indices)  # masks
    named = [dim for dim, index in enumerate(indices) if index is not None]
    if len([dim for dim in named if _is_data(indices[dim])]) > 1:
        x, indices = _with_one_index(x, indices, named)
    table = _in_memory(addressable(x), *indices)
    result = lowerings[aten.index.Tensor](table, indices)
    result.realize()
    is_row = named == list(range(named[0], named[-1] + 1))
    if is_row and named[0] > 0 and indices[0] is not None:
        rank = len(result.get_size()) - (len(x.get_size()) - 1)
        order = list(range(len(result.get_size())))
        order = [*order[rank : rank + named[0]], *order[:rank], *order[rank + named[0] :]]
        result = lowerings[aten.permute](result, order)
    return result


def _is_integer(index: ir.TensorBox) -> bool:
    return index.get_dtype() not in (torch.bool, torch.uint8)


def _is_data(index: ir.TensorBox | None) -> bool:
    """Is the index more than loop counters, which need no gather?"""
    return index is not None and bool(index.get_read_names())


def _with_one_index(
    x: ir.TensorBox, indices: Sequence[ir.TensorBox | None], named: Sequence[int]
) -> tuple[ir.TensorBox, list[ir.TensorBox]]:
    """The indexed dimensions as one, in front, and the index into that.

    An index out of range must stay one, whatever the others are: it becomes -1 once it is
    counted from the end, and the fault does not name it.
    """
    rest = [dim for dim in range(len(x.get_size())) if dim not in named]
    # A place in the flattened tensor is a number of its own, which no bucket can stand for.
    lengths = [V.graph.sizevars.guard_int(x.get_size()[dim]) for dim in named]
    rows = prod(lengths)
    flat = lowerings[aten.permute](x, [*named, *rest])
    flat = lowerings[aten.clone](flat, memory_format=torch.contiguous_format)
    flat = lowerings[aten.view](flat, [rows, *(x.get_size()[dim] for dim in rest)])
    place = is_valid = None
    for dim, length in zip(named, lengths, strict=True):
        index = lowerings[torch.ops.prims.convert_element_type](indices[dim], torch.int64)
        is_negative = lowerings[aten.lt](index, 0)
        index = lowerings[aten.where](is_negative, lowerings[aten.add](index, length), index)
        is_inside = lowerings[aten.logical_and](
            lowerings[aten.ge](index, 0), lowerings[aten.lt](index, length)
        )
        if place is None:
            place, is_valid = index, is_inside
        else:
            place = lowerings[aten.add](lowerings[aten.mul](place, length), index)
            is_valid = lowerings[aten.logical_and](is_valid, is_inside)
    place = lowerings[aten.where](is_valid, place, -1 - rows)
    return flat, [place]


def _embedding(weight: ir.TensorBox, indices: ir.TensorBox, *rest: Any, **options: Any) -> Any:
    table = _in_memory(addressable(weight), indices)
    result = lowerings[aten.embedding.default](table, indices, *rest, **options)
    result.realize()
    return result


def _gather(x: ir.TensorBox, dim: int, index: ir.TensorBox, **options: Any) -> Any:
    return lowerings[aten.gather](_in_memory(x, index), dim, index, **options)


def _index_select(x: ir.TensorBox, dim: int, index: ir.TensorBox) -> Any:
    """Rows of a table: no index counts from the end, as it does in Inductor's form."""
    size = list(x.get_size())
    if not size:
        return lowerings[aten.clone](x)
    dim = dim % len(size)
    index = lowerings[aten.view](index, [-1])
    load, place = _in_memory(addressable(x), index).make_loader(), index.make_loader()

    def inner(at: Sequence[sympy.Expr]) -> Any:
        row = ops.indirect_indexing(place([at[dim]]), size[dim], wrap_neg=False)
        return load([*at[:dim], row, *at[dim + 1 :]])

    result = ir.Pointwise.create(
        device=x.get_device(),
        dtype=x.get_dtype(),
        inner_fn=inner,
        ranges=[*size[:dim], *index.get_size(), *size[dim + 1 :]],
    )
    result.realize()
    return result


def _index_copy(x: ir.TensorBox, *args: Any) -> Any:
    """Rows are written in place: of a copy, where somebody needs what was there."""
    return externs.extern(aten.index_copy_.default)(lowerings[aten.clone](x), *args)


LOWERINGS: dict[Any, Callable[..., Any]] = {
    aten.index.Tensor: _index,
    aten._unsafe_index.Tensor: _index,
    aten.index_select.default: _index_select,
    aten.gather.default: _gather,
    aten.embedding.default: _embedding,
    aten.index_copy.default: _index_copy,
}
