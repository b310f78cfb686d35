"""Rows written in place where an index says: whole sticks, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torch_spyre.tools.plans import plans_of

CASES: dict[str, tuple[tuple[int, ...], int]] = {
    "a cache": ((1, 8, 256, 128), 2),
    "sticks that are not full": ((2, 3, 50, 100), 2),
    "a matrix": ((7, 64), 0),
    "in the middle": ((5, 6, 7), 1),
}
ELEMENTS: dict[str, tuple[tuple[int, ...], int]] = {
    "along the sticks": ((5, 6, 7), 2),
    "a vector": ((300,), 0),
    "one column": ((4, 1), 0),
}
DTYPES = (torch.float16, torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool)


def _tensor(shape: list[int] | tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype).to("spyre").cpu()  # as the card holds it
    return torch.randint(0, 2 if dtype is torch.bool else 100, shape).to(dtype)


def _case(
    shape: tuple[int, ...], dim: int, dtype: torch.dtype, count: int = 3
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    rows = [count if i == dim else n for i, n in enumerate(shape)]
    return _tensor(shape, dtype), torch.randint(shape[dim], (count,)), _tensor(rows, dtype)


def _is_right(
    write: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object],
    x: torch.Tensor,
    index: torch.Tensor,
    rows: torch.Tensor,
    rows_on_card: torch.Tensor | None = None,
) -> list[str]:
    """Compares with the CPU, and returns the steps on the card."""
    wanted, on_card = x.clone(), x.to("spyre")
    write(wanted, index, rows)
    if rows_on_card is None:
        rows_on_card = rows.to("spyre")
    (planned,) = plans_of(write, on_card, index.to("spyre"), rows_on_card)
    assert torch.equal(on_card.cpu(), wanted)
    return [step for launch in planned.launches for step in launch]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_index_copy_is_one_step(name: str, dtype: torch.dtype) -> None:
    shape, dim = CASES[name]
    steps = _is_right(lambda x, i, rows: x.index_copy_(dim, i, rows), *_case(shape, dim, dtype))
    assert len(steps) == 1
    assert steps[0].startswith("scatter")


@pytest.mark.parametrize("is_negative", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_an_assignment_counts_from_either_end(name: str, is_negative: bool) -> None:
    shape, dim = CASES[name]
    x, index, rows = _case(shape, dim, torch.float16)
    if is_negative:
        index = index - shape[dim]
    steps = _is_right(
        lambda x, i, rows: x.__setitem__((*[slice(None)] * dim, i), rows), x, index, rows
    )
    assert steps == ["lt_int", "add_int", "where_int", "scatter"]


@pytest.mark.parametrize("name", CASES)
def test_rows_in_another_layout_are_rearranged_first(name: str) -> None:
    shape, dim = CASES[name]
    x, index, rows = _case(shape, dim, torch.float16)
    turned = rows.transpose(0, -1).contiguous().to("spyre").transpose(0, -1)
    steps = _is_right(lambda x, i, rows: x.index_copy_(dim, i, rows), x, index, rows, turned)
    assert steps[-1] == "scatter"
    assert len(steps) <= 3


@pytest.mark.parametrize("name", ELEMENTS)
def test_what_is_no_row_of_sticks_is_written_by_elements(name: str) -> None:
    shape, dim = ELEMENTS[name]
    _is_right(lambda x, i, rows: x.index_copy_(dim, i, rows), *_case(shape, dim, torch.float16))


def test_a_part_of_a_storage_keeps_what_is_beside_it() -> None:
    x, index, rows = _case((9, 32), 0, torch.float16)
    wide, on_card = torch.zeros(9, 64).half(), torch.zeros(9, 64).half().to("spyre")
    wide[:, :32].copy_(x).index_copy_(0, index, rows)
    on_card[:, :32].copy_(x.to("spyre")).index_copy_(0, index.to("spyre"), rows.to("spyre"))
    assert torch.equal(on_card.cpu(), wide)


def test_of_two_rows_for_one_place_the_last_stays() -> None:
    x, _, rows = _case((9, 64), 0, torch.float16)
    _is_right(lambda x, i, rows: x.index_copy_(0, i, rows), x, torch.tensor([4, 2, 4]), rows)


def test_a_place_outside_is_an_error() -> None:
    x = torch.zeros(9, 64, device="spyre", dtype=torch.float16)
    rows = torch.ones(1, 64, device="spyre", dtype=torch.float16)
    x.index_copy_(0, torch.tensor([9], device="spyre"), rows)
    with pytest.raises(IndexError, match="index 9 is out of range for a table of 9 rows"):
        torch.spyre.synchronize()
    torch.spyre.reset()
