"""The card's clock: every law against a formula written down here once more, from the notes.

1 GB/s is 1 byte per nanosecond, so the bandwidths below read like the published ones.
"""

import math
from typing import Any

import pytest
import torch  # noqa: F401  (loads the libraries that the extension links to)
from hypothesis import given
from hypothesis import strategies as st

from torch_spyre import _C

cost = _C._cost
Step, Traffic = cost.Step, cost.Traffic

BYTES = st.integers(0, 2**40)
COUNTS = st.integers(1, 2**24)
EXTENTS = st.integers(1, 2**14)


def memory(**fields: Any) -> float:
    return cost.breakdown(Step(**fields)).memory


def close(expected: float) -> Any:
    return pytest.approx(expected, rel=1e-12, abs=1e-12)


# ---- LPDDR5 -----------------------------------------------------------------------------------


@given(BYTES, BYTES)
def test_fused_traffic_pays_for_turning_the_bus_around(read: int, written: int) -> None:
    expected = (read + written) / 150 + 0.00574 * min(read, written)
    assert memory(bytes_read=read, bytes_written=written) == close(expected)


def test_fused_traffic_is_150_gb_per_second_one_way_and_about_105_balanced() -> None:
    size = 150 * 2**20
    assert size / memory(bytes_read=size) == close(150)
    assert size / memory(bytes_written=size) == close(150)
    balanced = 2 * size / memory(bytes_read=size, bytes_written=size)
    assert balanced == pytest.approx(105, abs=0.5)


@pytest.mark.parametrize(
    ("traffic", "rate"),
    [
        (Traffic.Restickify, 116),
        (Traffic.CrossRowReduction, 113),
        (Traffic.BroadcastPointwise, 118),
    ],
)
def test_standalone_steps_move_bytes_of_both_directions_at_one_rate(
    traffic: Any, rate: int
) -> None:
    step = {"traffic": traffic, "bytes_read": 3 * 2**20, "bytes_written": 2**20}
    assert memory(**step) == close(4 * 2**20 / rate)


@given(BYTES, st.integers(0, 2**20))
def test_row_reduction_reads_faster_while_there_are_few_rows(read: int, rows: int) -> None:
    rate = min(150.0, 114 + 61 * math.exp(-rows / 3700))
    assert memory(traffic=Traffic.RowReduction, bytes_read=read, rows=rows) == close(read / rate)


def test_row_reduction_never_exceeds_the_one_way_rate() -> None:
    size = 2**30
    few = size / memory(traffic=Traffic.RowReduction, bytes_read=size, rows=1)
    many = size / memory(traffic=Traffic.RowReduction, bytes_read=size, rows=10**6)
    assert (few, many) == (close(150), close(114))


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_coarse_tiles_of_few_rows_or_columns_waste_bandwidth(rows: int, columns: int) -> None:
    size = 2**24
    efficiency = min(1.0, (rows / 7.9) ** 0.50 * (columns / 2048) ** 0.38)
    tiled = memory(bytes_read=size, tile_rows_per_core=rows, tile_columns=columns)
    assert tiled == close(size / 150 / efficiency)


def test_coarse_tiles_do_not_slow_a_matmul_down() -> None:
    step = {"traffic": Traffic.Matmul, "bytes_read": 2**24}
    assert memory(**step, tile_rows_per_core=1, tile_columns=64) == memory(**step)


# ---- Matmul -----------------------------------------------------------------------------------


@given(EXTENTS, EXTENTS, EXTENTS, st.integers(1, 64))
def test_the_array_does_1140_macs_per_nanosecond_when_it_is_full(
    m: int, n: int, k: int, batch: int
) -> None:
    fill = min(1.0, math.sqrt((m / 8) / 8))
    pt = cost.breakdown(Step(traffic=Traffic.Matmul, m=m, n=n, k=k, batch=batch)).pt
    assert pt == close(m * n * k * batch / (1140 * fill))


@pytest.mark.parametrize(("bits", "factor"), [(4, 4), (8, 2), (16, 1), (32, 0.25)])
def test_narrow_operands_multiply_faster(bits: int, factor: float) -> None:
    pt = cost.breakdown(Step(traffic=Traffic.Matmul, m=64, n=64, k=64, bits=bits)).pt
    assert pt == close(64**3 / 1140 / factor)


@pytest.mark.parametrize("sharers", [1, 2, 8, 9, 16, 32])
def test_one_read_of_a_matmul_operand_serves_eight_cores(sharers: int) -> None:
    a, b, c = 2**20, 2**22, 2**19
    step = {
        "traffic": Traffic.Matmul,
        "bytes_read": a + b,
        "bytes_written": c,
        "a_bytes": a,
        "b_bytes": b,
    }
    once = (a + b + c) / 150 + 0.00574 * c
    slowdown = max(1.0, sharers / 8)
    assert memory(**step, a_broadcast=sharers) == close(once + a / 150 * (slowdown - 1))
    assert memory(**step, b_broadcast=sharers) == close(once + b / 150 * (slowdown - 1))


@given(st.integers(1, 32), COUNTS)
def test_a_k_split_sends_partial_sums_round_the_ring(k_split: int, elements: int) -> None:
    ring = cost.breakdown(Step(k_split=k_split, output_elements=elements)).ring
    microseconds = (k_split - 1) * elements * 1.4e-4
    assert ring == close(microseconds * 1000)


@given(COUNTS, st.integers(1, 32))
def test_relayout_over_the_ring_shares_its_bandwidth_among_the_pieces(
    size: int, split: int
) -> None:
    ring = cost.breakdown(Step(relayout_bytes=size, relayout_split=split)).ring
    assert ring == close(size / (550 / split))


@given(st.integers(1, 32), st.integers(1, 32), COUNTS, COUNTS)
def test_what_goes_round_the_ring_is_relaid_data_and_fp32_partial_sums(
    k_split: int, groups: int, elements: int, relaid: int
) -> None:
    step = Step(
        cores=k_split * groups,
        k_split=k_split,
        output_elements=elements,
        relayout_bytes=relaid,
    )
    assert cost.ring_bytes(step) == relaid + groups * (k_split - 1) * elements * 4


# ---- What is ours -----------------------------------------------------------------------------


@given(COUNTS, COUNTS, COUNTS)
def test_our_own_rates(elements: int, read: int, written: int) -> None:
    units = cost.breakdown(Step(sfp_elements=elements, lx_read=read, lx_written=written))
    assert units.sfp == close(elements / 140)
    assert units.lx == close(max(read, written) / 128)
    assert cost.dma_nanoseconds(elements) == math.ceil(elements / 50)


# ---- Composition ------------------------------------------------------------------------------

FIELDS: dict[str, st.SearchStrategy[int]] = {
    "bytes_read": BYTES,
    "bytes_written": BYTES,
    "sfp_elements": BYTES,
    "lx_read": BYTES,
    "lx_written": BYTES,
    "m": EXTENTS,
    "n": EXTENTS,
    "k": EXTENTS,
    "batch": st.integers(1, 64),
    "a_bytes": BYTES,
    "b_bytes": BYTES,
    "a_broadcast": st.integers(1, 32),
    "b_broadcast": st.integers(1, 32),
    "k_split": st.integers(1, 32),
    "output_elements": COUNTS,
    "relayout_bytes": COUNTS,
    "relayout_split": st.integers(1, 32),
}
STEPS = st.fixed_dictionaries({"traffic": st.sampled_from(list(Traffic.__members__.values()))})


@given(STEPS, st.fixed_dictionaries({}, optional=FIELDS))
def test_a_step_takes_as_long_as_its_busiest_unit_and_then_the_ring(
    kind: dict[str, Any], work: dict[str, int]
) -> None:
    step = Step(**kind, **work)
    units = cost.breakdown(step)
    total = max(units.pt, units.sfp, units.memory, units.lx) + units.ring
    nanoseconds = cost.nanoseconds(step)
    assert isinstance(nanoseconds, int)
    assert total * (1 - 1e-11) <= nanoseconds < total + 1


@given(STEPS, st.fixed_dictionaries(FIELDS), st.sampled_from(sorted(FIELDS)), st.integers(1, 1000))
def test_more_work_never_takes_less_time(
    kind: dict[str, Any], work: dict[str, int], field: str, more: int
) -> None:
    larger = work | {field: work[field] + more}
    assert cost.nanoseconds(Step(**kind, **work)) <= cost.nanoseconds(Step(**kind, **larger))


@given(STEPS)
def test_a_step_with_no_work_takes_no_time(kind: dict[str, Any]) -> None:
    assert cost.nanoseconds(Step(**kind)) == 0
    assert cost.nanoseconds(Step(**kind, rows=5, tile_rows_per_core=1, tile_columns=1)) == 0
    assert cost.dma_nanoseconds(0) == 0


def test_the_least_work_takes_a_whole_nanosecond() -> None:
    assert cost.nanoseconds(Step(bytes_read=1)) == 1
    assert cost.nanoseconds(Step(bytes_read=150)) == 1
    assert cost.nanoseconds(Step(bytes_read=151)) == 2


def test_absurd_steps_saturate() -> None:
    huge = 2**62
    assert cost.nanoseconds(Step(m=huge, n=huge, k=huge, batch=huge)) == pytest.approx(2**53)


# ---- Wrong input ------------------------------------------------------------------------------


def test_a_wrong_field_is_named() -> None:
    with pytest.raises(TypeError, match="no field 'byte_read'"):
        Step(byte_read=1)
    with pytest.raises(ValueError, match="bytes_read is -1, it must be at least 0"):
        cost.nanoseconds(Step(bytes_read=-1))
    with pytest.raises(ValueError, match="k_split is 0, it must be at least 1"):
        cost.breakdown(Step(k_split=0))
    with pytest.raises(ValueError, match="bits is 12"):
        cost.nanoseconds(Step(bits=12))
    with pytest.raises(ValueError, match="bytes is -5"):
        cost.dma_nanoseconds(-5)
