"""Elements in order of their size, and sums and extremes of all those before them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_spyre.ops.emitter import Emitter
from torch_spyre.ops.formats import Kind, kind_of
from torch_spyre.ops.plan import UnsupportedError
from torch_spyre.ops.trace.decompositions import decomposition
from torch_spyre.ops.trace.indexing import inside
from torch_spyre.ops.trace.leaves import leaf, reduced_dims
from torch_spyre.ops.trace.tracer import Tracer
from torch_spyre.ops.views import View

Tensor = torch.Tensor
ViewOf = Callable[[Tensor], View]


# ---- Among sorted numbers -----------------------------------------------------------------------

# A place is found by comparing with all of them, while that is not too many comparisons.
_MOST_COMPARISONS = 1 << 22


@decomposition("aten::searchsorted.Tensor", "aten::searchsorted.Scalar")
def searchsorted(
    numbers: Tensor,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    if not isinstance(x, Tensor):
        x = torch.full((), x, dtype=numbers.dtype, device=numbers.device)
    if sorter is not None:
        numbers = numbers.gather(-1, sorter)
    if x.numel() * numbers.shape[-1] > _MOST_COMPARISONS:
        raise UnsupportedError("too many numbers to compare with all of them")
    if numbers.dim() > 1:
        numbers = numbers.unsqueeze(-2)
    each = x.unsqueeze(-1)
    is_right = right or side == "right"
    # Not greater, rather than less: NaN is behind everything.
    is_before = torch.logical_not(numbers > each if is_right else numbers >= each)
    return is_before.to(torch.int32).sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


@decomposition("aten::bucketize.Tensor")
def bucketize(
    x: Tensor, numbers: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    if numbers.dim() != 1:
        raise UnsupportedError("boundaries that are no list")  # the CPU says so
    return searchsorted(numbers, x, out_int32=out_int32, right=right)


# ---- Extremes and where they are ----------------------------------------------------------------


@decomposition("aten::max")
def max_all(x: Tensor) -> Tensor:
    return x.amax()


@decomposition("aten::min")
def min_all(x: Tensor) -> Tensor:
    return x.amin()


@decomposition("aten::aminmax")
def aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    dims = reduced_dims(x, dim)
    return x.amin(dims, keepdim=keepdim), x.amax(dims, keepdim=keepdim)


# ---- Order --------------------------------------------------------------------------------------


def argsorted(tracer: Tracer, x: Tensor, dim: int, descending: bool) -> Tensor:
    order = tracer.new(x.shape, torch.int64)
    if x.dim() == 0 or x.numel() == 0:
        return tracer.fill(order, 0) if x.numel() else order
    source = x if x.dtype is not torch.bool else tracer.as_dtype(x, torch.int32)

    def steps(emitter: Emitter, view: ViewOf) -> None:
        emitter.argsort(view(source), view(order), dim % x.dim(), descending)

    tracer.write_directly([source], [order], steps)
    return inside(order)


@leaf("aten::sort.stable", "aten::sort")
def sort(tracer: Tracer, func: Any, x: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    dim = options.get("dim", args[0] if args and "stable" not in func.name() else -1)
    descending = options.get("descending", args[1] if len(args) > 1 else False)
    order = argsorted(tracer, x, dim, descending)
    if x.dim() == 0:
        return tracer.convert(x, tracer.new((), x.dtype)), order
    with tracer:
        return torch.ops.aten.gather(x, dim, order), order


@decomposition("aten::argsort.stable", "aten::argsort")
def argsort(x: Tensor, *args: Any, **options: Any) -> Tensor:
    options.pop("stable", None)
    names = ("dim", "descending")
    options.update(zip(names, args, strict=False))
    found = torch.ops.aten.sort.stable(x, stable=True, **options)
    return found[1]


@decomposition("aten::topk")
def topk(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    values, order = torch.ops.aten.sort.stable(x, stable=True, dim=dim, descending=largest)
    if x.dim() == 0:
        return values, order
    return values.narrow(dim, 0, k).clone(), order.narrow(dim, 0, k).clone()


@decomposition("aten::kthvalue")
def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    values, order = torch.ops.aten.sort.stable(x, stable=True, dim=dim)
    if x.dim() == 0:
        return values, order
    values, order = values.narrow(dim, k - 1, 1).clone(), order.narrow(dim, k - 1, 1).clone()
    return (values, order) if keepdim else (values.squeeze(dim), order.squeeze(dim))


def _middle(x: Tensor, dim: int, keepdim: bool, ignores_nan: bool) -> tuple[Tensor, Tensor]:
    """The lower of the middle elements; NaN if there is one, unless it is ignored."""
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    n = x.shape[dim]
    values, order = torch.ops.aten.sort.stable(x, stable=True, dim=dim)
    if not x.dtype.is_floating_point:
        place = None
    else:
        nans = (values != values).to(torch.int64).sum(dim, keepdim=True)
        if ignores_nan:
            place = torch.div((n - nans - 1).clamp(min=0), 2, rounding_mode="floor")
        else:
            place = torch.where(nans > 0, n - nans, (n - 1) // 2)
    if place is None:
        values, order = (t.narrow(dim, (n - 1) // 2, 1).clone() for t in (values, order))
    else:
        values, order = (torch.ops.aten.gather(t, dim, place) for t in (values, order))
    return (values, order) if keepdim else (values.squeeze(dim), order.squeeze(dim))


def _register_middle(name: str, ignores_nan: bool) -> None:
    @decomposition(f"aten::{name}.dim")
    def along(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        return _middle(x, dim, keepdim, ignores_nan)

    @decomposition(f"aten::{name}")
    def of_all(x: Tensor) -> Tensor:
        return _middle(x.reshape(-1), 0, False, ignores_nan)[0]


_register_middle("median", ignores_nan=False)
_register_middle("nanmedian", ignores_nan=True)


@decomposition("aten::histc")
def histc(x: Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Tensor:
    flat = x.reshape(-1).to(torch.float32)
    low: Any = min
    high: Any = max
    if min == max and flat.numel():
        low, high = flat.amin(), flat.amax()
        is_point = low == high
        low, high = torch.where(is_point, low - 1, low), torch.where(is_point, high + 1, high)
    is_inside = (flat >= low) & (flat <= high)
    place = ((flat - low) / (high - low) * bins).to(torch.int32)
    place = torch.where(is_inside, place.clamp(min=0, max=bins - 1), bins)
    counts = torch.zeros(bins + 1, dtype=torch.float32, device=x.device)
    ones = torch.ones(flat.shape, dtype=torch.float32, device=x.device)
    return counts.scatter_add(0, place.to(torch.int64), ones).narrow(0, 0, bins).to(x.dtype)


# ---- One after the other ------------------------------------------------------------------------


def scanned(tracer: Tracer, opcode: str, x: Tensor, dim: int, result: Tensor) -> Tensor:
    if x.numel() == 0:
        return result
    if x.dim() == 0:
        return tracer.convert(x, result) if "index" not in opcode else tracer.fill(result, 0)

    def steps(emitter: Emitter, view: ViewOf) -> None:
        emitter.scan(opcode, view(x), view(result), dim % x.dim())

    tracer.write_directly([x], [result], steps)
    return result


@leaf("aten::cumsum", "aten::cumprod")
def cumulate(tracer: Tracer, func: Any, x: Tensor, dim: int, **options: Any) -> Tensor:
    result: Tensor = func(x, dim, **options)
    opcode = func.name().removeprefix("aten::")
    if kind_of(result.dtype) is Kind.FLOAT:
        if kind_of(x.dtype) is not Kind.FLOAT:
            x = tracer.as_dtype(x, torch.float32)
        return scanned(tracer, opcode, x, dim, result)
    x = tracer.as_dtype(x, torch.int32)
    wide = scanned(tracer, f"{opcode}_int", x, dim, tracer.new(x.shape, torch.int32))
    return tracer.convert(wide, result) if x.numel() else result


@leaf("aten::logcumsumexp")
def logcumsumexp(tracer: Tracer, func: Any, x: Tensor, dim: int) -> Tensor:
    return scanned(tracer, "logcumsumexp", x, dim, func(x, dim))


@leaf("aten::cummax", "aten::cummin")
def running_extreme(tracer: Tracer, func: Any, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    opcode = func.name().removeprefix("aten::") + "_index"
    source = x
    if kind_of(x.dtype) is not Kind.FLOAT:
        source = tracer.as_dtype(x, torch.int32)
        opcode += "_int"
    order = inside(scanned(tracer, opcode, source, dim, tracer.new(x.shape, torch.int64)))
    if x.dim() == 0 or x.numel() == 0:
        return (tracer.convert(x, tracer.new(x.shape, x.dtype)) if x.numel() else x), order
    with tracer:
        return torch.ops.aten.gather(x, dim, order), order
