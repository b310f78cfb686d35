"""Elements that go where an index says, in order of their size, or after all those before them.

Where an index names whole rows (`index_select`, `embedding`) the compiler's gather reads sticks.
Everything else is a direct step of the card, on tensors that lie in memory element after element:
what is indexed is copied to such a one first, and several indices are one number, counted through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from torch_spyre.ops import generated
from torch_spyre.ops.compute import Computation
from torch_spyre.ops.emitter import Emitter
from torch_spyre.ops.formats import Kind, kind_of
from torch_spyre.ops.plan import ScalarMeta, UnsupportedError
from torch_spyre.ops.trace.decompositions import decomposition
from torch_spyre.ops.trace.leaves import leaf, reduced_dims
from torch_spyre.ops.trace.tracer import Tracer
from torch_spyre.ops.views import View

Tensor = torch.Tensor
ViewOf = Callable[[Tensor], View]

_INT32_END = 2**31 - 1


# ---- Rows of a table ----------------------------------------------------------------------------


def gather_rows(tracer: Tracer, table: Tensor, dim: int, index: Tensor) -> Tensor:
    """table[..., index, ...]: the dimensions of the index take the place of `dim`."""
    before, after = table.shape[:dim], table.shape[dim + 1 :]
    result = tracer.new([*before, *index.shape, *after], table.dtype)
    if result.numel() == 0:
        return result
    if not any(n > 1 for n in (*before, *after)):  # rows of one element
        place = _place(tracer, (table.shape[dim],), [index], index.shape)
        return _gather_elements(tracer, table, place.view(result.shape), result)
    if not tracer.may_gather_rows:
        made, shape = _expanded_indices(tracer, table, [None] * dim + [index])
        return _gather_elements(tracer, table, _place(tracer, table.shape, made, shape), result)
    tracer.gathers_rows = True
    if index.dtype not in (torch.int32, torch.int64):
        index = tracer.as_dtype(index, torch.int32)
    t, i, into = tracer.view(table), tracer.view(index), tracer.result(result)
    extents = into.size
    rank, own = len(extents), len(index.shape)

    def over(view: View, stride: Sequence[int]) -> View:
        return View(view.source, view.storage, extents, tuple(stride), view.offset, view.dtype)

    tracer.emitter.emit(
        "gather_int" if kind_of(table.dtype) is Kind.INT else "gather",
        "gather",
        extents,
        [
            over(t, [*t.stride[:dim], *[0] * own, *t.stride[dim + 1 :]]),
            over(i, [*[0] * dim, *i.stride, *[0] * (rank - dim - own)]),
        ],
        into,
        rows=table.shape[dim],
        gathered=t.stride[dim],
    )
    return result


@leaf("aten::index_select")
def index_select(tracer: Tracer, func: Any, x: Tensor, dim: int, index: Tensor) -> Tensor:
    func(x, dim, index)  # PyTorch's own checks
    if x.dim() == 0:
        return tracer.convert(x, tracer.new((), x.dtype))
    dim %= x.dim()
    return gather_rows(tracer, x, dim, index.reshape(-1))


@leaf("aten::embedding")
def embedding(tracer: Tracer, func: Any, weight: Tensor, index: Tensor, *_: Any, **__: Any) -> Any:
    return gather_rows(tracer, weight, 0, index)


# ---- Elements -----------------------------------------------------------------------------------


def _flat(tracer: Tracer, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A copy whose elements follow each other."""
    flat = tracer.new((max(x.numel(), 1),), dtype or x.dtype)
    shaped = flat.view(x.shape) if x.numel() else flat
    tracer.result(flat)
    if x.numel():
        into = tracer.view(shaped)
        tracer.compute({}, into).convert(tracer.view(x), into)
    return flat


def _gather_elements(tracer: Tracer, x: Tensor, place: Tensor, result: Tensor) -> Tensor:
    """result = flat x [place]; -1 is outside."""
    table = _flat(tracer, x)

    def steps(emitter: Emitter, view: ViewOf) -> None:
        emitter.gather_elements(view(table), view(place), view(result))

    tracer.write_directly([table, place], [result], steps)
    return result


def _place(
    tracer: Tracer, size: Sequence[int], indices: Sequence[Tensor], shape: Sequence[int]
) -> Tensor:
    """Where in a dense tensor of this size the elements are that indices name, one per dimension,
    each broadcast to `shape`. Outside of the tensor: -1."""
    with tracer:
        place: Tensor | None = None
        is_inside: Tensor | None = None
        step = prod(size)
        for n, index in zip(size, indices, strict=True):
            step //= n
            part = index
            if not getattr(index, _IS_INSIDE, False):
                part = part.to(torch.int32)
                fits = (part >= -n) & (part < n)
                is_inside = fits if is_inside is None else is_inside & fits
                part = torch.where(part < 0, part + n, part)
            if step != 1:
                part = part * step
            place = part if place is None else place + part
        assert place is not None
        if is_inside is not None:
            place = torch.where(is_inside, place, -1)
        return place.to(torch.int32).expand(tuple(shape)).contiguous()


_IS_INSIDE = "spyre_is_inside"  # an attribute of indices of our own making


def inside(index: Tensor) -> Tensor:
    """Note that an index is known to be in range."""
    setattr(index, _IS_INSIDE, True)
    return index


def _along(tracer: Tracer, shape: Sequence[int], dim: int) -> Tensor:
    """The coordinate along a dimension, as a tensor of that shape's rank."""
    with tracer:
        view = [1] * len(shape)
        view[dim] = shape[dim]
        return inside(torch.arange(shape[dim], device="meta", dtype=torch.int32).view(view))


@leaf("aten::gather")
def gather(tracer: Tracer, func: Any, x: Tensor, dim: int, index: Tensor, **options: Any) -> Tensor:
    result: Tensor = func(x, dim, index, **options)
    if result.numel() == 0:
        return result
    shape = index.shape or (1,)
    place = _place(tracer, x.shape or (1,), _coordinates(tracer, x, dim, index), shape)
    return _gather_elements(tracer, x, place.view(result.shape), result)


def _coordinates(tracer: Tracer, x: Tensor, dim: int, index: Tensor) -> list[Tensor]:
    if x.dim() == 0:
        return [index.reshape(1)]
    dim %= x.dim()
    return [index if d == dim else _along(tracer, index.shape, d) for d in range(max(x.dim(), 1))]


@leaf("aten::take")
def take(tracer: Tracer, func: Any, x: Tensor, index: Tensor) -> Tensor:
    result: Tensor = func(x, index)
    if result.numel() == 0:
        return result
    place = _place(tracer, (x.numel(),), [index], index.shape)
    return _gather_elements(tracer, x, place, result)


def _expanded_indices(
    tracer: Tracer, x: Tensor, indices: Sequence[Tensor | None]
) -> tuple[list[Tensor], list[int]]:
    """An index for every dimension, shaped so that they broadcast to the result, and its shape."""
    if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        raise UnsupportedError("an index of truth values: how many are true is not known before")
    given = [*indices, *[None] * (x.dim() - len(indices))]
    tensors = [i for i in given if i is not None]
    common = list(torch.broadcast_shapes(*(i.shape for i in tensors)))
    positions = [d for d, i in enumerate(given) if i is not None]
    is_adjacent = positions == list(range(positions[0], positions[-1] + 1))
    at = positions[0] if is_adjacent else 0
    free = [d for d, i in enumerate(given) if i is None]
    before = [d for d in free if is_adjacent and d < at]
    behind = [d for d in free if d not in before]
    shape = [*(x.shape[d] for d in before), *common, *(x.shape[d] for d in behind)]
    made: list[Tensor] = []
    for d, index in enumerate(given):
        if index is not None:
            made.append(index.reshape(list(index.shape) + [1] * len(behind)))
            continue
        order = before.index(d) if d in before else len(before) + len(common) + behind.index(d)
        made.append(_along(tracer, shape, order))
    return made, shape


@leaf("aten::index.Tensor", "aten::_unsafe_index.Tensor")
def index(tracer: Tracer, func: Any, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    named = [d for d, i in enumerate(indices) if i is not None]
    is_plain = all(i is None or i.dtype not in (torch.bool, torch.uint8) for i in indices)
    if is_plain and len(named) == 1 and x.numel():
        (dim,) = named
        own = indices[dim]
        assert own is not None
        n = x.shape[dim]
        with tracer:
            wrapped = torch.where(own < 0, own + n, own)
        return gather_rows(tracer, x, dim, wrapped)
    made, shape = _expanded_indices(tracer, x, indices)
    result = tracer.new(shape, x.dtype)
    if result.numel() == 0:
        return result
    return _gather_elements(tracer, x, _place(tracer, x.shape, made, shape), result)


# ---- Scattering ---------------------------------------------------------------------------------


def _scatter(tracer: Tracer, opcode: str, x: Tensor, place: Tensor, source: Tensor) -> Tensor:
    """x with elements of the source put, or accumulated, where `place` says."""
    is_int = kind_of(x.dtype) is Kind.INT
    wide = x.dtype if opcode == "scatter" else torch.int32 if is_int else torch.float32
    if opcode != "scatter" and kind_of(x.dtype) is Kind.BOOL:
        wide = torch.float32
    table = _flat(tracer, x, wide)
    if place.numel():
        if source.dtype is not wide:
            source = tracer.as_dtype(source, wide)
        name = f"{opcode}_int" if is_int else opcode

        def steps(emitter: Emitter, view: ViewOf) -> None:
            emitter.scatter_elements(name, view(source), view(place), view(table))

        tracer.write_directly([source, place], [table], steps)
    result = tracer.new(x.shape, x.dtype)
    if x.numel() == 0:
        return result
    return tracer.convert(table.view(x.shape), result)


_REDUCTIONS = {
    "sum": "scatter_add",
    "add": "scatter_add",
    "prod": "scatter_prod",
    "multiply": "scatter_prod",
    "amax": "scatter_amax",
    "amin": "scatter_amin",
}


def _scattered(
    tracer: Tracer, opcode: str, x: Tensor, dim: int, index: Tensor, source: Tensor
) -> Tensor:
    if index.numel() == 0:
        return tracer.convert(x, tracer.new(x.shape, x.dtype))
    shape = index.shape or (1,)
    place = _place(tracer, x.shape or (1,), _coordinates(tracer, x, dim, index), shape)
    if source.dim():
        source = source[tuple(slice(0, n) for n in index.shape)] if index.dim() else source
    return _scatter(tracer, opcode, x, place.view(index.shape), source.expand(index.shape))


@leaf("aten::scatter.src", "aten::scatter_add", "aten::scatter.reduce")
def scatter_source(
    tracer: Tracer, func: Any, x: Tensor, dim: int, index: Tensor, src: Tensor, **options: Any
) -> Tensor:
    func(x, dim, index, src, **options)
    opcode = "scatter_add" if func.name() == "aten::scatter_add" else "scatter"
    return _scattered(
        tracer, _REDUCTIONS.get(options.get("reduce", ""), opcode), x, dim, index, src
    )


@leaf("aten::scatter.value", "aten::scatter.value_reduce")
def scatter_value(
    tracer: Tracer, func: Any, x: Tensor, dim: int, index: Tensor, value: Any, **options: Any
) -> Tensor:
    func(x, dim, index, value, **options)
    source = tracer.fill(tracer.new((), x.dtype), value)
    return _scattered(
        tracer, _REDUCTIONS.get(options.get("reduce", ""), "scatter"), x, dim, index, source
    )


@leaf("aten::scatter_reduce.two")
def scatter_reduce(
    tracer: Tracer,
    func: Any,
    x: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    func(x, dim, index, src, reduce, include_self=include_self)
    with tracer:
        ones = torch.ones_like(src, dtype=torch.float32)
        zeros = torch.zeros_like(x, dtype=torch.float32)
    counts = _scattered(tracer, "scatter_add", zeros, dim, index, ones)
    start = x
    if not include_self:
        neutral: float | None = {"sum": 0, "mean": 0, "prod": 1}.get(reduce)
        if neutral is None:
            is_max = reduce == "amax"
            if x.dtype.is_floating_point:
                neutral = float("-inf") if is_max else float("inf")
            elif x.dtype is torch.bool:
                neutral = int(not is_max)
            else:
                info = torch.iinfo(torch.int32 if x.dtype is torch.int64 else x.dtype)
                neutral = info.min if is_max else info.max
        with tracer:
            if x.dtype.is_floating_point:  # 16 bits can't hold an infinite start
                start = x.to(torch.float32)
            start = torch.where(counts > 0, torch.full_like(start, neutral), start)
    opcode = "scatter_add" if reduce == "mean" else _REDUCTIONS[reduce]
    result = _scattered(tracer, opcode, start, dim, index, src)
    if reduce != "mean":
        return tracer.as_dtype(result, x.dtype)
    with tracer:
        counts = (counts + int(include_self)).clamp(min=1)
        if x.dtype.is_floating_point:
            return (result / counts).to(x.dtype)
        return torch.div(result, counts.to(x.dtype), rounding_mode="floor")


@leaf(
    "aten::index_put",
    "aten::_unsafe_index_put",
    "aten::_index_put_impl",
)
def index_put(
    tracer: Tracer,
    func: Any,
    x: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Tensor:
    named = [i for i in indices if i is not None]
    if len(named) == 1 and named[0].dtype is torch.bool and values.numel() == 1 and not accumulate:
        mask = named[0]
        first = next(d for d, i in enumerate(indices) if i is not None)
        with tracer:
            shape = [1] * first + list(mask.shape) + [1] * (x.dim() - first - mask.dim())
            return torch.where(mask.view(shape), values.reshape(()).to(x.dtype), x)
    made, shape = _expanded_indices(tracer, x, indices)
    if prod(shape) == 0:
        return tracer.convert(x, tracer.new(x.shape, x.dtype))
    place = _place(tracer, x.shape, made, shape)
    opcode = "scatter_add" if accumulate else "scatter"
    return _scatter(tracer, opcode, x, place, values.expand(tuple(shape)))


@decomposition("aten::index_add")
def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    return _index_into(x, dim, index, source if alpha == 1 else source * alpha, accumulate=True)


@decomposition("aten::index_copy")
def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _index_into(x, dim, index, source, accumulate=False)


def _index_into(x: Tensor, dim: int, index: Tensor, source: Tensor, accumulate: bool) -> Tensor:
    if x.dim() == 0:
        put = _index_into(x.view(1), 0, index.view(-1), source.view(1), accumulate)
        return put.view(())
    dim %= x.dim()
    indices = [None] * dim + [index.reshape(-1)]
    source = source.to(x.dtype)
    if accumulate and not torch.can_cast(source.dtype, x.dtype):
        raise UnsupportedError("a source that can't be cast to what it is added to")
    # The index comes first in the result where it stands for the dimension in place.
    return torch.ops.aten.index_put(x, indices, source, accumulate)


@decomposition("aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor")
def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    if x.dim() == 0:
        return index_fill(x.view(1), 0, index.view(-1), value).view(())
    if not isinstance(value, Tensor):
        value = torch.full((), value, dtype=x.dtype, device=x.device)
    indices = [None] * (dim % x.dim()) + [index.reshape(-1)]
    return torch.ops.aten.index_put(x, indices, value.to(x.dtype))


@decomposition("aten::put")
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    flat = torch.ops.aten.index_put(
        x.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate
    )
    return flat.view(x.shape)


@decomposition("aten::index_reduce")
def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    if x.dim() == 0:
        found = index_reduce(
            x.view(1), 0, index.view(-1), source.view(-1), reduce, include_self=include_self
        )
        return found.view(())
    shape = [1] * x.dim()
    shape[dim] = index.numel()
    places = index.to(torch.int64).view(shape).expand(source.shape)
    return torch.ops.aten.scatter_reduce.two(
        x, dim, places, source, reduce, include_self=include_self
    )


@decomposition("aten::embedding_renorm")
def embedding_renorm(weight: Tensor, index: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Rows that an index names are shortened to `max_norm`."""
    flat = index.reshape(-1)
    ones = torch.ones(flat.shape, dtype=torch.float32, device=weight.device)
    named = torch.zeros(weight.shape[0], dtype=torch.float32, device=weight.device)
    named = torch.ops.aten.index_put(named, [flat], ones).unsqueeze(1)
    norm = torch.linalg.vector_norm(weight, norm_type, 1, keepdim=True, dtype=torch.float32)
    factor = torch.where((named > 0) & (norm > max_norm), max_norm / (norm + 1e-7), 1.0)
    return (weight * factor).to(weight.dtype)


@decomposition("aten::embedding_dense_backward")
def embedding_backward(
    grad: Tensor, index: Tensor, rows: int, padding_idx: int, scale_by_frequency: bool
) -> Tensor:
    flat = index.reshape(-1)
    grads = grad.reshape(flat.numel(), -1)
    if padding_idx >= 0:
        grads = torch.where((flat == padding_idx).unsqueeze(1), 0, grads)
    if scale_by_frequency:
        ones = torch.ones(flat.shape, dtype=torch.float32, device=grad.device)
        counts = torch.zeros(rows, dtype=torch.float32, device=grad.device)
        counts = torch.ops.aten.index_put(counts, [flat], ones, True)
        grads = (grads / counts[flat].unsqueeze(1)).to(grad.dtype)
    weight = torch.zeros((rows, grads.shape[1]), dtype=grad.dtype, device=grad.device)
    return torch.ops.aten.index_put(weight, [flat], grads, True)


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


@decomposition("aten::masked_scatter")
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    x, mask = torch.broadcast_tensors(x, mask)
    counts = mask.reshape(-1).to(torch.int32).cumsum(0) - 1
    place = torch.where(mask.reshape(-1), counts, 0)
    picked = source.reshape(-1).index_select(0, place).view(x.shape)
    return torch.where(mask, picked, x)


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


@decomposition("aten::randperm", "aten::randperm.generator")
def randperm(n: int, **options: Any) -> Tensor:
    options.pop("generator", None)
    options.pop("pin_memory", None)
    dtype = options.pop("dtype", None) or torch.int64
    keys = torch.empty(n, dtype=torch.int32, device="meta").random_()
    return torch.ops.aten.sort.stable(keys, stable=True)[1].to(dtype)


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


# ---- Random numbers -----------------------------------------------------------------------------


@leaf(
    "aten::uniform_",
    "aten::normal_",
    "aten::random_",
    "aten::random_.to",
    "aten::random_.from",
    "aten::bernoulli_.float",
)
def random(tracer: Tracer, func: Any, x: Tensor, *args: Any, **options: Any) -> Tensor:
    entry = func.name().removeprefix("aten::").partition(".")[0]
    names = [argument.name for argument in func._schema.arguments]
    defaults = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    given = {**defaults, **dict(zip(names[1:], args, strict=False)), **options}
    arguments = {
        name: ScalarMeta(torch.float64, -1, True, value)
        for name, value in given.items()
        if isinstance(value, int | float)
    }
    counter = tracer.random_numbers
    tracer.random_numbers += 1
    if x.numel() == 0:
        return x

    def steps(emitter: Emitter, view: ViewOf) -> None:
        generated.lower(entry, _Numbered(emitter, arguments, view(x)), counter)

    tracer.write_directly([], [x], steps)
    return x


class _Numbered(Computation):
    """Its numbers are constants."""

    def number(self, argument: Any, dtype: torch.dtype, *_: Any, **__: Any) -> Any:
        value = argument.value if isinstance(argument, ScalarMeta) else argument
        return super().number(value, dtype)
