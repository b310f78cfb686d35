"""Matmuls in sticks of n and k, against a simulation that forms every product."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import Stored, access, default, operands_of, stored

from torch_spyre.ir import MatmulAligned, NeedsCopy, Walk, align_matmul

Operand = tuple[Stored, torch.Tensor]
A, B, C = 0, 1, 2
NOTHING = -3


class Product(NamedTuple):
    """Operands over shared loops; `roles` says what each loop is: b(atch), m, n or k."""

    extents: tuple[int, ...]
    roles: str
    operands: tuple[Operand, Operand, Operand]

    def __repr__(self) -> str:
        walks = [access(*operand) for operand in self.operands]
        return f"Product({self.extents}, {self.roles!r}, {walks})"

    def plan(self, merged: bool = True) -> MatmulAligned | NeedsCopy:
        reduced = [i for i, role in enumerate(self.roles) if role == "k"]
        accesses = [access(*operand) for operand in self.operands]
        return align_matmul(self.extents, *accesses, reduced, merged=merged)


def sizes_of(index: int, extents: tuple[int, ...], roles: str) -> tuple[int, ...]:
    """Those of an operand, with 1 for the loops that it has no part in."""
    mine = ("bmk", "bnk", "bmn")[index]
    pairs = zip(extents, roles, strict=True)
    return tuple(size if role in mine else 1 for size, role in pairs)


def plain(index: int, extents: tuple[int, ...], roles: str, stick=64, along=None) -> Operand:
    """An operand in the layout whose sticks run along a loop (default: its last k or n)."""
    if along is None:
        wanted = "k" if index == A else "n"
        along = max((i for i, role in enumerate(roles) if role == wanted), default=-1)
    order = (*(i for i in range(len(extents)) if i != along), along)
    operand, view = default(sizes_of(index, extents, roles), stick, order)
    return operand, view.expand(extents)


def product(extents: tuple[int, ...], roles: str, **others: Operand) -> Product:
    operands = [others.get(name) or plain(i, extents, roles) for i, name in enumerate("abc")]
    return Product(extents, roles, tuple(operands))


def bases(plan: MatmulAligned, walk: Walk) -> np.ndarray:
    points = np.indices(plan.extents).reshape(len(plan.extents), -1)
    return walk.offset + np.array(walk.strides, dtype=np.int64) @ points


def assert_multiplies(plan: MatmulAligned, matmul: Product) -> None:
    """Every product of the loops is formed once, and padding of k is behind the mask."""
    points = np.indices(plan.extents).reshape(len(plan.extents), -1)
    lane = np.arange(plan.lanes)
    k_live = points[plan.lane][:, None] * plan.lanes + lane < plan.k_length
    n_live = points[plan.stick][:, None] * plan.lanes + lane < plan.n_length
    a, b, c = plan.operands
    holders = [operand.holders() for operand, _ in matmul.operands]
    assert not any((bases(plan, walk) % 32).any() for walk in plan.operands)

    stick_a = matmul.operands[A][0].storage.elems_per_stick
    at_a = bases(plan, a)[:, None] + lane // stick_a * a.tile_stride + lane % stick_a
    is_there = (at_a >= 0) & (at_a < len(holders[A]))  # sticks that are masked may not be
    read_a = np.where(is_there, holders[A][np.where(is_there, at_a, 0)], NOTHING)  # iteration, k
    stick_c = matmul.operands[C][0].storage.elems_per_stick
    at_c = bases(plan, c)[:, None] + lane // stick_c * c.tile_stride + lane % stick_c
    is_last = points[plan.stick] == plan.extents[plan.stick] - 1
    if c.tail_tiles:
        absent = is_last[:, None] & (lane // stick_c >= c.tail_tiles)
        assert not (absent & n_live).any()
        at_c = np.where(absent, -1, at_c)
    written = np.where(at_c < 0, -1, holders[C][at_c])  # iteration, n
    assert (written[~n_live] < 0).all(), "lanes behind the end of n are padding of C"

    # Lanes beyond the longest digit are live nowhere; leaving them out saves most of the work.
    k, n = lane[: plan.k_length, None], lane[: plan.n_length]
    at_b = bases(plan, b)[:, None, None] + k * plan.row_stride + n
    is_inside = (at_b >= 0) & (at_b < len(holders[B]))  # rows of k that are masked may not be
    read_b = np.where(is_inside, holders[B][np.where(is_inside, at_b, 0)], NOTHING)
    live = k_live[:, : len(k), None] & n_live[:, None, : len(n)]
    triples = read_a[:, : len(k), None], read_b, written[:, None, : len(n)]
    formed = [part[live] for part in np.broadcast_arrays(*triples)]
    wanted = [view.reshape(-1).numpy() for _, view in matmul.operands]
    np.testing.assert_array_equal(in_order(formed), in_order(wanted))


def in_order(triples: list[np.ndarray]) -> np.ndarray:
    """The triples as rows, sorted, so that equal multisets are equal arrays."""
    return np.stack(triples)[:, np.lexsort(triples)]


def assert_has_the_form_of_a_step(plan: MatmulAligned) -> None:
    """What the card's Matmul step demands of strides and dimensions."""
    a, b, c = plan.operands
    assert plan.reduced[-1] == plan.lane == len(plan.extents) - 1
    assert plan.stick not in plan.reduced
    assert a.strides[plan.stick] == 0
    assert all(c.strides[i] == 0 for i in plan.reduced)
    assert b.strides[plan.lane] == plan.row_stride * plan.lanes
    assert all(walk.lanes == "vector" for walk in plan.operands)
    assert (a.tiles in (1, 2, 4), b.tiles, c.tiles in (1, 2, 4)) == (True, 1, True)
    assert len(plan.extents) <= 8


# ---- Examples ---------------------------------------------------------------------------------


def test_rows_times_columns_in_their_natural_layouts():
    a, b, c = default((5, 100)), default((100, 200)), default((5, 200))
    extents = (5, 200, 100)
    matmul = product(
        extents,
        "mnk",
        a=(a[0], a[1][:, None, :].expand(extents)),
        b=(b[0], b[1].t()[None].expand(extents)),
        c=(c[0], c[1][:, :, None].expand(extents)),
    )
    plan = matmul.plan()
    assert plan.extents == (4, 5, 2)
    assert (plan.stick, plan.lane, plan.reduced) == (0, 2, (2,))
    assert (plan.n_length, plan.k_length, plan.row_stride) == (200, 100, 64)
    assert plan.variables == (1, 0, 2)
    assert plan.operands == (
        Walk(0, (0, 64, 320), "vector", 1, 0, 0),
        Walk(0, (6400, 0, 4096), "vector", 1, 0, 0),
        Walk(0, (320, 64, 0), "vector", 1, 0, 0),
    )
    assert_multiplies(plan, matmul)


def test_a_weight_stored_with_its_outputs_in_the_sticks_is_walked_in_place():
    weight = stored((200, 100), 64, (1, 0))  # nn.Linear's (out, in)
    view = weight.tensor().t()[None].expand(5, 100, 200).transpose(1, 2)
    matmul = product((5, 200, 100), "mnk", b=(weight, view))
    plan = matmul.plan()
    assert isinstance(plan, MatmulAligned)
    assert_multiplies(plan, matmul)


def test_a_weight_in_its_default_layout_needs_a_copy_with_the_stick_on_n():
    weight = stored((200, 100), 64)
    view = weight.tensor()[None].expand(5, 200, 100)
    plan = product((5, 200, 100), "mnk", b=(weight, view)).plan()
    assert isinstance(plan, NeedsCopy)
    assert (plan.access, plan.variable, plan.stick) == (B, 2, 1)
    assert "loop variable 2 moves inside its sticks" in plan.reason


def test_a_transposed_left_operand_and_result_are_named():
    extents, roles = (128, 200, 100), "mnk"
    plan = product(extents, roles, a=plain(A, extents, roles, along=0)).plan()
    assert (plan.access, plan.variable, plan.stick) == (A, 0, 2)
    plan = product(extents, roles, c=plain(C, extents, roles, along=0)).plan()
    assert (plan.access, plan.variable, plan.stick) == (C, 0, 1)


@pytest.mark.parametrize("head_dim", [64, 80, 16])
def test_heads_times_head_dim_are_two_digits_of_k(head_dim):
    """The output projection of attention: A is (tokens, heads, head_dim), seen as one k."""
    heads, tokens, n = 3, 4, 70
    source = stored((tokens, heads, head_dim), 64)
    k = heads * head_dim
    view = source.tensor().view(tokens, 1, k).expand(tokens, n, k)
    matmul = product((tokens, n, k), "mnk", a=(source, view))
    plan = matmul.plan()
    assert isinstance(plan, MatmulAligned), plan
    if head_dim == 64:  # the sticks of the heads follow each other: one digit after all
        assert plan.k_length == k
    else:
        assert plan.k_length == head_dim
        assert plan.extents[plan.reduced[0]] == heads
    assert_multiplies(plan, matmul)


def test_batched_attention_keeps_batches_as_plain_dimensions():
    matmul = product((2, 3, 5, 70, 80), "bbmnk")
    plan = matmul.plan()
    assert_multiplies(plan, matmul)
    assert_has_the_form_of_a_step(plan)


@pytest.mark.parametrize("roles", ["mnk", "knm", "nmk"])
@pytest.mark.parametrize("extents", [(5, 1, 100), (5, 70, 1), (1, 1, 1), (1, 100, 1), (5, 1, 1)])
@pytest.mark.parametrize("stick_c", [64, 32])
def test_single_columns_and_single_elements_of_k_are_multiplied(roles, extents, stick_c):
    by_role = dict(zip("mnk", extents, strict=True))
    extents = tuple(by_role[role] for role in roles)
    matmul = product(extents, roles, c=plain(C, extents, roles, stick_c))
    plan = matmul.plan()
    assert isinstance(plan, MatmulAligned), plan
    assert plan.n_length == by_role["n"]
    assert plan.k_length == by_role["k"]
    assert_multiplies(plan, matmul)
    assert_has_the_form_of_a_step(plan)


def test_a_sparse_left_operand_serves_lane_0():
    sparse = stored((512, 1), 64)
    view = sparse.tensor()[:, None].expand(512, 70, 1)
    matmul = product((512, 70, 1), "mnk", a=(sparse, view))
    plan = matmul.plan()
    assert (plan.extents[plan.lane], plan.k_length, plan.row_stride) == (1, 1, 0)
    assert_multiplies(plan, matmul)


def test_a_result_in_fp32_takes_two_sticks_per_iteration():
    extents, roles = (5, 90, 64), "mnk"
    matmul = product(extents, roles, c=plain(C, extents, roles, 32))
    plan = matmul.plan()
    assert (plan.operands[C].tiles, plan.operands[C].tail_tiles) == (2, 1)
    assert_multiplies(plan, matmul)


@pytest.mark.parametrize("k", [64, 100, 128, 192, 300])
def test_16_bit_rows_take_two_sticks_per_iteration_of_8_bit_columns(k):
    extents, roles = (5, 200, k), "mnk"
    matmul = product(extents, roles, b=plain(B, extents, roles, 128))
    plan = matmul.plan()
    assert plan.lanes == 128
    assert [walk.tiles for walk in plan.operands] == [2, 1, 2]
    assert (plan.extents[plan.stick], plan.extents[plan.lane]) == (2, -(-k // 128))
    assert_has_the_form_of_a_step(plan)
    assert_multiplies(plan, matmul)


def test_columns_of_more_bits_than_rows_or_results_are_refused():
    extents, roles = (5, 90, 64), "mnk"
    with pytest.raises(ValueError, match=r"than B; A, B and C have \[64, 32, 64\]"):
        product(extents, roles, b=plain(B, extents, roles, 32)).plan()


def test_an_empty_matmul_is_refused():
    with pytest.raises(ValueError, match="no iterations"):
        product((0, 5, 5), "mnk").plan()


# ---- Properties -------------------------------------------------------------------------------

EXTENTS = st.sampled_from([1, 1, 2, 3, 5, 16, 64, 65, 80, 128])


def moves_everywhere(operand: Operand) -> bool:
    _, view = operand
    return all(stride or size == 1 for size, stride in zip(view.shape, view.stride(), strict=True))


def copied(plan: NeedsCopy, matmul: Product) -> Product:
    """The operand that the plan names, in the layout that it asks for, repeated as before."""
    operands = list(matmul.operands)
    operand, view = operands[plan.access]
    sizes = tuple(
        size if stride else 1 for size, stride in zip(view.shape, view.stride(), strict=True)
    )
    order = (*(i for i in range(len(sizes)) if i != plan.stick), plan.stick)
    copy, of_copy = default(sizes, operand.storage.elems_per_stick, order)
    operands[plan.access] = copy, of_copy.expand(view.shape)
    return matmul._replace(operands=tuple(operands))


@st.composite
def products(draw) -> Product:
    roles = "".join(draw(st.permutations(draw(st.sampled_from(SHAPES)))))
    extents: list[int] = []
    for _ in roles:
        size = draw(EXTENTS)
        extents.append(size if math.prod(extents) * size <= 6000 else draw(st.sampled_from([1, 2])))
    shape = tuple(extents)
    operands = []
    of_b = draw(st.sampled_from([64, 64, 128]))
    others = st.sampled_from([stick for stick in (128, 64, 32) if stick <= of_b])
    for index in (A, B, C):
        stick = of_b if index == B else draw(others)
        if draw(st.integers(0, 2)):
            operands.append(plain(index, shape, roles, stick))
        else:
            some = operands_of(sizes_of(index, shape, roles), stick)
            operand, view = draw(some.filter(moves_everywhere) if index == C else some)
            operands.append((operand, view.expand(shape)))
    return Product(shape, roles, tuple(operands))


SHAPES = ["mnk", "nk", "mk", "mn", "bmnk", "bbmnk", "mnkk", "mmnkk", "mnnk", "bmnnkk"]


@given(products(), st.booleans())
@settings(max_examples=250, deadline=None)
def test_matmuls_form_every_product_once_and_copies_always_lead_there(matmul, merged):
    named: list[int] = []
    plan = matmul.plan(merged)
    while isinstance(plan, NeedsCopy):
        assert plan.access not in named, plan
        named.append(plan.access)
        matmul = copied(plan, matmul)
        plan = matmul.plan(merged)
    assert_has_the_form_of_a_step(plan)
    assert_multiplies(plan, matmul)


@given(products())
@settings(max_examples=60, deadline=None)
def test_operands_in_plain_layouts_need_no_copy(matmul):
    shape = matmul.extents, matmul.roles
    matmul = product(*shape)
    plan = matmul.plan()
    assert isinstance(plan, MatmulAligned), plan
    assert_multiplies(plan, matmul)
