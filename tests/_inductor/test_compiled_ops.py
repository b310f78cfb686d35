"""Every operation of the compiler, compiled: its steps bit by bit, and its results against float64.

The full product of dtype, size, layout, cores and scratchpad planning is slow. By default a sample
of it runs in which every two of these values meet, and each meets every operation.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import bounded
import numpy as np
import op_table
import pytest
import torch
from compiled import Run, run_compiled
from op_table import COMPOSITES, OPERATIONS, SIZES, Case
from steps import check_launch, run_model, same
from torch.utils import _pytree as pytree

from tests.ops import step_model


@pytest.fixture(autouse=True)
def _setup() -> None:
    torch.manual_seed(0)
    torch.spyre.set_downcast_warning(False)


class Setting(NamedTuple):
    """How an operation is compiled, and on what."""

    name: str
    dtype: torch.dtype
    size: str
    layout: str
    cores: int
    lx: bool

    def __str__(self) -> str:
        dtype, lx = str(self.dtype).removeprefix("torch."), "lx" if self.lx else "no_lx"
        return f"{self.name}-{dtype}-{self.size}-{self.layout}-{self.cores}-{lx}"


# ---- The sample ---------------------------------------------------------------------------------


def axes_of(case: Case) -> tuple[tuple[Any, ...], ...]:
    return case.dtypes, case.sizes, tuple(op_table.LAYOUTS), op_table.CORES, op_table.LX


def product_of(name: str, case: Case) -> Iterator[Setting]:
    return (Setting(name, *values) for values in itertools.product(*axes_of(case)))


def pairs_of(setting: Setting) -> set[tuple[Any, ...]]:
    return set(itertools.combinations(enumerate(setting), 2))


def sample(cases: dict[str, Case]) -> list[Setting]:
    """Per operation a walk through all axes at once, each in an order of its own; then what is
    still missing."""
    draw = random.Random(0)
    chosen = []
    for name, case in cases.items():
        axes = [draw.sample(axis, len(axis)) for axis in axes_of(case)]
        longest = max(map(len, axes))
        chosen += [Setting(name, *(axis[i % len(axis)] for axis in axes)) for i in range(longest)]
    covered = set().union(*map(pairs_of, chosen))
    for name, case in cases.items():
        for setting in product_of(name, case):
            if not pairs_of(setting) <= covered:
                covered |= pairs_of(setting)
                chosen.append(setting)
    return chosen


def test_every_two_values_meet_in_the_sample() -> None:
    everything = [s for name, case in OPERATIONS.items() for s in product_of(name, case)]
    chosen = sample(OPERATIONS)
    pairs = set().union(*map(pairs_of, chosen))
    assert pairs == set().union(*map(pairs_of, everything))
    assert len(chosen) * 20 < len(everything)


# ---- Operations ---------------------------------------------------------------------------------


def arguments(case: Case, setting: Setting) -> list[Any]:
    change = op_table.LAYOUTS[setting.layout]
    return [change(arg) for arg in case.make(SIZES[setting.size], setting.dtype)]


def compiled(case: Case, args: list[Any], setting: Setting) -> Run:
    run = run_compiled(case.call, args, sencores=setting.cores, lx_planning=setting.lx)
    assert run.launches, "nothing ran on the card"
    return run


def seen(arg: torch.Tensor) -> torch.Tensor:
    """What the card holds of a host tensor; floats in float64."""
    if not arg.dtype.is_floating_point:
        return arg
    return torch.from_numpy(step_model.as_seen_by_card(arg).astype(np.float64))


def magnitude(arg: torch.Tensor) -> torch.Tensor:
    return seen(arg) if arg.dtype is torch.bool else seen(arg).abs()


def check_operation(setting: Setting) -> None:
    case = OPERATIONS[setting.name]
    args = arguments(case, setting)
    run = compiled(case, args, setting)
    for launch in run.launches:
        check_launch(launch)
    call = case.exact or case.call
    exact = pytree.tree_leaves(call(*map(seen, args)))
    sizes = pytree.tree_leaves(call(*map(magnitude, args)))
    like = pytree.tree_leaves(case.call(*args))
    for actual, reference, size, host in zip(run.results, exact, sizes, like, strict=True):
        assert (actual.dtype, actual.shape) == (host.dtype, host.shape)
        if host.dtype.is_floating_point:
            check_close(actual, reference.double(), size.double())
        else:
            assert torch.equal(actual, reference.to(host.dtype))


def check_close(actual: torch.Tensor, exact: torch.Tensor, size: torch.Tensor) -> None:
    """Two roundings of the format, the fp32 sums of at most 200 terms, and the copy to the host."""
    bound = 2 * bounded.UNIT[actual.dtype] * exact.abs() + bounded.TINY[actual.dtype]
    bound += 200 * bounded.FP32 * size.nan_to_num().abs()
    expected = bounded.Bounded(exact, bound, actual.dtype)
    assert expected.holds(actual).all(), (actual.double() - exact).abs().max()


@pytest.mark.parametrize("setting", sample(OPERATIONS), ids=str)
def test_an_operation_gives_the_bits_of_its_steps_and_the_numbers_of_pytorch(
    setting: Setting,
) -> None:
    check_operation(setting)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_does_so_in_every_setting(name: str) -> None:
    for setting in product_of(name, OPERATIONS[name]):
        check_operation(setting)


# ---- Composites ---------------------------------------------------------------------------------


def model_error(run: Run, exact: torch.Tensor) -> float:
    """How far the numpy model of the last kernel is from float64, as read on the host."""
    launch = run.launches[-1]
    errors = []
    memory = run_model(launch)
    result = run.results[0]
    dims = range(result.dim())
    # What the kernel wrote is the result, or the result is a transposed view of it.
    for i, order in itertools.product(
        launch.written, (dims, sorted(dims, key=lambda d: -result.stride(d)))
    ):
        if same(launch.after[i].reshape(-1), result.permute(*order).reshape(-1)):
            values = torch.from_numpy(launch.layouts[i].values(memory[i]))
            host = values.to(result.dtype).double().reshape(-1)
            errors.append(float((host - exact.permute(*order).reshape(-1)).abs().max()))
    assert errors, "no argument of the last kernel is the result"
    return min(errors)


def check_composite(setting: Setting) -> None:
    case = COMPOSITES[setting.name]
    args = arguments(case, setting)
    run = compiled(case, args, setting)
    for launch in run.launches:
        check_launch(launch)
    exact = case.call(*map(seen, args)).double()
    (actual,) = run.results
    host = case.call(*args)
    assert (actual.dtype, actual.shape) == (host.dtype, host.shape)
    error = float((actual.double() - exact).abs().max())
    own = model_error(run, exact)
    # The model's transcendentals are exact, the card's up to two units of fp32 off.
    assert error <= 1.5 * own + 4 * bounded.UNIT[torch.float32] * float(exact.abs().max())
    # The model runs the compiler's own steps, so it must be right itself: a few roundings off.
    unit = 2.0**-8 if setting.dtype is torch.bfloat16 else bounded.UNIT[setting.dtype]
    assert own <= 12 * unit * float(exact.abs().max())


@pytest.mark.parametrize("setting", sample(COMPOSITES), ids=str)
def test_a_composite_is_as_exact_as_its_steps_allow(setting: Setting) -> None:
    check_composite(setting)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPOSITES)
def test_a_composite_is_so_in_every_setting(name: str) -> None:
    for setting in product_of(name, COMPOSITES[name]):
        check_composite(setting)


# ---- Where results do not depend on the plan ----------------------------------------------------


@pytest.mark.parametrize("cores", op_table.CORES)
@pytest.mark.parametrize("name", COMPOSITES)
def test_the_scratchpad_changes_no_bit(name: str, cores: int) -> None:
    case = COMPOSITES[name]
    setting = Setting(name, torch.float16, "ragged", "contiguous", cores, True)
    args = arguments(case, setting)
    inside = compiled(case, args, setting)
    outside = compiled(case, args, setting._replace(lx=False))
    splits = [[step.cores for step in run.launches[0].program.body] for run in (inside, outside)]
    assert set(splits[1]) <= set(splits[0])
    assert same(inside.results[0], outside.results[0])
