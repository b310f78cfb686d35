"""The operations of compiled tests: what is called, on what, and in which dtypes it makes sense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

FLOATS = (torch.float16, torch.float32, torch.bfloat16)
INTS = (torch.int32, torch.int64, torch.int8)
BOOL = (torch.bool,)
NUMBERS = FLOATS + INTS

Make = Callable[[tuple[int, ...], torch.dtype], tuple[Any, ...]]


def noise(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.randint(0, 2, size).bool()
    if dtype.is_floating_point:
        return torch.randn(size).to(dtype)
    return torch.randint(-9, 10, size).to(dtype)


def one(size: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    return (noise(size, dtype),)


def two(size: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    return noise(size, dtype), noise(size, dtype)


def row(size: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    return noise(size, dtype), noise(size[-1:], dtype)


def positive(size: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    return (noise(size, dtype).abs() + (0.25 if dtype.is_floating_point else 1),)


def over(size: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    x, y = two(size, dtype)
    return x, (y.abs() + 1).to(dtype)


def product(size: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    *batch, _, k = size
    return noise(size, dtype), noise((*batch, k, 9), dtype)


def weights(size: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    return noise(size, dtype), noise((9, size[-1]), dtype), noise((9,), dtype)


def table(size: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    return noise((11, size[-1]), dtype), torch.randint(0, 11, size[:-1])


def heads(size: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    return tuple(noise((1, 2, 6, size[-1]), dtype) for _ in range(3))


@dataclass(frozen=True)
class Case:
    """An operation; `dtypes` are those it is tested in."""

    call: Callable[..., Any]
    make: Make = one
    dtypes: tuple[torch.dtype, ...] = FLOATS
    sizes: tuple[str, ...] = ("aligned", "ragged", "narrow", "deep")
    exact: Callable[..., Any] | None = None  # in float64, where that is not the call itself


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _casts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    kinds = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.bool)
    return tuple(x.to(kind) for kind in kinds)


MATRICES = ("aligned", "ragged", "narrow")


def _values(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.double(), x.double(), x.double(), x.int(), x.bool()


# One card operation each (and conversions): every bit of every step is checked.
OPERATIONS: dict[str, Case] = {
    "add": Case(torch.add, two, NUMBERS),
    "sub": Case(torch.sub, two, NUMBERS),
    "mul": Case(torch.mul, two, NUMBERS),
    "mul_row": Case(torch.mul, row, NUMBERS),
    "div": Case(torch.div, over),
    "neg": Case(torch.neg, one, NUMBERS),
    "abs": Case(torch.abs, one, NUMBERS),
    "exp": Case(torch.exp),
    "log": Case(torch.log, positive),
    "sqrt": Case(torch.sqrt, positive),
    "rsqrt": Case(torch.rsqrt, positive),
    "reciprocal": Case(torch.reciprocal, positive),
    "tanh": Case(torch.tanh),
    "sigmoid": Case(torch.sigmoid),
    "relu": Case(torch.relu, one, NUMBERS),
    "gelu": Case(F.gelu),
    "gelu_tanh": Case(lambda x: F.gelu(x, approximate="tanh")),
    "silu": Case(F.silu),
    "maximum": Case(torch.maximum, two, NUMBERS),
    "minimum": Case(torch.minimum, two, NUMBERS),
    "eq": Case(torch.eq, two, NUMBERS + BOOL),
    "ne": Case(torch.ne, two, NUMBERS),
    "lt": Case(torch.lt, two, NUMBERS),
    "le": Case(torch.le, two, NUMBERS),
    "gt": Case(torch.gt, two, NUMBERS),
    "ge": Case(torch.ge, two, NUMBERS),
    "where": Case(lambda x, y: torch.where(x > y, x, y * 2), two, NUMBERS),
    "casts": Case(_casts, one, (*FLOATS, torch.int32, torch.bool), exact=_values),
    "clamp": Case(lambda x: x.clamp(-1, 1), one, NUMBERS),
    "logic": Case(lambda x, y: (x & y, x | y, ~x), two, BOOL),
    "sum_last": Case(lambda x: x.sum(-1), one, NUMBERS + BOOL),
    "sum_first": Case(lambda x: x.sum(0), one, NUMBERS),
    "sum_all": Case(lambda x: x.sum(), one, NUMBERS),
    "mean_last": Case(lambda x: x.mean(-1)),
    "mean_first": Case(lambda x: x.mean(0, keepdim=True)),
    "amax_last": Case(lambda x: x.amax(-1), one, NUMBERS),
    "amin_first": Case(lambda x: x.amin(0), one, NUMBERS),
    "matmul": Case(torch.matmul, product),
    "embedding": Case(lambda w, i: F.embedding(i, w), table),
    "index_select": Case(
        lambda x: x.index_select(-1, torch.tensor([2, 0, 2], device=x.device)), one, NUMBERS
    ),
    "cat_last": Case(lambda x, y: torch.cat([x, y[..., :3]], -1), two, NUMBERS + BOOL),
    "cat_first": Case(lambda x, y: torch.cat([x, y]), two, NUMBERS),
    "clone": Case(torch.clone, one, NUMBERS + BOOL),
    "full": Case(lambda x: torch.full_like(x, 3) + x, one, NUMBERS),
    "arange": Case(lambda x: torch.arange(x.shape[-1], device=x.device) + x, one, NUMBERS),
    "transpose": Case(lambda x: x.mT + 1, one, NUMBERS),
    "flatten": Case(lambda x: x.flatten() * 2, one, NUMBERS),
    "slice": Case(lambda x: x[..., 1:] - x[..., :-1], one, NUMBERS),
    "expand": Case(lambda x: x.unsqueeze(0).expand(3, *x.shape) + 1, one, NUMBERS),
}

# Several steps whose roundings add up: compared with float64 beside the numpy model.
COMPOSITES: dict[str, Case] = {
    "softmax_last": Case(lambda x: x.softmax(-1)),
    "softmax_first": Case(lambda x: x.softmax(0)),
    "layer_norm": Case(lambda x, w: F.layer_norm(x, x.shape[-1:], w, w), row),
    "rms_norm": Case(lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-5), row),
    "attention": Case(F.scaled_dot_product_attention, heads),
    "causal_attention": Case(_causal, heads),
    "linear": Case(F.linear, weights),
    "addmm": Case(lambda x, w, b: torch.addmm(b, x, w.t()), weights, FLOATS, MATRICES),
    "swiglu": Case(lambda x, y: F.silu(x) * y, two),
    "gelu_bias": Case(lambda x, b: F.gelu(x + b), row),
}

# Aligned to sticks and not; a single row; three dimensions.
SIZES: dict[str, tuple[int, ...]] = {
    "aligned": (4, 64),
    "ragged": (5, 70),
    "narrow": (33, 3),
    "deep": (3, 4, 37),
}


def contiguous(x: torch.Tensor) -> torch.Tensor:
    return x


def transposed(x: torch.Tensor) -> torch.Tensor:
    """The same values in a buffer whose dimensions lie the other way round."""
    return x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim())))


def inset(x: torch.Tensor) -> torch.Tensor:
    """The same values in the middle of a larger buffer."""
    if x.dim() == 0:
        return x
    base = torch.zeros([n + 3 for n in x.shape], dtype=x.dtype)
    view = base[tuple(slice(1, 1 + n) for n in x.shape)]
    view.copy_(x)
    return view


LAYOUTS = {"contiguous": contiguous, "transposed": transposed, "inset": inset}
CORES = (1, 4, 32)
LX = (False, True)
