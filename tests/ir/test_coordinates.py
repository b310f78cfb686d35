"""Device coordinates of walks, against the record of where each element really lies."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import Stored, default, host_sizes, operands_of, stored
from test_align import plan_of as aligned
from test_align_matmul import Product, products
from test_align_reduction import plan_of as reduced_plan
from test_align_reduction import reductions

from torch_spyre.ir import (
    Access,
    Affine,
    GatherAligned,
    MatmulAligned,
    NeedsCopy,
    Storage,
    align,
    align_gather,
    coordinates,
    core_boxes,
    core_shares,
    device_coordinates,
    gather_coordinates,
    space_extents,
)
from torch_spyre.ir.spec import Coordinate
from torch_spyre.ir.terms import Term

Operand = tuple[Stored, torch.Tensor]


def values(where: Coordinate, points: np.ndarray) -> np.ndarray:
    """A coordinate at all points, by the definition of its terms."""
    total = np.full(points.shape[1], where.offset)
    for term in where.terms:
        part = points[term.variable] // term.floordiv
        total += term.coefficient * (part if term.modulo is None else part % term.modulo)
    return total


def elements(
    where: Sequence[Coordinate], operand: Stored, points: np.ndarray, row=None
) -> np.ndarray:
    """The host offset that coordinates name at each point; `row` is what the index holds there."""
    places = [values(along, points) + (0 if along.indirect is None else row) for along in where]
    size = operand.storage.device_size
    for place, length in zip(places, size, strict=True):
        assert ((place >= 0) & (place < length)).all(), "a coordinate stays in its dimension"
    return operand.holders()[np.ravel_multi_index(places, size)]


def space(extents: Sequence[int]) -> np.ndarray:
    return np.indices(extents).reshape(len(extents), math.prod(extents))


def assert_names_the_loops(plan, operands: Sequence[Operand]) -> None:
    """Each point of the iteration space is one of the loops, with its right elements."""
    where = device_coordinates(plan, [operand.storage for operand, _ in operands])
    points = space(space_extents(plan))
    named = [elements(*pair, points) for pair in zip(where, [o for o, _ in operands], strict=True)]
    wanted = [view.reshape(-1).numpy() for _, view in operands]
    np.testing.assert_array_equal(in_order(named), in_order(wanted))


def in_order(columns: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack(columns)[:, np.lexsort(columns)]


# ---- Examples ---------------------------------------------------------------------------------

MATRIX = Storage((4, 5, 64), (64, 200, 1), 1000)


def test_a_walk_backwards_has_negative_coefficients():
    assert coordinates(MATRIX, 4 * 64, (-64,), (5,)) == (
        Affine(0, (0,)),
        Affine(4, (-1,)),
        Affine(0, (0,)),
    )
    # Down one lane and one row at a time: -65, which is not "two rows back, 63 lanes on".
    assert coordinates(MATRIX, 4 * 64 + 1, (-65,), (2,))[1:] == (Affine(4, (-1,)), Affine(1, (-1,)))


def test_a_walk_that_leaves_a_dimension_has_no_coordinates():
    with pytest.raises(ValueError, match="dimension 0 of .* from 0 to 4"):
        coordinates(MATRIX, 0, (320,), (5,))
    with pytest.raises(ValueError, match="dimension 0 .* not affine"):
        coordinates(MATRIX, 0, (64,), (20,))  # through rows, then tiles


def test_an_add_reads_as_in_the_documentation():
    plan = aligned([default((512, 1024))] * 3)
    where = device_coordinates(plan, [stored((512, 1024), 64).storage] * 3)[0]
    names = tuple(f"c{variable}" for variable in plan.variables)
    assert [along.text(names) for along in where] == ["floor(c1/64)", "c0", "Mod(c1, 64)"]


def test_each_format_divides_by_its_own_lanes():
    operands = [default((5, 200), 32), default((5, 200), 64)]
    plan = aligned(operands)
    assert space_extents(plan)[plan.stick_dim] == 200
    narrow, wide = device_coordinates(plan, [operand.storage for operand, _ in operands])
    stick = plan.stick_dim
    assert narrow[0].terms == (Term(stick, 1, 32),)
    assert narrow[-1].terms == (Term(stick, 1, modulo=32),)
    assert wide[-1].terms == (Term(stick, 1, modulo=64),)


def test_lane_0_is_a_constant():
    column = stored((5, 1), 64)
    plan = aligned([default((5, 200)), (column, column.tensor().expand(5, 200))])
    where = device_coordinates(plan, [stored((5, 200), 64).storage, column.storage])
    assert where[1][-1] == Coordinate(0, ())


def test_joined_dimensions_have_coordinates_only_before_they_are_joined():
    sizes = (2, 3, 200)
    # Tiles first, then the rows of both dimensions behind each other.
    rows = stored(sizes, 64, None, lambda dims: [dims[1], dims[2], dims[0]]).storage
    walks = [Access(rows, 0, (600, 200, 1))]
    with pytest.raises(ValueError, match="not affine"):
        device_coordinates(align(sizes, walks), [rows])
    plan = align(sizes, walks, merged=False)
    assert plan.variables == (2, 0, 1)
    assert math.prod(space_extents(plan)) == rows.numel
    device_coordinates(plan, [rows])


def test_cores_own_boxes_of_the_tensor():
    plan = aligned([default((8, 200))])
    where = device_coordinates(plan, [stored((8, 200), 64).storage])[0]
    # (tiles, rows) in 2 x 2 slices; the last tile is partial.
    starts, extents = core_shares(plan, (2, 2))
    assert starts[3] == (128, 4)
    assert extents[3] == (72, 4)
    assert core_boxes(where, starts, extents) == [
        ((0, 1), (0, 3), (0, 63)),
        ((0, 1), (4, 7), (0, 63)),
        ((2, 3), (0, 3), (0, 63)),
        ((2, 3), (4, 7), (0, 63)),
    ]


def test_an_indirect_coordinate_has_no_box():
    with pytest.raises(ValueError, match="any row"):
        core_boxes([Coordinate(indirect=1)], [(0,)], [(1,)])


# ---- Gathers ----------------------------------------------------------------------------------


def gather(tokens: tuple[int, ...], width: int, table: Stored, index: Stored, into: Stored):
    """An embedding: loops are those of the tokens and of the row."""
    extents = (*tokens, width)
    rows, row_stride = table.sizes[0], table.tensor().stride(0)
    zeros = (0,) * len(tokens)
    accesses = (
        Access(table.storage, 0, (*zeros, 1)),
        Access(index.storage, 0, (*index.tensor().stride(), 0)),
        Access(into.storage, 0, into.tensor().stride()),
    )
    return align_gather(extents, *accesses, rows=rows, row_stride=row_stride)


@pytest.mark.parametrize("tokens", [(5,), (64,), (2, 64), (3, 7), (1, 1)])
@pytest.mark.parametrize("width", [200, 64, 10])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_gather_names_the_rows_that_the_index_names(tokens, width, order):
    table, into = stored((11, width), 64, order), stored((*tokens, width), 64)
    index = stored(tokens, 32)
    plan = gather(tokens, width, table, index, into)
    if order == (1, 0):
        assert isinstance(plan, NeedsCopy)
        assert plan.access == 0
        return
    assert isinstance(plan, GatherAligned), plan
    storages = [table.storage, index.storage, into.storage]
    of_table, of_index, of_result = gather_coordinates(plan, storages)
    points = space(space_extents(plan))
    place = elements(of_index, index, points)
    row = (7 * place + 3) % 11  # what the index holds at each of its places
    written = elements(of_result, into, points)
    assert sorted(written) == list(range(math.prod(tokens) * width))
    np.testing.assert_array_equal(place, written // width)
    np.testing.assert_array_equal(
        elements(of_table, table, points, row), row * width + written % width
    )


def test_an_index_that_does_not_divide_into_its_sticks_is_copied_one_to_a_stick():
    table, into = stored((11, 64), 64), stored((3, 50, 64), 64)
    plan = gather((3, 50), 64, table, stored((3, 50), 32), into)
    assert isinstance(plan, NeedsCopy)
    assert (plan.access, plan.stick) == (1, -1)
    index = stored((3, 50), 32, (0, 1, -1))
    assert isinstance(gather((3, 50), 64, table, index, into), GatherAligned)


def test_lanes_of_one_stick_do_not_come_from_different_rows():
    table, index, into = stored((64, 11), 64, (1, 0)), stored((5,), 32), stored((64, 5), 64)
    accesses = [(table, (11, 0)), (index, (0, 1)), (into, (5, 1))]
    walks = [Access(operand.storage, 0, strides) for operand, strides in accesses]
    plan = align_gather((64, 5), *walks, rows=11, row_stride=1)
    assert isinstance(plan, NeedsCopy)
    assert (plan.access, plan.variable, plan.stick) == (2, 1, 0)
    walks[2] = Access(stored((64, 5), 64, (1, 0)).storage, 0, (5, 1))
    assert isinstance(align_gather((64, 5), *walks, rows=11, row_stride=1), GatherAligned)


# ---- Properties -------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_coordinates_recover_every_walk_that_stays_in_its_dimensions(data):
    size = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    rank = data.draw(st.integers(0, 3))
    extents = tuple(data.draw(st.integers(1, 4)) for _ in range(rank))
    storage = Storage(size, (1,) * len(size), math.prod(size))
    where = []
    for length in size:
        steps = [data.draw(st.integers(-2, 2)) for _ in extents]
        lowest = sum(min(s * (n - 1), 0) for s, n in zip(steps, extents, strict=True))
        highest = sum(max(s * (n - 1), 0) for s, n in zip(steps, extents, strict=True))
        if highest - lowest >= length:
            steps, lowest, highest = [0] * rank, 0, 0
        where.append((data.draw(st.integers(-lowest, length - 1 - highest)), steps))
    weights = storage.device_strides
    offset = sum(start * weight for (start, _), weight in zip(where, weights, strict=True))
    strides = [
        sum(steps[i] * weight for (_, steps), weight in zip(where, weights, strict=True))
        for i in range(rank)
    ]
    found = coordinates(storage, offset, strides, extents)
    assert sum(c.offset * w for c, w in zip(found, weights, strict=True)) == offset
    for i, stride in enumerate(strides):
        assert sum(c.coefficients[i] * w for c, w in zip(found, weights, strict=True)) == stride
        if extents[i] > 1:
            assert [c.coefficients[i] for c in found] == [steps[i] for _, steps in where]


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_pointwise_coordinates_name_the_elements_that_pytorch_names(data):
    extents = data.draw(host_sizes(most_dims=5, most=2000))
    operands = [data.draw(operands_of(extents)) for _ in range(data.draw(st.integers(1, 3)))]
    accesses = [Access(o.storage, v.storage_offset(), tuple(v.stride())) for o, v in operands]
    plan = align(extents, accesses, merged=False)
    if not isinstance(plan, NeedsCopy):
        assert_names_the_loops(plan, operands)


@given(reductions())
@settings(max_examples=200, deadline=None)
def test_reduction_coordinates_name_the_elements_that_pytorch_names(reduction):
    source, into, reduced = reduction
    plan = reduced_plan(source, into, reduced, merged=False)
    if not isinstance(plan, NeedsCopy):
        assert_names_the_loops(plan, [source, into])


@given(products())
@settings(max_examples=150, deadline=None)
def test_matmul_coordinates_name_the_elements_that_pytorch_names(matmul: Product):
    plan = matmul.plan(merged=False)
    if isinstance(plan, MatmulAligned):
        assert_names_the_loops(plan, matmul.operands)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_boxes_hold_exactly_what_cores_touch_along_each_dimension(data):
    extents = data.draw(host_sizes(most_dims=4, most=2000))
    operand, view = data.draw(operands_of(extents))
    walk = Access(operand.storage, view.storage_offset(), tuple(view.stride()))
    plan = align(extents, [walk, walk], (1,), lead=0, merged=False)
    if isinstance(plan, NeedsCopy):
        return
    where = device_coordinates(plan, [operand.storage] * 2)[0]
    slices = [data.draw(st.sampled_from([1, extent])) for extent in plan.extents]
    shares = core_shares(plan, slices)
    for start, extent, box in zip(*shares, core_boxes(where, *shares), strict=True):
        points = space(extent) + np.array(start, dtype=np.int64)[:, None]
        for along, (low, high) in zip(where, box, strict=True):
            touched = values(along, points)
            assert (touched.min(), touched.max()) == (low, high)
