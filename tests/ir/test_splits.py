"""Core division: complete, without idle cores, within the span."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_spyre.ir import Span, chunks, core_slices, divide

EXTENTS = st.lists(st.integers(1, 40), max_size=4).map(tuple)
CORES = st.integers(1, 32)


def boxes_cover(extents, boxes) -> bool:
    cells = [
        cell
        for starts, sizes in boxes
        for cell in product(
            *(range(start, start + size) for start, size in zip(starts, sizes, strict=True))
        )
    ]
    return sorted(cells) == list(product(*map(range, extents)))


def busiest(boxes) -> int:
    return max(math.prod(sizes) for _, sizes in boxes)


@given(EXTENTS.filter(lambda extents: math.prod(extents) < 4000), CORES)
@settings(max_examples=150, deadline=None)
def test_core_slices_cover_every_iteration_once_and_leave_no_core_idle(extents, cores):
    slices = divide(extents, cores)
    parts = core_slices(extents, slices)
    assert len(parts) == math.prod(slices) <= cores
    assert all(0 not in sizes for _, sizes in parts)
    assert boxes_cover(extents, parts)


@given(EXTENTS.map(lambda extents: extents[:2]), st.integers(1, 12))
@settings(max_examples=100, deadline=None)
def test_no_other_division_leaves_the_busiest_core_less_work(extents, cores):
    best = busiest(core_slices(extents, divide(extents, cores)))
    for counts in product(range(1, cores + 1), repeat=len(extents)):
        if math.prod(counts) <= cores:
            shares = (-(-n // count) for n, count in zip(extents, counts, strict=True))
            assert best <= math.prod(shares)


def test_the_largest_dimension_is_divided_first():
    assert divide((4, 1024), 32) == (1, 32)
    assert divide((32, 32), 32) == (32, 1)
    assert divide((3, 5), 32) == (3, 5)
    assert divide((), 32) == ()


def test_the_last_slice_is_shorter_where_it_does_not_divide_evenly():
    assert core_slices((5,), divide((5,), 2)) == [((0,), (3,)), ((3,), (2,))]
    # Four cores would leave one idle: 2 + 2 + 1.
    assert divide((5,), 4) == (3,)
    with pytest.raises(ValueError, match="idle"):
        core_slices((5,), (4,))


@given(
    EXTENTS.filter(lambda extents: 0 < math.prod(extents) < 2000),
    CORES,
    st.lists(st.integers(0, 1000), min_size=4, max_size=4),
    st.integers(200, 5000),
)
@settings(max_examples=150, deadline=None)
def test_no_core_spans_more_than_the_limit(extents, cores, strides, limit):
    operand = Span(tuple(strides[: len(extents)]))
    parts = chunks(extents, cores, [operand], limit)
    assert boxes_cover(extents, [(part.starts, part.extents) for part in parts])
    for part in parts:
        cut = core_slices(part.extents, part.slices)
        assert len(cut) <= cores
        assert all(operand.of(sizes) <= limit for _, sizes in cut)


def test_an_operation_within_the_limit_is_one_chunk():
    assert chunks((4, 1024), 32, [Span((65536, 128))]) == [((0, 0), (4, 1024), (1, 32))]


def test_the_span_asks_for_the_fewest_slices_and_the_rest_goes_by_work():
    # 4 rows of 200 MiB: no core may have more than one of them.
    rows = Span((200 << 20, 128))
    (part,) = chunks((4, 1000), 32, [rows])
    assert part.slices[0] == 4
    assert part.slices == (4, 8)


def test_what_all_cores_cannot_span_runs_as_several_steps():
    rows = Span((300 << 20,))
    parts = chunks((80,), 32, [rows])
    assert len(parts) == 4
    assert sum(part.extents[0] for part in parts) == 80


def test_an_iteration_beyond_the_limit_is_refused():
    with pytest.raises(ValueError, match="one iteration spans"):
        chunks((2,), 32, [Span((1000,), size=4096)], limit=1000)


def test_nothing_to_do_is_no_chunk():
    assert chunks((0, 4), 32) == []
