"""The conformance harness finds what it is there to find."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conformance import pool
from tests.conformance.check import check
from tests.conformance.compare import Reference, mismatch
from tests.conformance.device_tests import TEMPLATES, device_tests
from tests.conformance.expected import rules
from tests.conformance.results import Entry, Scoreboard, Status
from tests.conformance.samples import Inputs, inputs_of, matching, operations

ADD = operations()["add"]
HALF = torch.tensor([1.0, 300.0, -0.25], dtype=torch.float16)


def _found(result: object, narrow: object, wide: object = None) -> str | None:
    return mismatch(ADD, result, Reference(narrow, wide))


def test_two_units_of_the_16_bit_format_are_near_and_three_are_not() -> None:
    one = torch.ones(1, dtype=torch.float16)
    assert _found(one + 2 * 2**-9, one) is None
    assert "at [0]" in (_found(one + 3 * 2**-9, one) or "")


def test_what_the_cpu_loses_in_float16_is_allowed_to_the_card() -> None:
    exact = HALF.float() + torch.tensor([0.0, 0.9, 0.0])
    assert _found(HALF + torch.tensor([0.0, 3.0, 0.0]).half(), HALF, exact) is None
    assert _found(HALF + torch.tensor([0.0, 9.0, 0.0]).half(), HALF, exact) is not None


def test_integers_bools_shapes_and_dtypes_must_be_equal() -> None:
    numbers = torch.tensor([1, 2, 3], dtype=torch.int32)
    assert "3 instead of 2" in (_found(torch.tensor([1, 3, 3], dtype=torch.int32), numbers) or "")
    assert "shape" in (_found(numbers[:2], numbers) or "")
    assert "torch.int64" in (_found(numbers.long(), numbers) or "")
    assert _found(torch.tensor([True]), torch.tensor([False])) is not None
    assert "instead of" in (_found((numbers,), (numbers, numbers)) or "")
    assert _found(True, False) is not None


def test_float32_has_the_tolerance_of_the_entry() -> None:
    x = torch.tensor([100.0])
    assert _found(x + 1e-4, x) is None
    assert _found(x + 2e-3, x) is not None


def test_infinity_and_nan_are_one_in_16_bits_but_not_below_zero_nor_in_float32() -> None:
    inf, nan = (torch.tensor([x], dtype=torch.float16) for x in (torch.inf, torch.nan))
    assert _found(nan, inf) is None
    assert _found(inf, nan) is None
    assert _found(nan, -inf) is not None
    assert _found(nan.float(), inf.float()) is not None
    assert _found(torch.zeros(1), nan.float()) is not None


def test_arguments_keep_their_strides_on_the_card() -> None:
    inputs = Inputs((torch.arange(12.0).view(3, 4).t()[1:, ::2], [torch.ones(2).expand(3, 2)]), {})
    for before, there in zip(inputs.tensors(), inputs.on_card().tensors(), strict=True):
        assert there.device.type == "spyre"
        assert (there.stride(), there.storage_offset()) == (
            before.stride(),
            before.storage_offset(),
        )
        assert torch.equal(there.cpu(), before)


def test_the_samples_are_the_same_in_every_run_and_values_of_the_card() -> None:
    first, second = (list(inputs_of("add", "float16", 3)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        for x, y in zip(a.tensors(), b.tensors(), strict=True):
            assert torch.equal(x, y) and torch.equal(x.to("spyre").cpu(), x)


Fault = Callable[[torch.Tensor], torch.Tensor]

FAULTS: dict[str, tuple[str, Fault, Status, str]] = {
    "a wrong element": ("neg", lambda y: y + 0.5, Status.WRONG, "instead of"),
    "a wrong dtype": ("neg", lambda y: y.half(), Status.WRONG, "torch.float16 instead of"),
    "a result on the host": ("neg", lambda y: y.cpu(), Status.WRONG, "is on cpu"),
    "a copy of a view": ("t", lambda y: y.clone(), Status.WRONG, "copy instead of a view"),
    "an exception": ("neg", lambda y: y.no_such_thing, Status.ERROR, "AttributeError"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_device_with_a_fault_is_found_out(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, spoil, status, said = FAULTS[fault]
    op = operations()[name]
    right = op.op

    def faulty(x: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        result = right(x, *args, **kwargs)
        return spoil(result) if x.device.type == "spyre" else result

    monkeypatch.setattr(op, "op", faulty)
    found = check(name, "float32", 4)
    assert found.status is status and said in found.detail


def test_an_operation_without_fault_counts_as_what_it_is() -> None:
    assert check("neg", "float16", 4).status is Status.CARD
    assert check("linalg.det", "float32", 2).status is Status.FALLBACK
    assert check("fft.fft", "float32", 2).status is Status.DTYPE


def _misbehave(name: str, column: str, _: int) -> Entry:
    if name == "crash":
        os.abort()
    if name == "hang":
        time.sleep(60)
    if name == "raise":
        raise ValueError("by itself")
    return Entry(Status.CARD, 1)


def test_a_crash_and_a_hang_are_results_and_the_run_goes_on() -> None:
    keys = [(name, "float16") for name in ("crash", "fine", "hang", "raise", "fine too")]
    found = dict(pool.run(keys, cap=1, seconds=3, work=_misbehave))
    assert list(found) != [] and set(found) == set(keys)
    assert found[keys[0]].status is Status.CRASH and "SIGABRT" in found[keys[0]].detail
    assert found[keys[2]].status is Status.CRASH and "time limit" in found[keys[2]].detail
    assert found[keys[3]].status is Status.ERROR and "by itself" in found[keys[3]].detail
    assert found[keys[1]].status is found[keys[4]].status is Status.CARD


def test_a_scoreboard_comes_back_from_its_file(tmp_path: Path) -> None:
    entries = {
        ("add", "float16"): Entry(Status.CARD, 3),
        ("add", "gradients float32"): Entry(Status.FALLBACK, 2, ("aten::sum",)),
        ("sort", "float16"): Entry(Status.WRONG, 1, detail='a "quote"'),
    }
    board = Scoreboard({"cap": 3}, entries)
    board.write(tmp_path / "x.json")
    assert Scoreboard.read(tmp_path / "x.json") == board
    assert board.shares()["float16 entirely on the card"] == pytest.approx(0.5)


def test_every_expected_difference_and_device_test_names_something() -> None:
    for rule in rules():
        assert rule.expected.reason
        assert all(matching(op) for op in rule.ops), rule
    assert device_tests().keys() <= TEMPLATES.keys()
    for test in device_tests().values():
        assert all(matching(op) for op in test.exceptions)
