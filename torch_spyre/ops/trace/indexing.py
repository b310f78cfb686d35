"""Elements that come from where an index says, or go there.

Where an index names whole rows (`index_select`, `embedding`) the compiler's gather reads sticks.
Everything else is a direct step of the card, on tensors that lie in memory element after element:
what is indexed is copied to such a one first, and several indices are one number, counted through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from torch_spyre.ops.emitter import Emitter
from torch_spyre.ops.formats import Kind, kind_of
from torch_spyre.ops.plan import UnsupportedError
from torch_spyre.ops.trace.decompositions import decomposition
from torch_spyre.ops.trace.leaves import leaf
from torch_spyre.ops.trace.tracer import Tracer
from torch_spyre.ops.views import View

Tensor = torch.Tensor
ViewOf = Callable[[Tensor], View]


# ---- Rows of a table ----------------------------------------------------------------------------


def gather_rows(tracer: Tracer, table: Tensor, dim: int, index: Tensor) -> Tensor:
    """table[..., index, ...]: the dimensions of the index take the place of `dim`."""
    before, after = table.shape[:dim], table.shape[dim + 1 :]
    result = tracer.new([*before, *index.shape, *after], table.dtype)
    if result.numel() == 0:
        return result
    if not any(n > 1 for n in (*before, *after)):  # rows of one element
        place = _place(tracer, (table.shape[dim],), [index], index.shape, from_end=False)
        return _gather_elements(tracer, table, place.view(result.shape), result)
    if not tracer.may_gather_rows:
        made, shape = _expanded_indices(tracer, table, [None] * dim + [index])
        place = _place(tracer, table.shape, made, shape, from_end=False)
        return _gather_elements(tracer, table, place, result)
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
    func(x, dim, index)  # PyTorch's own checks, but some
    if index.dim() > 1:
        raise UnsupportedError("an index that is no list")  # the CPU says so
    if x.dim() == 0:
        return tracer.convert(x, tracer.new((), x.dtype))
    dim %= x.dim()
    if x.shape[dim] == 0 and index.numel():
        raise UnsupportedError("rows of none")  # likewise
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
    """result = flat x [place]; a place outside of x is a fault."""
    table = _flat(tracer, x)

    def steps(emitter: Emitter, view: ViewOf) -> None:
        emitter.gather_elements(view(table), view(place), view(result))

    tracer.write_directly([table, place], [result], steps)
    return result


def _place(
    tracer: Tracer,
    size: Sequence[int],
    indices: Sequence[Tensor],
    shape: Sequence[int],
    *,
    from_end: bool,
) -> Tensor:
    """Where in a dense tensor of this size the elements are that indices name, one per dimension,
    each broadcast to `shape`. Negative ones count from the end once, or not at all.

    What is outside stays outside: a single index as it is, so that the fault names it, several
    as -1.
    """
    with tracer:
        place: Tensor | None = None
        is_inside: Tensor | None = None
        step = prod(size)
        for n, index in zip(size, indices, strict=True):
            step //= n
            part = index
            if not getattr(index, _IS_INSIDE, False):
                part = part.to(torch.int32)
                if from_end:
                    part = torch.where(part < 0, part + n, part)
                if len(size) > 1:
                    fits = (part >= 0) & (part < n)
                    is_inside = fits if is_inside is None else is_inside & fits
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
    coordinates = _coordinates(tracer, x, dim, index)
    place = _place(tracer, x.shape or (1,), coordinates, shape, from_end=False)
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
    place = _place(tracer, (x.numel(),), [index], index.shape, from_end=True)
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
    place = _place(tracer, x.shape, made, shape, from_end=True)
    return _gather_elements(tracer, x, place, result)


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
    coordinates = _coordinates(tracer, x, dim, index)
    place = _place(tracer, x.shape or (1,), coordinates, shape, from_end=False)
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
    place = _place(tracer, x.shape, made, shape, from_end=True)
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
    rows = x.shape[dim]
    # A negative index of theirs is none, and `index_put` would count it from the end.
    index = torch.where(index < 0, -1 - rows, index)
    indices = [None] * dim + [index.reshape(-1)]
    source = source.to(x.dtype)
    if accumulate and not torch.can_cast(source.dtype, x.dtype):
        raise UnsupportedError("a source that can't be cast to what it is added to")
    # The index comes first in the result where it stands for the dimension in place.
    return torch.ops.aten.index_put(x, indices, source, accumulate)


@decomposition("aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor")
def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    if index.dim() > 1 or (isinstance(value, Tensor) and value.dim() > 0):
        raise UnsupportedError("an index that is no list, or a value that is one")  # likewise
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


@decomposition("aten::masked_scatter")
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        raise UnsupportedError("a mask that is not boolean")  # the CPU says so
    x, mask = torch.broadcast_tensors(x, mask)
    counts = mask.reshape(-1).to(torch.int32).cumsum(0) - 1
    place = torch.where(mask.reshape(-1), counts, 0)
    picked = source.reshape(-1).index_select(0, place).view(x.shape)
    return torch.where(mask, picked, x)
