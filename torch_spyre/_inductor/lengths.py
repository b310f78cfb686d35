"""Concatenations and slices at places that depend on a dynamic length.

A bucket has rows behind the last valid one, so "behind the cache" and "the last row" are not where
they would be in a tensor of the bucket's size. They are named by an index instead, which is made of
the length at hand.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.lowering import lowerings
from torch._inductor.virtualized import V, ops

aten = torch.ops.aten


def is_number(size: Any) -> bool:
    return isinstance(size, int | sympy.Integer)


def with_dynamic_parts(parts: Sequence[ir.TensorBox], dim: int) -> list[ir.TensorBox]:
    """Parts of a concatenation whose places may be those of buckets.

    A cache of dynamic length s grows by a row. The row is written behind the bucket, which is
    right for the longest s, and into the bucket at s, which is right for all others. Any other
    concatenation makes its lengths fixed.
    """
    if len(parts) != 2 or parts[1].get_size()[dim] != 1:
        for part in parts[:-1]:
            V.graph.sizevars.guard_int(part.get_size()[dim])
        return list(parts)
    cache, row = (part.make_loader() for part in parts)
    length = parts[0].get_size()[dim]

    def with_row(index: Sequence[sympy.Expr]) -> Any:
        place = ops.index_expr(index[dim], torch.int32)
        is_new = ops.eq(place, ops.index_expr(length, torch.int32))
        at_row = [*index[:dim], sympy.Integer(0), *index[dim + 1 :]]
        return ops.where(is_new, row(at_row), cache(index))

    grown = ir.Pointwise.create(
        device=parts[0].get_device(),
        dtype=parts[0].get_dtype(),
        inner_fn=with_row,
        ranges=list(parts[0].get_size()),
    )
    # A copy of the row: behind the bucket it is nothing that others could read.
    return [grown, lowerings[aten.clone](parts[1])]


def with_own_lengths(x: Any) -> Any:
    """A tensor for an operation outside of kernels, where a bucket stands for lengths only.

    A view of a buffer in which a dynamic length is flattened into another size is copied.
    """
    if not isinstance(x, ir.TensorBox) or not isinstance(x.data, ir.BaseView):
        return x
    sizes = x.data.unwrap_view().get_size()
    return x if all(map(is_own_length, sizes)) else lowerings[aten.clone](x)


def is_own_length(size: Any) -> bool:
    """Is it a number, or a dynamic length and a number?"""
    expr = sympy.sympify(size)
    return len(expr.free_symbols) < 2 and (expr - sum(expr.free_symbols)).is_number


def rows_from_end(size: Any, start: Any, end: Any) -> tuple[sympy.Expr, int] | None:
    """Where a slice begins that is counted from a dynamic end, and its length; None for others.

    Of s rows, x[-1:] begins at s - 1 and has one; x[2:] has a dynamic length, it is a view.
    """
    if is_number(size):
        return None
    first, last = _from_start(start, size, 0), _from_start(end, size, size)
    if first is None or last is None or is_number(first):
        return None
    length = sympy.simplify(last - first)
    return (first, int(length)) if is_number(length) else None


def _from_start(place: Any, size: sympy.Expr, default: Any) -> sympy.Expr | None:
    """A place counted from the start; None if the slice is larger than the tensor."""
    if place is None or place == sys.maxsize:
        return sympy.sympify(default)
    place = sympy.sympify(place)
    if not place.is_negative:
        return place
    return place + size if V.graph.sizevars.guard_or_false(sympy.Le(-place, size)) else None


def rows_at(x: ir.TensorBox, dim: int, first: sympy.Expr, length: int) -> ir.TensorBox:
    """Rows from a dynamic place on, gathered. The tensor must have addressable rows."""
    load = x.make_loader()
    size = list(x.get_size())

    def at_place(index: Sequence[sympy.Expr]) -> Any:
        start = ops.index_expr(first, torch.int32)
        place = start if length == 1 else ops.add(ops.index_expr(index[dim], torch.int32), start)
        row = ops.indirect_indexing(place, size[dim], check=False, wrap_neg=False)
        return load([*index[:dim], row, *index[dim + 1 :]])

    result = ir.Pointwise.create(
        device=x.get_device(),
        dtype=x.get_dtype(),
        inner_fn=at_place,
        ranges=[*size[:dim], sympy.Integer(length), *size[dim + 1 :]],
    )
    result.realize()
    assert isinstance(result, ir.TensorBox)
    return result
