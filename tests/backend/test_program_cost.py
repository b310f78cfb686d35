"""What programs cost is what the card's clock says, unit by unit."""

from __future__ import annotations

import math

import pytest
import torch  # noqa: F401  (loads the libraries that the extension links to)

from torch_spyre._inductor import report
from torch_spyre.backend.cost import KernelCost, StepCost, UnitTimes, program_cost
from torch_spyre.backend.program import (
    Loop,
    Operand,
    Program,
    Space,
    Step,
    StepKind,
    Symbol,
    SymbolKind,
    encode,
)
from torch_spyre.backend.spyrecode import StepInfo

FP16, STICK, LANES = 0, 128, 64


def two_steps(rows: int, sticks: int, tiles: int) -> bytes:
    """Tile by tile, two cores negate what they take from LPDDR5 and take its exponential in LX."""
    tile = rows * sticks * STICK
    strides = (sticks * STICK, STICK)
    source = Operand(
        Space.DEVICE, FP16, 0, bases=(0, tiles * tile), strides=strides, loop_strides=(tile,)
    )
    inner = Operand(Space.LX, FP16, 0, strides=strides)
    extents = ((rows, sticks),)
    body = tuple(
        Step(opcode, StepKind.POINTWISE, 0b11, extents, (operand,), (inner,), stick_dim=1)
        for opcode, operand in (("neg", source), ("exp", inner))
    )
    symbols = (Symbol(SymbolKind.ADDRESS, FP16, 2 * tiles * tile),)
    return encode(Program(symbols, (Loop(tiles, body),)))


def test_visits_of_a_loop_are_added_up_and_named():
    infos = (StepInfo("neg", "", "model.py:3", ("x", "buf0")), StepInfo("exp"))
    cost = program_cost("kernel", two_steps(8, 32, 5), infos, pool_bytes=256)
    tile = 8 * 32 * STICK
    neg, exp = cost.steps
    assert (neg.operation, neg.buffer, neg.source, neg.visits) == ("neg", "buf0", "model.py:3", 5)
    assert (neg.bytes_read, neg.bytes_written) == (2 * 5 * tile, 0)
    assert (neg.lx_read, neg.lx_written) == (0, 5 * tile)
    assert (exp.lx_read, exp.lx_written, exp.bytes_read) == (5 * tile, 5 * tile, 0)
    assert (cost.lx_bytes, cost.pool_bytes, cost.cores) == (tile, 256, 2)
    assert (cost.lx_read, cost.lx_written) == (5 * tile, 10 * tile)
    assert cost.microseconds == pytest.approx(neg.microseconds + exp.microseconds)


@pytest.mark.parametrize("tiles", [1, 4])
@pytest.mark.parametrize(("rows", "sticks"), [(1, 4), (4, 32), (64, 8)])
def test_tiles_in_a_loop_pay_for_being_small(rows, sticks, tiles):
    step, _ = program_cost("kernel", two_steps(rows, sticks, tiles)).steps
    efficiency = min(1.0, (rows / 7.9) ** 0.50 * (sticks * LANES / 2048) ** 0.38)
    untiled = 2 * rows * sticks * STICK / 150
    time = untiled if tiles == 1 else untiled / efficiency
    assert step.units.memory == pytest.approx(tiles * math.ceil(time) / 1000)


def test_a_step_is_bound_by_its_busiest_unit_or_by_the_ring():
    assert UnitTimes(sfp=2, memory=1, lx=1.5).bound == "SFP"
    assert UnitTimes(pt=2, memory=3, ring=1).bound == "LPDDR5"
    assert UnitTimes(pt=2, memory=3, ring=4).bound == "ring"


def step_of(microseconds: float, **units: float) -> StepCost:
    return StepCost("op", 1, 1, microseconds, 0, 0, 0, 0, 0, UnitTimes(**units))


def test_a_kernel_is_bound_by_what_most_of_its_time_is_spent_on():
    steps = (step_of(3, memory=3), step_of(2, pt=2, memory=1.9), step_of(2, pt=2))
    assert KernelCost("kernel", steps).bound == "PT"
    assert KernelCost("kernel", steps).units == UnitTimes(pt=4, memory=4.9)


def test_the_report_has_a_line_per_kernel_and_operation():
    infos = (StepInfo("neg", "", "model.py:3", ("x", "buf0")), StepInfo("exp"))
    text = report.text([program_cost("kernel_0", two_steps(8, 32, 5), infos)])
    kernel, neg, exp = text.splitlines()[-3:]
    assert kernel.split()[:3] == ["kernel_0", "2", "3.465"]  # 5 x (437 + 256) ns
    assert neg.split()[:5] == ["neg", "x5", "buf0", "2", "2.185"]
    assert neg.split()[-2:] == ["LPDDR5", "model.py:3"]
    assert exp.split()[-1] == "LX"
