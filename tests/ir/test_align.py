"""Whole-stick iteration, against a simulation that touches every lane."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import (
    FORMATS,
    Stored,
    access,
    broadcast,
    contiguous,
    default,
    host_sizes,
    operands_of,
    storages,
    stored,
    views,
)

from torch_spyre.ir import Access, Aligned, NeedsCopy, Storage, Walk, align

ABSENT = -2  # a stick that a narrower operand does not have
PADDING = -1


def touched(plan: Aligned, walk: Walk, operand: Stored) -> np.ndarray:
    """The host offset behind each (iteration, lane) of an operand."""
    points = np.indices(plan.extents).reshape(len(plan.extents), math.prod(plan.extents))
    base = walk.offset + np.array(walk.strides, dtype=np.int64) @ points
    lane = np.arange(plan.lanes)
    stick = operand.storage.elems_per_stick
    assert not (base % stick).any(), "addresses are whole sticks"
    holders = operand.holders()
    if walk.lanes == "first":
        return np.repeat(holders[base][:, None], plan.lanes, axis=1)
    assert walk.tiles == plan.lanes // stick
    address = base[:, None] + lane // stick * walk.tile_stride + lane % stick
    if walk.tail_tiles:
        assert 0 < walk.tail_tiles < walk.tiles
        is_last = points[plan.stick_dim] == plan.extents[plan.stick_dim] - 1
        absent = is_last[:, None] & (lane // stick >= walk.tail_tiles)
        address = np.where(absent, len(holders), address)
    return np.append(holders, ABSENT)[address]


def assert_walks(plan: Aligned, operands: list[tuple[Stored, torch.Tensor]]) -> None:
    """Live lanes of the result are the points of the loops, each with its right operands."""
    columns = [
        touched(plan, walk, operand).reshape(-1)
        for walk, (operand, _) in zip(plan.operands, operands, strict=True)
    ]
    live = columns[0] >= 0
    rows = sorted(zip(*(column[live].tolist() for column in columns), strict=True))
    wanted = sorted(zip(*(view.reshape(-1).tolist() for _, view in operands), strict=True))
    assert rows == wanted
    assert len(plan.extents) <= 8


def plan_of(operands: list[tuple[Stored, torch.Tensor]]) -> Aligned | NeedsCopy:
    extents = tuple(operands[0][1].shape)
    return align(extents, [access(of, view) for of, view in operands])


# ---- Examples ---------------------------------------------------------------------------------


def test_operands_in_their_default_layout_join_to_tiles_and_rows():
    plan = plan_of([default((5, 10, 200))] * 3)
    # 10 and 4 tiles lie behind each other, but the last tile is partial: they stay apart.
    assert plan.extents == (10, 4, 5)
    assert plan.stick_dim == 1
    assert {walk.strides for walk in plan.operands} == {(1280, 320, 64)}
    assert_walks(plan, [default((5, 10, 200))] * 3)


@pytest.mark.parametrize("last", [200, 64, 40, 1])
@pytest.mark.parametrize("kept", [(), (3,), (2, 3), (1, 2), (0, 2, 3), (0,), (0, 1, 2, 3)])
@pytest.mark.parametrize("stick", [64, 32, 128])
def test_every_broadcast_of_a_default_layout_is_walked(last, kept, stick):
    extents = (2, 3, 5, last)
    sizes = tuple(size if i in kept else 1 for i, size in enumerate(extents))
    operands = [
        default(extents),
        broadcast(sizes, extents, stick),
        broadcast(sizes[min(kept, default=4) :], extents),
        default(extents, stick),
    ]
    plan = plan_of(operands)
    assert isinstance(plan, Aligned), plan
    assert_walks(plan, operands)


def test_a_column_repeats_lane_0_and_a_row_repeats_sticks():
    row, column = broadcast((200,), (5, 200)), broadcast((5, 1), (5, 200))
    plan = plan_of([default((5, 200)), row, column])
    assert plan.extents == (4, 5)
    assert plan.operands[1] == Walk(0, (64, 0), "vector", 1, 0, 0)
    assert plan.operands[2] == Walk(0, (0, 64), "first", 1, 0, 0)


def test_the_first_column_of_a_matrix_is_walked_where_it_lies():
    matrix, view = default((5, 200))
    operands = [default((5, 200)), (matrix, view[:, 0:1].expand(5, 200))]
    plan = plan_of(operands)
    assert plan.operands[1].lanes == "first"
    assert_walks(plan, operands)
    assert plan_of([default((5, 200)), (matrix, view[:, 3:4].expand(5, 200))]) == NeedsCopy(
        1, "it starts inside a stick, at lane 3"
    )


def test_a_narrow_operand_takes_several_sticks_per_iteration_and_fewer_in_the_last():
    operands = [default((5, 200), 64), default((5, 200), 32), default((5, 200), 128)]
    plan = plan_of(operands)
    assert plan.lanes == 128
    assert plan.extents == (2, 5)
    assert [(walk.tiles, walk.tile_stride, walk.tail_tiles) for walk in plan.operands] == [
        (2, 320, 0),
        (4, 160, 3),
        (1, 0, 0),
    ]
    assert_walks(plan, operands)


def test_a_result_that_lacks_sticks_in_the_last_iteration_does_not_meet_the_next_row():
    # 3 sticks of the result in 2 iterations of the wider input: rows lie 3 sticks apart, not 4.
    operands = [default((1, 2, 130), 64), default((1, 2, 130), 128)]
    plan = plan_of(operands)
    assert isinstance(plan, Aligned), plan
    assert plan.operands[0].tail_tiles == 1
    assert_walks(plan, operands)


def test_one_element_per_stick_needs_no_stick_dimension():
    plan = plan_of([default((512, 1)), default((512, 1)), broadcast((), (512, 1))])
    assert plan.extents == (512,)
    assert plan.stick_dim is None
    assert [walk.lanes for walk in plan.operands] == ["vector", "first", "first"]


def test_the_lanes_are_those_of_the_widest_vector():
    plan = plan_of([default((5, 200), 32), broadcast((5, 1), (5, 200), 128)])
    assert plan.lanes == 32
    assert plan_of([default((512, 1), 32), default((512, 1), 64)]).lanes == 32


def test_results_of_two_formats_with_one_element_per_stick_differ_in_their_tail():
    extents = (512, 1)
    narrow, wide = default(extents, 32), default(extents, 64)
    plan = align(extents, [access(*narrow), access(*wide), access(*wide)], outputs=(0, 1))
    assert plan.extents[plan.stick_dim] == 1
    assert [walk.tail_tiles for walk in plan.operands] == [1, 0, 0]
    assert_walks(plan, [narrow, wide, wide])


def test_whole_sticks_of_a_slice_are_walked_in_place():
    matrix, view = default((10, 256))
    operands = [default((3, 128)), (matrix, view[2:9:3, 64:192])]
    plan = plan_of(operands)
    assert plan.operands[1].offset == matrix.where[2 * 256 + 64]
    assert_walks(plan, operands)


def test_a_transposed_operand_needs_a_copy():
    operands = [default((128, 64)), (stored((64, 128), 64), stored((64, 128), 64).tensor().t())]
    plan = plan_of(operands)
    assert isinstance(plan, NeedsCopy)
    assert (plan.access, plan.variable) == (1, 0)


def test_a_transposed_result_is_named_when_the_inputs_are_as_good_as_copies():
    flipped = stored((64, 128), 64)
    plan = plan_of([(flipped, flipped.tensor().t()), default((128, 64)), default((128, 64))])
    assert isinstance(plan, NeedsCopy)
    assert plan.access == 0


def test_operands_that_share_an_unusual_stick_need_no_copy():
    operands = [default((100, 70), 64, (1, 0))] * 2
    plan = plan_of(operands)
    assert plan.stick_dim is not None
    assert_walks(plan, operands)


def test_a_reshape_across_a_padded_boundary_names_the_access_and_the_place():
    flat, view = default((1000,))
    assert plan_of([default((5, 200)), (flat, view.view(5, 200))]) == NeedsCopy(
        1, "loop variable 0 moves inside its sticks", 0, 1
    )


def test_a_result_must_not_overwrite_its_neighbours():
    matrix, view = default((10, 256))
    cut = plan_of([(matrix, view[:, :100]), default((10, 100))])
    assert isinstance(cut, NeedsCopy)
    assert cut.access == 0
    assert "hold elements too" in cut.reason
    assert isinstance(plan_of([(matrix, view[:, :128]), default((10, 128))]), Aligned)


def test_a_result_must_not_be_written_twice():
    row = stored((200,), 64)
    plan = plan_of([(row, row.tensor().expand(5, 200)), default((5, 200))])
    assert isinstance(plan, NeedsCopy)
    assert plan.access == 0
    windows = stored((640,), 64)
    unfolded = windows.tensor().unfold(0, 128, 64)
    plan = plan_of([(windows, unfolded), default((9, 128))])
    assert "same stick" in plan.reason
    # Reading overlapping windows is fine.
    assert isinstance(plan_of([default((9, 128)), (windows, unfolded)]), Aligned)


def test_more_than_eight_dimensions_ask_for_a_copy_that_joins_them():
    extents = (2,) * 11
    every_other = tuple(2 if i % 2 else 1 for i in range(11))
    operands = [default(extents), broadcast(every_other, extents)]
    plan = plan_of(operands)
    assert isinstance(plan, NeedsCopy)
    assert plan.access == 1
    operands[1] = default(extents)
    assert_walks(plan_of(operands), operands)


def test_empty_operations_have_an_empty_iteration():
    empty = stored((0, 5), 64).storage
    plan = align((0, 5), [Access(empty, 0, (5, 1))])
    assert plan.extents == (0,)


def test_an_access_without_storage_is_refused():
    with pytest.raises(ValueError, match="has a storage"):
        align((5,), [Access(None, 0, (1,))])


def test_planning_needs_no_look_at_the_extents():
    """The arithmetic is about dimensions, not elements: huge tensors plan like small ones."""
    sizes = (1 << 20, 1 << 12)
    huge = Storage((64, 1 << 20, 64), (64, 1 << 12, 1), math.prod(sizes))
    plan = align(sizes, [Access(huge, 0, contiguous(sizes))] * 3)
    assert plan.extents == (64, 1 << 20)


# ---- Properties -------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=500, deadline=None)
def test_plans_touch_the_right_lanes_and_copies_always_lead_to_one(data):
    extents = data.draw(host_sizes(most_dims=5, most=2000))
    count = data.draw(st.integers(1, 4))
    operands = [data.draw(operands_of(extents)) for _ in range(count)]
    copied = set()
    for _ in range(count + 1):
        plan = plan_of(operands)
        if isinstance(plan, Aligned):
            break
        assert plan.access not in copied, plan
        copied.add(plan.access)
        stick = operands[plan.access][0].storage.elems_per_stick
        operands[plan.access] = default(extents, stick)
    assert isinstance(plan, Aligned)
    assert_walks(plan, operands)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_view_is_walked_where_possible_and_else_copied_once(data):
    source = data.draw(storages())
    view = data.draw(views(source.tensor()))
    stick = data.draw(FORMATS)
    operands = [default(tuple(view.shape), stick), (source, view)]
    plan = plan_of(operands)
    if isinstance(plan, Aligned):
        assert_walks(plan, operands)
    else:
        assert plan.access == 1
