"""Operations on real spyre tensors: the whole way through runtime, plan and card.

Compared with the numpy model of the card's steps on the values that the card holds. The planner
tests cover more shapes; these make sure that the card computes what the model says.
"""

from __future__ import annotations

import numpy as np
import pytest
import step_model
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from op_cases import CASES, Case, Draw, distance, reference
from op_views import fit, operands

DEVICE = "spyre"


def on_card(args: list[object]) -> list[object]:
    return [a.to(DEVICE) if isinstance(a, torch.Tensor) else a for a in args]


def held(tensor: torch.Tensor) -> np.ndarray:
    """The values of a tensor on the card, with all the bits that it has there."""
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return tensor.float().cpu().numpy()
    values = tensor.cpu()
    if values.dtype is torch.bool:
        return values.float().numpy()
    return values.numpy() if values.is_floating_point() else values.to(torch.int64).numpy()


ALL_CASES = [
    pytest.param(case, dtype, id=f"{case.name}-{str(dtype).removeprefix('torch.')}-{i}")
    for i, case in enumerate(CASES)
    for dtype in case.dtypes
]


@pytest.mark.parametrize(("case", "dtype"), ALL_CASES)
def test_operation_gives_what_the_model_gives(case: Case, dtype: torch.dtype) -> None:
    args = case.make((5, 200), dtype, seed=4)
    expected_dtype, expected = reference(case, args)
    result = case.operation(*on_card(args))
    assert result.device.type == DEVICE
    assert result.dtype == expected_dtype
    assert distance(held(result), expected, expected_dtype) <= case.ulps


@pytest.mark.parametrize("name", ["exp_", "sqrt_", "neg_", "relu_", "tanh_", "sigmoid_", "zero_"])
def test_in_place_functions_return_their_argument(name: str) -> None:
    host = torch.rand(3, 70)
    card = host.to(DEVICE)
    assert getattr(card, name)() is card
    torch.testing.assert_close(card.cpu(), getattr(host, name)())


def test_in_place_arithmetic_through_views() -> None:
    host = torch.arange(800.0).reshape(8, 100)
    card = host.to(DEVICE)
    for x in (host, card):
        x[:, 3:40] *= 2
        x[::2] += x[1::2]
        x.t()[5] -= 1
        x[1:] += x[:-1].clone()
        x[3, 7] = -1
    assert torch.equal(card.cpu(), host)


def test_overlapping_operands_are_read_before_they_are_written() -> None:
    host = torch.arange(600.0).reshape(6, 100)
    card = host.to(DEVICE)
    card[1:].add_(card[:-1])
    expected = host.clone()
    expected[1:] += host[:-1]
    assert torch.equal(card.cpu(), expected)


def test_out_is_resized_and_converted() -> None:
    a, b = torch.arange(70), torch.arange(70) + 1
    out = torch.empty(0, device=DEVICE)
    torch.mul(a.to(DEVICE), b.to(DEVICE), out=out)
    assert torch.equal(out.cpu(), (a * b).float())


def test_a_plan_serves_changing_numbers() -> None:
    x = torch.ones(4, 64, device=DEVICE)
    for value in (0.5, 1.5, -2.0):
        assert torch.equal((x * value).cpu(), torch.full((4, 64), value))
        assert torch.equal(torch.add(x, x, alpha=value).cpu(), torch.full((4, 64), 1 + value))


def test_a_0_dim_cpu_tensor_mixes_with_tensors_on_the_card() -> None:
    x = torch.arange(5.0, device=DEVICE)
    assert torch.equal((x * torch.tensor(2.0)).cpu(), torch.arange(5.0) * 2)
    assert torch.equal((torch.tensor(2) - x).cpu(), 2 - torch.arange(5.0))
    with pytest.raises(RuntimeError, match="same device"):
        x * torch.ones(5)


@pytest.mark.parametrize(
    "first", [torch.float16, torch.float32, torch.int64, torch.bool, torch.uint8]
)
@pytest.mark.parametrize("second", [torch.bfloat16, torch.float32, torch.int8, torch.bool])
def test_result_dtypes_are_those_of_the_cpu(first: torch.dtype, second: torch.dtype) -> None:
    a, b = torch.ones(3).to(first), torch.ones(3).to(second)
    for op in (torch.mul, torch.add, torch.div, torch.maximum, torch.eq):
        assert op(a.to(DEVICE), b.to(DEVICE)).dtype == op(a, b).dtype
        assert op(a.to(DEVICE)[0], b.to(DEVICE)).dtype == op(a[0], b).dtype
    for number in (2, 2.5, True):
        assert (a.to(DEVICE) * number).dtype == (a * number).dtype
        assert (a.to(DEVICE)[0] * number).dtype == (a[0] * number).dtype


@pytest.mark.parametrize(
    "size", [(), (0,), (1,), (3, 0, 2), (1, 1), (65,), (2, 3, 1, 4, 1, 5)], ids=str
)
def test_any_shape_works(size: tuple[int, ...]) -> None:
    host = torch.rand(size)
    card = host.to(DEVICE)
    assert torch.equal((card * 2 + card).cpu(), host * 2 + host)
    assert torch.equal(
        torch.where(card > 0.5, card, -1.0).cpu(), torch.where(host > 0.5, host, -1.0)
    )


@pytest.mark.parametrize("view", ["t", "slice", "expand", "select", "unfold"])
def test_views_as_operands(view: str) -> None:
    views = {
        "t": lambda x: x.t(),
        "slice": lambda x: x[:, 3:90:2],
        "expand": lambda x: x[:, None].expand(-1, 3, -1),
        "select": lambda x: x[:, 5],
        "unfold": lambda x: x.unfold(1, 8, 4),
    }
    host = torch.arange(800.0).reshape(8, 100)
    a, b = views[view](host), views[view](host.to(DEVICE))
    assert torch.equal((b + 1).cpu(), a + 1)
    assert torch.equal((b + b.contiguous()).cpu(), a + a)


def test_errors_are_those_of_pytorch() -> None:
    x = torch.ones(3, device=DEVICE)
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        x + torch.ones(4, device=DEVICE)
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        x.int().add_(x)
    with pytest.raises(RuntimeError, match="Integers to negative integer powers"):
        torch.pow(x.int(), -1)


def test_errors_do_not_depend_on_what_was_planned_before() -> None:
    x = torch.full((3,), 3, device=DEVICE, dtype=torch.int32)
    assert torch.pow(x, 2).tolist() == [9, 9, 9]
    with pytest.raises(RuntimeError, match="Integers to negative integer powers"):
        torch.pow(x, -1)


def test_equality_and_item() -> None:
    x = torch.arange(300, device=DEVICE).float()
    assert torch.equal(x, x.clone())
    assert not torch.equal(x, x + 1)
    assert (x[7] * 2).item() == 14


@pytest.mark.parametrize("bounds", [(0,), (10,), (3, 70), (0, 100, 3), (5.0, 6.0, 0.25)], ids=str)
def test_arange_on_the_card(bounds: tuple) -> None:
    card = torch.arange(*bounds, device=DEVICE)
    assert card.dtype == torch.arange(*bounds).dtype
    assert torch.equal(card.cpu(), torch.arange(*bounds))


def test_arange_into_a_given_tensor_follows_its_bounds() -> None:
    out = torch.empty(10, device=DEVICE)
    torch.arange(0, 10, out=out)
    torch.arange(0, 20, out=out)
    assert torch.equal(out.cpu(), torch.arange(20.0))


def test_random_numbers_repeat_with_their_seed() -> None:
    torch.manual_seed(7)
    first = torch.rand(3, 70, device=DEVICE), torch.randn(1000, device=DEVICE)
    torch.manual_seed(7)
    second = torch.rand(3, 70, device=DEVICE), torch.randn(1000, device=DEVICE)
    third = torch.rand(3, 70, device=DEVICE)
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(first, second, strict=True))
    assert not torch.equal(third.cpu(), first[0].cpu())


def test_random_numbers_are_those_of_the_model() -> None:
    torch.manual_seed(0x123456789A)
    values = torch.rand(3, 70, device=DEVICE).cpu().numpy().ravel()
    key = 0x3456789A, 0x12
    counters = [
        c
        for c in range(64)
        if np.isclose(values[0], (step_model.philox(0, *key, c)[0] >> 8) * 2.0**-24, atol=0)
    ]
    assert counters, "the first number is no Philox number of this seed"
    expected = [(step_model.philox(i, *key, counters[0])[0] >> 8) * 2.0**-24 for i in range(210)]
    assert np.array_equal(values, np.array(expected, np.float32))


def test_random_numbers_have_their_distribution() -> None:
    torch.manual_seed(1)
    normal = torch.randn(20000, device=DEVICE).cpu()
    assert abs(normal.mean()) < 0.03
    assert abs(normal.std() - 1) < 0.03
    coins = torch.empty(20000, device=DEVICE).bernoulli_(0.25).cpu()
    assert set(coins.tolist()) == {0.0, 1.0}
    assert abs(coins.mean() - 0.25) < 0.02
    dice = torch.randint(1, 7, (6000,), device=DEVICE).cpu()
    assert dice.unique().tolist() == [1, 2, 3, 4, 5, 6]


def test_a_mask_value_at_the_end_of_the_range_stays_finite() -> None:
    x = torch.zeros(3, 70, dtype=torch.bfloat16, device=DEVICE)
    lowest = torch.finfo(torch.bfloat16).min
    filled = x.masked_fill(x == 0, lowest)
    assert torch.isfinite(filled).all()
    assert torch.full((4,), float("-inf"), dtype=torch.float16, device=DEVICE).isinf().cpu().all()


def test_big_and_small_work_agree() -> None:
    """The same numbers through one core and through all of them."""
    host = Draw(-100, 100).make((300, 500), torch.float16, torch.Generator().manual_seed(5))
    whole = (host.to(DEVICE) * 3).cpu()
    rows = torch.stack([(row.to(DEVICE) * 3).cpu() for row in host[:20]])
    assert torch.equal(whole[:20], rows)


def test_the_default_dtype_decides_what_integers_become() -> None:
    x = torch.arange(1, 5, dtype=torch.int32, device=DEVICE)
    assert (x / 2).dtype is torch.float32
    torch.set_default_dtype(torch.float16)
    try:
        assert (x / 2).dtype is torch.float16
    finally:
        torch.set_default_dtype(torch.float32)


@settings(max_examples=80, deadline=None)
@given(operands(), operands(), st.sampled_from(("add.Tensor", "lt.Tensor", "mul.Tensor")))
def test_binary_operations_on_random_views(first: tuple, second: tuple, op: str) -> None:
    (x, x_order), (y, y_order) = first, second
    y = fit(x, y)
    case = Case(op, ())
    dtype, expected = reference(case, [x, y])
    result = case.operation(put(x, x_order), put(y, y_order))
    assert (tuple(result.shape), result.dtype) == (tuple(expected.shape), dtype)
    assert distance(held(result), expected, dtype) == 0


def put(host: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """The same view of a storage on the card that lies there in the given order of dimensions."""
    base = host._base if host._base is not None else host
    layout = torch.spyre.SpyreTensorLayout(
        list(base.shape), list(base.stride()), base.dtype, list(order)
    )
    card = base.to(DEVICE, device_layout=layout)
    return card.as_strided(host.shape, host.stride(), host.storage_offset())
