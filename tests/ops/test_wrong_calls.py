"""Calls that the CPU refuses are refused on the card, and the error names what was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

DEVICE = "spyre"

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _no_fault_stays() -> Iterator[None]:
    yield
    torch.spyre.reset()


def _synchronised(call: Callable[[], object]) -> None:
    call()
    torch.spyre.synchronize()  # a fault of the card shows at the next wait


# ---- Indices ------------------------------------------------------------------------------------

ROW = torch.arange(3.0)
TABLE = torch.arange(6.0).view(3, 2)
NINE = torch.tensor([9.0])

# Each takes the index as it is written, on any device.
FROM_EITHER_END: dict[str, Callable[[Tensor], Tensor]] = {
    "row[i]": lambda i: ROW.to(i.device)[i],
    "column[i]": lambda i: ROW.view(3, 1).to(i.device)[i],
    "table[i]": lambda i: TABLE.to(i.device)[i],
    "table[i, 0]": lambda i: TABLE.to(i.device)[i, torch.zeros_like(i)],
    "take": lambda i: ROW.to(i.device).take(i),
    "index_put": lambda i: ROW.to(i.device).index_put((i,), NINE.to(i.device)),
    "index_put in two": lambda i: TABLE.to(i.device).index_put(
        (i, torch.ones_like(i)), NINE.to(i.device)
    ),
    "index_fill": lambda i: ROW.to(i.device).index_fill(0, i, 9.0),
    "put": lambda i: ROW.to(i.device).put(i, NINE.to(i.device)),
}
FROM_THE_FRONT: dict[str, Callable[[Tensor], Tensor]] = {
    "gather": lambda i: ROW.to(i.device).gather(0, i),
    "gather of a table": lambda i: TABLE.to(i.device).gather(0, i.view(1, 1)),
    "index_select": lambda i: ROW.to(i.device).index_select(0, i),
    "embedding": lambda i: torch.nn.functional.embedding(i, TABLE.to(i.device)),
    "embedding of one column": lambda i: torch.nn.functional.embedding(
        i, ROW.view(3, 1).to(i.device)
    ),
    "scatter": lambda i: ROW.to(i.device).scatter(0, i, 9.0),
}


@pytest.mark.parametrize("name", FROM_EITHER_END)
def test_an_index_counts_from_the_end_once(name: str) -> None:
    call = FROM_EITHER_END[name]
    for index in (-3, -1, 2):
        i = torch.tensor([index])
        assert torch.equal(call(i.to(DEVICE)).cpu(), call(i))
    for index in (-4, -5, -6, 3):
        with pytest.raises(IndexError, match="is out of range"):
            _synchronised(lambda index=index: call(torch.tensor([index], device=DEVICE)))
        torch.spyre.reset()


@pytest.mark.parametrize("name", FROM_THE_FRONT)
def test_where_the_cpu_does_not_count_from_the_end_the_card_does_not(name: str) -> None:
    call = FROM_THE_FRONT[name]
    for index in (-1, -3, -4, 3):
        with pytest.raises(IndexError, match="is out of range"):
            _synchronised(lambda index=index: call(torch.tensor([index], device=DEVICE)))
        torch.spyre.reset()


@pytest.mark.parametrize(
    ("name", "index", "message"),
    [
        ("row[i]", 5, "^index 5 is out of range for a table of 3 rows"),
        ("table[i]", 5, "^index 5 is out of range for a table of 3 rows"),
        ("take", 5, "^index 5 is out of range for a table of 3 rows"),
        ("row[i]", -4, "^an index is out of range for a table of 3 rows"),
        ("table[i, 0]", 5, "^an index is out of range for a table of 6 rows"),
    ],
)
def test_the_fault_names_no_index_that_was_not_given(name: str, index: int, message: str) -> None:
    with pytest.raises(IndexError, match=message):
        _synchronised(lambda: FROM_EITHER_END[name](torch.tensor([index], device=DEVICE)))
