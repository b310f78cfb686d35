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
