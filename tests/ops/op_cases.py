"""Every operation of the table once, with arguments on which it is defined.

A case names an overload and how its arguments are made. The reference is PyTorch on the CPU in
float64 (or the integer dtype), on the values that the card holds, rounded once to its format.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import step_model
import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
BOOL = (torch.bool,)


@dataclass(frozen=True)
class Draw:
    """A random tensor: floats from [low, high], integers from the same range."""

    low: float = -3.0
    high: float = 3.0
    dtype: torch.dtype | None = None  # None: the dtype of the case

    def make(self, size: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator) -> torch.Tensor:
        dtype = self.dtype or dtype
        low, high = self.low, self.high
        if dtype is torch.bool:
            return torch.randint(0, 2, size, generator=rng).bool()
        if dtype.is_floating_point:
            return (torch.rand(size, generator=rng) * (high - low) + low).to(dtype)
        if dtype is torch.uint8:
            low = max(low, 0)
        return torch.randint(int(low), int(high) + 1, size, generator=rng).to(dtype)


ANY = Draw()
POSITIVE = Draw(0.01, 8.0)
NOT_ZERO = Draw(1.0, 6.0)
WIDE = Draw(-100.0, 100.0)
TRUTH = Draw(dtype=torch.bool)
SHIFT = Draw(0, 5)
INSIDE = Draw(-0.95, 0.95)  # the unit interval
PROBABILITY = Draw(0.05, 0.95)
DEGREE = Draw(0, 6)
ABOVE_ONE = Draw(1.0, 8.0)


@dataclass(frozen=True)
class Case:
    """One overload; `ulps` is how far a result may be from the correctly rounded one."""

    name: str
    args: tuple[object, ...]
    dtypes: tuple[torch.dtype, ...] = FLOATS
    ulps: int = 0
    # What several roundings in fp32 give, where the order of operations matters.
    model: Callable[..., np.ndarray] | None = None

    @property
    def operation(self) -> Callable[..., torch.Tensor]:
        packet, _, overload = self.name.partition(".")
        return getattr(getattr(torch.ops.aten, packet), overload or "default")

    def make(self, size: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> list[object]:
        rng = torch.Generator().manual_seed(seed)
        return [a.make(size, dtype, rng) if isinstance(a, Draw) else a for a in self.args]


def _unary(names: str, draw: Draw, dtypes: tuple[torch.dtype, ...], ulps: int) -> list[Case]:
    return [Case(name, (draw,), dtypes, ulps) for name in names.split()]


def _gate(x: np.ndarray) -> np.ndarray:
    return np.clip(x + np.float32(3), 0, 6)


def _lerp(a: np.ndarray, b: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.where(np.abs(w) < 0.5, a + w * (b - a), b - (b - a) * (1 - w))


def _sinc(x: np.ndarray) -> np.ndarray:
    angle = x * np.float32(np.pi)
    return _rounded(np.sin, angle) / angle


def _rounded(function: Callable[..., np.ndarray], *args: np.ndarray) -> np.ndarray:
    """A step of a formula: computed in float64, rounded to float32."""
    return function(*(np.asarray(a, np.float64) for a in args)).astype(np.float32)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return _rounded(lambda a: 1 / (1 + np.exp(-a)), x)


def _gelu_slope(x: np.ndarray) -> np.ndarray:
    """Of positive x: elsewhere its two terms cancel each other."""
    half, root = np.float32(0.5), np.float32(np.sqrt(0.5))
    below = half * step_model.run("erfc", x * -root)
    density = _rounded(np.exp, np.square(x) * -half) * np.float32(1 / np.sqrt(2 * np.pi))
    return below + x * density


def _elu_slope(grad: np.ndarray, alpha: float, scale: float, inner: float, _: object, x: object):
    falling = (inner * (alpha * scale)) * _rounded(np.exp, np.float32(x) * inner)
    return grad * np.where(np.float32(x) <= 0, falling, scale)


def _logit(x: np.ndarray) -> np.ndarray:
    return _rounded(np.log, x / (1 - x))


def _polygamma(n: np.ndarray, x: np.ndarray) -> np.ndarray:
    signed = np.float32((-1.0) ** (n + 1) * math.factorial(int(n)))
    return signed * step_model.run("zeta", n + 1, x)


def _log_sum(exponential: Callable[..., np.ndarray], unit: float) -> Callable[..., np.ndarray]:
    def model(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        tail = _rounded(np.log1p, _rounded(exponential, -np.abs(a - b)))
        return np.maximum(a, b) + tail * np.float32(unit)

    return model


def _times_log(logarithm: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda a, b: a * _rounded(logarithm, b)


def _scaled_back(card: str, sign: float) -> Callable[..., np.ndarray]:
    def model(x: np.ndarray) -> np.ndarray:
        half = np.abs(x) * np.float32(0.5 * sign)
        factor = _rounded(np.exp, half)
        return factor * step_model.run(card, x) * factor

    return model


def _shrunk(grad: np.ndarray, x: np.ndarray, bound: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) <= bound, np.float32(0), grad)


def _shifted(kind: str) -> Callable[..., np.ndarray]:
    return lambda x, n: step_model.run(f"chebyshev_{kind}", x + x - np.float32(1), n)


_POLYNOMIALS = [
    *(f"chebyshev_polynomial_{kind}" for kind in "tuvw"),
    *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l"),
    "legendre_polynomial_p",
]

CASES: list[Case] = [
    *_unary("abs neg sign", WIDE, (torch.float16, torch.float32, torch.int32, torch.int8), 0),
    *_unary("floor ceil round trunc sgn", WIDE, (*FLOATS, *INTS), 0),
    *_unary("relu isnan isinf isposinf isneginf logical_not", ANY, (*FLOATS, torch.int32), 0),
    *_unary("frac", WIDE, FLOATS, 0),
    *_unary("logical_not bitwise_not sign", ANY, BOOL, 0),
    *_unary("bitwise_not neg", WIDE, INTS, 0),
    *_unary("sqrt reciprocal", POSITIVE, FLOATS, 0),
    *_unary("rsqrt log log2 log10 log1p", POSITIVE, FLOATS, 1),
    *_unary("exp exp2 expm1 tanh sigmoid sin cos erf silu gelu", ANY, FLOATS, 1),
    *_unary("exp sqrt sin", POSITIVE, (torch.int32, torch.bool, torch.uint8), 1),
    Case("gelu", (ANY,), FLOATS, 1),
    Case("mish", (ANY,), FLOATS, 3),
    Case("hardsigmoid", (WIDE,), FLOATS, model=lambda x: _gate(x) / np.float32(6)),
    Case("hardswish", (WIDE,), FLOATS, model=lambda x: x * _gate(x) / np.float32(6)),
    *[
        Case(f"{name}.Tensor", (Draw(-2, 2), Draw(-2, 2)), (*FLOATS, *INTS, torch.bool))
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    ],
    Case("lt.Scalar", (WIDE, 3), (*FLOATS, *INTS)),
    Case("lt.Scalar", (WIDE, -3), (*FLOATS, torch.int8, torch.uint8)),
    Case("eq.Scalar", (Draw(0, 1), True), BOOL),
    *[
        Case(name, (Draw(-1, 1), Draw(-1, 1)), (*FLOATS, torch.int32, torch.bool))
        for name in ("logical_and", "logical_or", "logical_xor")
    ],
    Case("add.Tensor", (WIDE, WIDE), (*FLOATS, *INTS, torch.bool)),
    Case("add.Scalar", (WIDE, 2.5, 3), FLOATS),
    Case("add.Scalar", (WIDE, 200, 1), INTS),
    Case("sub.Tensor", (WIDE, WIDE), (*FLOATS, *INTS)),
    Case("rsub.Scalar", (WIDE, 7, 2), (*FLOATS, *INTS)),
    Case("mul.Tensor", (WIDE, WIDE), (*FLOATS, *INTS, torch.bool)),
    Case("mul.Scalar", (WIDE, 5), (*FLOATS, *INTS)),
    Case("div.Tensor", (WIDE, NOT_ZERO), (*FLOATS, torch.int32)),
    Case("div.Scalar", (WIDE, 4), FLOATS),
    Case("floor_divide", (WIDE, NOT_ZERO), (*FLOATS, *INTS)),
    Case("remainder.Tensor", (WIDE, NOT_ZERO), (*FLOATS, *INTS)),
    Case("remainder.Scalar_Tensor", (7, NOT_ZERO), FLOATS),
    Case("fmod.Tensor", (WIDE, NOT_ZERO), (*FLOATS, *INTS)),
    Case("fmod.Scalar", (WIDE, 3), (*FLOATS, *INTS)),
    Case("maximum", (WIDE, WIDE), (*FLOATS, *INTS, torch.bool)),
    Case("minimum", (WIDE, WIDE), (*FLOATS, *INTS, torch.bool)),
    Case("fmax", (WIDE, WIDE), (*FLOATS, torch.int32)),
    Case("fmin", (WIDE, WIDE), FLOATS),
    Case("pow.Tensor_Tensor", (POSITIVE, ANY), FLOATS, 1),
    Case("pow.Tensor_Scalar", (WIDE, 3), INTS),
    Case("pow.Tensor_Scalar", (WIDE, 2), FLOATS, 1),
    Case("pow.Scalar", (2.5, ANY), FLOATS, 1),
    Case("atan2", (ANY, ANY), FLOATS, 1),
    *[
        Case(f"bitwise_{name}.Tensor", (WIDE, WIDE), (*INTS, torch.bool))
        for name in ("and", "or", "xor")
    ],
    Case("bitwise_and.Scalar", (WIDE, 12), INTS),
    Case("bitwise_left_shift.Tensor", (WIDE, SHIFT), INTS),
    Case("bitwise_right_shift.Tensor", (WIDE, SHIFT), INTS),
    Case("__lshift__.Scalar", (WIDE, 2), INTS),
    Case("where.self", (TRUTH, ANY, ANY), (*FLOATS, *INTS, torch.bool)),
    Case("masked_fill.Scalar", (ANY, TRUTH, -7.0), (*FLOATS, torch.int32)),
    Case("fill.Scalar", (ANY, 1.5), (*FLOATS, torch.int32, torch.bool)),
    Case("zero", (ANY,), (*FLOATS, *INTS, torch.bool)),
    Case("clamp", (WIDE, -20, 30), (*FLOATS, torch.int32)),
    Case("clamp", (WIDE, None, 30), (*FLOATS, *INTS)),
    Case("clamp", (WIDE, 2, None), (*FLOATS, *INTS)),
    Case("clamp.Tensor", (WIDE, Draw(-20, -10), Draw(10, 20)), FLOATS),
    Case("clamp_min", (WIDE, 2), (*FLOATS, *INTS)),
    Case("clamp_max.Tensor", (WIDE, ANY), FLOATS),
    Case("hardtanh", (WIDE, -1, 1), FLOATS),
    Case("softplus", (WIDE, 2, 20), FLOATS, 1),
    Case("leaky_relu", (WIDE, 0.125), FLOATS),
    Case("elu", (ANY, 1.5, 1.25, 1), FLOATS, 1),
    Case("threshold", (WIDE, 0.5, 9), FLOATS),
    Case("lerp.Tensor", (WIDE, WIDE, Draw(0, 1)), FLOATS, model=_lerp),
    Case("lerp.Scalar", (WIDE, WIDE, 0.75), FLOATS, model=_lerp),
    Case("lerp.Scalar", (WIDE, WIDE, -3.25), FLOATS, model=_lerp),
    Case("addcmul", (WIDE, ANY, ANY), (*FLOATS, torch.int32), model=lambda a, b, c: a + b * c),
    Case("addcdiv", (WIDE, ANY, NOT_ZERO), FLOATS, model=lambda a, b, c: a + b / c),
    Case("threshold_backward", (ANY, ANY, 0.5), FLOATS),
    Case("sigmoid_backward", (ANY, Draw(0, 1)), FLOATS, model=lambda g, y: g * ((1 - y) * y)),
    Case("tanh_backward", (ANY, Draw(-1, 1)), FLOATS, model=lambda g, y: g * (1 - y * y)),
    Case("conj_physical_", (ANY,), (*FLOATS, *INTS, torch.bool)),
    # Mathematical functions.
    *_unary("tan sinh cosh asinh atan erfc", ANY, (*FLOATS, torch.int32, torch.bool), 1),
    *_unary("asin acos atanh erfinv", INSIDE, (*FLOATS, torch.bool), 1),
    *_unary("acosh", ABOVE_ONE, (*FLOATS, torch.int32), 1),
    *_unary("lgamma digamma", POSITIVE, FLOATS, 1),
    *_unary("special_i0e special_i1e special_erfcx", ANY, (torch.float32, torch.int32), 1),
    *_unary("special_bessel_j0 special_bessel_j1", ANY, (torch.float32,), 1),
    # PyTorch's own are not that good in float64 either.
    *(
        Case(f"special_{name}", (draw,), (torch.float32,), 1, partial(step_model.run, name))
        for name, draw in (("bessel_y0", POSITIVE), ("bessel_y1", POSITIVE), ("airy_ai", ANY))
    ),
    *_unary("special_scaled_modified_bessel_k0", POSITIVE, (torch.float32,), 1),
    *_unary("special_scaled_modified_bessel_k1", POSITIVE, (torch.float32,), 1),
    *_unary("special_ndtri", PROBABILITY, (torch.float32,), 1),
    *_unary("angle signbit", WIDE, (*FLOATS, torch.int32, torch.bool), 0),
    Case("sinc", (Draw(0.1, 3.0),), FLOATS, 1, model=_sinc),
    Case("special_spherical_bessel_j0", (POSITIVE,), (torch.float32,), 1),
    Case("special_log_ndtr", (Draw(-8.0, -2.0),), (torch.float32,), 2),
    Case("special_entr", (POSITIVE,), FLOATS, 1, model=lambda x: -x * _rounded(np.log, x)),
    Case("logit", (PROBABILITY,), FLOATS, 1, model=_logit),
    Case("logit", (Draw(-1.0, 2.0), 0.25), FLOATS, 1, model=lambda x, e: _logit(x.clip(e, 1 - e))),
    *(
        # Two exponentials, each off by a unit at most, which a binade's end doubles.
        Case(name, (ANY,), dtypes, 5, model=_scaled_back(card, 1.0))
        for name, card, dtypes in (
            ("i0", "i0e", FLOATS),
            ("special_i1", "i1e", FLOATS),
            ("special_modified_bessel_i0", "i0e", (torch.float32,)),
            ("special_modified_bessel_i1", "i1e", (torch.float32,)),
        )
    ),
    *(
        Case(f"special_modified_bessel_{k}", (POSITIVE,), (torch.float32,), 5, model=model)
        for k, model in (("k0", _scaled_back("k0e", -1.0)), ("k1", _scaled_back("k1e", -1.0)))
    ),
    Case("polygamma", (0, POSITIVE), FLOATS, 1, model=lambda _, x: step_model.run("digamma", x)),
    Case("polygamma", (1, POSITIVE), (torch.float32,), 1, model=_polygamma),
    Case("polygamma", (4, POSITIVE), (torch.float32,), 1, model=_polygamma),
    Case("special_zeta", (Draw(1.5, 9.0), POSITIVE), (torch.float32,), 1),
    Case("special_zeta.other_scalar", (Draw(1.5, 9.0), 2), (torch.float32,), 1),
    Case("igamma", (POSITIVE, POSITIVE), FLOATS, 1),
    Case("igammac", (POSITIVE, POSITIVE), FLOATS, 1),
    Case("logaddexp", (POSITIVE, POSITIVE), FLOATS, 1, model=_log_sum(np.exp, 1.0)),
    Case("logaddexp2", (POSITIVE, POSITIVE), FLOATS, 1, model=_log_sum(np.exp2, 1 / np.log(2))),
    Case("xlogy.Tensor", (ANY, POSITIVE), FLOATS, 1, model=_times_log(np.log)),
    Case("xlogy.Scalar_Self", (2, POSITIVE), FLOATS, 1, model=_times_log(np.log)),
    Case("special_xlog1py", (ANY, POSITIVE), FLOATS, 1, model=_times_log(np.log1p)),
    *(Case(f"special_{name}", (INSIDE, DEGREE), (torch.float32,), 1) for name in _POLYNOMIALS),
    *(Case(f"special_{name}.n_scalar", (ANY, 3), (torch.int32,), 1) for name in _POLYNOMIALS),
    *(
        Case(
            f"special_shifted_chebyshev_polynomial_{kind}",
            (INSIDE, DEGREE),
            (torch.float32,),
            1,
            model=_shifted(kind),
        )
        for kind in "tuvw"
    ),
    Case("copysign.Tensor", (ANY, ANY), (*FLOATS, torch.int32, torch.bool)),
    Case("copysign.Scalar", (ANY, -0.0), FLOATS),
    Case("hypot", (ANY, ANY), FLOATS),
    Case("nextafter", (ANY, ANY), (torch.float16, torch.float32), 1),
    Case("heaviside", (Draw(-1, 1), ANY), (*FLOATS, *INTS, torch.bool)),
    Case("gcd", (WIDE, WIDE), INTS),
    Case("lcm", (WIDE, WIDE), INTS),
    Case("nan_to_num", (ANY,), (*FLOATS, torch.int32, torch.bool)),
    Case("hardshrink", (ANY, 1.5), FLOATS),
    Case("softshrink", (ANY, 1.5), FLOATS, model=lambda x, b: x - np.clip(x, -b, b)),
    Case("_prelu_kernel", (ANY, ANY), FLOATS),
    Case("clamp_min.Tensor", (TRUTH, TRUTH), BOOL),
    # Gradients of activations.
    Case("gelu_backward", (ANY, POSITIVE), FLOATS, 2, model=lambda g, x: g * _gelu_slope(x)),
    Case("elu_backward", (ANY, 1.5, 1.25, 0.5, False, ANY), FLOATS, 2, model=_elu_slope),
    Case("leaky_relu_backward", (ANY, ANY, 0.125, False), FLOATS),
    Case("hardtanh_backward", (ANY, ANY, -1.0, 1.5), FLOATS),
    Case(
        "hardsigmoid_backward",
        (ANY, Draw(-5, 5)),
        FLOATS,
        model=lambda g, x: np.where(np.abs(x) < 3, g / 6, 0),
    ),
    Case(
        "hardswish_backward",
        (ANY, Draw(-5, 5)),
        FLOATS,
        model=lambda g, x: np.where(x <= -3, 0, g * np.where(x < 3, x / 3 + np.float32(0.5), 1)),
    ),
    Case(
        "softplus_backward",
        (ANY, WIDE, 2.0, 20.0),
        FLOATS,
        1,
        model=lambda g, x, b, limit: g * np.where(x * b > limit, 1, _sigmoid(x * b)),
    ),
    Case("hardshrink_backward", (ANY, ANY, 0.5), FLOATS, model=_shrunk),
    Case("softshrink_backward", (ANY, ANY, 0.5), FLOATS, model=_shrunk),
    Case(
        "logit_backward",
        (ANY, PROBABILITY, 0.25),
        FLOATS,
        model=lambda g, x, e: np.where((x < e) | (x > 1 - e), 0, g / (x * (1 - x))),
    ),
]


def reference(case: Case, args: list[object]) -> tuple[torch.dtype, np.ndarray]:
    """The dtype that PyTorch gives, and the widened values before the last rounding."""
    dtype = case.operation(*args).dtype
    held = [as_held(a) if isinstance(a, torch.Tensor) else a for a in args]
    if case.model and dtype.is_floating_point:
        numbers = [np.float32(a) if isinstance(a, float) else a for a in held]
        return dtype, case.model(*(np.asarray(a, dtype=np.float32) for a in numbers))
    # PyTorch's own float32 functions err by more than a unit now and then; its float64 ones, once
    # rounded, don't.
    precise = [
        a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in held
    ]
    result = case.operation(*precise)
    if dtype.is_floating_point or dtype is torch.bool:
        return dtype, result.float().numpy()
    return dtype, result.to(torch.int64).numpy()


def as_held(tensor: torch.Tensor) -> torch.Tensor:
    """The values that the card holds for a tensor, in a dtype that has room for them."""
    if tensor.dtype.is_floating_point:
        return torch.from_numpy(step_model.as_seen_by_card(tensor))
    return tensor


def distance(actual: np.ndarray, expected: np.ndarray, dtype: torch.dtype) -> int:
    """How many numbers of the dtype's card format lie between, at most; NaNs are equal."""
    fmt = step_model.FORMAT_OF[dtype]
    codes = [step_model.narrow(np.ascontiguousarray(v), fmt) for v in (actual, expected)]
    if step_model.is_float(fmt):
        sign = 1 << (codes[0].dtype.itemsize * 8 - 1)
        codes = [c.astype(np.int64) for c in codes]
        codes = [np.where(c & sign, -(c & (sign - 1)), c) for c in codes]
    else:
        codes = [c.astype(np.int64) for c in codes]
    gap = np.abs(codes[0] - codes[1])
    both_nan = np.isnan(actual) & np.isnan(expected) if actual.dtype.kind == "f" else False
    return int(np.where(both_nan, 0, gap).max(initial=0))
