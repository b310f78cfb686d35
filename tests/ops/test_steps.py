"""Every pointwise operation of the card, on a card of its own, against the numpy model.

Operands are all combinations of special values and many random ones, in 32 bits, so that nothing
is hidden by a rounding. Bit-equal where the result is determined; elsewhere within the two units
in the last place of fp32 that the card promises.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import step_model
import torch
from op_cases import distance

import torch_spyre
from torch_spyre.backend import opcodes
from torch_spyre.backend.program import (
    Operand,
    Program,
    Space,
    Step,
    StepKind,
    Symbol,
    SymbolKind,
    encode,
)

_card = torch_spyre._C._card

COUNT = 4096  # values per operand
INF, NAN = float("inf"), float("nan")
FLOATS = [
    0.0,
    -0.0,
    0.5,
    -0.5,
    1.0,
    -1.0,
    1.5,
    -2.0,
    3.0,
    1e-20,
    -1e-20,
    1e20,
    -3e38,
    INF,
    -INF,
    NAN,
]
INTS = [0, 1, -1, 2, -2, 7, -7, 31, 32, 255, -128, 2**31 - 1, -(2**31), 2**30]

# What these give for infinities and their neighbours is a matter of the formula.
FINITE = {"gelu", "gelu_tanh", "silu", "softplus", "elu", "lerp", "addcdiv", "addcmul"}
EXTREME = {"lerp", "elu", "softplus", "addcdiv", "addcmul", "gelu_tanh"}
# Wider ranges of these are in test_special; the model's loops don't end for all numbers.
EXTREME |= {"igamma", "igammac", "zeta", "airy_ai", "laguerre", "legendre"}
EXTREME |= {f"bessel_{name}" for name in ("j0", "j1", "y0", "y1")}
EXTREME |= {"hermite_h", "hermite_he", *(f"chebyshev_{kind}" for kind in "tuvw")}


def operand_values(name: str, domains: str) -> list[np.ndarray]:
    rng = np.random.default_rng(len(name))
    floats = [f for f in FLOATS if np.isfinite(f) or name not in FINITE]
    if name in EXTREME:
        floats = [f for f in floats if abs(f) <= 10]
    pools = [floats if domain == "F" else INTS for domain in domains]
    special = list(itertools.islice(itertools.product(*pools), 0, None))[: COUNT // 2]
    columns = list(map(list, zip(*special, strict=True)))
    made = []
    for column, domain in zip(columns, domains, strict=True):
        rest = COUNT - len(column)
        if domain == "F":
            spread = 2 if name in EXTREME else 20
            magnitude = np.exp(rng.normal(0, spread / 4, rest))
            extra = magnitude * rng.choice([-1, 1], rest)
            made.append(np.array([*column, *extra], np.float32))
        else:
            extra = rng.integers(-(2**31), 2**31, rest) >> rng.integers(0, 31, rest)
            made.append(np.array([*column, *extra], np.int64).astype(np.int32))
    return made


def run_on_card(opcode: opcodes.Opcode, values: list[np.ndarray]) -> np.ndarray:
    card = _card.Card(memory_bytes=1 << 24, threads=1)
    nbytes = COUNT * 4
    formats = [step_model.FP32 if d == "F" else step_model.INT32 for d in opcode.operands]
    result_format = step_model.FP32 if opcode.result == "F" else step_model.INT32
    hosts = {
        step_model.FP32: _card.host_formats["float32"],
        step_model.INT32: _card.host_formats["int32"],
    }

    def descriptor(fmt: int) -> object:
        nest = _card.DmaNest([COUNT], [1], [1])
        return _card.DmaDescriptor(fmt, hosts[fmt], [nest], nbytes, nbytes)

    def walk(symbol: int, fmt: int) -> Operand:
        return Operand(Space.DEVICE, fmt, symbol, strides=(128,))

    addresses = []
    for value, fmt in zip(values, formats, strict=True):
        addresses.append(card.allocate(nbytes))
        card.copy_to_card(addresses[-1], descriptor(fmt), value)
    target = card.allocate(nbytes)
    step = Step(
        opcode=opcode.name,
        kind=StepKind.POINTWISE,
        cores=1,
        extents=((COUNT // 32,),),
        inputs=tuple(walk(i, fmt) for i, fmt in enumerate(formats)),
        outputs=(walk(len(formats), result_format),),
        stick_dim=0,
    )
    symbols = [Symbol(SymbolKind.ADDRESS, fmt, nbytes) for fmt in formats]
    symbols.append(Symbol(SymbolKind.ADDRESS, result_format, nbytes, True))
    program = card.load(encode(Program(tuple(symbols), (step,))))
    card.launch(program, [(address, nbytes) for address in (*addresses, target)])
    result = np.empty(COUNT, np.float32 if opcode.result == "F" else np.int32)
    card.wait(card.copy_to_host(target, descriptor(result_format), result))
    return result


@pytest.mark.parametrize("name", sorted(step_model.OPERATIONS))
def test_operation_agrees_with_the_model(name: str) -> None:
    opcode = opcodes.by_name()[name]
    values = operand_values(name, opcode.operands)
    expected = step_model.run(name, *values)
    actual = run_on_card(opcode, values)
    dtype = torch.float32 if opcode.result == "F" else torch.int32
    allowed = 0 if step_model.OPERATIONS[name].is_exact else 2
    assert distance(actual, expected, dtype) <= allowed


def test_the_model_has_every_operation_but_normal_numbers() -> None:
    """Box and Muller's formula is tested by its distribution, other steps: test_accumulations."""
    others = {"random_normal", "batchmatmul", "batchmatmul_int8", "gather", "gather_int"}
    modelled = set(step_model.OPERATIONS) | set(step_model.REDUCTIONS)
    modelled |= {*step_model.SCATTERS, *step_model.ARGSORTS, *step_model.SCANS, *step_model.EXTREMA}
    assert set(opcodes.by_name()) - modelled == others
