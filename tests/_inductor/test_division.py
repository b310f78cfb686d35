"""Work division: the cheapest matmul by the published laws, the least work, the fewest slices."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_spyre._inductor.codegen.folds import core_maps
from torch_spyre._inductor.division import (
    MatmulShape,
    MatmulSplit,
    are_partners_neighbours,
    matmul_division,
    ring_order,
    span_slices,
    work_division,
)
from torch_spyre.ir import Span, core_slices

MIB = 2**20


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def matmul(batch, m, n, k, *, b_batched: bool = True, **fields) -> MatmulShape:
    """An fp16 matmul, all of it in LPDDR5."""
    matrices = math.prod(batch)
    rows = matrices * math.prod(m)
    weights = matrices if b_batched else 1
    padded = ceil_div(n, 64) * 64
    sizes = {
        "a_bytes": 2 * rows * k,
        "b_bytes": 2 * weights * k * padded,
        "c_bytes": 2 * rows * padded,
    }
    return MatmulShape(batch, m, padded // 64, k, **{**sizes, "b_batched": b_batched, **fields})


def published_time(shape: MatmulShape, split: MatmulSplit) -> float:
    """Nanoseconds by the laws in the notes, written down without the code that is tested."""

    def share(extents, slices):
        return math.prod(map(ceil_div, extents, slices))

    batch, m = share(shape.batch, split.batch), share(shape.m, split.m)
    n = ceil_div(shape.n_sticks, split.n) * shape.n_lanes
    k = min(ceil_div(ceil_div(shape.k, shape.k_lanes), split.k) * shape.k_lanes, shape.k)
    rate = 1140 * {4: 4, 8: 2, 16: 1, 32: 0.25}[shape.bits]
    pt = batch * m * n * k / (rate * min(1.0, math.sqrt(m / 64)))

    matrices = math.prod(split.batch)
    a_sharers = split.n * (1 if shape.a_batched else matrices)
    b_sharers = math.prod(split.m) * (1 if shape.b_batched else matrices)
    read, written = shape.a_bytes + shape.b_bytes, shape.c_bytes
    memory = (read + written) / 150 + 0.00574 * min(read, written)
    memory += shape.a_bytes / 150 * max(0.0, a_sharers / 8 - 1)
    memory += shape.b_bytes / 150 * max(0.0, b_sharers / 8 - 1)
    ring = (split.k - 1) * batch * m * n * 0.14
    return max(pt, memory) + ring


def all_splits(shape: MatmulShape, cores: int, k_slices=(1,)):
    counts = range(1, cores + 1)
    dims = len(shape.batch) + len(shape.m)
    for *outer, n in product(counts, repeat=dims + 1):
        for k in k_slices:
            if math.prod(outer) * n * k <= cores:
                batch, m = outer[: len(shape.batch)], outer[len(shape.batch) :]
                yield MatmulSplit(tuple(batch), tuple(m), n, k)


SMALL = st.integers(1, 40)
SHAPES = st.builds(
    matmul,
    st.lists(SMALL, max_size=1).map(tuple),
    st.lists(st.one_of(SMALL, st.integers(1, 4096)), min_size=1, max_size=2).map(tuple),
    st.integers(1, 8192),
    st.integers(1, 8192),
    b_batched=st.booleans(),
    a_batched=st.booleans(),
    bits=st.sampled_from([8, 16, 32]),
)


# ---- Matmul -----------------------------------------------------------------------------------


@given(SHAPES, st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_no_division_of_a_matmul_takes_less_time_by_the_published_laws(shape, cores):
    split = matmul_division(shape, cores)
    assert split.cores <= cores
    least = min(published_time(shape, other) for other in all_splits(shape, cores))
    # The clock counts whole nanoseconds.
    assert published_time(shape, split) <= math.ceil(least * (1 + 1e-9))


@given(SHAPES, st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_with_the_ring_k_splits_compete_too(shape, cores):
    slices = tuple(range(1, cores + 1))
    split = matmul_division(shape, cores, k_slices=slices)
    least = min(published_time(shape, other) for other in all_splits(shape, cores, slices))
    assert published_time(shape, split) <= math.ceil(least * (1 + 1e-9))


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.sets(st.integers(0, 3)),
    st.permutations(range(4)),
)
def test_partners_are_neighbours_in_the_order_of_their_ring(slices, reduced, order):
    rank = len(slices)
    gone = sorted(dim for dim in reduced if dim < rank)
    kept = [dim for dim in range(rank) if dim not in gone]

    def are_neighbours(order):
        rows = core_maps(tuple(slices), tuple(order)).slices
        partners = math.prod(slices[dim] for dim in gone)
        rings = [rows[i : i + partners] for i in range(0, len(rows), partners)]
        results = [{tuple(row[dim] for dim in kept) for row in ring} for ring in rings]
        return all(len(result) == 1 for result in results) and all(
            list(ring) == sorted(ring) for ring in rings
        )

    assert are_neighbours(ring_order(slices, gone))
    order = [dim for dim in order if dim < rank]
    assert are_partners_neighbours(slices, order, gone) == are_neighbours(order)


@given(SHAPES, st.integers(1, 32))
@settings(max_examples=100, deadline=None)
def test_every_core_of_a_matmul_has_work_and_k_stays_whole(shape, cores):
    split = matmul_division(shape, cores)
    assert split.k == 1
    extents = (*shape.batch, *shape.m, shape.n_sticks)
    parts = core_slices(extents, (*split.batch, *split.m, split.n))  # raises on an idle core
    assert len(parts) == split.cores <= cores


def test_a_large_matmul_uses_all_cores_and_shares_no_operand_beyond_eight():
    split = matmul_division(matmul((), (1024,), 1024, 1024), 32)
    assert split.cores == 32
    assert max(split.m[0], split.n) <= 8


def test_a_matmul_that_waits_for_the_array_still_spares_the_memory():
    # 16 x 2 takes as long, but 16 cores would share the weight, which is free for 8 only.
    split = matmul_division(matmul((), (4, 512), 4096, 4096), 32)
    assert split == MatmulSplit((), (1, 8), n=4)


def test_heads_go_to_cores_of_their_own():
    assert matmul_division(matmul((32,), (256,), 256, 128), 32) == MatmulSplit((32,), (1,))
    assert matmul_division(matmul((2, 16), (256,), 256, 128), 32) == MatmulSplit((2, 16), (1,))


def test_a_row_times_a_weight_waits_for_memory_and_is_divided_as_far_as_sharing_is_free():
    # A ninth core that shares the row would slow its transfer down; the array is idle anyway.
    assert matmul_division(matmul((), (1,), 4096, 4096), 32) == MatmulSplit((), (1,), n=8)


def test_a_deep_matmul_with_little_output_gains_by_a_k_split_once_there_is_a_ring():
    # One stick of 8-row output, operands in LX: only k offers enough work for more cores.
    shape = matmul((), (8,), 64, 2**20, a_bytes=0, b_bytes=0, c_bytes=0)
    assert matmul_division(shape, 32).k == 1
    split = matmul_division(shape, 32, k_slices=(1, 2, 4, 8, 16, 32))
    assert split.k > 1
    assert published_time(shape, split) < published_time(shape, matmul_division(shape, 32))


@pytest.mark.parametrize(("rows", "groups"), [(200, 4), (256, 4), (1000, 16)])
def test_rows_are_cut_between_groups_of_them_where_one_core_must_own_a_group(rows, groups):
    # As sticks along m would ask for: 200 rows are 64 + 64 + 64 + 8, and no more cores than that.
    shape = matmul((), (rows,), 64, 8192, m_unit=64, a_bytes=0, b_bytes=0, c_bytes=0)
    assert matmul_division(shape, 32).m == (groups,)
    assert matmul_division(replace(shape, m_unit=1), 32).m[0] > groups


def test_the_span_limit_is_a_floor_for_the_slices_of_a_matmul():
    shape = matmul((), (1,), 49152, 4096)  # a head: 384 MiB of weights
    assert matmul_division(shape, 32, MatmulSplit((), (1,), n=10)).n >= 10
    with pytest.raises(ValueError, match="coarse tiles"):
        matmul_division(shape, 4, MatmulSplit((), (1,), n=10))
    with pytest.raises(ValueError, match="0 cores"):
        matmul_division(shape, 0)


def test_a_matmul_is_divided_within_a_millisecond_or_so():
    shapes = [matmul((), (2048 + i,), 12800, 4096) for i in range(20)]
    times = []
    for shape in shapes:
        start = time.process_time()
        matmul_division(shape, 32)
        times.append(time.process_time() - start)
    assert min(times) < 2e-3  # the least: the host may be busy


def test_uneven_rows_use_more_cores_than_a_divisor_would():
    # 31 is prime: equal slices would be 1 or 31.
    split = matmul_division(matmul((31,), (64,), 64, 512), 16)
    assert split.batch == (16,)


# ---- Everything else --------------------------------------------------------------------------

EXTENTS = st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple)
MASKS = st.lists(st.booleans(), min_size=3, max_size=3)


@given(EXTENTS, MASKS, st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_no_other_division_leaves_the_busiest_core_less_work(extents, mask, cores):
    splittable = mask[: len(extents)]
    slices = work_division(extents, splittable, cores)
    assert math.prod(slices) <= cores
    assert all(count == 1 for count, may in zip(slices, splittable, strict=True) if not may)
    busiest = max(math.prod(sizes) for _, sizes in core_slices(extents, slices))
    options = [range(1, cores + 1) if may else (1,) for may in splittable]
    for counts in product(*options):
        if math.prod(counts) <= cores:
            assert busiest <= math.prod(map(ceil_div, extents, counts))


def test_the_last_slice_is_shorter_where_no_divisor_fits():
    assert work_division((1, 31), None, 16) == (1, 16)
    assert [sizes for _, sizes in core_slices((31,), (16,))] == [(2,)] * 15 + [(1,)]


def test_the_span_limit_is_a_floor_for_the_slices_of_an_operation():
    assert work_division((4, 1000), None, 32, minimum=(4, 1)) == (4, 8)
    with pytest.raises(ValueError, match="dimension 0 of .4, 1000., which can't be split"):
        work_division((4, 1000), (False, True), 32, minimum=(4, 1))
    with pytest.raises(ValueError, match="more than the 2 cores"):
        work_division((4, 1000), None, 2, minimum=(4, 1))


@given(
    EXTENTS,
    MASKS,
    st.lists(st.lists(st.integers(0, 1000), min_size=3, max_size=3), min_size=1, max_size=2),
    st.integers(1, 12),
    st.integers(200, 20000),
)
@settings(max_examples=200, deadline=None)
def test_span_slices_are_the_fewest_that_keep_every_core_within_the_limit(
    extents, mask, strides, cores, limit
):
    splittable = mask[: len(extents)]
    spans = [Span(tuple(row[: len(extents)])) for row in strides]

    def fits(counts) -> bool:
        reach = [
            sum(
                step * (ceil_div(n, c) - 1)
                for step, n, c in zip(row, extents, counts, strict=False)
            )
            for row in strides
        ]
        return max(reach) + 128 <= limit

    options = [range(1, cores + 1) if may else (1,) for may in splittable]
    fitting = [
        math.prod(counts)
        for counts in product(*options)
        if math.prod(counts) <= cores and fits(counts)
    ]
    slices = span_slices(extents, spans, cores, limit, splittable)
    if slices is None:
        assert not fitting
    else:
        assert fits(slices)
        assert math.prod(slices) == min(fitting)


def test_an_operation_within_the_span_limit_needs_no_slices():
    assert span_slices((4, 1024), [Span((65536, 128))], 32) == (1, 1)
    # Two rows of 200 MiB: from the first byte to the last it is one of them and a little more.
    assert span_slices((4, 1000), [Span((200 * MIB, 128))], 32) == (2, 1)
    assert span_slices((4, 1000), [Span((300 * MIB, 128))], 32) == (4, 1)
    assert span_slices((80,), [Span((300 * MIB,))], 32) is None


def test_divisions_do_not_depend_on_what_was_divided_before():
    shape = matmul((3,), (77,), 640, 999)
    first = matmul_division(shape, 32)
    matmul_division.cache_clear()
    matmul_division(replace(shape, k=1000), 32)
    assert matmul_division(shape, 32) == first
