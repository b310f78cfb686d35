"""Exact coverage of a storage by loop nests, against enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import MOST, access, contiguous, points, storages, stored, views

from torch_spyre.ir import Access, Nest, Storage, copy_plan, padding, pieces


def test_a_contiguous_copy_of_whole_sticks_is_one_nest():
    rows = stored((1024, 256), 64).storage
    assert pieces((1024, 256), [Access(rows, 0, (256, 1)), Access(None, 0, (256, 1))]) == [
        Nest((4, 1024, 64), ((65536, 64, 1), (64, 256, 1)), (0, 0))
    ]


def test_rows_that_end_inside_a_stick_are_a_body_and_a_tail():
    rows = stored((5, 200), 64).storage
    assert pieces((5, 200), [Access(rows, 0, (200, 1)), Access(None, 0, (200, 1))]) == [
        Nest((3, 5, 64), ((320, 64, 1), (64, 200, 1)), (0, 0)),
        Nest((5, 8), ((64, 1), (200, 1)), (960, 192)),
    ]


def test_a_slice_inside_sticks_has_a_head_a_body_of_whole_sticks_and_a_tail():
    rows = stored((100, 256), 64).storage
    nests = pieces((100, 200), [Access(rows, 5, (256, 1)), Access(None, 0, (200, 1))])
    assert [nest.extents for nest in nests] == [(100, 59), (2, 100, 64), (100, 13)]


def test_a_transposed_copy_is_one_nest_in_the_order_of_the_card():
    rows = stored((128, 256), 64).storage
    nests = pieces((256, 128), [Access(rows, 0, (1, 256)), Access(None, 0, (128, 1))])
    assert nests == [Nest((4, 128, 64), ((8192, 64, 1), (8192, 1, 128)), (0, 0))]


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_pieces_name_for_every_point_the_element_that_pytorch_names(data):
    source = data.draw(storages())
    view = data.draw(views(source.tensor()))
    host = Access(None, 7, contiguous(tuple(view.shape)))
    nests = pieces(tuple(view.shape), [access(source, view), host])

    found = [np.concatenate(parts) for parts in zip(*map(points, nests), strict=True)]
    expected = source.where[view.reshape(-1).numpy()]
    order = np.argsort(found[1])
    assert np.array_equal(found[1][order], 7 + np.arange(view.numel()))
    assert np.array_equal(found[0][order], expected)
    for nest in nests:
        assert len(nest.extents) <= 8
        assert 1 not in nest.extents


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_pieces_between_two_storages_pair_the_same_elements(data):
    source = data.draw(storages())
    view = data.draw(views(source.tensor()))
    target = data.draw(storages(sizes=tuple(view.shape)))
    whole = access(target, target.tensor())
    nests = pieces(tuple(view.shape), [whole, access(source, view)])
    found = [np.concatenate(parts) for parts in zip(*map(points, nests), strict=True)]
    pairs = sorted(zip(*(part.tolist() for part in found), strict=True))
    flat = view.reshape(-1).numpy()
    assert pairs == sorted(zip(target.where.tolist(), source.where[flat].tolist(), strict=True))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_elements_and_padding_cover_the_card_exactly_once(data):
    source = data.draw(storages())
    covered = [source.where, *(points(nest)[0] for nest in padding(source.storage))]
    everything = np.sort(np.concatenate(covered))
    assert np.array_equal(everything, np.arange(math.prod(source.storage.device_size)))


def test_padding_of_usual_layouts_takes_one_nest_each():
    assert padding(stored((5, 128), 64).storage) == []
    assert padding(stored((5, 200), 64).storage) == [Nest((5, 56), ((64, 1),), (968,))]
    assert padding(stored((512, 1), 64).storage) == [Nest((512, 63), ((64, 1),), (1,))]
    assert padding(stored((), 64).storage) == [Nest((63,), ((1,),), (1,))]
    assert len(padding(stored((3, 4, 5, 70), 64).storage)) == 1


def test_a_whole_copy_zeroes_the_padding():
    rows = stored((5, 200), 64).storage
    plan = copy_plan(rows, (5, 200), (200, 1), 0, (200, 1), whole=True)
    assert [transfer.is_padding for transfer in plan] == [False, False, True]
    assert plan[2].range == (5, 56)
    assert plan[2].device_offset == 968
    assert copy_plan(rows, (5, 200), (200, 1), 0, (200, 1), whole=False) == plan[:2]


def test_empty_tensors_need_no_copy():
    empty = stored((0, 5), 64).storage
    assert copy_plan(empty, (0, 5), (5, 1), 0, (5, 1), whole=True) == []
    assert pieces((3, 0), [Access(None, 0, (0, 1))]) == []


def test_expanded_sources_read_the_same_element_again():
    one = stored((1, 3), 64).storage
    plan = copy_plan(one, (4, 3), (0, 1), 0, (3, 1), whole=False)
    assert [(t.range, t.device_strides, t.host_strides) for t in plan] == [((3, 4), (1, 0), (1, 3))]


def test_nests_of_more_than_eight_loops_are_unrolled():
    sizes = (2, 2, 2, 2, 2, 2, 2, 2, 2, 2)
    source = stored(sizes, 64)
    view = source.tensor().permute(0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
    host = Access(None, 0, tuple(3**i for i in range(10)))  # nothing can be joined
    nests = pieces(sizes, [access(source, view), host])
    assert all(len(nest.extents) <= 8 for nest in nests)
    assert sum(math.prod(nest.extents) for nest in nests) == 1024


def test_an_access_that_leaves_its_storage_is_refused():
    with pytest.raises(ValueError, match="leave a storage of 1000 elements"):
        pieces((5, 201), [Access(stored((5, 200), 64).storage, 0, (200, 1))])
    with pytest.raises(ValueError, match="no place on the card"):
        pieces((6,), [Access(Storage((1, 64), (64, 2), 6), 0, (1,))])


@pytest.mark.parametrize(
    ("sizes", "strides"),
    [((1024, 256), (256, 1)), ((256, 1024), (1, 256)), ((8, 12, 128, 64), (98304, 64, 768, 1))],
)
def test_usual_copies_take_few_nests(sizes, strides):
    numel = math.prod(sizes)
    rows = stored((numel // 256, 256), 64).storage
    plan = copy_plan(rows, sizes, strides, 0, contiguous(sizes), whole=True)
    assert numel > MOST
    assert len(plan) == 1
