"""Lowerings for Spyre graphs: matmul as a reduction, concatenation in place, native operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.lowering import lowerings, user_lowerings
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.virtualized import V, ops

from torch_spyre.constants import DEVICE_NAME
from torch_spyre.ops.formats import LARGEST

from . import externs, indexing, layouts
from .fx import custom_ops  # noqa: F401  defines torch.ops.spyre
from .indexing import addressable
from .lengths import is_number, rows_at, rows_from_end, with_dynamic_parts

aten = torch.ops.aten


def _on_spyre(args: Sequence[Any]) -> bool:
    for arg in args:
        if isinstance(arg, ir.TensorBox):
            device = arg.get_device()
            return device is not None and device.type == DEVICE_NAME
        if isinstance(arg, list | tuple) and arg and _on_spyre(arg):
            return True
    return False


def _spyre_lowering(*targets: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a lowering that leaves other devices to Inductor."""

    def decorate(lower: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(lower)
        def for_spyre(*args: Any, **kwargs: Any) -> Any:
            return lower(*args, **kwargs) if _on_spyre(args) else None

        for target in targets:
            _TABLE[target] = for_spyre
        return lower

    return decorate


_TABLE: dict[Any, Callable[..., Any]] = {}


def register_lowerings() -> None:
    """Ours come before Inductor's; what Inductor only knows decomposed has no other."""
    for target, lower in indexing.LOWERINGS.items():
        _spyre_lowering(target)(lower)
    for overload in externs.overloads():
        if overload not in _TABLE:
            _spyre_lowering(overload)(externs.extern(overload))
    externs.register_in_place()
    user_lowerings.update(_TABLE)
    # New words of the loop language: every handler passes them to its `_default`.
    for name in NATIVE:
        word = f"spyre_{name}"
        setattr(DefaultHandler, word, DefaultHandler._call_default(word))
    for target, lower in _TABLE.items():
        lowerings.setdefault(target, lower)


# ---- Matmul -------------------------------------------------------------------------------------


def matmul(a: ir.TensorBox, b: ir.TensorBox, dtype: torch.dtype | None = None) -> ir.TensorBox:
    """A[..., m, k] @ B[..., k, n] with equal batches, as a reduction that multiplies."""
    a.realize()
    b.realize()
    *batch, m, k = a.get_size()
    n = b.get_size()[-1]
    dtype = dtype or a.get_dtype()
    device = a.get_device()
    assert device is not None
    if V.graph.sizevars.statically_known_equals(k, 0):
        zero = lowerings[aten.full]([*batch, m, n], 0.0, dtype=dtype, device=device)
        assert isinstance(zero, ir.TensorBox)
        return zero
    load_a, load_b = a.make_loader(), b.make_loader()

    def inner(index: Sequence[Any], reduction_index: Sequence[Any]) -> Any:
        *outer, row, column = index
        (inner_index,) = reduction_index
        return (load_a([*outer, row, inner_index]), load_b([*outer, inner_index, column]))

    result = ir.TensorBox.create(
        ir.Reduction(
            device=device,
            dtype=dtype,
            inner_fn=inner,
            ranges=[*batch, m, n],
            reduction_ranges=[k],
            reduction_type="batchmatmul",  # type: ignore[arg-type]
            src_dtype=a.get_dtype(),
            reduction_hint=ReductionHint.DEFAULT,
        )
    )
    result.realize()
    return result


@_spyre_lowering(aten.mm.default, aten.bmm.default)
def _lower_matmul(a: ir.TensorBox, b: ir.TensorBox) -> ir.TensorBox:
    return matmul(a, b)


@_spyre_lowering(torch.ops.spyre.bmm_to_float.default)
def _lower_bmm_to_float(a: ir.TensorBox, b: ir.TensorBox) -> ir.TensorBox:
    return matmul(a, b, torch.float32)


def _scaled(x: Any, factor: float | int) -> Any:
    return x if factor == 1 else lowerings[aten.mul](x, factor)


@_spyre_lowering(aten.addmm.default, aten.baddbmm.default)
def _lower_addmm(
    bias: ir.TensorBox, a: ir.TensorBox, b: ir.TensorBox, *, beta: float = 1, alpha: float = 1
) -> Any:
    product = _scaled(matmul(a, b), alpha)
    if beta == 0:
        return product
    return lowerings[aten.add](product, _scaled(bias, beta))


# ---- Layouts ------------------------------------------------------------------------------------


@_spyre_lowering(torch.ops.spyre.require_layout.default)
def _lower_require_layout(
    x: ir.TensorBox, device_size: Sequence[int], stride_map: Sequence[int]
) -> Any:
    """A buffer of its own, whose layout is not the compiler's to choose."""
    result = ir.Pointwise.create(
        device=x.get_device(),
        dtype=x.get_dtype(),
        inner_fn=x.make_loader(),
        ranges=list(x.get_size()),
    )
    name = result.realize()
    assert name is not None
    layouts.require(V.graph, name, tuple(device_size), tuple(stride_map))
    return result


# ---- Shapes -------------------------------------------------------------------------------------


@_spyre_lowering(aten.cat.default)
def _lower_cat(inputs: Sequence[ir.TensorBox], dim: int = 0) -> Any:
    """Parts write their slices of one buffer."""
    rank = max(len(x.get_size()) for x in inputs)
    kept = [
        x
        for x in inputs
        if len(x.get_size()) == rank and not (len(x.get_size()) == 1 and x.get_size()[0] == 0)
    ]
    if not kept:
        return None
    dtype = functools.reduce(torch.promote_types, [x.get_dtype() for x in inputs])
    kept = [lowerings[torch.ops.prims.convert_element_type](x, dtype) for x in kept]
    if len(kept) == 1:
        return lowerings[aten.clone](kept[0])
    dim = dim + rank if dim < 0 else dim
    if any(not is_number(x.get_size()[dim]) for x in kept[:-1]):
        kept = with_dynamic_parts(kept, dim)
    return ir.TensorBox(ir.ConcatKernel.create(kept, dim))


@_spyre_lowering(aten.slice.Tensor)
def _lower_slice(
    x: ir.TensorBox, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """A view as everywhere, except where its place depends on a dynamic length."""
    dim = dim % len(x.get_size())
    rows = rows_from_end(x.get_size()[dim], start, end) if step == 1 else None
    if rows is None or not V.graph.sizevars.evaluate_expr(sympy.Ge(rows[0], 0)):
        return None  # more rows than there are: all of them
    return rows_at(addressable(x), dim, *rows)


@_spyre_lowering(aten.select.int)
def _lower_select(x: ir.TensorBox, dim: int, index: Any) -> Any:
    dim = dim % len(x.get_size())
    rows = rows_from_end(x.get_size()[dim], index, None if index == -1 else index + 1)
    return (
        None if rows is None else lowerings[aten.squeeze](rows_at(addressable(x), dim, *rows), dim)
    )


@_spyre_lowering(aten.constant_pad_nd.default)
def _lower_pad(x: ir.TensorBox, padding: Sequence[int], value: float = 0) -> Any:
    """Padding is written beside the tensor: the card reads nothing outside of one."""
    if not all(isinstance(n, int | sympy.Integer) for n in [*padding, *x.get_size()]):
        return None
    rank = len(x.get_size())
    pairs = [(int(a), int(b)) for a, b in zip(padding[::2], padding[1::2], strict=True)]
    result = x
    for dim, (before, after) in zip(reversed(range(rank)), pairs, strict=False):
        length = int(result.get_size()[dim])
        result = _part(result, dim, max(-before, 0), length - max(-after, 0))
        ends = [_filled(result, dim, max(n, 0), value) for n in (before, after)]
        result = _joined([ends[0], result, ends[1]], dim)
    return lowerings[aten.clone](result)


@_spyre_lowering(aten.slice_scatter.default)
def _lower_slice_scatter(
    x: ir.TensorBox,
    source: ir.TensorBox,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    """What is kept and what is new, side by side."""
    dim = dim + len(x.get_size()) if dim < 0 else dim
    sizes = x.get_size()
    ends = ir.SliceView.normalize_start_end(
        x, dim, 0 if start is None else start, sizes[dim] if end is None else end
    )
    if not all(isinstance(n, int | sympy.Integer) for n in [*ends, *sizes]):
        return None
    first, count = int(ends[0]), -(-(int(ends[1]) - int(ends[0])) // step)
    if count <= 0:
        return lowerings[aten.clone](x)
    source = lowerings[torch.ops.prims.convert_element_type](source, x.get_dtype())
    source = lowerings[aten.expand](source, [*sizes[:dim], count, *sizes[dim + 1 :]])
    last = first + (count - 1) * step
    parts = [_part(x, dim, 0, first), source, _part(x, dim, last + 1, int(sizes[dim]))]
    if step > 1 and count > 1:
        between = _part(x, dim, first, last)
        new = _part(source, dim, 0, count - 1)
        parts[1:2] = [_interleaved(between, new, dim, step), _part(source, dim, count - 1, count)]
    return lowerings[aten.clone](_joined(parts, dim))


def _interleaved(x: ir.TensorBox, new: ir.TensorBox, dim: int, step: int) -> ir.TensorBox:
    """x, but the first of every `step` elements along a dimension is the next one of `new`."""
    before, after = list(x.get_size()[:dim]), list(x.get_size()[dim + 1 :])
    rows = lowerings[aten.view](x, [*before, -1, step, *after])
    firsts = lowerings[aten.unsqueeze](new, dim + 1)
    mixed = _joined([firsts, _part(rows, dim + 1, 1, step)], dim + 1)
    return lowerings[aten.view](mixed, list(x.get_size()))


def _part(x: ir.TensorBox, dim: int, start: int, end: int) -> ir.TensorBox:
    return lowerings[aten.slice](x, dim, start, end, 1)


def _filled(x: ir.TensorBox, dim: int, length: int, value: float) -> ir.TensorBox:
    """A constant with the sizes of a tensor, but this length along a dimension."""
    sizes = [*x.get_size()[:dim], length, *x.get_size()[dim + 1 :]]
    return lowerings[aten.full](sizes, value, dtype=x.get_dtype(), device=x.get_device())


def _joined(parts: Sequence[ir.TensorBox], dim: int) -> ir.TensorBox:
    parts = [part for part in parts if int(part.get_size()[dim])] or list(parts[:1])
    return parts[0] if len(parts) == 1 else _lower_cat(parts, dim)


# ---- Windows ------------------------------------------------------------------------------------


@_spyre_lowering(aten.max_pool2d_with_indices.default)
def _lower_max_pool2d(
    x: ir.TensorBox,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:
    """The largest of each window, as loops; where they are is the eager operation's to say."""
    node = V.graph.current_node
    wants_indices = any(user.args[1] == 1 for user in node.users)
    if wants_indices or ceil_mode or not x.get_dtype().is_floating_point:
        call = externs.extern(aten.max_pool2d_with_indices.default)
        return call(x, kernel, stride, padding, dilation, ceil_mode)
    lowest = -LARGEST.get(x.get_dtype(), float("inf"))
    x = _padded(x, padding, lowest)
    pool = lowerings[torch.ops.prims._low_memory_max_pool_with_offsets.default]
    return pool(x, _pair(kernel), _pair(stride or kernel), [0, 0], _pair(dilation), False)


@_spyre_lowering(aten.avg_pool2d.default)
def _lower_avg_pool2d(
    x: ir.TensorBox,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Zeros are written around the tensor first, where they count."""
    divisor = divisor_override
    if ceil_mode or (any(padding) and not count_include_pad and divisor is None):
        call = externs.extern(aten.avg_pool2d.default)
        return call(x, kernel, stride, padding, ceil_mode, count_include_pad, divisor)
    pool = lowerings[aten.avg_pool2d.default]
    return pool(_padded(x, padding, 0.0), kernel, stride, [0, 0], False, True, divisor)


def _pair(value: Sequence[int]) -> list[int]:
    return [*value] * 2 if len(value) == 1 else [*value]


def _padded(x: ir.TensorBox, padding: Sequence[int], value: float) -> ir.TensorBox:
    """Padded by these lengths on both sides of the last two dimensions."""
    rows, columns = _pair(padding)
    return _lower_pad(x, [columns, columns, rows, rows], value) if rows or columns else x


# ---- Native operations of the card --------------------------------------------------------------


# Pointwise operations that the card has and Inductor's loop language has not.
NATIVE = ("gelu", "gelu_tanh", "silu")


def _native(name: str) -> Callable[[ir.TensorBox], Any]:
    def lower(x: ir.TensorBox) -> Any:
        load = x.make_loader()

        def inner(index: Sequence[sympy.Expr]) -> Any:
            return getattr(ops, f"spyre_{name}")(load(index))

        return ir.Pointwise.create(
            device=x.get_device(),
            dtype=x.get_dtype(),
            inner_fn=inner,
            ranges=list(x.get_size()),
        )

    return lower


@_spyre_lowering(aten.gelu.default)
def _lower_gelu(x: ir.TensorBox, approximate: str = "none") -> Any:
    return _native("gelu_tanh" if approximate == "tanh" else "gelu")(x)


_spyre_lowering(aten.silu.default)(_native("silu"))


@_spyre_lowering(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _lower_integer_pow(base: Any, exponent: ir.TensorBox) -> Any:
    """Inductor has no loop for powers of integers; the card has an operation."""
    dtype = V.graph.current_node.meta["val"].dtype
    if dtype.is_floating_point or not isinstance(base, ir.TensorBox):
        return None
    convert = lowerings[torch.ops.prims.convert_element_type]
    operands = [convert(operand, dtype) for operand in (base, exponent)]
    a, b = (operand.make_loader() for operand in lowerings[aten.broadcast_tensors](*operands))
    return ir.Pointwise.create(
        device=exponent.get_device(),
        dtype=dtype,
        inner_fn=lambda index: ops.pow(a(index), b(index)),
        ranges=list(V.graph.current_node.meta["val"].shape),
    )
