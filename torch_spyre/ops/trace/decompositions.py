"""Operations made of others, where PyTorch has no decomposition or one that does not suit.

Functions here run under the tracer: what they call is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log, pi, prod
from typing import Any

import torch

from torch_spyre.ops import decompositions as shared
from torch_spyre.ops.attention import attention
from torch_spyre.ops.trace.leaves import reduced_dims
from torch_spyre.ops.trace.tracer import Leaf

Tensor = torch.Tensor

DECOMPOSITIONS: dict[str, Leaf] = {}


def decomposition(*names: str) -> Callable[[Leaf], Leaf]:
    """Register a decomposition for overloads ("aten::var.correction")."""

    def register(function: Leaf) -> Leaf:
        for name in names:
            DECOMPOSITIONS[name] = function
        return function

    return register


for _op, _function in shared.TABLE.items():
    DECOMPOSITIONS[_op.name()] = _function


# ---- Matrices -----------------------------------------------------------------------------------


@decomposition("aten::addmm", "aten::baddbmm")
def _add_product(bias: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    if not a.dtype.is_floating_point:  # integers have integer factors, as on the CPU
        alpha, beta = int(alpha), int(beta)
    product = torch.mm(a, b) if a.dim() == 2 else torch.bmm(a, b)
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product
    return product + (bias if beta == 1 else bias * beta)


@decomposition("spyre::attention")
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    from torch_spyre._inductor.fx import custom_ops  # noqa: F401  defines torch.ops.spyre

    # PyTorch has compared the heads; it does not say whether they were allowed to differ.
    return attention(query, key, value, bias, 0.0, is_causal, scale=scale, enable_gqa=True)


@decomposition("aten::addbmm")
def _add_products(bias: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """The sum over the batch is part of the matrices' product."""
    rows = a.transpose(0, 1).reshape(a.shape[1], a.shape[0] * a.shape[2])
    columns = b.reshape(b.shape[0] * b.shape[1], b.shape[2])
    return _add_product(bias, rows, columns, beta=beta, alpha=alpha)


# ---- Statistics ---------------------------------------------------------------------------------


@decomposition("aten::var_mean.correction")
def _var_mean(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    dims = reduced_dims(x, dim)
    count = prod(x.shape[d] for d in dims)
    mean = torch.mean(x, dims, keepdim=True, dtype=torch.float32)
    centred = x - mean
    total = torch.sum(centred * centred, dims, keepdim=True)
    freedom = max(count - (1 if correction is None else correction), 0)
    variance = (total / float(freedom)).to(x.dtype)
    mean = mean.to(x.dtype)
    if keepdim:
        return variance, mean
    kept = [n for d, n in enumerate(x.shape) if d not in dims]
    return variance.reshape(kept), mean.reshape(kept)


@decomposition("aten::var.correction")
def _var(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _var_mean(x, *args, **kwargs)[0]


@decomposition("aten::std.correction")
def _std(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _var_mean(x, *args, **kwargs)[0].sqrt()


@decomposition("aten::native_batch_norm")
def _batch_norm(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """PyTorch's, but without statistics of the batch where none are made, as on the CPU."""
    from torch._decomp import decomposition_table

    result, mean, rstd = decomposition_table[torch.ops.aten.native_batch_norm.default](*args)
    is_training = args[5]
    return (result, mean, rstd) if is_training else (result, mean[:0], rstd[:0])


@decomposition("aten::mvlgamma")
def _mvlgamma(x: Tensor, p: int) -> Tensor:
    halves = torch.arange(p, device=x.device).to(torch.float32) * -0.5
    wide = x.to(torch.float32).unsqueeze(-1) + halves
    result = torch.lgamma(wide).sum(-1) + p * (p - 1) / 4 * log(pi)
    return result.to(x.dtype if x.dtype.is_floating_point else torch.get_default_dtype())


@decomposition("aten::renorm")
def _renorm(x: Tensor, p: Any, dim: int, maxnorm: Any) -> Tensor:
    """Slices longer than `maxnorm` are shortened to it."""
    others = [d for d in range(x.dim()) if d != dim % x.dim()]
    norm = torch.linalg.vector_norm(x, p, others, keepdim=True, dtype=torch.float32)
    factor = torch.where(norm > maxnorm, maxnorm / (norm + 1e-7), 1.0)
    return (x * factor).to(x.dtype)


# ---- Shapes -------------------------------------------------------------------------------------


@decomposition("aten::constant_pad_nd")
def _pad(x: Tensor, padding: Sequence[int], value: float = 0) -> Tensor:
    """Padding is written beside the tensor."""
    pairs = list(zip(padding[::2], padding[1::2], strict=True))
    for dim, (before, after) in zip(reversed(range(x.dim())), pairs, strict=False):
        x = x.narrow(dim, max(-before, 0), x.shape[dim] - max(-before, 0) - max(-after, 0))
        parts = []
        for length, place in ((before, 0), (0, 1), (after, 2)):
            if place == 1:
                parts.append(x)
            elif length > 0:
                size = [*x.shape[:dim], length, *x.shape[dim + 1 :]]
                parts.append(torch.full(size, value, dtype=x.dtype, device=x.device))
        x = parts[0] if len(parts) == 1 else torch.cat(parts, dim)
    return x.clone() if all(n <= 0 for n in padding) else x


def _triangular(is_lower: bool) -> Leaf:
    def decompose(x: Tensor, diagonal: int = 0) -> Tensor:
        rows = torch.arange(x.shape[-2], device=x.device).unsqueeze(-1)
        columns = torch.arange(x.shape[-1], device=x.device) - diagonal
        mask = columns <= rows if is_lower else columns >= rows
        return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))

    return decompose


DECOMPOSITIONS["aten::tril"] = _triangular(True)
DECOMPOSITIONS["aten::triu"] = _triangular(False)


@decomposition("aten::roll")
def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if x.numel() == 0:
        return x.clone()
    if not dims:
        return _roll(x.reshape(-1), shifts, (0,)).view(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        cut = -shift % x.shape[dim]
        if cut:
            parts = [x.narrow(dim, cut, x.shape[dim] - cut), x.narrow(dim, 0, cut)]
            x = torch.cat(parts, dim)
    return x.clone()


# ---- New tensors --------------------------------------------------------------------------------


@decomposition("aten::eye")
def _eye(n: int, **options: Any) -> Tensor:
    return _eye_m(n, n, **options)


@decomposition("aten::eye.m")
def _eye_m(n: int, m: int, **options: Any) -> Tensor:
    rows = torch.arange(n, device="meta").unsqueeze(1)
    return (rows == torch.arange(m, device="meta")).to(
        options.get("dtype") or torch.get_default_dtype()
    )


def _rows_of_triangle(
    rows: int, columns: int, offset: int, is_lower: bool, options: dict[str, Any]
) -> Tensor:
    """Rows and columns of a triangle's elements: each row's own are known by where it starts."""
    dtype = options.get("dtype") or torch.int64
    device = torch.device("meta")

    def edge(row: int) -> int:
        return min(max(row + offset + int(is_lower), 0), columns)

    lengths = [edge(row) if is_lower else columns - edge(row) for row in range(rows)]
    total = sum(lengths)
    if total == 0:
        return torch.empty((2, 0), dtype=dtype, device=device)
    edges = (torch.arange(rows, device=device) + (offset + int(is_lower))).clamp(0, columns)
    own = edges if is_lower else columns - edges
    ends = own.to(torch.int32).cumsum(0, dtype=torch.int32)
    # Each row's end counts one row on for all elements from there.
    steps = torch.zeros(total + 1, dtype=torch.int32, device=device)
    steps = steps.index_add(0, ends, torch.ones(rows, dtype=torch.int32, device=device))
    row = steps.narrow(0, 0, total).cumsum(0, dtype=torch.int32)
    first = own - ends if is_lower else own - ends + edges
    column = torch.arange(total, device=device) + first.index_select(0, row)
    return torch.stack([row.to(dtype), column.to(dtype)])


@decomposition("aten::tril_indices")
def _tril_indices(rows: int, columns: int, offset: int = 0, **options: Any) -> Tensor:
    return _rows_of_triangle(rows, columns, offset, True, options)


@decomposition("aten::triu_indices")
def _triu_indices(rows: int, columns: int, offset: int = 0, **options: Any) -> Tensor:
    return _rows_of_triangle(rows, columns, offset, False, options)


@decomposition("aten::linspace")
def _linspace(start: Any, end: Any, steps: int, **options: Any) -> Tensor:
    dtype = options.get("dtype") or torch.get_default_dtype()
    start, end = _ends(start, end, dtype)
    if steps == 1:
        return torch.full((1,), start, dtype=dtype, device="meta")
    step = (end - start) / max(steps - 1, 1)
    number = torch.arange(steps, device="meta")
    gaps = steps - 1
    if not dtype.is_floating_point and max(abs(start), abs(end)) * gaps < 2**30:
        # Exactly: 32-bit floats would miss an integer that is met by a hair.
        counts = number * (end - start) + start * gaps
        return torch.div(counts, gaps, rounding_mode="trunc").to(dtype)
    # From both ends, so that both are met.
    up = start + number.to(torch.float32) * step
    down = end - (steps - 1 - number).to(torch.float32) * step
    return torch.where(number < steps // 2, up, down).to(dtype)


def _ends(start: Any, end: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    """Between integers if the result is of integers."""
    return (start, end) if dtype.is_floating_point else (int(start), int(end))


@decomposition("aten::logspace")
def _logspace(start: Any, end: Any, steps: int, base: float = 10.0, **options: Any) -> Tensor:
    dtype = options.get("dtype") or torch.get_default_dtype()
    start, end = _ends(start, end, dtype)
    return torch.pow(base, _linspace(start, end, steps, dtype=torch.float32)).to(dtype)
