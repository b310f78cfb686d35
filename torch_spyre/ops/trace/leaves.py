"""Operations that the card does: copies, new tensors, reductions, products of matrices.

A leaf is called with the tracer, the aten overload and its arguments, as the dispatcher has them.
Called plainly (`func(...)`) the overload gives tensors of the right size and dtype to write to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from torch_spyre._inductor.graph import Index as LoopIndex
from torch_spyre._inductor.graph import Op, Read
from torch_spyre.ops.formats import Kind, kind_of, matmul_opcode
from torch_spyre.ops.plan import UnsupportedError
from torch_spyre.ops.trace.tracer import Leaf, Tracer
from torch_spyre.ops.views import View, float_constant, int_constant

LEAVES: dict[str, Leaf] = {}

Dims = Sequence[int] | int | None


def leaf(*names: str) -> Callable[[Leaf], Leaf]:
    """Register a leaf for overloads ("aten::sum.dim_IntList")."""

    def register(function: Leaf) -> Leaf:
        for name in names:
            LEAVES[name] = function
        return function

    return register


# ---- Copies -------------------------------------------------------------------------------------


@leaf("aten::_to_copy", "aten::clone", "aten::copy")
def copied(tracer: Tracer, func: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    source = args[1] if func.name() == "aten::copy" else args[0]
    if "device" in kwargs and func.name() == "aten::_to_copy":
        kwargs = {**kwargs, "device": torch.device("meta")}
    result: torch.Tensor = func(*args, **kwargs)
    return tracer.convert(source, result)


@leaf("aten::copy_")
def copied_into(tracer: Tracer, func: Any, to: torch.Tensor, source: torch.Tensor, *_: Any) -> Any:
    with tracer:
        tracer.overwrite(to, source)
    return to


@leaf("aten::cat")
def joined(
    tracer: Tracer, func: Any, tensors: Sequence[torch.Tensor], dim: int = 0
) -> torch.Tensor:
    """Parts write their slices of one tensor."""
    result: torch.Tensor = func(tensors, dim)
    if result.numel() == 0:
        return result
    tracer.result(result)
    start = 0
    for part in tensors:
        if part.dim() != result.dim():  # PyTorch leaves out one-dimensional tensors of no elements
            continue
        length = part.shape[dim]
        if part.numel():
            into = tracer.view(result.narrow(dim, start, length))
            tracer.compute({}, into).convert(tracer.view(part), into)
        start += length
    return result


@leaf("aten::flip")
def reversed_(tracer: Tracer, func: Any, tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Walked backwards."""
    result: torch.Tensor = func(tensor, dims)
    view = tracer.view(tensor)
    turned = {dim % max(tensor.dim(), 1) for dim in dims}
    offset = view.offset
    stride = list(view.stride)
    for dim in turned if tensor.dim() else ():
        offset += (view.size[dim] - 1) * stride[dim]
        stride[dim] = -stride[dim]
    into = tracer.result(result)
    if result.numel():
        backwards = replace(view, offset=offset, stride=tuple(stride))
        tracer.compute({}, into).convert(backwards, into)
    return result


# ---- New tensors --------------------------------------------------------------------------------


@leaf("aten::full", "aten::full_like", "aten::new_full")
def filled(tracer: Tracer, func: Any, like: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    result: torch.Tensor = func(like, *args, **kwargs)
    value = args[1] if func.name() == "aten::new_full" else args[0]
    return tracer.fill(result, _plain(value))


@leaf("aten::scalar_tensor")
def scalar(tracer: Tracer, func: Any, value: Any, **kwargs: Any) -> torch.Tensor:
    return tracer.fill(func(value, **kwargs), _plain(value))


@leaf(
    *(f"aten::{name}{like}" for name in ("zeros", "ones") for like in ("", "_like")),
    "aten::new_zeros",
    "aten::new_ones",
)
def zeros_or_ones(tracer: Tracer, func: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    return tracer.fill(func(*args, **kwargs), 1 if "ones" in func.name() else 0)


@leaf("aten::arange", "aten::arange.start", "aten::arange.start_step")
def counted(tracer: Tracer, func: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    result: torch.Tensor = func(*args, **kwargs)
    start = args[0] if len(args) > 1 else 0
    step = args[2] if len(args) > 2 else 1
    whole = isinstance(start, int) and isinstance(step, int)
    if result.numel() == 0:
        return result
    if not whole:
        with tracer:
            return torch.arange(result.numel(), device="meta", dtype=result.dtype) * step + start
    counts = (
        result
        if result.dtype in (torch.int32, torch.int64)
        else tracer.new(result.shape, torch.int32)
    )
    into = tracer.result(counts)
    count_into(tracer, into, start, step)
    return result if counts is result else tracer.convert(counts, result)


def count_into(tracer: Tracer, into: View, start: int, step: int) -> None:
    """start, start + step, ... along the one dimension of a new tensor."""
    (length,) = into.size
    extents = (length,) if length > 1 else ()
    strides = (step,) if length > 1 else ()
    buffer = tracer.emitter.buffer(into.source)
    segment = tracer.emitter.segment
    if not extents:
        tracer.compute({}, into).convert(int_constant(start), into, torch.int32)
        return
    tracer.graph.ops.append(
        Op(
            "identity_int",
            "pointwise",
            extents,
            [LoopIndex(start, strides)],
            Read(buffer, into.offset, into.stride),
            node=str(segment),
            kernel=segment,
        )
    )


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            raise UnsupportedError("a fill value that is known on the card only")
        value = value.item()
    if isinstance(value, complex):
        raise UnsupportedError("a complex number")
    return value


# ---- Reductions ---------------------------------------------------------------------------------


def reduced_dims(tensor: torch.Tensor, dims: Dims) -> tuple[int, ...]:
    """The dimensions that a reduction goes over; all of them if none are given."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return tuple(range(tensor.dim()))
    listed = [dims] if isinstance(dims, int) else list(dims)
    return tuple(sorted({dim % max(tensor.dim(), 1) for dim in listed if tensor.dim()}))


def reduce(
    tracer: Tracer,
    opcode: str,
    source: torch.Tensor,
    dims: Sequence[int],
    into: torch.Tensor,
    neutral: float,
) -> torch.Tensor:
    """Accumulate `dims` of a tensor into one that has them of size 1, or lacks them."""
    if source.numel() == 0:
        return tracer.fill(into, neutral)
    if all(source.shape[dim] == 1 for dim in dims):
        if opcode == "sum_squares":
            with tracer:
                source = source * source
        return tracer.convert(source.reshape(into.shape), into)
    operand = tracer.view(source)
    squared = tracer.emitter.squared(operand) if opcode == "sum" else None
    if squared is not None:
        # As the compiler does: the square is taken on the way in, without a rounding.
        opcode, operand = "sum_squares", squared
    output = tracer.result(into)
    size, stride = [], []
    kept = iter(output.stride)
    has_ones = len(output.size) == source.dim()
    for dim in range(source.dim()):
        is_reduced = dim in dims
        own = next(kept) if has_ones or not is_reduced else 0
        size.append(source.shape[dim])
        stride.append(0 if is_reduced else own)
    over = View(
        output.source, output.storage, tuple(size), tuple(stride), output.offset, output.dtype
    )
    tracer.emitter.emit(opcode, "reduction", tuple(source.shape), [operand], over, tuple(dims))
    return into


def _with_kind(tracer: Tracer, tensor: torch.Tensor) -> tuple[torch.Tensor, str]:
    """The tensor as a reduction takes it, and the suffix of the card's operation."""
    if kind_of(tensor.dtype) is Kind.FLOAT:
        return tensor, ""
    return tracer.as_dtype(tensor, torch.int32), "_int"


@leaf("aten::sum", "aten::sum.dim_IntList")
def summed(
    tracer: Tracer, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    result: torch.Tensor = func(tensor, *args, **kwargs)
    dims = reduced_dims(tensor, args[0] if args else kwargs.get("dim"))
    return sum_into(tracer, tensor, dims, result)


def sum_into(
    tracer: Tracer, tensor: torch.Tensor, dims: Sequence[int], result: torch.Tensor
) -> torch.Tensor:
    is_float = kind_of(result.dtype) is Kind.FLOAT
    if is_float and kind_of(tensor.dtype) is Kind.INT:
        tensor = tracer.as_dtype(tensor, torch.float32)
    if not is_float:
        tensor = tracer.as_dtype(tensor, torch.int32)
    if kind_of(result.dtype) is Kind.BOOL or result.dtype is torch.uint8:
        wide = tracer.new(result.shape, torch.int32)
        return tracer.convert(reduce(tracer, "sum_int", tensor, dims, wide, 0), result)
    return reduce(tracer, "sum" if is_float else "sum_int", tensor, dims, result, 0)


@leaf("aten::mean", "aten::mean.dim")
def averaged(
    tracer: Tracer, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    result: torch.Tensor = func(tensor, *args, **kwargs)
    dims = reduced_dims(tensor, args[0] if args else kwargs.get("dim"))
    count = 1
    for dim in dims:
        count *= tensor.shape[dim]
    # As the compiler writes it: one sum in fp32, one division.
    total = sum_into(tracer, tensor, dims, tracer.new(result.shape, torch.float32))
    into = tracer.result(result)
    tracer.emitter.apply("div", [tracer.view(total), float_constant(float(count))], into)
    return result


@leaf("aten::prod", "aten::prod.dim_int")
def multiplied(
    tracer: Tracer, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    result: torch.Tensor = func(tensor, *args, **kwargs)
    dims = reduced_dims(tensor, args[0] if args else kwargs.get("dim"))
    if kind_of(result.dtype) is Kind.FLOAT:
        if kind_of(tensor.dtype) is Kind.INT:
            tensor = tracer.as_dtype(tensor, torch.float32)
        return reduce(tracer, "prod", tensor, dims, result, 1)
    tensor = tracer.as_dtype(tensor, torch.int32)
    wide = tracer.new(result.shape, torch.int32)
    return tracer.convert(reduce(tracer, "prod_int", tensor, dims, wide, 1), result)


@leaf("aten::amax", "aten::amin")
def extreme(
    tracer: Tracer, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    result: torch.Tensor = func(tensor, *args, **kwargs)
    dims = reduced_dims(tensor, args[0] if args else kwargs.get("dim"))
    opcode = func.name().removeprefix("aten::")
    if kind_of(tensor.dtype) is not Kind.INT:  # truth values are floats
        return reduce(tracer, opcode, tensor, dims, result, 0)
    return reduce(tracer, f"{opcode}_int", tensor, dims, result, 0)


@leaf(*(f"aten::{name}{overload}" for name in ("any", "all") for overload in ("", ".dim", ".dims")))
def quantified(
    tracer: Tracer, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    result: torch.Tensor = func(tensor, *args, **kwargs)
    dims = reduced_dims(tensor, args[0] if args else kwargs.get("dim"))
    is_any = func.name().startswith("aten::any")
    truth = tracer.as_dtype(tensor, torch.bool)
    # PyTorch answers for bytes in bytes.
    into = result if result.dtype is torch.bool else tracer.new(result.shape, torch.bool)
    reduce(tracer, "amax" if is_any else "amin", truth, dims, into, 0 if is_any else 1)
    return result if into is result else tracer.convert(into, result)


# ---- Products of matrices -----------------------------------------------------------------------


@leaf("aten::mm", "aten::bmm", "spyre::bmm_to_float")
def product(
    tracer: Tracer, func: Any, left: torch.Tensor, right: torch.Tensor, *dtype: Any
) -> torch.Tensor:
    result: torch.Tensor = func(left, right, *dtype)
    return matmul_into(tracer, left, right, result)


@leaf("aten::_int_mm")
def int_product(tracer: Tracer, func: Any, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Products of bytes add up in int32."""
    result: torch.Tensor = func(left, right)
    return matmul_into(tracer, left, right, result)


# Sums of so many products of bytes are exact in fp32.
_EXACT_DEPTH = {torch.int8: 1024, torch.uint8: 256, torch.bool: 1 << 24}
# Products that may lie in memory before they are added up.
_MOST_PRODUCTS = 1 << 26


def _integer_product(
    tracer: Tracer, left: torch.Tensor, right: torch.Tensor, result: torch.Tensor
) -> torch.Tensor:
    """The matrix units multiply floats: bytes are exact there, other integers go one by one."""
    depth = left.shape[-1]
    step = min(_EXACT_DEPTH.get(dtype, 0) for dtype in (left.dtype, right.dtype))
    if not step:
        if result.numel() * depth > _MOST_PRODUCTS:
            raise UnsupportedError("a product of integer matrices of this size")
        with tracer:
            terms = left.unsqueeze(-1) * right.unsqueeze(-3)
        return sum_into(tracer, terms, (terms.dim() - 2,), result)
    total: torch.Tensor | None = None
    for start in range(0, depth, step):
        length = min(step, depth - start)
        parts = left.narrow(-1, start, length), right.narrow(-2, start, length)
        a, b = (tracer.as_dtype(part, torch.float16) for part in parts)
        exact = matmul_into(tracer, a, b, tracer.new(result.shape, torch.float32))
        part = tracer.as_dtype(exact, torch.int32)
        with tracer:
            total = part if total is None else total + part
    assert total is not None
    return tracer.convert(total, result)


def matmul_into(
    tracer: Tracer, left: torch.Tensor, right: torch.Tensor, result: torch.Tensor
) -> torch.Tensor:
    """[b] m k times [b] k n."""
    if left.shape[-1] == 0 or result.numel() == 0:
        return tracer.fill(result, 0) if result.numel() else result
    if kind_of(left.dtype) is not Kind.FLOAT:
        return _integer_product(tracer, left, right, result)
    if left.shape[-1] == 1:
        if kind_of(right.dtype) is not Kind.FLOAT:
            right = tracer.as_dtype(right, torch.float16)
        tracer.emitter.apply("mul", [tracer.view(left), tracer.view(right)], tracer.result(result))
        return result
    rows, depth = left.shape[-2:]
    columns = right.shape[-1]
    batch = tuple(result.shape[:-2])
    extents = (*batch, rows, columns, depth)
    a, b, c = tracer.view(left), tracer.view(right), tracer.result(result)

    def over(view: View, *own: int) -> View:
        strides = (*view.stride[:-2], *own)
        return View(view.source, view.storage, extents, strides, view.offset, view.dtype)

    tracer.emitter.emit(
        matmul_opcode(right.dtype),
        "matmul",
        extents,
        [over(a, a.stride[-2], 0, a.stride[-1]), over(b, 0, b.stride[-1], b.stride[-2])],
        over(c, c.stride[-2], c.stride[-1], 0),
        (len(extents) - 1,),
    )
    return result
