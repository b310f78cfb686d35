"""SPYRE_CARD_CHECK: mistakes in programs are found and named, correct programs run as ever."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from torch_spyre._C import _card
from torch_spyre.backend.program import (
    Lanes,
    Mask,
    Operand,
    Program,
    Space,
    Step,
    StepFlags,
    StepKind,
    Symbol,
    SymbolKind,
    encode,
)

FP32 = _card.formats["IEEE_FP32"]
STICK = 128
LANES = 32


# ---- A card and programs for it ------------------------------------------------------------------


def address(rows: int, is_written: bool = False) -> Symbol:
    return Symbol(SymbolKind.ADDRESS, FP32, rows * STICK, is_written)


def device(symbol: int, *bases: int) -> Operand:
    """The sticks of a symbol one after the other, from `bases` sticks on."""
    places = tuple(base * STICK for base in bases) or (0,)
    return Operand(Space.DEVICE, FP32, symbol, bases=places, strides=(STICK,))


def scratchpad(stick: int) -> Operand:
    return Operand(Space.LX, FP32, 0, bases=(stick * STICK,), strides=(STICK,))


def pointwise(
    opcode: str,
    rows: int,
    inputs: Sequence[Operand],
    output: Operand,
    cores: int = 1,
    flags: StepFlags = StepFlags.NONE,
) -> Step:
    return Step(
        opcode, StepKind.POINTWISE, cores, ((rows,),), tuple(inputs), (output,), flags=flags
    )


class CheckedCard:
    """A private card; tensors are float32 [rows, columns] with at most one stick per row."""

    def __init__(self, check: str = "memory") -> None:
        self.card = _card.Card(memory_bytes=1 << 24, threads=2, check=check)

    def allocate(self, rows: int) -> int:
        return self.card.allocate(rows * STICK)

    def upload(self, values: np.ndarray) -> int:
        rows, columns = values.shape
        nests = [_card.DmaNest([rows, columns], [LANES, 1], [columns, 1])]
        if columns < LANES:
            rest = [rows, LANES - columns]
            nests.append(_card.DmaNest(rest, [LANES, 1], [], columns, is_padding=True))
        place = self.allocate(rows)
        how = self._descriptor(nests, rows, values.nbytes)
        self.card.wait(self.card.copy_to_card(place, how, np.ascontiguousarray(values)))
        return place

    def download(self, place: int, rows: int, columns: int) -> np.ndarray:
        values = np.empty((rows, columns), np.float32)
        nests = [_card.DmaNest([rows, columns], [LANES, 1], [columns, 1])]
        how = self._descriptor(nests, rows, values.nbytes)
        self.card.wait(self.card.copy_to_host(place, how, values))
        return values

    def run(self, program: Program, places: Sequence[int], names=None) -> None:
        loaded = self.card.load(encode(program), names)
        sizes = [symbol.nbytes for symbol in program.symbols]
        self.card.wait(self.card.launch(loaded, list(zip(places, sizes, strict=True))))

    @staticmethod
    def _descriptor(nests, rows: int, host_bytes: int):
        return _card.DmaDescriptor(
            FP32, _card.host_formats["float32"], nests, rows * STICK, host_bytes
        )


def ones(rows: int, columns: int = LANES) -> np.ndarray:
    return np.ones((rows, columns), np.float32)


# ---- Each mistake once ---------------------------------------------------------------------------


def two_buffers(distance: int) -> Program:
    """|x| + -x with both terms in the scratchpad, `distance` sticks apart."""
    return Program(
        (address(4), address(4, is_written=True)),
        (
            pointwise("abs", 4, [device(0)], scratchpad(0)),
            pointwise("neg", 4, [device(0)], scratchpad(distance)),
            pointwise("add", 4, [scratchpad(0), scratchpad(distance)], device(1)),
        ),
    )


TWO_BUFFERS = _card.ProgramNames(
    "fused_abs_neg_add_0",
    [
        _card.StepName("buf0", ["arg0_1", "buf0"], "model.py:5 a = x.abs()"),
        _card.StepName("buf1", ["arg0_1", "buf1"], "model.py:6 b = -x"),
        _card.StepName("buf2", ["buf0", "buf1", "buf2"], "model.py:7 return a + b"),
    ],
)


def test_overlapping_scratchpad_buffers_are_named_with_the_line_of_the_model():
    card = CheckedCard()
    with pytest.raises(_card.CardFault) as fault:
        card.run(two_buffers(3), [card.upload(ones(4)), card.allocate(4)], TWO_BUFFERS)
    report = str(fault.value)
    assert report.startswith("CheckFailed: Spyre card 0, queue 0: check failed")
    for part in (
        "kernel 'fused_abs_neg_add_0', step 2 (add, 'buf2'), core 0",
        "holds 'buf1', which step 1 (neg, 'buf1') wrote",
        "input 0 'buf0': LX, bytes [384, 512)",
        "model.py:7 return a + b",
    ):
        assert part in report


def test_buffers_side_by_side_pass():
    card = CheckedCard()
    result = card.allocate(4)
    card.run(two_buffers(4), [card.upload(ones(4)), result], TWO_BUFFERS)
    assert (card.download(result, 4, LANES) == 0).all()


def divided(each: int, second: int) -> Program:
    """Two cores take `each` of 8 rows, the second from row `second` on; then one core adds up."""
    symbols = (address(8), address(8, is_written=True), address(1, is_written=True))
    total = Step(
        "sum",
        StepKind.REDUCTION,
        1,
        ((8,),),
        (device(1),),
        (replace(device(2), strides=(0,)),),
        flags=StepFlags.BARRIER_BEFORE,
        reduced=1,
    )
    work = pointwise("abs", each, [device(0, 0, second)], device(1, 0, second), cores=0b11)
    return Program(symbols, (work, total))


@pytest.mark.parametrize(
    ("each", "second", "found"),
    [
        (4, 4, None),
        (5, 3, r"step 0 \(abs\), core 1\n.*a race.*another core writes in this step \(core 0"),
        (3, 5, r"step 1 \(sum\), core 0\n.*was never written"),
    ],
    ids=["right", "rows-twice", "rows-never"],
)
def test_a_wrong_division_among_the_cores_shows(each: int, second: int, found: str | None):
    card = CheckedCard()
    places = [card.upload(ones(8)), card.allocate(8), card.allocate(1)]
    if found is None:
        card.run(divided(each, second), places)
        assert (card.download(places[2], 1, LANES) == 8).all()
    else:
        with pytest.raises(_card.CardFault, match=found):
            card.run(divided(each, second), places)


def row_sums(masks: tuple[Mask, ...]) -> Program:
    """The sums of 3 rows of 20 elements, which lie in sticks of 32."""
    step = Step(
        "sum",
        StepKind.REDUCTION,
        1,
        ((3, 1),),
        (replace(device(0), strides=(STICK, 0)),),
        (replace(device(1), strides=(STICK, 0), lanes=Lanes.FIRST),),
        stick_dim=1,
        reduced=0b10,
        masks=masks,
    )
    return Program((address(3), address(3, is_written=True)), (step,))


def test_a_missing_mask_lets_padding_into_a_sum():
    card = CheckedCard()
    with pytest.raises(_card.CardFault, match=r"\(lane 20\) is padding, and is reduced"):
        card.run(row_sums(()), [card.upload(ones(3, 20)), card.allocate(3)])


def test_with_the_mask_only_lane_0_of_the_sums_is_valid():
    card = CheckedCard()
    result = card.allocate(3)
    card.run(row_sums((Mask(1, 20),)), [card.upload(ones(3, 20)), result])
    assert card.download(result, 3, 1).ravel().tolist() == [20, 20, 20]
    with pytest.raises(_card.CardFault, match="is padding"):
        card.download(result, 3, 2)


def exchange(flags: StepFlags) -> Program:
    """Two cores write halves of a tensor, then each reads the other's half."""
    symbols = (address(8), address(8, is_written=True), address(8, is_written=True))
    first = pointwise("abs", 4, [device(0, 0, 4)], device(1, 0, 4), cores=0b11)
    second = pointwise("neg", 4, [device(1, 4, 0)], device(2, 0, 4), cores=0b11, flags=flags)
    return Program(symbols, (first, second))


def test_a_missing_barrier_is_a_race():
    card = CheckedCard()
    places = [card.upload(ones(8)), card.allocate(8), card.allocate(8)]
    with pytest.raises(_card.CardFault, match=r"a race: core 0 reads .*core 1, in step 0 \(abs\)"):
        card.run(exchange(StepFlags.NONE), places)
    card.card.reset()
    card.run(exchange(StepFlags.BARRIER_BEFORE), places)
    assert (card.download(places[2], 8, LANES) == -1).all()


def test_uninitialised_memory_is_found_where_it_is_read():
    card = CheckedCard()
    program = Program(
        (address(2), address(2, is_written=True)), (pointwise("abs", 2, [device(0)], device(1)),)
    )
    with pytest.raises(
        _card.CardFault, match=r"never written, and is read.*\n.*symbol 0, bytes \[0, 4"
    ):
        card.run(program, [card.allocate(2), card.allocate(2)])


def test_the_step_that_makes_the_first_nan_is_named():
    program = Program(
        (address(2), address(2, is_written=True)),
        (
            pointwise("sqrt", 2, [device(0)], scratchpad(0)),
            pointwise("exp", 2, [scratchpad(0)], device(1)),
        ),
    )
    for check, found in (("nan", True), ("memory", False)):
        card = CheckedCard(check)
        places = [card.upload(-ones(2, 5)), card.allocate(2)]
        if found:
            with pytest.raises(_card.CardFault, match=r"step 0 \(sqrt\).*\n.*the first NaN"):
                card.run(program, places)
        else:
            card.run(program, places)
            assert np.isnan(card.download(places[1], 2, 5)).all()


def test_touched_bytes_are_those_of_the_model():
    card = CheckedCard()
    card.run(divided(4, 4), [card.upload(ones(8)), card.allocate(8), card.allocate(1)])
    counters = card.card.counters()
    assert counters["checked_bytes_read"] == counters["bytes_read"] == 16 * STICK
    assert counters["checked_bytes_written"] == counters["bytes_written"] == 9 * STICK


# ---- The environment variable --------------------------------------------------------------------

SCRIPT = """
import torch

torch.manual_seed(0)
x = torch.randint(-99, 99, (70, 100)).to(torch.float16)
y = x.to("spyre")
assert torch.equal((y * 2 + y.t().contiguous().t())[3:, 5:].cpu(), (y.cpu() * 3)[3:, 5:])
# Several steps move this, and two cores have elements of one stick.
into = torch.zeros(130, 130, device="spyre")
into[:60, :60].copy_(torch.ones(130, 130).to("spyre")[3:63, 5:65])
assert into.cpu().sum() == 3600
counters = torch.spyre.counters()
assert counters["checked_bytes_written"] == counters["bytes_written"] > 0
try:
    torch.empty(3, device="spyre").cpu()
except torch.AcceleratorError as error:
    print(error)
"""


def run_with(value: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {"SPYRE_CARD_CHECK": value},
        capture_output=True,
        text=True,
        check=False,
    )


def test_eager_operations_pass_and_the_variable_switches_checks_on():
    run = run_with("1")
    assert run.returncode == 0, run.stderr
    assert "check failed in a copy to the host" in run.stdout
    assert "was never written" in run.stdout


def test_a_wrong_value_of_the_variable_is_refused():
    assert "SPYRE_CARD_CHECK='yes' is not valid: expected 0 (off), 1" in run_with("yes").stderr
