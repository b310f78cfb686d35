"""Every operation of the list that must work, as a compiled graph sees it.

`extern` names the eager operations that the generated code calls: what has no loop form on the card
yet. An operation that gets one shows up here as a shorter set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

Tensor = torch.Tensor
Size = tuple[int, int]
Make = Callable[[Size, torch.dtype], tuple[Any, ...]]

F16, F32 = torch.float16, torch.float32
FLOATS = (F32, F16)
NUMBERS = (*FLOATS, torch.int32)
ALL = (*NUMBERS, torch.bool)
INTS = (torch.int32, torch.int64)
BITS = (torch.int32, torch.bool)

SIZES: dict[str, Size] = {"aligned": (8, 64), "odd": (5, 70)}


@dataclass(frozen=True)
class Case:
    """An operation. `roundings` of the result's format are allowed, of each element or, where
    numbers are added up (`mixes`), of the largest one."""

    call: Callable[..., Any]
    make: Make
    dtypes: tuple[torch.dtype, ...] = FLOATS
    roundings: int = 2
    mixes: bool = False
    extern: frozenset[str] = frozenset()
    backward: frozenset[str] | None = None  # externs of the gradient; None: it is not asked for
    exact: Callable[..., Any] | None = None  # in float64, where that is not the call itself


def noise(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if dtype is torch.bool:
        return torch.randint(0, 2, size).bool()
    if dtype.is_floating_point:
        return torch.randn(size).to(dtype)
    return torch.randint(-9, 10, size).to(dtype)


def distinct(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """No two elements of a row are equal, so that orders are well defined."""
    rows = [torch.randperm(size[-1]) - size[-1] // 2 for _ in range(size[0])]
    return torch.stack(rows).view(size).to(dtype)


def one(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return (noise(size, dtype),)


def two(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return noise(size, dtype), noise(size, dtype)


def three(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return noise(size, dtype), noise(size, dtype), noise(size, dtype)


def row(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return noise(size, dtype), noise(size[-1:], dtype)


def positive(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return (noise(size, dtype).abs() + (0.25 if dtype.is_floating_point else 1),)


def halves(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return (noise(size, torch.int32).to(dtype) / 2,)


def divisors(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    """Quotients that no rounding brings to the next integer."""
    if not dtype.is_floating_point:
        return noise(size, dtype), noise(size, dtype).abs() + 1
    return (noise(size, torch.int32) + 0.5).to(dtype), 2.0 ** torch.randint(-1, 2, size).to(dtype)


def thirds(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return noise(size, dtype), noise(size, dtype), noise(size, dtype).abs() + 1


def powers(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    x = noise(size, dtype)
    if not dtype.is_floating_point:
        return x, torch.randint(0, 4, size).to(dtype)
    return x.abs() + 0.25, noise(size, dtype)


def special(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    x = noise(size, dtype)
    x[0, ::3], x[1, ::5], x[1, 1] = float("nan"), float("inf"), float("-inf")
    return (x,)


def ordered(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return (distinct(size, dtype),)


def matrices(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return noise(size, dtype), noise((size[1], 9), dtype), noise((9,), dtype)


def batches(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return noise((3, *size), dtype), noise((3, size[1], 9), dtype), noise((size[0], 9), dtype)


def linear(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return noise(size, dtype), noise((9, size[1]), dtype), noise((9,), dtype)


def signal(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return noise((2, 4, size[1]), dtype), noise((6, 4, 3), dtype), noise((6,), dtype)


def image(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return noise((2, 4, 9, size[1]), dtype), noise((6, 4, 3, 3), dtype), noise((6,), dtype)


def picture(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return (distinct((2 * 4 * 8, size[1]), dtype).view(2, 4, 8, size[1]),)


def heads(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return tuple(noise((2, 4, size[0], size[1]), dtype) for _ in range(3))


def grouped_heads(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return (noise((2, 4, *size), dtype), *(noise((2, 2, *size), dtype) for _ in range(2)))


def channels(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return noise((2, 6, *size), dtype), noise((6,), dtype), noise((6,), dtype)


def table(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return noise((11, size[1]), dtype), torch.randint(0, 11, (size[0],))


def updates(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    """Of some rows, none twice."""
    return noise(size, dtype), torch.randperm(size[0])[:3], noise((3, size[1]), dtype)


def picked(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    """One index per element."""
    index = torch.stack([torch.randperm(size[1])[:7] for _ in range(size[0])])
    return noise(size, dtype), index, noise((size[0], 7), dtype)


def elements(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    chosen = torch.randperm(size[0] * size[1])[:9]
    return noise(size, dtype), chosen // size[1], chosen % size[1], noise((9,), dtype)


def masked(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return noise(size, dtype), noise(size, torch.bool), noise((size[0] * size[1],), dtype)


def counts(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return (torch.randint(0, 9, size[1:]).to(dtype),)


def groups(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    ends = torch.tensor([3, 5, 5, 12], dtype=torch.int32)
    width = size[1] // 16 * 16
    return noise((12, width), dtype), noise((4, width, 16), dtype), ends


def nothing(size: Size, dtype: torch.dtype) -> tuple[Any, ...]:
    return (torch.zeros(size, dtype=dtype),)


_NONE: frozenset[str] = frozenset()


def calls(*names: str) -> frozenset[str]:
    return frozenset(names)


def _unary(call: Callable[..., Any], make: Make = one, **rest: Any) -> Case:
    return Case(call, make, backward=_NONE, **rest)


def _in_place(name: str, *args: Any) -> Callable[..., Any]:
    """The method on a tensor that the graph makes, then on its input."""

    def call(x: Tensor, *rest: Tensor) -> Any:
        made = getattr(x.clone(), name)(*rest, *args)
        getattr(x, name)(*rest, *args)
        return made

    return call


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)


def _truth_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _float_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=q[0, 0, :, :1].expand(-1, k.shape[-2]))


def _grouped_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def _casts(x: Tensor) -> tuple[Tensor, ...]:
    kinds = (F32, F16, torch.bfloat16, torch.bool, torch.int8, torch.int16, torch.int32)
    return tuple(x.to(kind) for kind in (*kinds, torch.int64))


def _uncast(x: Tensor) -> tuple[Tensor, ...]:
    """What the casts to floats round, and the others."""
    wide = x.double()
    return (wide, wide, wide, *_casts(x)[3:])


def _float8(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.to(kind).to(F32) for kind in (torch.float8_e4m3fn, torch.float8_e5m2))


def _created(x: Tensor) -> tuple[Tensor, ...]:
    own = {"device": x.device}
    return (
        torch.zeros(3, 70, **own),
        torch.ones(3, 70, dtype=torch.int32, **own),
        torch.full((3, 70), 2.5, **own),
        torch.arange(3, 70, 2, **own),
        torch.arange(0, 1, 0.125, **own),
        torch.linspace(-1, 3, 70, **own),
        torch.eye(5, 7, **own),
        torch.tensor([1.0, 2.5, -3], **own),
        torch.zeros_like(x),
        torch.ones_like(x),
        torch.full_like(x, 7),
        x.new_zeros(3, 4),
        x.new_ones(3, 4),
        x.new_full((3, 4), 2),
        torch.empty_like(x).fill_(3),
        torch.empty(3, 7, **own).zero_(),
        x.new_empty(3, 4).fill_(1),
    )


def _grouped(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    return torch._grouped_mm(x, w, offs=ends)


def _grouped_exact(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    bounds = [0, *ends.tolist()]
    return torch.cat([x[bounds[i] : bounds[i + 1]] @ w[i] for i in range(len(w))])


def _scaled_product(x: Tensor, w: Tensor, _bias: Tensor) -> Tensor:
    a, b = x[:, :64].to(torch.float8_e4m3fn), w[:64].to(torch.float8_e4m3fn)
    b = F.pad(b.to(F32), (0, 7)).to(torch.float8_e4m3fn).t().contiguous().t()
    one_ = torch.full((), 0.5, device=x.device)
    return torch._scaled_mm(a, b, one_, one_, out_dtype=torch.bfloat16)


def _scaled_exact(x: Tensor, w: Tensor, _bias: Tensor) -> Tensor:
    a, b = (t.float().to(torch.float8_e4m3fn).double() for t in (x[:, :64], w[:64]))
    return F.pad(a @ b * 0.25, (0, 7))


_SUM = {"mixes": True, "roundings": 4}
_SOFT = {"mixes": True, "roundings": 6}

MATRIX: dict[str, Case] = {
    "mm": Case(lambda a, b, _: torch.mm(a, b), matrices, backward=_NONE, **_SUM),
    "bmm": Case(lambda a, b, _: torch.bmm(a, b), batches, backward=_NONE, **_SUM),
    "matmul": Case(lambda a, b, _: (a @ b, a[0] @ b, a @ b[0, :, 0]), batches, **_SUM),
    "addmm": Case(
        lambda a, b, c: torch.addmm(c, a, b, beta=0.5, alpha=2), matrices, backward=_NONE, **_SUM
    ),
    "baddbmm": Case(lambda a, b, c: torch.baddbmm(c, a, b), batches, backward=_NONE, **_SUM),
    "linear": Case(F.linear, linear, backward=_NONE, **_SUM),
    "einsum": Case(
        lambda a, b, _: (torch.einsum("bij,bjk->bik", a, b), torch.einsum("bij->ji", a)),
        batches,
        **_SUM,
    ),
    "conv1d": Case(
        lambda x, w, b: F.conv1d(x, w, b, padding=1),
        signal,
        extern=calls("aten.convolution"),
        backward=calls("aten.convolution", "aten.convolution_backward"),
        **_SUM,
    ),
    "conv2d": Case(
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1),
        image,
        extern=calls("aten.convolution"),
        backward=calls("aten.convolution", "aten.convolution_backward"),
        **_SUM,
    ),
    "conv2d_groups": Case(
        lambda x, w, b: F.conv2d(x, w[:, :2], b, groups=2, dilation=2),
        image,
        extern=calls("aten.convolution"),
        **_SUM,
    ),
    "conv_transpose2d": Case(
        lambda x, w, b: F.conv_transpose2d(x[:, :, :, :20], w.transpose(0, 1).contiguous(), b),
        image,
        extern=calls("aten.convolution"),
        **_SUM,
    ),
    "avg_pool2d": Case(
        lambda x: F.avg_pool2d(x, 2), picture, backward=calls("aten.avg_pool2d_backward"), **_SUM
    ),
    "avg_pool2d_padded": Case(lambda x: F.avg_pool2d(x, 3, 2, 1), picture, **_SUM),
    "max_pool2d": Case(
        lambda x: F.max_pool2d(x, 2),
        picture,
        roundings=0,
        backward=calls("aten.max_pool2d_with_indices", "aten.max_pool2d_with_indices_backward"),
    ),
    "max_pool2d_padded": Case(lambda x: F.max_pool2d(x, 3, 2, 1), picture, roundings=0),
    "max_pool2d_with_indices": Case(
        lambda x: F.max_pool2d(x, 2, return_indices=True),
        picture,
        roundings=0,
        extern=calls("aten.max_pool2d_with_indices"),
    ),
    "scaled_mm": Case(
        _scaled_product,
        matrices,
        (F32,),
        exact=_scaled_exact,
        **_SUM,
    ),
    "grouped_mm": Case(
        _grouped,
        groups,
        (torch.bfloat16,),
        exact=_grouped_exact,
        extern=calls("aten._grouped_mm"),
        **_SUM,
    ),
}

ACTIVATION: dict[str, Case] = {
    "softmax": _unary(lambda x: x.softmax(-1), **_SOFT),
    "softmax_first": _unary(lambda x: x.softmax(0), **_SOFT),
    "log_softmax": _unary(lambda x: x.log_softmax(-1), **_SOFT),
    "layer_norm": _unary(lambda x, w: F.layer_norm(x, x.shape[-1:], w, w), row, **_SOFT),
    "rms_norm": _unary(lambda x, w: F.rms_norm(x, x.shape[-1:], w), row, **_SOFT),
    "group_norm": _unary(lambda x, w, b: F.group_norm(x, 3, w, b), channels, **_SOFT),
    "gelu": _unary(F.gelu, roundings=3, mixes=True),
    "gelu_tanh": _unary(lambda x: F.gelu(x, approximate="tanh"), roundings=3, mixes=True),
    "silu": _unary(F.silu),
    "relu": _unary(F.relu, dtypes=NUMBERS),
    "leaky_relu": _unary(lambda x: F.leaky_relu(x, 0.2)),
    "sigmoid": _unary(torch.sigmoid),
    "softplus": _unary(F.softplus, roundings=4),
    "mish": _unary(F.mish, roundings=8),
    "hardswish": _unary(F.hardswish, roundings=6, mixes=True),
    "elu": _unary(F.elu, roundings=4),
    "glu": _unary(lambda x: F.glu(x[:, :64], -1), roundings=4),
    "attention": _unary(F.scaled_dot_product_attention, heads, **_SOFT),
    "attention_causal": _unary(_causal, heads, **_SOFT),
    "attention_truth_mask": _unary(_truth_mask, heads, **_SOFT),
    "attention_float_mask": _unary(_float_mask, heads, **_SOFT),
    "attention_grouped": _unary(_grouped_attention, grouped_heads, **_SOFT),
    "relu_": Case(_in_place("relu_"), one, NUMBERS),
    "leaky_relu_": Case(lambda x: F.leaky_relu(x * 1, 0.2, inplace=True), one),
    "sigmoid_": Case(_in_place("sigmoid_"), one),
    "hardswish_": Case(lambda x: F.hardswish(x, inplace=True), one, roundings=6, mixes=True),
}

_EXACT_UNARY = ("abs", "neg", "sign", "square")
_ROUNDED_UNARY = ("floor", "ceil", "round", "trunc")
_SMOOTH_UNARY = ("exp", "exp2", "tanh", "sin", "cos", "erf")
_POSITIVE_UNARY = ("log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal")


def _methods(names: tuple[str, ...], make: Make, **rest: Any) -> dict[str, Case]:
    found = {name: Case(getattr(torch, name), make, **rest) for name in names}
    rest["backward"] = None
    return found | {f"{name}_": Case(_in_place(f"{name}_"), make, **rest) for name in names}


UNARY: dict[str, Case] = {
    **_methods(_EXACT_UNARY, one, dtypes=NUMBERS, backward=_NONE),
    **_methods(_ROUNDED_UNARY, halves, roundings=0, backward=_NONE),
    **_methods(_SMOOTH_UNARY, one, backward=_NONE),
    **_methods(_POSITIVE_UNARY, positive, backward=_NONE),
    **_methods(("logical_not",), one, dtypes=ALL),
    **_methods(("bitwise_not",), one, dtypes=(*INTS, torch.int8, torch.bool)),
    "clamp": _unary(lambda x: x.clamp(-1, 2), dtypes=NUMBERS),
    "clamp_tensor": Case(lambda x, y, z: x.clamp(y, z), three, NUMBERS),
    "clamp_": Case(_in_place("clamp_", -1, 2), one, NUMBERS),
    "clamp_min": _unary(lambda x: x.clamp_min(-1), dtypes=NUMBERS),
    "clamp_max": _unary(lambda x: x.clamp_max(1), dtypes=NUMBERS),
    "clamp_min_": Case(_in_place("clamp_min_", 0), one, NUMBERS),
    "clamp_max_": Case(_in_place("clamp_max_", 0), one, NUMBERS),
    "pow": _unary(lambda x: (x**2, x**3, x**0.5, x**-1), positive, roundings=4),
    "pow_int": Case(lambda x: (x**2, x**3), one, INTS),
    "pow_": Case(_in_place("pow_", 2), one, NUMBERS),
    "isnan": Case(torch.isnan, special),
    "isinf": Case(torch.isinf, special),
    "isfinite": Case(torch.isfinite, special, (F32,)),
    "nan_to_num": Case(lambda x: x.nan_to_num(1, 2, 3), special),
}

BINARY: dict[str, Case] = {
    "add": _unary(torch.add, two, dtypes=NUMBERS),
    "add_bool": Case(torch.add, two, (torch.bool,)),
    "add_alpha": _unary(lambda x, y: torch.add(x, y, alpha=3), two, dtypes=NUMBERS, mixes=True),
    "add_": Case(_in_place("add_"), two, NUMBERS),
    "add_scalar_": Case(_in_place("add_", 2), one, NUMBERS),
    "sub": _unary(torch.sub, two, dtypes=NUMBERS),
    "sub_alpha": Case(lambda x, y: torch.sub(x, y, alpha=2), two, NUMBERS, mixes=True),
    "sub_": Case(_in_place("sub_"), two, NUMBERS),
    "rsub": Case(lambda x: 2 - x, one, NUMBERS),
    "mul": _unary(torch.mul, two, dtypes=NUMBERS),
    "mul_bool": Case(torch.mul, two, (torch.bool,)),
    "mul_": Case(_in_place("mul_"), row, NUMBERS),
    "div": _unary(torch.div, divisors, dtypes=NUMBERS),
    "div_": Case(_in_place("div_"), divisors),
    "div_floor": Case(lambda x, y: torch.div(x, y, rounding_mode="floor"), divisors, NUMBERS, 0),
    "div_trunc": Case(lambda x, y: torch.div(x, y, rounding_mode="trunc"), divisors, NUMBERS, 0),
    "div_floor_": Case(lambda x, y: x.div_(y, rounding_mode="floor"), divisors, NUMBERS, 0),
    "floor_divide": Case(torch.floor_divide, divisors, NUMBERS, 0),
    "remainder": Case(torch.remainder, divisors, NUMBERS),
    "remainder_": Case(_in_place("remainder_"), divisors, NUMBERS),
    "remainder_scalar": Case(lambda x: x % 3, one, INTS),
    "fmod": Case(torch.fmod, divisors, NUMBERS),
    "fmod_": Case(_in_place("fmod_"), divisors, NUMBERS),
    "maximum": _unary(torch.maximum, two, dtypes=NUMBERS),
    "minimum": _unary(torch.minimum, two, dtypes=NUMBERS),
    "pow_tensor": _unary(torch.pow, powers, roundings=4),
    "pow_tensor_int": Case(torch.pow, powers, INTS),
    "pow_scalar_base": Case(lambda x: 2**x, one, roundings=4),
    "bitwise_and": Case(torch.bitwise_and, two, BITS),
    "bitwise_or": Case(torch.bitwise_or, two, BITS),
    "bitwise_xor": Case(torch.bitwise_xor, two, BITS),
    "bitwise_and_": Case(_in_place("bitwise_and_"), two, BITS),
    "bitwise_shifts": Case(lambda x: (x << 2, x >> 1), one, (torch.int32,)),
    "logical_and": Case(torch.logical_and, two, ALL),
    "logical_or": Case(torch.logical_or, two, ALL),
    "logical_xor": Case(torch.logical_xor, two, ALL),
    "logical_and_": Case(_in_place("logical_and_"), two, ALL),
    "where": Case(lambda x, y: torch.where(x > y, x, y), two, NUMBERS, backward=_NONE),
    "where_scalar": Case(lambda x, y: torch.where(x > y, x, 0), two, NUMBERS),
    "lerp": _unary(lambda x, y: torch.lerp(x, y, 0.25), two, mixes=True),
    "lerp_tensor": _unary(torch.lerp, three, roundings=4, mixes=True),
    "lerp_": Case(_in_place("lerp_", 0.25), two, mixes=True),
    "addcmul": _unary(lambda x, y, z: torch.addcmul(x, y, z, value=2), three, mixes=True),
    "addcmul_": Case(_in_place("addcmul_"), three, mixes=True),
    "addcdiv": _unary(lambda x, y, z: torch.addcdiv(x, y, z, value=2), thirds, mixes=True),
    "addcdiv_": Case(_in_place("addcdiv_"), thirds, mixes=True),
    **{name: Case(getattr(torch, name), two, ALL) for name in ("eq", "ne", "gt", "lt", "ge", "le")},
    **{
        f"{name}_": Case(_in_place(f"{name}_"), two, NUMBERS)
        for name in ("eq", "ne", "gt", "lt", "ge", "le")
    },
    "zero_dim_cpu": Case(lambda x: x * torch.tensor(2.5), one, NUMBERS),
    "promotion": Case(lambda x, y: x + y.to(torch.int32) * 2, two, ALL),
}

REDUCTION: dict[str, Case] = {
    "sum": _unary(lambda x: (x.sum(), x.sum(0), x.sum(-1, keepdim=True)), dtypes=ALL, **_SUM),
    "sum_dtype": Case(lambda x: x.sum(-1, dtype=F32), one, ALL, **_SUM),
    "mean": _unary(lambda x: (x.mean(), x.mean(0), x.mean(-1, keepdim=True)), **_SUM),
    "amax": _unary(lambda x: (x.amax(), x.amax(0), x.amax(-1)), ordered, dtypes=NUMBERS),
    "amin": _unary(lambda x: (x.amin(), x.amin(0), x.amin(-1)), ordered, dtypes=NUMBERS),
    "amax_bool": Case(lambda x: (x.amax(0), x.amin(-1)), one, (torch.bool,)),
    "max": Case(lambda x: (x.max(), *x.max(-1), *x.max(0)), ordered, NUMBERS, 0, backward=_NONE),
    "min": Case(lambda x: (x.min(), *x.min(-1), *x.min(0)), ordered, NUMBERS, 0),
    "aminmax": Case(lambda x: torch.aminmax(x, dim=-1), one, NUMBERS, 0),
    "prod": Case(
        lambda x: (x.prod(0), x.prod(0, keepdim=True)),
        one,
        roundings=40,
        mixes=True,
        backward=calls("aten.cumprod"),
    ),
    "prod_int": Case(lambda x: x.prod(0), counts, INTS),
    "any": Case(lambda x: (x.any(), x.any(0), x.any(-1)), one, ALL),
    "all": Case(lambda x: (x.all(), x.all(0), x.all(-1)), one, ALL),
    "var": _unary(lambda x: (x.var(), x.var(0), x.var(-1, correction=0)), **_SOFT),
    "std": _unary(lambda x: (x.std(), x.std(-1)), **_SOFT),
    "var_mean": Case(lambda x: torch.var_mean(x, -1), one, **_SOFT),
    "std_mean": Case(lambda x: torch.std_mean(x, 0), one, **_SOFT),
    "argmax": Case(lambda x: (x.argmax(), x.argmax(0), x.argmax(-1, True)), one, NUMBERS),
    "argmin": Case(lambda x: (x.argmin(), x.argmin(0), x.argmin(-1, True)), one, NUMBERS),
    "argmax_nan": Case(lambda x: (x.argmax(-1), x.argmin(-1), x.max(-1)[1]), special),
    "topk": Case(
        # Of equal elements any may be taken: what the indices name counts.
        lambda x: (x.topk(5)[0], x.gather(-1, x.topk(5)[1]), x.topk(3, 0, largest=False)[0]),
        ordered,
        NUMBERS,
        0,
        extern=calls("aten.topk"),
    ),
    "sort": Case(
        lambda x: (*x.sort(stable=True), *x.sort(dim=0, descending=True, stable=True)),
        one,
        NUMBERS,
        0,
        extern=calls("aten.sort"),
        backward=calls("aten.sort", "aten.scatter"),
    ),
    "argsort": Case(
        lambda x: x.argsort(dim=-1, stable=True), one, NUMBERS, extern=calls("aten.sort")
    ),
    "histc": Case(lambda x: torch.histc(x, 8, -2, 2), one, (F32,), extern=calls("aten.histc")),
    "cumsum": Case(
        lambda x: (x.cumsum(-1), x.cumsum(0)),
        one,
        (F32, torch.int32),
        extern=calls("aten.cumsum"),
        backward=calls("aten.cumsum"),
        **_SUM,
    ),
    "cumsum_": Case(_in_place("cumsum_", 1), one, (F32,), extern=calls("aten.cumsum"), **_SUM),
    "cumprod": Case(
        lambda x: x.cumprod(0), one, (F32,), 8, mixes=True, extern=calls("aten.cumprod")
    ),
    "norm": _unary(lambda x: (x.norm(), x.norm(dim=-1), x.norm(p=1, dim=0)), **_SOFT),
    "vector_norm": _unary(
        lambda x: (torch.linalg.vector_norm(x, 3, -1), torch.linalg.vector_norm(x, float("inf"))),
        **_SOFT,
    ),
    "logsumexp": _unary(lambda x: (x.logsumexp(-1), x.logsumexp(0)), **_SOFT),
}

MOVES = {"dtypes": ALL, "roundings": 0}

SHAPE: dict[str, Case] = {
    "reshape": Case(lambda x: x.reshape(-1, 2) + x.reshape(-1, 2), one, NUMBERS),
    "view": Case(lambda x: x.view(-1).clone(), one, **MOVES),
    "transpose": Case(lambda x: x.transpose(0, 1).contiguous(), one, **MOVES),
    "t": Case(lambda x: x.t().clone(), one, **MOVES),
    "permute": Case(lambda x: x.unsqueeze(0).permute(2, 0, 1).contiguous(), one, **MOVES),
    "views_as_they_are": Case(lambda x: (x.t(), x[:, 3:9], x.unsqueeze(1)), one, **MOVES),
    "squeeze": Case(lambda x: x.unsqueeze(0).squeeze(0).clone(), one, **MOVES),
    "flatten": Case(lambda x: x.flatten().clone(), one, **MOVES),
    "cat": _unary(lambda x, y: (torch.cat([x, y]), torch.cat([x, y], 1)), two, **MOVES),
    "stack": _unary(lambda x, y: (torch.stack([x, y]), torch.stack([x, y], -1)), two, **MOVES),
    "repeat": _unary(lambda x: x.repeat(2, 3), roundings=2, dtypes=ALL),
    "repeat_interleave": Case(
        lambda x: (x.repeat_interleave(2, 0), x.repeat_interleave(3, 1)), one, **MOVES
    ),
    "expand": Case(lambda x: x.unsqueeze(0).expand(3, -1, -1).clone(), one, **MOVES),
    "unbind": Case(lambda x: [part.clone() for part in x.unbind(0)], one, **MOVES),
    "unfold": Case(
        lambda x: x.unfold(1, 4, 2).clone(), one, backward=calls("aten.unfold_backward"), **MOVES
    ),
    "flip": _unary(lambda x: (x.flip(0), x.flip(1), x.flip(0, 1)), **MOVES),
    "roll": _unary(lambda x: (x.roll(3, 1), x.roll((1, -2), (0, 1)), x.roll(5)), **MOVES),
    "split": _unary(lambda x: [part.clone() for part in x.split(3, 1)], **MOVES),
    "split_with_sizes": Case(
        lambda x: [part.clone() for part in x.split([20, x.shape[1] - 20], 1)], one, **MOVES
    ),
    "chunk": Case(lambda x: [part.clone() for part in x.chunk(3, 1)], one, **MOVES),
    "narrow": Case(lambda x: x.narrow(1, 3, 20).clone(), one, **MOVES),
    "select": Case(lambda x: (x.select(0, 2).clone(), x.select(1, -1).clone()), one, **MOVES),
    "slice_scatter": _unary(
        lambda x, y: x.slice_scatter(y[:, 3:9], 1, 3, 9), two, roundings=0, dtypes=ALL
    ),
    "select_scatter": _unary(
        lambda x, y: (x.select_scatter(y[0], 0, 2), x.select_scatter(y[:, 0], 1, 3)), two, **MOVES
    ),
    "tril": _unary(lambda x: (x.tril(), x.tril(3), x.tril(-2)), **MOVES),
    "triu": _unary(lambda x: (x.triu(), x.triu(3), x.triu(-2)), **MOVES),
    "tril_": Case(_in_place("tril_"), one, NUMBERS, 0),
    "diagonal": Case(lambda x: x.diagonal().clone(), one, **MOVES),
    "pad": _unary(lambda x: F.pad(x, (1, 2, 3, 4), value=1), **MOVES),
    "pad_reflect": Case(
        lambda x: F.pad(x.unsqueeze(0), (2, 1), mode="reflect"),
        one,
        backward=calls("aten.reflection_pad1d_backward"),
    ),
    "pad_replicate": Case(
        lambda x: F.pad(x.unsqueeze(0), (2, 1), mode="replicate"), one, FLOATS, 0
    ),
    "copy_": Case(lambda x, y: x.copy_(y), two, **MOVES),
    "part_copy_": Case(lambda x, y: x[:, 3:9].copy_(y[:, :6]), two, **MOVES),
    "zero_": Case(_in_place("zero_"), one, **MOVES),
    "fill_": Case(_in_place("fill_", 1), one, **MOVES),
    "part_fill_": Case(lambda x: x[1:3, 3:9].fill_(1), one, **MOVES),
}

CREATION: dict[str, Case] = {
    "created": Case(_created, one, ALL, mixes=True),
    "casts": Case(_casts, one, (*NUMBERS, torch.bool), 1, exact=_uncast),
    "casts_float8": Case(_float8, halves, FLOATS, 0),
}

INDEXING: dict[str, Case] = {
    "embedding": Case(
        lambda w, i: F.embedding(i, w),
        table,
        FLOATS,
        0,
        backward=calls("aten.embedding_dense_backward"),
    ),
    "index_select": Case(
        lambda x, i, _: (x.index_select(0, i), x.index_select(1, i)),
        updates,
        dtypes=ALL,
        roundings=0,
        backward=calls("aten.index_add"),
    ),
    "gather": Case(
        lambda x, i, _: x.gather(1, i), picked, ALL, 0, backward=calls("aten.scatter_add")
    ),
    "scatter": Case(
        lambda x, i, y: x.scatter(1, i, y),
        picked,
        ALL,
        0,
        extern=calls("aten.scatter"),
        backward=calls("aten.scatter"),
    ),
    "scatter_value": Case(
        lambda x, i, _: x.scatter(1, i, 1), picked, ALL, 0, extern=calls("aten.scatter")
    ),
    "scatter_": Case(
        lambda x, i, y: x.scatter_(1, i, y), picked, ALL, 0, extern=calls("aten.scatter")
    ),
    "scatter_add": Case(
        lambda x, i, y: x.scatter_add(1, i, y),
        picked,
        NUMBERS,
        extern=calls("aten.scatter_add"),
        backward=calls("aten.scatter_add"),
    ),
    "scatter_add_": Case(
        lambda x, i, y: x.scatter_add_(1, i, y), picked, NUMBERS, extern=calls("aten.scatter_add")
    ),
    "scatter_reduce": Case(
        lambda x, i, y: x.scatter_reduce(1, i, y, "amax"),
        picked,
        NUMBERS,
        extern=calls("aten.scatter_reduce"),
    ),
    "index": Case(lambda x, i, j, _: x[i, j], elements, ALL, 0),
    "index_rows": Case(lambda x, i, _: x[i] * 1, updates, NUMBERS, 0),
    "index_mixed": Case(lambda x, i, _: x[i, 3:9] * 1, updates, NUMBERS, 0),
    "index_put": Case(
        lambda x, i, j, y: x.index_put((i, j), y), elements, ALL, 0, extern=calls("aten.index_put")
    ),
    "index_put_": Case(
        lambda x, i, j, y: x.index_put_((i, j), y),
        elements,
        ALL,
        0,
        extern=calls("aten.index_put_"),
    ),
    "index_put_accumulate": Case(
        lambda x, i, j, y: x.index_put((i, j), y, accumulate=True),
        elements,
        NUMBERS,
        extern=calls("aten.index_put"),
    ),
    "setitem_rows": Case(
        lambda x, i, y: x.__setitem__(i, y), updates, ALL, 0, extern=calls("aten.index_put_")
    ),
    "setitem_mask": Case(lambda x, m, _: x.__setitem__(m, 1), masked, ALL, 0),
    "index_add": Case(
        lambda x, i, y: x.index_add(0, i, y, alpha=2),
        updates,
        NUMBERS,
        mixes=True,
        extern=calls("aten.index_add"),
    ),
    "index_add_": Case(
        lambda x, i, y: x.index_add_(0, i, y), updates, NUMBERS, extern=calls("aten.index_add")
    ),
    "index_copy": Case(
        lambda x, i, y: x.index_copy(0, i, y), updates, ALL, 0, extern=calls("aten.index_copy_")
    ),
    "index_copy_": Case(
        lambda x, i, y: x.index_copy_(0, i, y), updates, ALL, 0, extern=calls("aten.index_copy_")
    ),
    "index_fill": Case(
        lambda x, i, _: x.index_fill(0, i, 1), updates, ALL, 0, extern=calls("aten.index_fill")
    ),
    "masked_fill": Case(lambda x, m, _: x.masked_fill(m, 1), masked, ALL, 0, backward=_NONE),
    "masked_fill_": Case(lambda x, m, _: x.masked_fill_(m, 1), masked, ALL, 0),
    "masked_scatter": Case(
        lambda x, m, y: x.masked_scatter(m, y), masked, ALL, 0, extern=calls("aten.masked_scatter")
    ),
    "masked_scatter_": Case(
        lambda x, m, y: x.masked_scatter_(m, y), masked, ALL, 0, extern=calls("aten.masked_scatter")
    ),
    "take_along_dim": Case(lambda x, i, _: torch.take_along_dim(x, i, 1), picked, ALL, 0),
    "one_hot": Case(lambda x: F.one_hot(x, 9), counts, (torch.int64,), 0),
}

CASES = MATRIX | ACTIVATION | UNARY | BINARY | REDUCTION | SHAPE | CREATION | INDEXING
