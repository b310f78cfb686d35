"""`SpyreTensorLayout`: the published rows, its arithmetic, and what users may get wrong."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from storages import contiguous, host_sizes, orders, storages, stored

from torch_spyre._C import DataFormats, ElementArrangement, SpyreTensorLayout, get_device_dtype
from torch_spyre.ir import Storage

DTYPES = {64: torch.float16, 32: torch.float32, 128: torch.int8}
FORMATS = {64: DataFormats.SEN169_FP16, 32: DataFormats.IEEE_FP32, 128: DataFormats.SENINT8}


def layout(sizes, dtype=torch.float16, order=None) -> SpyreTensorLayout:
    if order is None:
        return SpyreTensorLayout(sizes, dtype)
    return SpyreTensorLayout(sizes, contiguous(tuple(sizes)), dtype, order)


@pytest.mark.parametrize(
    ("sizes", "order", "device_size", "stride_map"),
    [
        ([120], None, [2, 64], [64, 1]),
        ([512, 256], None, [4, 512, 64], [64, 256, 1]),
        ([5, 10, 200], None, [10, 4, 5, 64], [200, 64, 2000, 1]),
        ([5, 100, 150], None, [100, 3, 5, 64], [150, 64, 15000, 1]),
        ([512, 8, 256], [1, 0, 2], [512, 4, 8, 64], [2048, 64, 256, 1]),
        ([512, 256], [1, 0], [8, 256, 64], [16384, 1, 256]),
        ([1, 4, 128], None, [4, 2, 1, 64], [128, 64, -1, 1]),
        ([512, 1], None, [1, 512, 64], [-1, 1, -1]),
        ([512, 256], [0, 1, -1], [256, 1, 512, 64], [1, -1, 256, -1]),
        ([4, 128], None, [2, 4, 64], [64, 128, 1]),
        ([], None, [1, 64], [-1, -1]),
        ([7], [0, -1], [1, 7, 64], [-1, 1, -1]),
    ],
)
def test_layouts_of_host_tensors_are_the_documented_ones(sizes, order, device_size, stride_map):
    result = layout(sizes, order=order)
    assert result.device_size == device_size
    assert result.stride_map == stride_map
    assert result.device_dtype == DataFormats.SEN169_FP16
    assert result.element_arrangement == ElementArrangement.STANDARD


def test_the_constructors_take_keywords():
    default = SpyreTensorLayout(host_size=[4, 128], dtype=torch.float16)
    ordered = SpyreTensorLayout(
        host_size=[4, 128],
        host_strides=[128, 1],
        dtype=torch.float16,
        dim_order=[0, 1],
        element_arrangement=ElementArrangement.STANDARD,
    )
    explicit = SpyreTensorLayout(
        device_size=[2, 4, 64], stride_map=[64, 128, 1], device_dtype=DataFormats.SEN169_FP16
    )
    assert default == ordered == explicit


def test_an_explicit_layout_is_taken_as_it_is():
    result = SpyreTensorLayout([4, 2, 64], [128, 64, 1], DataFormats.SEN169_FP16)
    assert result.device_size == [4, 2, 64]
    assert result.why_not_for(4 * 128) is None
    assert result.device_offset(130) == 130


def test_str_reads_like_the_original():
    assert str(layout([512, 256])) == (
        "SpyreTensorLayout(device_size=[4, 512, 64], stride_map =[64, 256, 1], "
        "device_dtype=DataFormats.SEN169_FP16)"
    )
    assert repr(layout([512, 256])) == str(layout([512, 256]))
    exx2 = SpyreTensorLayout([1, 32], [-1, -1], DataFormats.IEEE_FP32, ElementArrangement.EXX2)
    assert "element_arrangement=ElementArrangement.EXX2" in str(exx2)


def test_layouts_are_values():
    one, same, other = layout([5, 200]), layout([5, 200]), layout([5, 200], torch.float32)
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != "something else"
    assert len({one, same, other}) == 2
    for twin in (pickle.loads(pickle.dumps(other)), copy.deepcopy(other), copy.copy(other)):
        assert twin == other


@pytest.mark.parametrize("value", [*DataFormats.__members__.values(), ElementArrangement.EXX2])
def test_enumerations_pickle(value):
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.deepcopy(value) == value


def test_formats_have_their_published_numbers():
    numbers = {name: int(value) for name, value in DataFormats.__members__.items()}
    assert list(numbers.values()) == list(range(19))
    assert [numbers[name] for name in ("SEN169_FP16", "INVALID", "SENINT8", "SEN18F_FP24")] == [
        0,
        2,
        8,
        18,
    ]
    assert {name: int(value) for name, value in ElementArrangement.__members__.items()} == {
        "STANDARD": 0,
        "DL16_TO_FP32": 1,
        "QFP8CH": 2,
        "EXX2": 3,
    }


@pytest.mark.parametrize(
    ("dtype", "name", "elements"),
    [
        (torch.float16, "SEN169_FP16", 64),
        (torch.bfloat16, "SEN169_FP16", 64),
        (torch.bool, "SEN169_FP16", 64),
        (torch.float32, "IEEE_FP32", 32),
        (torch.float8_e4m3fn, "SEN143_FP8", 128),
        (torch.float8_e5m2, "SEN152_FP8", 128),
        (torch.int8, "SENINT8", 128),
        (torch.int16, "SENINT16", 64),
        (torch.int32, "IEEE_INT32", 32),
        (torch.int64, "IEEE_INT32", 32),
        (torch.uint8, "SENUINT32", 32),
    ],
)
def test_dtypes_have_the_documented_format(dtype, name, elements):
    assert get_device_dtype(dtype).name == name
    assert get_device_dtype(dtype).elems_per_stick() == elements
    result = layout([3, 500], dtype)
    assert result.elems_per_stick() == elements
    tiles = math.ceil(500 / elements)
    assert result.device_size == [tiles, 3, elements]
    assert result.device_strides == [3 * elements, elements, 1]
    assert result.device_numel == 3 * tiles * elements
    assert result.nbytes == 3 * tiles * 128


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.uint16])
def test_dtypes_without_a_format_are_named(dtype):
    with pytest.raises(TypeError, match=str(dtype)):
        SpyreTensorLayout([4], dtype)


@pytest.mark.parametrize("sizes", [(0,), (0, 5), (5, 0), (2, 0, 3), (0, 0)])
def test_empty_tensors_have_a_layout_without_elements(sizes):
    result = SpyreTensorLayout(sizes, torch.float16)
    assert result.device_numel == 0
    assert result.nbytes == 0
    assert result.why_not_for(0) is None
    assert result.why_not_for(1) is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([-1, 4], torch.float16), "negative"),
        (([1 << 40, 1 << 40], torch.float16), "64 bits"),
        (([4, 4], [4], torch.float16, [0, 1]), "differ in length"),
        (([4, 4], [0, 1], torch.float16, [0, 1]), "must be positive"),
        (([4, 4], [-4, 1], torch.float16, [0, 1]), "must be positive"),
        (([4, 4], [4, 1], torch.float16, [0, 0]), "permutation"),
        (([4, 4], [4, 1], torch.float16, [0]), "permutation"),
        (([4, 4], [4, 1], torch.float16, [0, -1, 1]), "permutation"),
        (([4, 4], [4, 1], torch.float16, [0, 2]), "permutation"),
        (([4, 32], [32, 1], DataFormats.SEN169_FP16), "64 elements"),
        (([], [], DataFormats.SEN169_FP16), "64 elements"),
        (([4, 64], [1], DataFormats.SEN169_FP16), "differ in length"),
        (([4, 64], [-2, 1], DataFormats.SEN169_FP16), "-1 for a dimension"),
        (([4, 64], [0, 1], DataFormats.SEN169_FP16), "-1 for a dimension"),
        (([-4, 64], [64, 1], DataFormats.SEN169_FP16), "negative"),
        (([4, 64], [64, 1], DataFormats.INVALID), "INVALID"),
    ],
)
def test_wrong_arguments_are_explained(arguments, message):
    with pytest.raises(ValueError, match=message):
        SpyreTensorLayout(*arguments)


@pytest.mark.parametrize(
    ("device_size", "stride_map", "numel", "reason"),
    [
        ([2, 64], [64, 1], 128, None),
        ([2, 64], [64, 1], 129, "needs a size of 3 to hold 129"),
        ([2, 64], [64, 2], 100, "stride_map entry of 1"),
        ([2, 2, 64], [64, 64, 1], 128, "two places"),
        ([3, 64], [100, 1], 300, "needs a size of 100"),
        ([0, 64], [64, 1], 5, "no room"),
        ([1, 100, 64], [64, 10, 1], 1000, None),
    ],
)
def test_a_layout_says_why_it_does_not_fit_a_storage(device_size, stride_map, numel, reason):
    why = SpyreTensorLayout(device_size, stride_map, DataFormats.SEN169_FP16).why_not_for(numel)
    assert (why is None) if reason is None else (reason in why)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_layouts_by_order_are_those_of_the_definition(data):
    sizes = data.draw(host_sizes())
    order = data.draw(orders(len(sizes)))
    stick = data.draw(st.sampled_from(sorted(DTYPES)))
    result = layout(sizes, DTYPES[stick], order)
    expected = stored(sizes, stick, order).storage
    assert Storage.of(result, expected.numel) == expected


@given(storages())
@settings(max_examples=150, deadline=None)
def test_device_offsets_are_where_the_elements_lie(source):
    size, strides = list(source.storage.device_size), list(source.storage.stride_map)
    result = SpyreTensorLayout(size, strides, FORMATS[size[-1]])
    assert result.why_not_for(source.storage.numel) is None
    for offset in range(0, source.storage.numel, 1 + source.storage.numel // 200):
        assert result.device_offset(offset) == source.where[offset]
        assert source.storage.device_offset(offset) == source.where[offset]
        coordinates = result.device_coordinates(offset)
        assert offset == sum(
            digit * max(stride, 0) for digit, stride in zip(coordinates, strides, strict=True)
        )


@given(storages(), st.data())
@settings(max_examples=200, deadline=None)
def test_the_layout_looks_the_same_from_the_start_of_every_block(source, data):
    numel = source.storage.numel
    assume(numel > 1)
    size, strides = list(source.storage.device_size), list(source.storage.stride_map)
    result = SpyreTensorLayout(size, strides, FORMATS[size[-1]])
    first = data.draw(st.integers(0, numel - 1))
    last = data.draw(st.integers(first, min(numel - 1, first + data.draw(st.integers(0, 70)))))
    start = result.block_start(first, last)
    assert 0 <= start <= first
    for distance in range(first - start, last - start + 1):
        assert source.where[start + distance] == source.where[start] + source.where[distance]


def test_rows_of_a_matrix_are_blocks():
    rows = layout([10, 200])
    assert rows.block_start(3 * 200 + 5, 3 * 200 + 150) == 3 * 200
    assert rows.block_start(3 * 200 + 70, 3 * 200 + 80) == 3 * 200 + 64
    assert rows.block_start(3 * 200, 4 * 200) == 0
    assert rows.block_start(777, 777) == 777
