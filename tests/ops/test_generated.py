"""Random numbers and ranges, planned and run by the numpy model of the card."""

from __future__ import annotations

import numpy as np
import pytest
import step_model
import torch
from model_card import Call, Tensor, put

SEED = 0x123456789ABCDEF


def fill(name: str, target: Tensor, *args: object, counter: int = 5) -> np.ndarray:
    call = Call(target, *args, None, seed=SEED, counter=counter)
    assert call.plan(f"aten::{name}").rng_offset == 1
    return call.run(f"aten::{name}").values()


def words(count: int, counter: int = 5) -> np.ndarray:
    key = SEED & 0xFFFFFFFF, SEED >> 32
    return np.array([step_model.philox(i, *key, counter)[0] for i in range(count)], np.uint64)


def test_philox_is_the_published_generator() -> None:
    """Known answers of Random123: all zeros, and all ones."""
    assert step_model.philox(0, 0, 0, 0)[0] == 0x6627E8D5


def test_uniform_numbers_are_a_function_of_the_flat_index() -> None:
    values = fill("uniform_", put(torch.zeros(3, 70)), 0.0, 1.0)
    expected = (words(210) >> 8).astype(np.float32) * np.float32(2.0**-24)
    assert np.array_equal(values, expected.reshape(3, 70))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_random_numbers_do_not_depend_on_the_layout(order: tuple[int, ...]) -> None:
    plain = fill("uniform_", put(torch.zeros(3, 70)), -1.0, 1.0)
    other = fill("uniform_", put(torch.zeros(3, 70), order), -1.0, 1.0)
    assert np.array_equal(plain, other)


def test_random_numbers_of_a_view_stay_inside_it() -> None:
    base = torch.full((4, 100), 7.0)
    target = put(base[:, 3:40])
    values = fill("uniform_", target, 0.0, 1.0)
    whole = target.like(base).values()
    assert (values < 1).all()
    assert (whole[:, :3] == 7).all()
    assert (whole[:, 40:] == 7).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounded_uniform_numbers_never_reach_the_end(dtype: torch.dtype) -> None:
    values = fill("uniform_", put(torch.zeros(4000, dtype=dtype)), 0.0, 1.0)
    assert values.max() < 1
    assert torch.from_numpy(values).to(dtype).max() < 1
    assert 0.47 < values.mean() < 0.53


def test_integers_lie_between_their_bounds() -> None:
    values = fill("random_.from", put(torch.zeros(500, dtype=torch.int32)), -3, 4)
    assert np.array_equal(values, ((words(500) >> 1) % 7).astype(np.int64) - 3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bool, torch.int64, torch.float16])
def test_integers_without_bounds_fit_the_dtype(dtype: torch.dtype) -> None:
    values = fill("random_", put(torch.zeros(300).to(dtype)))
    largest = {torch.uint8: 255, torch.int8: 127, torch.bool: 1, torch.float16: 2048}
    assert values.min() >= 0
    assert values.max() <= largest.get(dtype, 2**31 - 1)
    assert len(np.unique(values)) == 2 if dtype is torch.bool else len(np.unique(values)) > 50


def test_bounds_beyond_32_bits_are_refused() -> None:
    with pytest.raises(OverflowError, match="32 bits"):
        fill("random_.from", put(torch.zeros(5, dtype=torch.int64)), 0, 2**40)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.bool])
def test_bernoulli_is_a_comparison_with_uniform_numbers(dtype: torch.dtype) -> None:
    values = fill("bernoulli_.float", put(torch.zeros(3, 70).to(dtype)), 0.25)
    expected = (words(210) >> 8).astype(np.float64) * 2.0**-24 < 0.25
    assert np.array_equal(values, expected.reshape(3, 70).astype(values.dtype))


def uniform(count: int) -> np.ndarray:
    return (words(count) >> 8).astype(np.float64) * 2.0**-24


def test_exponential_numbers_are_quantiles_and_positive() -> None:
    values = fill("exponential_", put(torch.zeros(3, 70)), 2.0)
    np.testing.assert_allclose(values.ravel(), -np.log1p(-uniform(210)) / 2, rtol=1e-6)
    assert (values > 0).all()


def test_cauchy_numbers_are_quantiles() -> None:
    values = fill("cauchy_", put(torch.zeros(210)), 1.0, 0.5)
    angles = (uniform(210) - 0.5) * np.pi
    np.testing.assert_allclose(values, 1 + 0.5 * np.tan(angles), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
def test_geometric_numbers_count_trials(dtype: torch.dtype) -> None:
    values = fill("geometric_", put(torch.zeros(210).to(dtype)), 0.25)
    trials = np.ceil(np.log1p(-uniform(210)) / np.log1p(-0.25))
    assert np.array_equal(values, np.maximum(trials, 1))


def test_bernoulli_takes_a_tensor_of_probabilities() -> None:
    p = torch.tensor([0.0, 1.0]).repeat(35)
    values = fill("bernoulli_.Tensor", put(torch.zeros(70)), put(p))
    assert np.array_equal(values, p.numpy())


def test_wrong_bounds_are_errors_of_pytorch() -> None:
    with pytest.raises(RuntimeError, match="uniform_ expects to return"):
        fill("uniform_", put(torch.zeros(3)), 1.0, 0.0)


RANGES = [(0, 100, 1), (5, 70, 3), (10, -60, -2), (0.0, 1.0, 0.125), (2.5, 80, 1.5)]


@pytest.mark.parametrize("bounds", RANGES, ids=str)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float16])
def test_arange(bounds: tuple, dtype: torch.dtype) -> None:
    if any(isinstance(b, float) for b in bounds) and not dtype.is_floating_point:
        return
    expected = torch.arange(*bounds, dtype=torch.float64)
    out = put(torch.zeros(len(expected), dtype=dtype))
    values = Call(*bounds, out).run("aten::arange.start_out").values()
    rounded = step_model.narrow(expected.float().numpy(), step_model.FORMAT_OF[dtype])
    assert np.array_equal(values, step_model.widen(rounded, step_model.FORMAT_OF[dtype]))


def test_arange_asks_for_the_right_length() -> None:
    plan = Call(0, 10, 3, put(torch.zeros(0))).plan("aten::arange.start_out")
    assert plan.resize == ((3, (4,)),)


@pytest.mark.parametrize("bounds", [(0, 5, 0), (0, 5, -1), (0, float("inf"), 1)], ids=str)
def test_impossible_ranges_are_errors_of_pytorch(bounds: tuple) -> None:
    with pytest.raises(RuntimeError) as on_cpu:
        torch.arange(*bounds)
    with pytest.raises(RuntimeError) as planned:
        Call(*bounds, put(torch.zeros(0))).plan("aten::arange.start_out")
    assert str(planned.value)[:20] == str(on_cpu.value)[:20]
