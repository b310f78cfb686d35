"""The card's number formats and operations in numpy and torch's CPU functions, for the reference.

Written from what the operations mean; shares nothing with the card. Values are widened: float64
for floats, so that a result is correctly rounded once, int64 for integers, wrapped when stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from torch_spyre.ir.superdsc import DataFormat

Array: TypeAlias = NDArray[Any]

RAW: dict[DataFormat, np.dtype[Any]] = {
    DataFormat.SEN169_FP16: np.dtype(np.uint16),
    DataFormat.IEEE_FP32: np.dtype(np.float32),
    DataFormat.SEN143_FP8: np.dtype(np.uint8),
    DataFormat.SEN152_FP8: np.dtype(np.uint8),
    DataFormat.SENINT8: np.dtype(np.int8),
    DataFormat.SENINT16: np.dtype(np.int16),
    DataFormat.IEEE_INT32: np.dtype(np.int32),
    DataFormat.SENUINT32: np.dtype(np.int32),
}
# The relative distance of neighbouring numbers.
SPACING = {
    DataFormat.SEN169_FP16: 2.0**-9,
    DataFormat.IEEE_FP32: 2.0**-23,
    DataFormat.SEN143_FP8: 2.0**-3,
    DataFormat.SEN152_FP8: 2.0**-2,
}
_FP8 = {
    DataFormat.SEN143_FP8: torch.float8_e4m3fn,
    DataFormat.SEN152_FP8: torch.float8_e5m2,
}
_SYMBOL = 0x7FFF  # SEN169: NaN and infinity in one; with the sign bit, minus infinity
_REBIAS = (127 - 31) << 9


# ---- Formats ------------------------------------------------------------------------------------


def widen(raw: Array, fmt: DataFormat) -> Array:
    """Elements as they lie in memory to float64 or int64."""
    if fmt is DataFormat.SEN169_FP16:
        return _decode_sen169(raw)
    if fmt in _FP8:
        return torch.from_numpy(raw.copy()).view(_FP8[fmt]).double().numpy()
    return raw.astype(np.float64 if fmt.domain == "F" else np.int64)


def narrow(values: Array, fmt: DataFormat) -> Array:
    """float64 or int64 to elements as they lie in memory; floats by way of float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        if fmt is DataFormat.SEN169_FP16:
            return _encode_sen169(values.astype(np.float32))
        if fmt in _FP8:
            single = torch.from_numpy(values.astype(np.float32))
            return single.to(_FP8[fmt]).view(torch.uint8).numpy()
        if fmt.domain == "I":
            values = values.astype(np.int64).astype(np.int32)  # as wide as the units compute
        return values.astype(RAW[fmt])


def _decode_sen169(raw: Array) -> Array:
    bits = raw.astype(np.uint32)
    magnitude = bits & 0x7FFF
    single = ((magnitude + _REBIAS) << 14 | (bits & 0x8000) << 16).astype(np.uint32)
    values = np.where(magnitude == 0, 0.0, single.view(np.float32).astype(np.float64))
    symbol = np.where(bits & 0x8000, -np.inf, np.nan)
    return np.where(magnitude == _SYMBOL, symbol, values)


def _encode_sen169(single: Array) -> Array:
    """Nine fraction bits, ties away from zero; exponent 0 is a normal number, but for zero."""
    bits = np.ascontiguousarray(single).view(np.uint32).astype(np.int64)
    magnitude = bits & 0x7FFFFFFF
    code = ((magnitude + (1 << 13)) >> 14) - _REBIAS
    smallest = np.float32(2.0**-31 * (1 + 2.0**-9))
    code = np.where(code < 1, np.abs(single) >= smallest / 2, code)
    code = np.minimum(code, _SYMBOL)
    code = np.where(np.isfinite(single), code, _SYMBOL)
    sign = np.where(np.isnan(single), 0, bits >> 16 & 0x8000)
    return (code | sign).astype(np.uint16)


# ---- Operations ---------------------------------------------------------------------------------


def _torch(function: Callable[..., torch.Tensor]) -> Callable[..., Array]:
    def compute(*operands: Array) -> Array:
        return function(*(torch.from_numpy(np.array(o)) for o in operands)).numpy()

    return compute


def _truth(function: Callable[..., Any]) -> Callable[..., Array]:
    return lambda *operands: np.asarray(function(*operands)).astype(np.float64)


def _to_int(a: Array) -> Array:
    return np.clip(np.trunc(np.nan_to_num(a, nan=0.0)), -(2.0**31), 2.0**31 - 1).astype(np.int64)


def _unless_zero(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Integer division by zero gives 0."""
    return lambda a, b: np.where(b == 0, 0, function(a, np.where(b == 0, 1, b)))


def _pow_int(a: Array, b: Array) -> Array:
    def one(base: int, exponent: int) -> int:
        if exponent < 0:
            return base ** (exponent % 2) if abs(base) == 1 else 0
        return (pow(base, exponent, 1 << 32) + (1 << 31)) % (1 << 32) - (1 << 31)

    return np.vectorize(one, otypes=[np.int64])(a, b)


def _softplus(x: Array, beta: Array, threshold: Array) -> Array:
    return np.where(x * beta > threshold, x, np.logaddexp(0, x * beta) / beta)


def _elu(x: Array, alpha: Array, scale: Array, inner: Array) -> Array:
    return np.where(x > 0, x * scale, np.expm1(x * inner) * alpha * scale)


def _where(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition != 0, a, b)


_F = torch.nn.functional
_NAMED_ALIKE = (
    *("abs", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "tanh", "floor"),
    *("ceil", "trunc", "square", "sin", "cos", "maximum", "minimum", "fmod", "remainder"),
)

FLOAT: dict[str, Callable[..., Array]] = {
    "identity": lambda a: a,
    "float_to_int": _to_int,
    "float_to_bool": _truth(lambda a: a != 0),
    **{name: getattr(np, name) for name in _NAMED_ALIKE},
    "neg": np.negative,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "reciprocal": lambda a: 1 / a,
    "sigmoid": _torch(torch.sigmoid),
    "relu": _torch(torch.relu),
    "gelu": _torch(_F.gelu),
    "gelu_tanh": _torch(lambda a: _F.gelu(a, approximate="tanh")),
    "silu": _torch(_F.silu),
    "erf": _torch(torch.erf),
    "round": np.rint,
    "sign": _torch(torch.sign),
    "isnan": _truth(np.isnan),
    "isinf": _truth(np.isinf),
    "logical_not": _truth(lambda a: a == 0),
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "pow": np.power,
    "div_floor": np.floor_divide,
    "div_trunc": lambda a, b: np.trunc(a / b),
    "eq": _truth(np.equal),
    "ne": _truth(np.not_equal),
    "lt": _truth(np.less),
    "le": _truth(np.less_equal),
    "gt": _truth(np.greater),
    "ge": _truth(np.greater_equal),
    "logical_and": _truth(np.logical_and),
    "logical_or": _truth(np.logical_or),
    "logical_xor": _truth(np.logical_xor),
    "atan2": np.arctan2,
    "where": _where,
    "clamp": lambda a, low, high: np.minimum(np.maximum(a, low), high),
    "lerp": _torch(torch.lerp),
    "add_scaled": lambda a, b, alpha: a + alpha * b,
    "sub_scaled": lambda a, b, alpha: a - alpha * b,
    "softplus": _softplus,
    "exp_sub": lambda a, b, alpha: np.exp((a - b) * alpha),
    "leaky_relu": lambda a, slope: np.where(a > 0, a, a * slope),
    "addcmul": lambda a, b, c, value: a + value * b * c,
    "addcdiv": lambda a, b, c, value: a + value * b / c,
    "elu": _elu,
}

INT: dict[str, Callable[..., Array]] = {
    "identity_int": lambda a: a,
    "int_to_float": lambda a: a.astype(np.float64),
    "int_to_bool": _truth(lambda a: a != 0),
    "abs_int": np.abs,
    "neg_int": np.negative,
    "sign_int": np.sign,
    "bitwise_not": np.invert,
    "square_int": np.square,
    "relu_int": lambda a: np.maximum(a, 0),
    "logical_not_int": _truth(lambda a: a == 0),
    "add_int": np.add,
    "sub_int": np.subtract,
    "mul_int": np.multiply,
    "maximum_int": np.maximum,
    "minimum_int": np.minimum,
    "pow_int": _pow_int,
    "fmod_int": _unless_zero(np.fmod),
    "remainder_int": _unless_zero(np.remainder),
    "div_floor_int": _unless_zero(np.floor_divide),
    "div_trunc_int": _unless_zero(lambda a, b: np.trunc(a / b).astype(np.int64)),
    "eq_int": _truth(np.equal),
    "ne_int": _truth(np.not_equal),
    "lt_int": _truth(np.less),
    "le_int": _truth(np.less_equal),
    "gt_int": _truth(np.greater),
    "ge_int": _truth(np.greater_equal),
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "shift_left": lambda a, b: np.where((b < 0) | (b > 31), 0, a << np.clip(b, 0, 31)),
    "shift_right": lambda a, b: a >> np.where((b < 0) | (b > 31), 31, b),
    "logical_and_int": _truth(np.logical_and),
    "logical_or_int": _truth(np.logical_or),
    "logical_xor_int": _truth(np.logical_xor),
    "where_int": _where,
    "clamp_int": lambda a, low, high: np.minimum(np.maximum(a, low), high),
    "add_scaled_int": lambda a, b, alpha: a + alpha * b,
    "sub_scaled_int": lambda a, b, alpha: a - alpha * b,
    "addcmul_int": lambda a, b, c, value: a + value * b * c,
}

POINTWISE = FLOAT | INT

# How values, and partial results, are combined, and what a position that does not count stands for.
REDUCTIONS: dict[str, tuple[np.ufunc, float]] = {
    "sum": (np.add, 0),
    "sum_squares": (np.add, 0),  # of the squares
    "mean": (np.add, 0),  # divided by its second operand afterwards
    "amax": (np.maximum, -np.inf),
    "amin": (np.minimum, np.inf),
    "prod": (np.multiply, 1),
    "sum_int": (np.add, 0),
    "amax_int": (np.maximum, -(2**31)),
    "amin_int": (np.minimum, 2**31 - 1),
    "prod_int": (np.multiply, 1),
}
