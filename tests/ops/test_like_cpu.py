"""Corners in which a card of wide integers and tiled storages could differ from PyTorch's CPU.

Each example is a function of a way to put a tensor somewhere; it runs on the CPU and on the card.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

DEVICE = "spyre"

Put = Callable[[torch.Tensor], torch.Tensor]
Example = Callable[[Put], torch.Tensor]

BYTES = torch.tensor([5, 200, 0], dtype=torch.uint8)
SMALL = torch.tensor([5, -3, 100], dtype=torch.int8)
TRUTH = torch.tensor([True, False, True])


def _both(example: Example) -> tuple[torch.Tensor, torch.Tensor]:
    return example(lambda x: x.to(DEVICE, copy=True)), example(torch.Tensor.clone)


NUMBERS: dict[str, Example] = {
    "a negative byte": lambda put: put(BYTES).fill_(-1),
    "a negative byte read on": lambda put: put(BYTES).fill_(-1).float(),
    "a negative byte compared": lambda put: put(BYTES).fill_(-1) == 255,
    "bytes or -1": lambda put: (put(BYTES) | -1) >> 1,
    "bytes xor -1": lambda put: (put(BYTES) ^ -1) >> 1,
    "bytes or 300": lambda put: (put(BYTES) | 300).int(),
    "bytes where -1": lambda put: torch.where(put(TRUTH), put(BYTES), -1).int(),
    "bytes filled from a tensor": lambda put: put(BYTES).fill_(torch.tensor(300)).int(),
    "a wide divisor": lambda put: put(SMALL) // put(torch.tensor(1000)),
    "a wide minimum": lambda put: torch.minimum(put(SMALL), put(torch.tensor(1000))),
    "a wide byte": lambda put: put(BYTES) < put(torch.tensor(-1)),
    "a byte among signed": lambda put: torch.maximum(
        put(SMALL), put(torch.tensor(200, dtype=torch.uint8))
    ),
    "wrapped before a wider out": lambda put: torch.mul(
        put(BYTES), put(BYTES), out=put(torch.zeros(3, dtype=torch.int32))
    ),
    "wrapped before a float out": lambda put: torch.add(
        put(SMALL), put(SMALL), out=put(torch.zeros(3))
    ),
    "a multiple beyond bytes": lambda put: torch.lcm(put(BYTES), put(BYTES.flip(0) + 7)).int(),
    "a float beyond fp32": lambda put: put(SMALL.int()).fill_(16777217.0),
    "a float into bytes": lambda put: put(BYTES).fill_(200.5).int(),
    "every second of a column": lambda put: put(torch.arange(27).view(9, 3, 1)).view(-1)[2:8:2] + 1,
    "no element twice": lambda put: put(torch.zeros(1, 0)).expand(4, 0).mul_(2),
}


@pytest.mark.parametrize("example", NUMBERS.values(), ids=list(NUMBERS))
def test_numbers_are_those_of_the_cpu(example: Example) -> None:
    card, host = _both(example)
    assert card.dtype is host.dtype
    assert torch.equal(card.cpu(), host)


HALVES = torch.linspace(-4, 4, 33)
ODD = torch.tensor([0.0, -0.0, 1.0, -2.5, float("inf"), -float("inf"), float("nan"), 3e38])


def _gradient(name: str, *args: object, **kwargs: object) -> Example:
    """A gradient on the same numbers as its input."""
    operation = getattr(torch.ops.aten, name)
    return lambda put: operation(put(HALVES.flip(0)), put(HALVES), *args, **kwargs)


FLOATS: dict[str, Example] = {
    "decimals": lambda put: put(HALVES * 1.2345).round(decimals=2),
    "decimals before the point": lambda put: put(HALVES * 1234.5).round(decimals=-2),
    "no numbers": lambda put: put(ODD).nan_to_num(),
    "chosen numbers": lambda put: put(ODD).nan_to_num(7.0, 8.0, -9.0),
    "sign bits": lambda put: put(ODD).signbit(),
    "signs": lambda put: torch.copysign(put(HALVES[:8]), put(ODD)),
    "angles": lambda put: put(ODD).angle(),
    "steps": lambda put: torch.heaviside(put(ODD), put(HALVES[:8])),
    "neighbours": lambda put: torch.nextafter(put(ODD), put(HALVES[:8])),
    "neighbours of zero": lambda put: torch.nextafter(put(ODD[:2]), put(torch.tensor([-1.0, 1.0]))),
    "logarithms of nothing": lambda put: torch.xlogy(put(torch.zeros(8)), put(ODD)),
    "sums of infinities": lambda put: torch.logaddexp(put(ODD[4:6]), put(ODD[4:6])),
    "hypotenuses": lambda put: torch.hypot(put(ODD), put(ODD.flip(0))),
    "odds": lambda put: put(torch.tensor([-0.5, 0.0, 0.25, 1.0, 1.5])).logit(),
    "bounded odds": lambda put: put(torch.tensor([-0.5, 0.0, 0.25, 1.0, 1.5])).logit(0.125),
    "shrunk": lambda put: torch.nn.functional.softshrink(put(ODD)),
    "a truth between": lambda put: put(TRUTH).clamp_max(put(TRUTH.flip(0))),
    "gelu": _gradient("gelu_backward"),
    "gelu by tanh": _gradient("gelu_backward", approximate="tanh"),
    "elu from the result": lambda put: torch.ops.aten.elu_backward(
        put(HALVES), 1.5, 1.25, 0.5, True, put(HALVES / 4)
    ),
    "hardswish": _gradient("hardswish_backward"),
    "hardsigmoid": _gradient("hardsigmoid_backward"),
    "hardtanh": _gradient("hardtanh_backward", -1.0, 1.0),
    "softplus": _gradient("softplus_backward", 1.0, 2.0),
    "logit": _gradient("logit_backward"),
    "silu": lambda put: torch.ops.aten.silu_backward(
        put(HALVES), put(HALVES), grad_input=put(torch.zeros(33))
    ),
}


@pytest.mark.parametrize("example", FLOATS.values(), ids=list(FLOATS))
def test_floats_are_those_of_the_cpu_and_made_on_the_card(example: Example) -> None:
    torch.spyre.reset_fallback_stats()
    card, host = _both(example)
    assert not torch.spyre.fallback_stats()
    torch.testing.assert_close(card.cpu(), host, equal_nan=True)


def test_the_neighbour_of_a_half_is_one_that_the_host_can_see() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.tensor([0.0, 1.0, -1.0, 100.0], dtype=dtype, device=DEVICE)
        above = torch.nextafter(x, torch.full_like(x, 1000.0))
        assert (above.cpu() > x.cpu()).all()
        assert torch.equal(torch.nextafter(above, torch.full_like(x, -1000.0))[1:], x[1:])


def test_out_is_not_resized_if_it_is_an_operand() -> None:
    for device in ("cpu", DEVICE):
        x = torch.ones(5, 1, device=device)
        with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
            torch.mul(x, torch.ones(5, 5, device=device), out=x)


EXPANDED: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "fill_": lambda x, _: x.fill_(3),
    "zero_": lambda x, _: x.zero_(),
    "masked_fill_": lambda x, mask: x.masked_fill_(mask, 7),
}


@pytest.mark.filterwarnings("ignore:Use of masked_fill_ on expanded tensors")
@pytest.mark.parametrize("write", EXPANDED.values(), ids=list(EXPANDED))
def test_an_expanded_tensor_is_filled(
    write: Callable[[torch.Tensor, torch.Tensor], object],
) -> None:
    def example(put: Put) -> torch.Tensor:
        base = put(torch.arange(6.0).view(2, 3))
        write(base[:, :1].expand(2, 5), put(TRUTH[:2, None]))
        return base

    card, host = _both(example)
    assert torch.equal(card.cpu(), host)


ERRORS: dict[str, Example] = {
    "fill": lambda put: put(SMALL).fill_(300),
    "fill with a float": lambda put: put(SMALL).fill_(300.0),
    "fill bytes": lambda put: put(BYTES).fill_(300),
    "fill bytes with a negative float": lambda put: put(BYTES).fill_(-1.5),
    "fill bytes below": lambda put: put(BYTES).fill_(-256),
    "where": lambda put: torch.where(put(TRUTH), put(BYTES), 300),
    "masked_fill": lambda put: put(SMALL).masked_fill(put(TRUTH), 300),
    "masked_fill from a tensor": lambda put: put(SMALL).masked_fill(put(TRUTH), torch.tensor(300)),
    "clamp": lambda put: put(SMALL).clamp(max=65536),
    "alpha": lambda put: put(SMALL).add(put(SMALL), alpha=300),
    "subtract True": lambda put: put(torch.ones(3)) - True,
    "subtract True from integers": lambda put: put(SMALL) - True,
    "subtract bools": lambda put: put(TRUTH) - True,
    "subtract from True": lambda put: True - put(TRUTH),
    "normal integers": lambda put: put(SMALL).normal_(),
    "random float8": lambda put: put(torch.zeros(3).to(torch.float8_e4m3fn)).random_(),
}


@pytest.mark.parametrize("example", ERRORS.values(), ids=list(ERRORS))
def test_errors_are_those_of_the_cpu(example: Example) -> None:
    with pytest.raises(RuntimeError) as on_cpu:
        example(torch.Tensor.clone)
    with pytest.raises(type(on_cpu.value)) as on_card:
        example(lambda x: x.to(DEVICE))
    assert str(on_card.value).splitlines()[0] == str(on_cpu.value).splitlines()[0]


def test_a_number_that_does_not_fit_is_refused_after_one_that_does() -> None:
    x = torch.zeros(3, dtype=torch.int8, device=DEVICE)
    x.fill_(100)
    with pytest.raises(RuntimeError, match="cannot be converted to type int8_t"):
        x.fill_(300)
    assert x.tolist() == [100] * 3


SQUARES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda x: x,
    "transposed": lambda x: x.transpose(0, 1),
    "ends exchanged": lambda x: x.transpose(0, 2),
    "rotated": lambda x: x.permute(1, 2, 0),
    "expanded": lambda x: x[:1].expand(4, 4, 4),
    "one row": lambda x: x[0],
    "one column": lambda x: x[:, :, :1],
}


@pytest.mark.parametrize("first", SQUARES.values(), ids=list(SQUARES))
@pytest.mark.parametrize("second", SQUARES.values(), ids=list(SQUARES))
def test_strides_follow_the_first_operand_that_minds(first: Example, second: Example) -> None:
    base = torch.zeros(4, 4, 4)
    card = base.to(DEVICE)
    assert (first(card) + second(card)).stride() == (first(base) + second(base)).stride()


RANGES = [
    (0.5, 5.5, 1.5, torch.int64),
    (0.5, 5.5, 1.5, torch.int32),
    (0, 5, 0.5, torch.int32),
    (0, 300, 100, torch.int8),
    (-1, 5, 1, torch.uint8),
    (2**31 - 3, 2**31, 1, torch.int64),
]


@pytest.mark.parametrize(("start", "end", "step", "dtype"), RANGES)
def test_ranges_are_those_of_the_cpu(start, end, step, dtype: torch.dtype) -> None:
    card = torch.arange(start, end, step, dtype=dtype, device=DEVICE)
    assert torch.equal(card.cpu(), torch.arange(start, end, step, dtype=dtype))


IMPOSSIBLE_RANGES = [
    (0, 5, 0.5, torch.int64),
    (0, 5, float("nan"), torch.float32),
    (0, 5, float("inf"), torch.int32),
    (0, 2, 1, torch.bool),
]


@pytest.mark.parametrize(("start", "end", "step", "dtype"), IMPOSSIBLE_RANGES)
def test_impossible_ranges_are_those_of_the_cpu(start, end, step, dtype: torch.dtype) -> None:
    with pytest.raises((RuntimeError, ValueError)) as on_cpu:
        torch.arange(start, end, step, dtype=dtype)
    with pytest.raises(type(on_cpu.value)) as on_card:
        torch.arange(start, end, step, dtype=dtype, device=DEVICE)
    assert str(on_card.value).splitlines()[0] == str(on_cpu.value).splitlines()[0]


def test_a_range_beyond_32_bits_is_refused() -> None:
    with pytest.raises(OverflowError, match="32 bits"):
        torch.arange(2**31 - 2, 2**31 + 2, device=DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bounds", [(1, 2), (-3, -2), (-1, 0), (0.5, 1.1), (5, 5)], ids=str)
def test_uniform_numbers_stay_below_their_end(dtype: torch.dtype, bounds: tuple) -> None:
    torch.manual_seed(1)
    low, high = bounds
    values = torch.empty(20000, dtype=dtype, device=DEVICE).uniform_(low, high).cpu().float()
    assert values.min() >= low
    assert values.max() < high or low == high


def test_log_normal_numbers_are_powers_of_normal_ones() -> None:
    torch.manual_seed(1)
    normal = torch.empty(1000, device=DEVICE).normal_(0.5, 0.25)
    torch.manual_seed(1)
    assert torch.equal(torch.empty(1000, device=DEVICE).log_normal_(0.5, 0.25), normal.exp())
