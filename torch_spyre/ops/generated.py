"""Numbers made from their indices: random numbers and ranges.

Random numbers come from Philox, a function of (element index, seed, counter): the same seed gives
the same numbers for any layout and any number of cores. One launch takes one counter.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from torch_spyre.ops.compute import Computation
from torch_spyre.ops.formats import INT32, Kind, kind_of
from torch_spyre.ops.plan import Argument, Bind, ScalarMeta, TensorMeta
from torch_spyre.ops.views import Index, Value, View, Word, float_constant, int_constant

_INT32_END = 1 << 31
_SMALLEST_NORMAL = 2.0**-126

# Steps of uniform numbers in [0, 1) that stay below 1 when they are rounded to the dtype, on the
# card and on the way to the host.
_UNIFORM_STEP = {
    torch.float16: 2.0**-10,
    torch.bfloat16: 2.0**-8,
}

# Bits that numbers keep on the card and on the way to the host.
_FRACTION_BITS = {torch.float32: 23, torch.float16: 9, torch.bfloat16: 7}

# `random_()` without bounds: the integers from 0 to these can all be told apart in the dtype.
_LARGEST_INTEGER = {
    torch.float32: 1 << 24,
    torch.float16: 1 << 11,
    torch.bfloat16: 1 << 8,
    torch.bool: 1,
    torch.uint8: 255,
    torch.int8: 127,
    torch.int16: 32767,
    torch.int32: _INT32_END - 1,
    torch.int64: _INT32_END - 1,
}


def lower(name: str, computation: Computation, counter: int = 0) -> int:
    """Write the steps; returns how many counters of the generator a launch takes.

    `counter`: which of those that the plan takes, where it has several such operations.
    """
    computation.counter = counter
    _LOWERINGS[name](computation)
    return 0 if name == "arange" else 1


def _plain_temp(computation: Computation, dtype: torch.dtype) -> View:
    return computation.emitter.temp(computation.out.size, dtype)


def _random(computation: Computation, opcode: str, dtype: torch.dtype) -> View:
    """Raw random numbers in the shape of the result."""
    into = _plain_temp(computation, dtype)
    seeds = [Word(INT32, Bind(kind)) for kind in ("seed_low", "seed_high")]
    seeds.append(Word(INT32, Bind("rng_counter", computation.counter)))
    computation.emitter.index_apply(opcode, [Index(), *seeds], into)
    return into


def _uniform_bits(computation: Computation) -> View:
    """Uniform numbers in [0, 1), no finer than the result can hold."""
    emitter = computation.emitter
    uniform = _random(computation, "random_uniform", torch.float32)
    step = _UNIFORM_STEP.get(computation.out.dtype)
    if step is None:
        return uniform
    excess = emitter.apply("fmod", [uniform, float_constant(step)])
    return emitter.apply("sub", [uniform, excess])


def _store(computation: Computation, opcode: str, values: list[Value], dtype: torch.dtype) -> None:
    """The last operation, straight into the result if its dtype allows."""
    out = computation.out
    if kind_of(out.dtype) is kind_of(dtype) and out.dtype is not torch.uint8:
        computation.emitter.apply(opcode, values, out)
    else:
        computation.convert(computation.emitter.apply(opcode, values), out, dtype)


def _uniform(computation: Computation) -> None:
    bounds = [computation.arguments[n] for n in ("from", "to")]
    low, high = (computation.number(bound, torch.float32) for bound in bounds)
    operands = [low, high, _uniform_bits(computation)]
    first, end = (float(b.value) if isinstance(b, ScalarMeta) else b for b in bounds)
    assert isinstance(first, float | int)
    assert isinstance(end, float | int)
    if (first, end) == (0, 1):
        _store(computation, "lerp", operands, torch.float32)
        return
    # Rounding must not reach the end, which is no part of the range.
    last = max(first, _below(end, _FRACTION_BITS[computation.out.dtype]))
    uniform = computation.emitter.apply("lerp", operands)
    _store(computation, "minimum", [uniform, float_constant(last)], torch.float32)


def _below(end: float, bits: int) -> float:
    """The largest number below `end` that has so many bits of fraction.

    Around 0 numbers lie so close that none is rounded to it.

    >>> _below(2.0, 1), _below(-2.0, 1), _below(1.1, 1)
    (1.5, -3.0, 1.0)
    """
    if abs(end) < _SMALLEST_NORMAL:
        return end
    mantissa, exponent = math.frexp(end)
    step = math.ldexp(1.0, exponent - bits - (2 if mantissa == 0.5 else 1))
    return (math.ceil(end / step) - 1) * step


def _parameters(computation: Computation, *names: str) -> list[Value]:
    """Arguments that are numbers, as floats."""
    return [computation.number(computation.arguments[name], torch.float32) for name in names]


def _normal(computation: Computation) -> None:
    mean, std = _parameters(computation, "mean", "std")
    normal = _random(computation, "random_normal", torch.float32)
    _store(computation, "add_scaled", [mean, normal, std], torch.float32)


def _log_normal(computation: Computation) -> None:
    mean, std = _parameters(computation, "mean", "std")
    normal = _random(computation, "random_normal", torch.float32)
    exponent = computation.emitter.apply("add_scaled", [mean, normal, std])
    _store(computation, "exp", [exponent], torch.float32)


def _exponential(computation: Computation) -> None:
    """The inverse of the distribution; zero, which is no part of it, becomes half a step."""
    emitter = computation.emitter
    (rate,) = _parameters(computation, "lambd")
    negative = emitter.apply("neg", [_random(computation, "random_uniform", torch.float32)])
    quantile = emitter.apply("neg", [emitter.apply("log1p", [negative])])
    positive = emitter.apply("maximum", [quantile, float_constant(2.0**-25)])
    _store(computation, "div", [positive, rate], torch.float32)


def _cauchy(computation: Computation) -> None:
    emitter = computation.emitter
    median, sigma = _parameters(computation, "median", "sigma")
    uniform = _random(computation, "random_uniform", torch.float32)
    centred = emitter.apply("sub", [uniform, float_constant(0.5)])
    angle = emitter.apply("mul", [centred, float_constant(math.pi)])
    _store(computation, "add_scaled", [median, emitter.apply("tan", [angle]), sigma], torch.float32)


def _geometric(computation: Computation) -> None:
    """How many trials it takes: at least one."""
    emitter = computation.emitter
    (p,) = _parameters(computation, "p")
    negative = emitter.apply("neg", [_random(computation, "random_uniform", torch.float32)])
    failure = emitter.apply("log1p", [emitter.apply("neg", [p])])
    quotient = emitter.apply("div", [emitter.apply("log1p", [negative]), failure])
    trials = emitter.apply("ceil", [quotient])
    _store(computation, "maximum", [trials, float_constant(1.0)], torch.float32)


def _bernoulli(computation: Computation) -> None:
    argument = computation.arguments["p" if "p" in computation.arguments else "self"]
    probability: Value
    if isinstance(argument, TensorMeta):
        probability = computation.tensor(argument)
    else:
        probability = computation.number(argument, torch.float32)
    uniform = _random(computation, "random_uniform", torch.float32)
    _store(computation, "lt", [uniform, probability], torch.bool)


def _value(argument: Argument) -> int | None:
    if isinstance(argument, ScalarMeta):
        return int(argument.value)
    assert argument is None or isinstance(argument, int)
    return argument


def _random_integers(computation: Computation) -> None:
    emitter, dtype = computation.emitter, computation.out.dtype
    low = _value(computation.arguments.get("from")) or 0
    high = _value(computation.arguments.get("to"))
    if high is None:
        high = _LARGEST_INTEGER[dtype] + 1
    if low < -_INT32_END or high > _INT32_END:
        raise OverflowError(
            f"random_ from {low} to {high}: the card holds integers in 32 bits, "
            f"from {-_INT32_END} to {_INT32_END - 1}"
        )
    values = _random(computation, "random_bits", torch.int32)
    if high - low < _INT32_END:
        values = emitter.apply("remainder_int", [values, int_constant(high - low)])
    _store(computation, "add_scaled_int", [values, int_constant(low), int_constant(1)], torch.int32)


def _arange(computation: Computation) -> None:
    emitter, out = computation.emitter, computation.out
    dtype = torch.int32 if kind_of(out.dtype) is Kind.INT else torch.float32
    start, step = (computation.number(computation.arguments[n], dtype) for n in ("start", "step"))
    index = _plain_temp(computation, dtype)
    opcode = "identity_int" if dtype is torch.int32 else "int_to_float"
    emitter.index_apply(opcode, [Index()], index)
    opcode = "add_scaled_int" if dtype is torch.int32 else "add_scaled"
    _store(computation, opcode, [start, index, step], dtype)


_LOWERINGS: dict[str, Callable[[Computation], None]] = {
    "uniform_": _uniform,
    "normal_": _normal,
    "log_normal_": _log_normal,
    "exponential_": _exponential,
    "cauchy_": _cauchy,
    "geometric_": _geometric,
    "bernoulli_": _bernoulli,
    "bernoulli": _bernoulli,
    "random_": _random_integers,
    "arange": _arange,
}
