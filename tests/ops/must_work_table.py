"""The operations that must run on the card, with arguments for each.

A case is found by its name in `torch`, then in `torch.nn.functional`, then among the methods of
tensors, unless it says what to call. Its other forms, in place and `out=`, follow from the name:
`test_must_work` asks the CPU which of them there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

Tensor = torch.Tensor
Make = Callable[[torch.dtype], tuple[Any, ...]]

F16, F32, I32, I64, BOOL = torch.float16, torch.float32, torch.int32, torch.int64, torch.bool
F8 = torch.float8_e4m3fn
FLOATS = (F32, F16)
INTS = (I32, I64)
NUMBERS = (*FLOATS, I32)
ALL = (*NUMBERS, BOOL)
BITS = (I32, BOOL)
SIZE = (5, 70)  # no multiple of a stick


@dataclass(frozen=True)
class Case:
    """An operation, how its arguments are made, and the dtypes it is tried with.

    A result may be off by `roundings` of its own format, more than two only where the operation
    rounds on the way; and by one of fp32 for each of the `terms` that are added up.
    """

    name: str
    make: Make
    dtypes: tuple[torch.dtype, ...] = FLOATS
    call: Callable[..., Any] | None = None
    terms: int = 0
    roundings: int = 2

    def find(self) -> Callable[..., Any]:
        """What to call."""
        if self.call is not None:
            return self.call
        plain = self.name.split()[0]
        for home in (torch, F, torch.Tensor):
            if hasattr(home, plain):
                return getattr(home, plain)
        raise AttributeError(plain)


# ---- Arguments ----------------------------------------------------------------------------------


def noise(dtype: torch.dtype, *size: int) -> Tensor:
    if dtype is BOOL:
        return torch.randint(0, 2, size).bool()
    if dtype.is_floating_point:
        return torch.randn(size).to(dtype)
    return torch.randint(-9, 10, size).to(dtype)


def one(dtype: torch.dtype) -> tuple[Any, ...]:
    return (noise(dtype, *SIZE),)


def two(dtype: torch.dtype) -> tuple[Any, ...]:
    return noise(dtype, *SIZE), noise(dtype, *SIZE)


def broadcast(dtype: torch.dtype) -> tuple[Any, ...]:
    return noise(dtype, *SIZE), noise(dtype, SIZE[1])


def three(dtype: torch.dtype) -> tuple[Any, ...]:
    return noise(dtype, *SIZE), noise(dtype, *SIZE), noise(dtype, *SIZE)


def positive(dtype: torch.dtype) -> tuple[Any, ...]:
    return (noise(dtype, *SIZE).abs() + (0.25 if dtype.is_floating_point else 1),)


def halves(dtype: torch.dtype) -> tuple[Any, ...]:
    return (noise(I32, *SIZE).to(dtype) / 2,)


def quotient(dtype: torch.dtype) -> tuple[Any, ...]:
    """Whole quotients are not a rounding away from the next."""
    if not dtype.is_floating_point:
        return noise(dtype, *SIZE), noise(dtype, *SIZE).abs() + 1
    return (noise(I32, *SIZE) + 0.5).to(dtype), 2.0 ** torch.randint(-1, 2, SIZE).to(dtype)


def powers(dtype: torch.dtype) -> tuple[Any, ...]:
    if not dtype.is_floating_point:
        return noise(dtype, *SIZE), torch.randint(0, 4, SIZE).to(dtype)
    return noise(dtype, *SIZE).abs() + 0.25, noise(dtype, *SIZE)


def special(dtype: torch.dtype) -> tuple[Any, ...]:
    x = noise(dtype, *SIZE)
    x[0, ::3], x[2, 1] = float("nan"), float("-inf")
    return (x,)


def distinct(dtype: torch.dtype) -> tuple[Any, ...]:
    """No two elements are equal, so that an order is one."""
    return (torch.randperm(350).view(SIZE).to(dtype),)


def near_one(dtype: torch.dtype) -> tuple[Any, ...]:
    return ((noise(dtype, *SIZE) / 16 + 1).to(dtype),)


def images(dtype: torch.dtype) -> Tensor:
    return noise(dtype, 2, 4, 9, 11)


def rows_of(dtype: torch.dtype, *rest: Any) -> tuple[Any, ...]:
    return (noise(dtype, *SIZE), *rest)


def attended(dtype: torch.dtype, heads: int = 4, keys: int = 4) -> tuple[Tensor, ...]:
    return noise(dtype, 2, heads, 7, 16), noise(dtype, 2, keys, 9, 16), noise(dtype, 2, keys, 9, 16)


def grouped(dtype: torch.dtype) -> tuple[Any, ...]:
    """Rows of one matrix, by turns with three others; one of them gets none."""
    ends = torch.tensor([4, 4, 16], dtype=I32)
    return noise(dtype, 16, 64), noise(dtype, 3, 64, 32), ends


def grouped_mm(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    return torch._grouped_mm(rows, matrices, offs=ends)


def scaled_mm(a: Tensor, b: Tensor, *scales: Tensor) -> Tensor:
    """Rows by columns, as it is specified for: the one contiguous, the other transposed."""
    columns = b.t().contiguous().t()
    return torch._scaled_mm(a.contiguous(), columns, *scales, out_dtype=torch.bfloat16)


def scaled(dtype: torch.dtype) -> tuple[Any, ...]:
    a, b = noise(F32, 16, 64).to(dtype), noise(F32, 32, 64).to(dtype).t()
    return a, b, torch.tensor(0.5), torch.tensor(3.0)


def grid(low: int, high: int, *size: int) -> Tensor:
    return torch.randint(low, high, size)


def permuted(dtype: torch.dtype) -> tuple[Any, ...]:
    """Indices of columns, each row another order."""
    return noise(dtype, *SIZE), 1, torch.stack([torch.randperm(70)[:30] for _ in range(5)])


sdpa = F.scaled_dot_product_attention


def _with(*values: Any) -> Make:
    return lambda dtype: rows_of(dtype, *values)


# ---- The table ----------------------------------------------------------------------------------

MATRIX = [
    Case("mm", lambda d: (noise(d, 5, 70), noise(d, 70, 33)), terms=70),
    Case("bmm", lambda d: (noise(d, 3, 5, 70), noise(d, 3, 70, 33)), terms=70),
    Case("matmul", lambda d: (noise(d, 2, 1, 5, 70), noise(d, 3, 70, 33)), terms=70),
    Case("matmul of vectors", lambda d: (noise(d, 5, 70), noise(d, 70)), terms=70),
    Case(
        "addmm",
        lambda d: (noise(d, 5, 33), noise(d, 5, 70), noise(d, 70, 33)),
        terms=70,
        roundings=3,
    ),
    Case(
        "baddbmm",
        lambda d: (noise(d, 3, 5, 33), noise(d, 3, 5, 70), noise(d, 3, 70, 33)),
        terms=70,
        roundings=3,
    ),
    Case(
        "linear",
        lambda d: (noise(d, 2, 5, 70), noise(d, 33, 70), noise(d, 33)),
        terms=70,
        roundings=3,
    ),
    Case("einsum", lambda d: ("bik,bjk->bij", noise(d, 3, 5, 70), noise(d, 3, 33, 70)), terms=70),
    Case(
        "conv1d",
        lambda d: (noise(d, 2, 4, 30), noise(d, 6, 4, 3), noise(d, 6), 2, 1),
        terms=12,
        roundings=3,
    ),
    Case(
        "conv2d",
        lambda d: (images(d), noise(d, 6, 4, 3, 3), noise(d, 6), 2, 1),
        terms=36,
        roundings=3,
    ),
    Case(
        "conv2d of groups", lambda d: (images(d), noise(d, 4, 2, 3, 3), None, 1, 0, 1, 2), terms=18
    ),
    Case(
        "convolution",
        lambda d: (
            images(d),
            noise(d, 4, 6, 3, 3),
            noise(d, 6),
            [2, 2],
            [1, 1],
            [1, 1],
            True,
            [1, 1],
            1,
        ),
        terms=36,
        roundings=3,
    ),
    Case("_grouped_mm", grouped, call=grouped_mm, terms=64),
    Case("_scaled_mm", scaled, (F8,), call=scaled_mm, terms=64),
    Case("avg_pool2d", lambda d: (images(d), 3, 2, 1), call=F.avg_pool2d, terms=9),
    Case("max_pool2d", lambda d: (images(d), 3, 2, 1), call=F.max_pool2d),
]

ACTIVATION = [
    Case("softmax", _with(-1), roundings=3),
    Case("log_softmax", _with(0), roundings=3),
    Case("layer_norm", lambda d: rows_of(d, (70,), noise(d, 70), noise(d, 70)), roundings=3),
    Case("rms_norm", lambda d: rows_of(d, (70,), noise(d, 70)), roundings=3),
    Case("group_norm", lambda d: (noise(d, 5, 6, 11), 3, noise(d, 6), noise(d, 6)), roundings=3),
    Case("gelu", one, call=F.gelu, roundings=3),
    Case("gelu by tanh", one, call=partial(F.gelu, approximate="tanh"), roundings=3),
    Case("silu", one),
    Case("relu", one, NUMBERS),
    Case("leaky_relu", _with(0.1)),
    Case("sigmoid", one),
    Case("softplus", one),
    Case("mish", one, roundings=3),
    Case("hardswish", one),
    Case("elu", one),
    Case("glu", one),
    Case("dropout in evaluation", one, call=partial(F.dropout, training=False)),
    Case("scaled_dot_product_attention", attended, roundings=4),
    Case(
        "scaled_dot_product_attention causal",
        attended,
        call=partial(sdpa, is_causal=True),
        roundings=4,
    ),
    Case(
        "scaled_dot_product_attention with a mask",
        lambda d: (*attended(d), grid(0, 2, 7, 9).bool().logical_or(torch.eye(7, 9) > 0)),
        roundings=4,
    ),
    Case(
        "scaled_dot_product_attention with a bias",
        lambda d: (*attended(d), noise(d, 7, 9)),
        roundings=4,
    ),
    Case(
        "scaled_dot_product_attention of groups",
        partial(attended, keys=2),
        call=partial(sdpa, enable_gqa=True, scale=0.3),
        roundings=4,
    ),
]

UNARY = [
    *(Case(name, one, NUMBERS) for name in ("abs", "neg", "sign", "square")),
    *(Case(name, one) for name in ("exp", "exp2", "tanh", "sin", "cos", "erf")),
    *(Case(name, positive) for name in ("log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal")),
    *(Case(name, halves) for name in ("floor", "ceil", "round", "trunc")),
    Case("logical_not", one, ALL),
    Case("bitwise_not", one, BITS),
    Case("clamp", _with(-1, 1), NUMBERS),
    Case("clamp_min", _with(0), NUMBERS),
    Case("clamp_max", _with(0), NUMBERS),
    Case("pow of a number", _with(2), NUMBERS),
    Case("isnan", special),
    Case("isinf", special, (F32,)),  # infinity and NaN are one in the card's fp16
]

BINARY = [
    Case("add", two, ALL),
    Case("add of a row", broadcast, NUMBERS),
    Case("add of a number", _with(2), NUMBERS),
    Case("add with alpha", two, NUMBERS, call=partial(torch.add, alpha=2)),
    Case("sub", two, NUMBERS),
    Case("sub with alpha", broadcast, NUMBERS, call=partial(torch.sub, alpha=3), roundings=3),
    Case("mul", two, ALL),
    Case("div", quotient, NUMBERS),
    Case("div to the floor", quotient, NUMBERS, call=partial(torch.div, rounding_mode="floor")),
    Case("div to zero", quotient, NUMBERS, call=partial(torch.div, rounding_mode="trunc")),
    Case("remainder", quotient, NUMBERS),
    Case("fmod", quotient, NUMBERS),
    Case("maximum", broadcast, ALL),
    Case("minimum", two, ALL),
    Case("pow", powers, NUMBERS),
    *(Case(f"bitwise_{name}", two, BITS) for name in ("and", "or", "xor")),
    *(Case(f"logical_{name}", two, ALL) for name in ("and", "or", "xor")),
    Case("where", lambda d: (noise(BOOL, *SIZE), *two(d)), ALL),
    Case("lerp", lambda d: (*two(d), 0.3), roundings=3),
    Case("lerp by tensors", three, roundings=3),
    Case("addcmul", three, NUMBERS, roundings=3),
    Case("addcdiv", lambda d: (*two(d), *positive(d)), roundings=3),
    *(Case(name, two, ALL) for name in ("eq", "ne", "gt", "lt", "ge", "le")),
]

REDUCTION = [
    Case("sum", one, ALL, terms=70),
    Case("sum of rows", _with(-1), ALL, terms=70),
    Case("mean", _with(0), terms=8),
    Case("amax", _with(0), ALL),
    Case("amin", _with((0, 1)), ALL),
    Case("max", one, ALL),
    Case("max of rows", lambda d: (*distinct(d), 1), NUMBERS),
    Case("min of columns", lambda d: (*distinct(d), 0), NUMBERS),
    Case("prod", lambda d: (*near_one(d), 1), (F32, F16, I32), terms=70),
    Case("any", _with(1), ALL),
    Case("all", one, ALL),
    Case("var", _with(1), terms=70, roundings=3),
    Case("std", _with(1), terms=70, roundings=3),
    Case("var_mean", _with(1), terms=70, roundings=3),
    Case("argmax", lambda d: (*distinct(d), 1), NUMBERS),
    Case("argmin", distinct, NUMBERS),
    Case("topk", lambda d: (*distinct(d), 7), NUMBERS),
    Case("sort", distinct, NUMBERS),
    Case("sort of columns", lambda d: (*distinct(d), 0, True), NUMBERS),
    Case("argsort", distinct, NUMBERS),
    Case("histc", _with(6), (F32,)),
    Case("bincount", lambda d: (grid(0, 9, 70).to(d),), INTS),
    Case("cumsum", _with(1), NUMBERS, terms=70),
    Case("norm", one, terms=70, roundings=3),
    Case("vector_norm", _with(2, 1), call=torch.linalg.vector_norm, terms=70, roundings=3),
    Case("logsumexp", _with(1), terms=70, roundings=3),
    Case("aminmax", one, ALL),
]

SHAPE = [
    Case("reshape", _with((35, 10)), ALL),
    Case("view", _with(7, 50), ALL, call=torch.Tensor.view),
    Case("transpose", _with(0, 1), ALL),
    Case("t", one, ALL),
    Case("permute", lambda d: (noise(d, 3, 5, 7), (2, 0, 1)), ALL),
    Case("clone", one, ALL),
    Case("contiguous", one, ALL, call=lambda x: x.t().contiguous()),
    Case("squeeze", lambda d: (noise(d, 3, 1, 7),), ALL),
    Case("unsqueeze", _with(1), ALL),
    Case("flatten", one, ALL),
    Case("cat", lambda d: (list(two(d)), 1), ALL),
    Case("cat of two dtypes", lambda d: ([*one(d), *one(I32)], 0), FLOATS),
    Case("stack", lambda d: (list(two(d)), 1), ALL),
    Case("repeat", _with(2, 3), ALL),
    Case("repeat_interleave", _with(2, 1), ALL),
    Case("expand", lambda d: (noise(d, 5, 1), 5, 9), ALL, call=lambda x, *n: x.expand(n).clone()),
    Case("unbind", one, ALL),
    Case("unfold", _with(1, 5, 3), ALL, call=torch.Tensor.unfold),
    Case("flip", _with((0, 1)), ALL),
    Case("roll", _with(3, 1), ALL),
    Case("split", _with(20, 1), ALL),
    Case("split_with_sizes", _with([30, 40], 1), ALL),
    Case("chunk", _with(3, 1), ALL),
    Case("narrow", _with(1, 3, 40), ALL),
    Case("select", _with(1, 3), ALL),
    Case("slice_scatter", lambda d: (*one(d), noise(d, 5, 10), 1, 20, 30), ALL),
    Case("select_scatter", lambda d: (*one(d), noise(d, 5), 1, 20), ALL),
    Case("tril", _with(2), ALL),
    Case("triu", _with(-1), ALL),
    Case("pad", _with((1, 2, 3, 0)), NUMBERS, call=F.pad),
]

INDEXING = [
    Case("embedding", lambda d: (grid(0, 5, 3, 4), *one(d)), call=F.embedding),
    Case("index_select", _with(1, torch.tensor([3, 1, 3])), ALL),
    Case("gather", _with(0, grid(0, 5, 3, 70)), ALL),
    Case("scatter", lambda d: (*permuted(d), noise(d, 5, 30)), ALL),
    Case("scatter of a number", lambda d: (*permuted(d), 3), NUMBERS),
    Case(
        "scatter_add",
        lambda d: (*rows_of(d, 1, grid(0, 9, 5, 30)), noise(d, 5, 30)),
        NUMBERS,
        terms=30,
    ),
    Case(
        "index",
        _with(torch.tensor([3, -1]), torch.tensor([[2], [9]])),
        ALL,
        call=lambda x, i, j: x[i, j],
    ),
    Case("index by a mask", lambda d: (*one(d), noise(BOOL, *SIZE)), ALL, call=lambda x, m: x[m]),
    Case("index_put", lambda d: (*one(d), (torch.tensor([3, 1]),), noise(d, 2, 70)), ALL),
    Case(
        "index_add",
        lambda d: (*one(d), 0, torch.tensor([1, 3, 1]), noise(d, 3, 70)),
        NUMBERS,
        terms=4,
    ),
    Case("index_copy", lambda d: (*one(d), 1, torch.tensor([1, 3]), noise(d, 5, 2)), ALL),
    Case("masked_fill", lambda d: (*one(d), noise(BOOL, 70), 1), ALL),
    Case("masked_scatter", lambda d: (*one(d), noise(BOOL, *SIZE), *one(d)), ALL),
    Case("masked_select", lambda d: (*one(d), noise(BOOL, *SIZE)), ALL),
    Case("nonzero", one, ALL),
    Case("where(cond)", one, ALL, call=lambda x: torch.where(x > 0)),
    Case("take_along_dim", _with(grid(0, 5, 3, 70), 0), ALL),
    Case("one_hot", lambda d: (grid(0, 9, 7).to(d), 11), (I64,)),
]

CASES = [*MATRIX, *ACTIVATION, *UNARY, *BINARY, *REDUCTION, *SHAPE, *INDEXING]

# Functions of a device, the same numbers everywhere.
CREATION: dict[str, Callable[[str], Tensor]] = {
    "zeros": lambda device: torch.zeros(5, 70, device=device),
    "ones": lambda device: torch.ones(5, 70, dtype=F16, device=device),
    "full": lambda device: torch.full((5, 70), 3, device=device),
    "arange": lambda device: torch.arange(2, 90, 3, device=device),
    "arange of floats": lambda device: torch.arange(0, 3, 0.25, device=device),
    "linspace": lambda device: torch.linspace(-1, 1, 9, device=device),
    "eye": lambda device: torch.eye(5, 7, device=device),
    "tensor": lambda device: torch.tensor([[1.5, 2], [3, 4]], device=device),
    "zeros_like": lambda device: torch.zeros_like(torch.ones(5, 7, device=device).t()),
    "ones_like": lambda device: torch.ones_like(torch.empty(5, 7, device=device), dtype=I32),
    "full_like": lambda device: torch.full_like(torch.empty(5, 7, device=device), 2.5),
    "empty_like": lambda device: torch.empty_like(torch.empty(5, 7, device=device)).fill_(1),
    "new_zeros": lambda device: torch.ones(2, device=device).new_zeros(3, 4),
    "new_ones": lambda device: torch.ones(2, device=device).new_ones(3, dtype=BOOL),
    "new_full": lambda device: torch.ones(2, device=device).new_full((3, 4), 7),
    "new_empty": lambda device: torch.ones(2, device=device).new_empty(3).zero_(),
    "new_tensor": lambda device: torch.ones(2, device=device).new_tensor([1, 2]),
}

# Functions of a device whose numbers are random: within [low, high].
RANDOM: dict[str, tuple[Callable[[str], Tensor], float, float]] = {
    "normal_": (lambda device: torch.empty(900, device=device).normal_(10, 0.1), 9, 11),
    "uniform_": (lambda device: torch.empty(900, device=device).uniform_(2, 3), 2, 3),
    "random_": (lambda device: torch.empty(900, dtype=I32, device=device).random_(3, 9), 3, 8),
    "bernoulli_": (lambda device: torch.empty(900, device=device).bernoulli_(0.5), 0, 1),
    "rand": (lambda device: torch.rand(900, dtype=F16, device=device), 0, 1),
    "randn": (lambda device: torch.randn(900, device=device), -6, 6),
    "randint": (lambda device: torch.randint(4, 7, (900,), device=device), 4, 6),
    "randperm": (lambda device: torch.randperm(900, device=device), 0, 899),
    "multinomial": (lambda device: torch.ones(7, device=device).multinomial(900, True), 0, 6),
    "dropout": (lambda device: F.dropout(torch.ones(900, device=device), 0.5), 0, 2),
}

CASTS = (F32, F16, torch.bfloat16, BOOL, torch.int8, torch.int16, I32, I64, F8)
