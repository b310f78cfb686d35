"""Whole-stick iteration of reductions, against a simulation that touches every lane."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import Stored, access, default, host_sizes, operands_of, stored
from test_align import touched

from torch_spyre.ir import Access, Aligned, NeedsCopy, Storage, Walk, align

Operand = tuple[Stored, torch.Tensor]


def kept(extents: tuple[int, ...], reduced: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if i in reduced else size for i, size in enumerate(extents))


def result(
    extents: tuple[int, ...], reduced: tuple[int, ...], stick: int = 64, order=None
) -> Operand:
    """A result with the reduced dimensions kept as size 1, repeated over the loops."""
    operand, view = default(kept(extents, reduced), stick, order)
    return operand, view.expand(extents)


def plan_of(source: Operand, into: Operand, reduced: tuple[int, ...], **how) -> Aligned | NeedsCopy:
    accesses = [access(*source), access(*into)]
    return align(tuple(source[1].shape), accesses, (1,), lead=0, reduced=reduced, **how)


def live_lanes(plan: Aligned) -> np.ndarray:
    """Which (iteration, lane) stand for elements: what a mask lets through."""
    lane = np.arange(plan.lanes)
    if plan.stick_dim is None:
        return np.broadcast_to(lane < 1, (math.prod(plan.extents), plan.lanes))
    points = np.indices(plan.extents).reshape(len(plan.extents), -1)
    return points[plan.stick_dim][:, None] * plan.lanes + lane < plan.length


def assert_reduces(plan: Aligned, source: Operand, into: Operand) -> None:
    """Each element of the input is accumulated once, into the right element of the result."""
    live = live_lanes(plan)
    read = touched(plan, plan.operands[0], source[0])[live]
    written = touched(plan, plan.operands[1], into[0])
    pairs = sorted(zip(read.tolist(), written[live].tolist(), strict=True))
    wanted = zip(source[1].reshape(-1).tolist(), into[1].reshape(-1).tolist(), strict=True)
    assert pairs == sorted(wanted)
    walk = plan.operands[1]
    assert all(walk.strides[i] == 0 for i in plan.reduced)
    if walk.lanes == "vector":
        assert (written[~live] < 0).all(), "lanes behind the end are padding of the result"
    assert_owns_its_sticks(plan, into)


def assert_owns_its_sticks(plan: Aligned, into: Operand) -> None:
    """A stick that is written holds no element but those of the result's view."""
    walk, stick = plan.operands[1], into[0].storage.elems_per_stick
    if walk.lanes == "vector":
        return
    points = np.indices(plan.extents).reshape(len(plan.extents), -1)
    base = walk.offset + np.array(walk.strides, dtype=np.int64) @ points
    holders = into[0].holders()[base[:, None] + np.arange(1, stick)]
    assert (holders < 0).all()


# ---- Examples ---------------------------------------------------------------------------------


def test_a_reduction_of_the_sticks_leaves_one_value_per_stick():
    source, into = default((5, 200)), result((5, 200), (1,))
    plan = plan_of(source, into, (1,))
    assert plan.extents == (5, 4)
    assert (plan.stick_dim, plan.reduced, plan.length) == (1, (1,), 200)
    assert plan.variables == (0, 1)
    assert plan.operands[0] == Walk(0, (64, 320), "vector", 1, 0, 0)
    assert plan.operands[1] == Walk(0, (64, 0), "first", 1, 0, 0)
    assert_reduces(plan, source, into)


def test_a_reduction_of_rows_keeps_the_lanes():
    source, into = default((5, 200)), result((5, 200), (0,))
    plan = plan_of(source, into, (0,))
    assert plan.extents == (4, 5)
    assert (plan.stick_dim, plan.reduced, plan.length) == (0, (1,), 200)
    assert plan.operands[1] == Walk(0, (64, 0), "vector", 1, 0, 0)
    assert_reduces(plan, source, into)


def test_a_reduction_of_everything_ends_in_one_lane():
    source, into = default((5, 10, 200)), result((5, 10, 200), (0, 1, 2))
    plan = plan_of(source, into, (0, 1, 2))
    assert set(plan.reduced) == set(range(len(plan.extents)))
    assert_reduces(plan, source, into)


def test_sums_of_sparse_tensors_need_no_stick_dimension():
    source, into = default((512, 1)), result((512, 1), (0,))
    plan = plan_of(source, into, (0,))
    assert (plan.extents, plan.stick_dim, plan.length) == ((512,), None, None)
    assert [walk.lanes for walk in plan.operands] == ["first", "vector"]
    assert_reduces(plan, source, into)


def test_a_result_of_a_wider_format_is_no_obstacle():
    for reduced in [(0,), (1,), (0, 1)]:
        source, into = default((5, 200), 64), result((5, 200), reduced, 32)
        plan = plan_of(source, into, reduced)
        assert plan.lanes == 64
        assert_reduces(plan, source, into)


def test_a_repeated_input_takes_the_lanes_of_the_result():
    column = stored((5, 1), 64)
    source, into = (column, column.tensor().expand(5, 200)), result((5, 200), (0,))
    plan = plan_of(source, into, (0,))
    assert [walk.lanes for walk in plan.operands] == ["first", "vector"]
    assert_reduces(plan, source, into)


def test_the_stick_of_an_unusual_input_is_kept():
    source = default((100, 70), 64, (1, 0))
    into = result((100, 70), (1,), 64, (1, 0))
    plan = plan_of(source, into, (1,))
    assert plan.variables[plan.stick_dim] == 0
    assert_reduces(plan, source, into)


def test_a_result_with_the_wrong_stick_is_named_with_the_right_one():
    plan = plan_of(default((100, 70), 64, (1, 0)), result((100, 70), (0,)), (0,))
    assert isinstance(plan, NeedsCopy)
    assert (plan.access, plan.stick) == (1, 0)


def test_a_result_among_other_elements_of_its_stick_is_named():
    row = stored((5, 64), 64)
    into = row, row.tensor()[:, :1].expand(5, 200)
    plan = plan_of(default((5, 200)), into, (1,))
    assert isinstance(plan, NeedsCopy)
    assert plan.access == 1
    assert "hold elements too" in plan.reason


def test_an_input_cut_inside_its_sticks_is_read_in_place():
    """Only results must own their sticks: an input may end where other elements follow."""
    matrix = stored((5, 256), 64)
    source, into = (matrix, matrix.tensor()[:, :100]), result((5, 100), (1,))
    plan = plan_of(source, into, (1,))
    assert plan.length == 100
    assert_reduces(plan, source, into)


def test_reduced_and_kept_loops_stay_apart():
    source, into = default((4, 6, 64)), result((4, 6, 64), (1,))
    plan = plan_of(source, into, (1,))
    assert sorted(plan.extents) == [1, 4, 6]
    assert plan.variables[plan.reduced[0]] == 1


def test_dimensions_name_the_loops_that_they_stem_from():
    plan = align((5, 10, 200), [access(*default((5, 10, 200)))])
    assert (plan.extents, plan.variables) == ((10, 4, 5), (1, 2, 0))
    # Rows as long as a stick follow each other like tiles: both loops are one dimension.
    plan = align((2, 3, 5, 64), [access(*default((2, 3, 5, 64)))])
    assert (plan.extents, plan.variables, plan.length) == ((3, 5, 2), (1, 2, 0), 320)
    # One flat loop is split where the dimensions of the storage begin.
    plan = align((1000,), [Access(default((5, 200))[0].storage, 0, (1,))])
    assert (plan.extents, plan.variables) == ((4, 5), (0, 0))


def test_a_result_that_moves_along_a_reduced_loop_is_refused():
    storage = Storage((4, 5, 64), (64, 200, 1), 1000)
    walk = Access(storage, 0, (200, 1))
    with pytest.raises(ValueError, match="loop variable 1, which is reduced"):
        align((5, 200), [walk, walk], (1,), lead=0, reduced=(1,))


# ---- Properties -------------------------------------------------------------------------------


@st.composite
def reductions(draw) -> tuple[Operand, Operand, tuple[int, ...]]:
    extents = draw(host_sizes(most_dims=5, most=2000).filter(bool))
    reduced = tuple(i for i in range(len(extents)) if draw(st.booleans()))
    into, view = draw(operands_of(kept(extents, reduced)))
    return draw(operands_of(extents)), (into, view.expand(extents)), reduced


def copied(plan: NeedsCopy, operand: Operand, extents: tuple[int, ...]) -> Operand:
    """What the plan asks for: the caller's part of the bargain."""
    order = None
    if plan.stick is not None:
        order = (*(i for i in range(len(extents)) if i != plan.stick), plan.stick)
    return default(extents, operand[0].storage.elems_per_stick, order)


@given(reductions(), st.booleans())
@settings(max_examples=500, deadline=None)
def test_reductions_accumulate_each_element_and_copies_always_lead_there(reduction, merged):
    source, into, reduced = reduction
    extents = tuple(source[1].shape)
    named = []
    plan = plan_of(source, into, reduced, merged=merged)
    while isinstance(plan, NeedsCopy):
        assert plan.access not in named, plan
        named.append(plan.access)
        if plan.access == 0:
            source = copied(plan, source, extents)
        else:
            operand, view = copied(plan, into, kept(extents, reduced))
            into = operand, view.expand(extents)
        plan = plan_of(source, into, reduced, merged=merged)
    assert_reduces(plan, source, into)
