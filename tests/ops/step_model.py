"""An independent numpy model of the card's number formats and of each pointwise operation.

Written from the description of the card, not from its code: formats with integers and float64,
operations with numpy's own functions. Values are the widened ones: float32 or int32 arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import numpy as np
import torch

SEN169, FP32, SEN143, SEN152 = 0, 1, 3, 4
SENINT8, SENINT16, INT32, SENUINT32 = 8, 9, 12, 13

FORMAT_OF = {
    torch.float16: SEN169,
    torch.bfloat16: SEN169,
    torch.bool: SEN169,
    torch.float32: FP32,
    torch.float8_e4m3fn: SEN143,
    torch.float8_e5m2: SEN152,
    torch.int8: SENINT8,
    torch.int16: SENINT16,
    torch.int32: INT32,
    torch.int64: INT32,
    torch.uint8: SENUINT32,
}
RAW = {
    SEN169: np.uint16,
    FP32: np.uint32,
    SEN143: np.uint8,
    SEN152: np.uint8,
    SENINT8: np.int8,
    SENINT16: np.int16,
    INT32: np.int32,
    SENUINT32: np.int32,
}
LARGEST_SEN169 = 2.0**32 * (1 + 510 / 512)
SMALLEST_SEN169 = 2.0**-31 * (1 + 1 / 512)

_FP8 = {SEN143: torch.float8_e4m3fn, SEN152: torch.float8_e5m2}


def lanes_of(fmt: int) -> int:
    return 128 // np.dtype(RAW[fmt]).itemsize


def is_float(fmt: int) -> bool:
    return fmt in (SEN169, FP32, SEN143, SEN152)


# ---- Formats ------------------------------------------------------------------------------------


def decode_sen169(bits: np.ndarray) -> np.ndarray:
    """1 sign, 6 exponent, 9 fraction bits; no subnormals; 0x7FFF is NaN, 0xFFFF minus infinity."""
    bits = np.asarray(bits, dtype=np.int64)
    sign = np.where(bits & 0x8000, -1.0, 1.0)
    magnitude = np.ldexp(1.0 + (bits & 0x1FF) / 512.0, ((bits >> 9) & 0x3F) - 31)
    magnitude = np.where(bits & 0x7FFF, magnitude, 0.0)
    values = np.where(
        (bits & 0x7FFF) == 0x7FFF, np.where(bits & 0x8000, -np.inf, np.nan), sign * magnitude
    )
    return values.astype(np.float32)


def encode_sen169(values: np.ndarray, saturate: bool = False) -> np.ndarray:
    """Nearest, ties away from zero; an overflow becomes the symbol unless it saturates."""
    values = np.asarray(values, dtype=np.float64)
    negative = np.signbit(values)
    magnitude = np.abs(values)
    finite = np.where(np.isfinite(magnitude), magnitude, 1.0)
    fraction, exponent = np.frexp(finite)  # in [0.5, 1)
    steps = np.floor(fraction * 1024 + 0.5)  # 512..1024 of 2^(exponent - 10)
    exponent = np.where(steps == 1024, exponent + 1, exponent) - 1
    steps = np.where(steps == 1024, 512, steps)
    code = ((exponent + 31).astype(np.int64) << 9) + steps.astype(np.int64) - 512
    code = np.where(finite < SMALLEST_SEN169, np.where(finite < SMALLEST_SEN169 / 2, 0, 1), code)
    code = np.where((exponent + 31 <= 0) & (code < 1) & (finite >= SMALLEST_SEN169 / 2), 1, code)
    overflow = 0x7FFE if saturate else 0x7FFF
    code = np.where((code >= 0x7FFF) | (exponent + 31 > 63), overflow, code)
    code = np.where(np.isfinite(values), code, 0x7FFF)
    negative = negative & ~np.isnan(values)
    return (code | np.where(negative, 0x8000, 0)).astype(np.uint16)


def widen(raw: np.ndarray, fmt: int) -> np.ndarray:
    """Elements in memory to float32 or int32."""
    if fmt == SEN169:
        return decode_sen169(raw)
    if fmt == FP32:
        return raw.view(np.float32)
    if fmt in _FP8:
        return torch.from_numpy(raw.copy()).view(_FP8[fmt]).float().numpy()
    return raw.astype(np.int32)


def narrow(values: np.ndarray, fmt: int) -> np.ndarray:
    """float32 or int32 to elements in memory, rounding as the arithmetic units do."""
    if fmt == SEN169:
        return encode_sen169(values)
    if fmt == FP32:
        return np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    if fmt in _FP8:
        raw = torch.from_numpy(values.copy()).to(_FP8[fmt]).view(torch.uint8).numpy()
        if fmt == SEN143:  # which has no infinity: overflow gives NaN, where PyTorch saturates
            raw = np.where(np.abs(values) > 464, 0x7F | raw & 0x80, raw).astype(np.uint8)
        return raw
    with np.errstate(over="ignore"):
        return values.astype(np.int32).astype(RAW[fmt])


def to_card(tensor: torch.Tensor) -> np.ndarray:
    """What a host tensor becomes on the card, flattened, as elements in memory."""
    flat = tensor.detach().reshape(-1)
    fmt = FORMAT_OF[tensor.dtype]
    if fmt == SEN169:
        return encode_sen169(flat.double().numpy(), saturate=True)
    if fmt == FP32:
        return flat.numpy().view(np.uint32)
    if fmt in _FP8:
        return flat.view(torch.uint8).numpy()
    return flat.numpy().astype(RAW[fmt])


def as_seen_by_card(tensor: torch.Tensor) -> np.ndarray:
    """The widened values that the card computes with, in the tensor's shape."""
    fmt = FORMAT_OF[tensor.dtype]
    return widen(to_card(tensor), fmt).reshape(tuple(tensor.shape))


# ---- Operations ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """A card operation; `is_exact`: every bit of the result is determined."""

    compute: Callable[..., np.ndarray]
    is_exact: bool


def _exact(function: Callable[..., np.ndarray]) -> Operation:
    return Operation(function, True)


def _float64(function: Callable[..., np.ndarray]) -> Operation:
    """Computed in float64: for results that may differ by a unit in the last place."""

    def compute(*operands: np.ndarray) -> np.ndarray:
        return function(*(operand.astype(np.float64) for operand in operands)).astype(np.float32)

    return Operation(compute, False)


def _truth(function: Callable[..., np.ndarray]) -> Operation:
    return Operation(lambda *operands: function(*operands).astype(np.float32), True)


def _wrapped(function: Callable[..., np.ndarray]) -> Operation:
    """Integers: computed in 64 bits, wrapped to 32."""

    def compute(*operands: np.ndarray) -> np.ndarray:
        return function(*(operand.astype(np.int64) for operand in operands)).astype(np.int32)

    return Operation(compute, True)


def _elementwise(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    return np.vectorize(function, otypes=[np.float64])


def _to_int(a: np.ndarray) -> np.ndarray:
    """Saturates; NaN gives 0."""
    whole = np.trunc(np.where(np.isnan(a), 0, a).astype(np.float64))
    return np.clip(whole, -(2.0**31), 2.0**31 - 1).astype(np.int32)


def _div_trunc(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Division by zero gives 0, as for the other integer divisions."""
    return np.trunc(a / np.where(b == 0, 1, b)).astype(np.int64) * (b != 0)


def _pow_int(base: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Modulo 2^32; a negative exponent truncates the fraction."""

    def one(b: int, e: int) -> int:
        if e < 0:
            return b ** (e % 2) if abs(b) == 1 else 0
        return (pow(b, e, 1 << 32) + (1 << 31)) % (1 << 32) - (1 << 31)

    rows = zip(*(o.ravel().tolist() for o in np.broadcast_arrays(base, exponent)), strict=True)
    return np.array([one(b, e) for b, e in rows], np.int64).reshape(np.shape(base + exponent))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * _elementwise(math.erfc)(-x / math.sqrt(2))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def _softplus(x: np.ndarray, beta: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    scaled = (x * beta).astype(np.float32)  # this product is rounded
    return np.where(scaled > threshold, x, np.logaddexp(0, scaled.astype(np.float64)) / beta)


def _lerp(a: np.ndarray, b: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.where(np.abs(w) < 0.5, a + w * (b - a), b - (b - a) * (1 - w))


def _elu(x: np.ndarray, alpha: np.ndarray, scale: np.ndarray, inner: np.ndarray) -> np.ndarray:
    scaled = (x * inner).astype(np.float32).astype(np.float64)
    return np.where(x > 0, x * scale, np.expm1(scaled) * (alpha * scale).astype(np.float32))


def _shift_left(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where((b < 0) | (b > 31), 0, a << np.clip(b, 0, 31))


def _shift_right(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a >> np.where((b < 0) | (b > 31), 31, b)


def _double(function: Callable[..., torch.Tensor]) -> Operation:
    """A function that PyTorch has and numpy has not, in float64."""

    def compute(*operands: np.ndarray) -> np.ndarray:
        tensors = torch.broadcast_tensors(*(torch.from_numpy(o) for o in map(np.asarray, operands)))
        return function(*tensors).numpy()

    return _float64(compute)


def _precise(function: Callable[..., mpmath.mpf]) -> Operation:
    """A function in which PyTorch's own float64 is not good enough; undefined: NaN."""

    def one(*operands: float) -> float:
        if not all(map(math.isfinite, operands)):
            return math.nan
        with mpmath.workdps(20):
            value = function(*operands)
        return float(value) if mpmath.im(value) == 0 else math.nan

    return _float64(np.vectorize(one, otypes=[np.float64]))


def _bessel_y(order: int) -> Operation:
    """Schläfli's two integrals, by Gauss and Legendre."""
    nodes, weights = np.polynomial.legendre.leggauss(400)

    def integral(integrand: np.ndarray, end: np.ndarray) -> np.ndarray:
        return (integrand * weights).sum(-1) * end[..., 0] / 2

    def compute(x: np.ndarray) -> np.ndarray:
        x = np.where(x > 0, x, np.nan)[..., None]
        half = np.full_like(x, np.pi)
        angle = half * (nodes + 1) / 2
        far = np.arcsinh(700 / x)
        t = far * (nodes + 1) / 2
        growth = np.exp(order * t) + (-1) ** order * np.exp(-order * t)
        near = integral(np.sin(x * np.sin(angle) - order * angle), half)
        tail = integral(growth * np.exp(-x * np.sinh(t)), far)
        return (near - tail) / np.pi

    def with_pole(x: np.ndarray) -> np.ndarray:
        return np.where(x == 0, -np.inf, compute(x))

    return _float64(with_pole)


def _igammac(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """PyTorch's loses its digits where both operands are small."""
    small = _precise(lambda p, q: mpmath.gammainc(p, q, regularized=True)).compute
    is_small = (a > 0) & (a < 1e-3) & (x > 0)
    safe = [np.where(is_small, value, 1).astype(np.float32) for value in (a, x)]
    return np.where(is_small, small(*safe), _double(torch.igammac).compute(a, x))


def _next_after(
    x: np.ndarray, toward: np.ndarray, step: np.ndarray, smallest: np.ndarray
) -> np.ndarray:
    """So many numbers of fp32 further, at most to zero or infinity; from zero to the smallest."""
    units = np.asarray(step, np.int64) & 0x3FFFFF
    size = np.abs(x).view(np.int32).astype(np.int64)
    is_outwards = (toward > x) == ~np.signbit(x)
    moved = np.where(is_outwards, np.minimum(size + units, 0x7F800000), np.maximum(size - units, 0))
    away = np.copysign(moved.astype(np.int32).view(np.float32), x)
    away = np.where(x == 0, np.copysign(smallest, toward), away)
    is_nan = np.isnan(x) | np.isnan(toward)
    return np.where(is_nan, np.float32(np.nan), np.where(x == toward, toward, away))


def _exp_sub(a: np.ndarray, b: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """exp of a number that was rounded on the way, as fp32 units do."""
    difference = (a - b).astype(np.float32).astype(np.float64)
    return np.exp((difference * alpha).astype(np.float32).astype(np.float64))


OPERATIONS: dict[str, Operation] = {
    "identity": _exact(lambda a: a),
    "identity_int": _exact(lambda a: a),
    "float_to_int": _exact(_to_int),
    "int_to_float": _exact(lambda a: a.astype(np.float32)),
    "float_to_bool": _truth(lambda a: a != 0),
    "int_to_bool": _truth(lambda a: a != 0),
    "abs": _exact(np.abs),
    "neg": _exact(np.negative),
    "exp": _float64(np.exp),
    "exp2": _float64(np.exp2),
    "expm1": _float64(np.expm1),
    "log": _float64(np.log),
    "log2": _float64(np.log2),
    "log10": _float64(np.log10),
    "log1p": _float64(np.log1p),
    "sqrt": _exact(np.sqrt),
    "rsqrt": _float64(lambda a: 1 / np.sqrt(a)),
    "reciprocal": _exact(lambda a: np.float32(1) / a),
    "tanh": _float64(np.tanh),
    "sigmoid": _float64(_sigmoid),
    "relu": _exact(lambda a: np.where(np.isnan(a), a, np.maximum(a, np.float32(0)))),
    "gelu": _float64(_gelu),
    "gelu_tanh": _float64(_gelu_tanh),
    "silu": _float64(lambda a: a * _sigmoid(a)),
    "erf": _float64(_elementwise(math.erf)),
    "floor": _exact(np.floor),
    "ceil": _exact(np.ceil),
    "round": _exact(np.rint),
    "trunc": _exact(np.trunc),
    "sign": _exact(lambda a: np.where(np.isnan(a), np.float32(0), np.sign(a))),
    "sin": _float64(np.sin),
    "cos": _float64(np.cos),
    "square": _exact(np.square),
    "isnan": _truth(np.isnan),
    "isinf": _truth(np.isinf),
    "logical_not": _truth(lambda a: a == 0),
    "add": _exact(np.add),
    "sub": _exact(np.subtract),
    "mul": _exact(np.multiply),
    "div": _exact(np.divide),
    "maximum": _exact(np.maximum),
    "minimum": _exact(np.minimum),
    "pow": _float64(np.power),
    "fmod": _exact(np.fmod),
    "remainder": _exact(np.remainder),
    "div_floor": _exact(np.floor_divide),
    "div_trunc": _exact(lambda a, b: np.trunc(a / b)),
    "eq": _truth(np.equal),
    "ne": _truth(np.not_equal),
    "lt": _truth(np.less),
    "le": _truth(np.less_equal),
    "gt": _truth(np.greater),
    "ge": _truth(np.greater_equal),
    "logical_and": _truth(np.logical_and),
    "logical_or": _truth(np.logical_or),
    "logical_xor": _truth(np.logical_xor),
    "atan2": _float64(np.arctan2),
    "where": _exact(lambda c, a, b: np.where(c != 0, a, b)),
    "clamp": _exact(lambda a, low, high: np.minimum(np.maximum(a, low), high)),
    "lerp": _exact(_lerp),
    "add_scaled": _exact(lambda a, b, alpha: a + alpha * b),
    "sub_scaled": _exact(lambda a, b, alpha: a - alpha * b),
    "softplus": _float64(_softplus),
    "exp_sub": _float64(_exp_sub),
    "leaky_relu": _exact(lambda a, slope: np.where(a > 0, a, a * slope)),
    "addcmul": _exact(lambda a, b, c, value: a + value * b * c),
    "addcdiv": _exact(lambda a, b, c, value: a + value * b / c),
    "elu": _float64(_elu),
    "tan": _float64(np.tan),
    "asin": _float64(np.arcsin),
    "acos": _float64(np.arccos),
    "sinh": _float64(np.sinh),
    "cosh": _float64(np.cosh),
    "asinh": _float64(np.arcsinh),
    "acosh": _float64(np.arccosh),
    "atanh": _float64(np.arctanh),
    "erfc": _float64(_elementwise(math.erfc)),
    "erfcx": _double(torch.special.erfcx),
    "erfinv": _double(torch.erfinv),
    "ndtri": _double(torch.special.ndtri),
    "lgamma": _double(torch.lgamma),
    "digamma": _double(torch.digamma),
    "i0e": _double(torch.special.i0e),
    "i1e": _double(torch.special.i1e),
    "k0e": _double(torch.special.scaled_modified_bessel_k0),
    "k1e": _double(torch.special.scaled_modified_bessel_k1),
    "bessel_j0": _precise(lambda a: mpmath.besselj(0, a)),
    "bessel_j1": _precise(lambda a: mpmath.besselj(1, a)),
    "bessel_y0": _bessel_y(0),
    "bessel_y1": _bessel_y(1),
    "airy_ai": _precise(mpmath.airyai),
    "hypot": _float64(np.hypot),
    "copysign": _exact(np.copysign),
    "igamma": _double(torch.igamma),
    "igammac": Operation(_igammac, False),
    "zeta": _double(torch.special.zeta),
    "chebyshev_t": _double(torch.special.chebyshev_polynomial_t),
    "chebyshev_u": _double(torch.special.chebyshev_polynomial_u),
    "chebyshev_v": _double(torch.special.chebyshev_polynomial_v),
    "chebyshev_w": _double(torch.special.chebyshev_polynomial_w),
    "hermite_h": _double(torch.special.hermite_polynomial_h),
    "hermite_he": _double(torch.special.hermite_polynomial_he),
    "laguerre": _double(torch.special.laguerre_polynomial_l),
    "legendre": _double(torch.special.legendre_polynomial_p),
    "nextafter": _exact(_next_after),
    "gcd": _wrapped(np.gcd),
    "abs_int": _wrapped(np.abs),
    "neg_int": _wrapped(np.negative),
    "sign_int": _wrapped(np.sign),
    "bitwise_not": _wrapped(np.invert),
    "square_int": _wrapped(np.square),
    "relu_int": _wrapped(lambda a: np.maximum(a, 0)),
    "logical_not_int": _truth(lambda a: a == 0),
    "add_int": _wrapped(np.add),
    "sub_int": _wrapped(np.subtract),
    "mul_int": _wrapped(np.multiply),
    "maximum_int": _wrapped(np.maximum),
    "minimum_int": _wrapped(np.minimum),
    "pow_int": _wrapped(_pow_int),
    "fmod_int": _wrapped(np.fmod),
    "remainder_int": _wrapped(np.remainder),
    "div_floor_int": _wrapped(np.floor_divide),
    "div_trunc_int": _wrapped(_div_trunc),
    "eq_int": _truth(np.equal),
    "ne_int": _truth(np.not_equal),
    "lt_int": _truth(np.less),
    "le_int": _truth(np.less_equal),
    "gt_int": _truth(np.greater),
    "ge_int": _truth(np.greater_equal),
    "bitwise_and": _wrapped(np.bitwise_and),
    "bitwise_or": _wrapped(np.bitwise_or),
    "bitwise_xor": _wrapped(np.bitwise_xor),
    "shift_left": _wrapped(_shift_left),
    "shift_right": _wrapped(_shift_right),
    "logical_and_int": _truth(np.logical_and),
    "logical_or_int": _truth(np.logical_or),
    "logical_xor_int": _truth(np.logical_xor),
    "where_int": _exact(lambda c, a, b: np.where(c != 0, a, b)),
    "clamp_int": _wrapped(lambda a, low, high: np.minimum(np.maximum(a, low), high)),
    "add_scaled_int": _wrapped(lambda a, b, alpha: a + alpha * b),
    "sub_scaled_int": _wrapped(lambda a, b, alpha: a - alpha * b),
    "addcmul_int": _wrapped(lambda a, b, c, value: a + value * b * c),
}


# ---- Random numbers -----------------------------------------------------------------------------


def philox(index: int, low: int, high: int, counter: int) -> tuple[int, int, int, int]:
    """Philox 4x32-10 (Salmon et al. 2011) of the block counter (index, counter, 0, 0)."""
    words = [index, counter, 0, 0]
    key = [low, high]
    mask = 0xFFFFFFFF
    for _ in range(10):
        first, second = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [
            (second >> 32) ^ words[1] ^ key[0],
            second & mask,
            (first >> 32) ^ words[3] ^ key[1],
            first & mask,
        ]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return words[0], words[1], words[2], words[3]


def _random_words(*operands: np.ndarray) -> np.ndarray:
    words = np.broadcast_arrays(*(operand.astype(np.uint32) for operand in operands))
    first = [philox(*map(int, row))[0] for row in zip(*(w.ravel() for w in words), strict=True)]
    return np.array(first, dtype=np.uint32).reshape(words[0].shape)


OPERATIONS["random_bits"] = _exact(lambda *o: (_random_words(*o) >> 1).astype(np.int32))
OPERATIONS["random_uniform"] = _exact(
    lambda *o: (_random_words(*o) >> 8).astype(np.float32) * np.float32(2.0**-24)
)


# ---- Reductions and matmul ----------------------------------------------------------------------


@dataclass(frozen=True)
class Reduction:
    """An operation that accumulates, and the element that changes nothing."""

    neutral: np.float32 | np.int32
    combine: Callable[[np.ndarray, np.ndarray], np.ndarray]
    prepare: Callable[[np.ndarray], np.ndarray] = np.positive  # of each element


def _larger(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """NaN wins; of equal values the second, which tells zeros apart."""
    return np.where((a > b) | np.isnan(a), a, b)


def _smaller(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where((a < b) | np.isnan(a), a, b)


_INT = np.iinfo(np.int32)
REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(np.float32(0), np.add),
    "mean": Reduction(np.float32(0), np.add),
    "sum_squares": Reduction(np.float32(0), np.add, np.square),
    "prod": Reduction(np.float32(1), np.multiply),
    "amax": Reduction(np.float32(-np.inf), _larger),
    "amin": Reduction(np.float32(np.inf), _smaller),
    "sum_int": Reduction(np.int32(0), OPERATIONS["add_int"].compute),
    "prod_int": Reduction(np.int32(1), OPERATIONS["mul_int"].compute),
    "amax_int": Reduction(np.int32(_INT.min), np.maximum),
    "amin_int": Reduction(np.int32(_INT.max), np.minimum),
}


# ---- Tables and rows ----------------------------------------------------------------------------

Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _last(_: np.ndarray, b: np.ndarray) -> np.ndarray:
    return b


# What a scatter leaves in the table, of what is there and an element of the source.
SCATTERS: dict[str, Combine] = {
    "scatter": _last,
    "scatter_add": np.add,
    "scatter_prod": np.multiply,
    "scatter_amax": _larger,
    "scatter_amin": _smaller,
    "scatter_int": _last,
    "scatter_add_int": OPERATIONS["add_int"].compute,
    "scatter_prod_int": OPERATIONS["mul_int"].compute,
    "scatter_amax_int": np.maximum,
    "scatter_amin_int": np.minimum,
}

ARGSORTS = ("argsort", "argsort_descending", "argsort_int", "argsort_int_descending")


def argsort(opcode: str, values: np.ndarray) -> np.ndarray:
    """numpy's stable order, in which NaN comes last; for the other direction by negated ranks."""
    order = np.argsort(values, kind="stable")
    if opcode.endswith("_descending"):
        is_same = np.isnan(values[order][1:]) & np.isnan(values[order][:-1])
        is_same |= values[order][1:] == values[order][:-1]
        ranks = np.empty(len(values), np.int64)
        ranks[order] = np.cumsum(np.append([0], ~is_same))[: len(values)]
        order = np.argsort(-ranks, kind="stable")
    return order.astype(np.int32)


# Running results that are values, with what they start from.
SCANS: dict[str, tuple[np.float32 | np.int32, Combine]] = {
    "cumsum": (np.float32(0), np.add),
    "cumprod": (np.float32(1), np.multiply),
    "cumsum_int": (np.int32(0), OPERATIONS["add_int"].compute),
    "cumprod_int": (np.int32(1), OPERATIONS["mul_int"].compute),
    "logcumsumexp": (np.float32(-np.inf), np.logaddexp),  # within 2 units for each element
}
# Running extrema: does an element take the place of the one so far? Their results are positions.
EXTREMA: dict[str, Combine] = {
    "cummax_index": lambda x, old: np.isnan(x) | (x >= old),
    "cummin_index": lambda x, old: np.isnan(x) | (x <= old),
    "cummax_index_int": np.greater_equal,
    "cummin_index_int": np.less_equal,
}


def one_nan(values: np.ndarray) -> np.ndarray:
    """What is computed has one NaN; what is moved keeps its bits."""
    return (
        np.where(np.isnan(values), np.float32(np.nan), values)
        if values.dtype.kind == "f"
        else values
    )


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c in float32, rounded once.

    In float64 the product is exact. The sum is rounded to odd (of its two neighbours the one with
    the odd last bit), after which rounding to float32 gives what one rounding would have given.
    """
    with np.errstate(all="ignore"):
        product, c = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
        total = product + c
        back = total - product
        error = (product - (total - back)) + (c - back)
        bits = total.view(np.int64)
        away = np.where((error > 0) == (total > 0), 1, -1)
        is_inexact = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
        return np.where(is_inexact, bits + away, bits).view(np.float64).astype(np.float32)


def run(opcode: str, *operands: np.ndarray) -> np.ndarray:
    """One card operation on widened operands."""
    with np.errstate(all="ignore"):
        return np.asarray(OPERATIONS[opcode].compute(*operands))
