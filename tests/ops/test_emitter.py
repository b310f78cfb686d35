"""Steps that the emitter writes for tables and rows: on the card, in the model, and in PyTorch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops import program_model
from tests.ops.model_card import Tensor, put
from tests.ops.test_accumulations import run_on_card
from torch_spyre import _C
from torch_spyre.backend.program import Step, StepFlags, StepKind, decode
from torch_spyre.ops.emitter import Emitter
from torch_spyre.ops.plan import Bind
from torch_spyre.ops.views import View


class Emission:
    """Tensors as arguments of an emitter, and the program that it writes for them."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors
        self.emitter = Emitter()
        self.views = [
            View(Bind("arg", i), t.storage, t.size, t.stride, t.offset, t.dtype)
            for i, t in enumerate(tensors)
        ]

    def steps(self) -> list[Step]:
        return [node for node in decode(self.emitter.finish()[0]).body if isinstance(node, Step)]

    def run(self) -> None:
        """In the model and on a card that checks for races; they agree in every bit.

        Afterwards the tensors have the result.
        """
        encoded, binds = self.emitter.finish()
        program = decode(encoded)
        pool = program_model.noise(max(self.emitter.temp_bytes, 1), seed=7)

        def memory(bind: Bind) -> np.ndarray:
            is_temp = bind.kind == "temp"
            return pool[bind.index :] if is_temp else self.tensors[bind.index].memory

        bindings = [
            memory(bind)[: symbol.nbytes]
            for bind, symbol in zip(binds, program.symbols, strict=True)
        ]
        on_card = run_on_card(program, [binding.copy() for binding in bindings], check="memory")
        program_model.Machine(program, bindings).run()
        for bind, actual, expected in zip(binds, on_card, bindings, strict=True):
            if bind.kind == "arg":
                assert np.array_equal(actual, expected)


def result_like(host: torch.Tensor, order: tuple[int, ...] | None = None) -> Tensor:
    return put(torch.zeros(host.shape, dtype=host.dtype), order)


def same(tensor: Tensor, expected: torch.Tensor) -> bool:
    dense = torch.empty(expected.shape, dtype=expected.dtype).copy_(expected)
    return np.array_equal(tensor.values(), put(dense).values(), equal_nan=True)


SIZES = [(5,), (64,), (200,), (3, 70), (70, 3), (4, 64), (2, 3, 70), (40, 5), (2, 1, 3), (1, 1)]
DTYPES = [torch.float16, torch.float32, torch.int32, torch.int8]


def numbers(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, so that sums are exact and there are ties."""
    random = torch.Generator().manual_seed(math.prod(size))
    return torch.randint(-3, 4, size, generator=random).to(dtype)


# Views that a row can't be walked through in one go, and some that it can.
CHANGES = {
    "whole": lambda t: t,
    "transposed": lambda t: t.transpose(0, -1),
    "sliced": lambda t: t[..., 1:] if t.shape[-1] > 2 else t,
    "stepped": lambda t: t[..., ::2],
    "expanded": lambda t: t[..., :1].expand(t.shape),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_argsort(change: str, size: tuple[int, ...], dtype: torch.dtype, descending: bool) -> None:
    host = CHANGES[change](numbers(size, dtype))
    source = put(host)
    for dim in range(host.dim()):
        order = torch.sort(host, dim=dim, descending=descending, stable=True).indices
        into = result_like(order)
        emission = Emission(source, into)
        emission.emitter.argsort(*emission.views, dim, descending)
        emission.run()
        assert same(into, order)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int32], ids=str)
def test_scan(change: str, size: tuple[int, ...], dtype: torch.dtype) -> None:
    host = CHANGES[change](numbers(size, dtype))
    suffix = "" if dtype.is_floating_point else "_int"
    source = put(host)
    for dim in range(host.dim()):
        for opcode, expected in {
            f"cumsum{suffix}": host.cumsum(dim).to(dtype),
            f"cummax_index{suffix}": host.cummax(dim).indices,
        }.items():
            into = result_like(expected)
            emission = Emission(source, into)
            emission.emitter.scan(opcode, *emission.views, dim)
            emission.run()
            assert same(into, expected)


def test_a_scan_across_sticks_is_one_step_of_vectors_that_cores_share() -> None:
    source, into = put(torch.zeros(50, 3000, dtype=torch.float16)), put(torch.zeros(50, 3000))
    emission = Emission(source, into)
    emission.emitter.scan("cumsum", *emission.views, 0)
    (step,) = emission.steps()
    assert step.kind is StepKind.SCAN
    assert step.stick_dim < step.rank
    assert step.cores.bit_count() > 1


@pytest.mark.parametrize("size", [(300, 3), (200, 70), (70, 200), (40, 40, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_cores_that_share_rows_don_t_meet(size: tuple[int, ...], dtype: torch.dtype) -> None:
    """Large enough for several cores, with rows that begin and end within sticks."""
    host = numbers(size, dtype)
    for dim in range(len(size)):
        expected = torch.sort(host, dim=dim, stable=True).indices
        into = result_like(expected)
        emission = Emission(put(host), into)
        emission.emitter.argsort(*emission.views, dim)
        if dim == len(size) - 1:
            assert max(step.cores.bit_count() for step in emission.steps()) > 1
        emission.run()
        assert same(into, expected)


@pytest.mark.parametrize("length", [3, 70, 128])
def test_rows_are_shared_by_the_cores(length: int) -> None:
    """Also where rows end within sticks: groups of rows that fill whole sticks."""
    source = put(torch.zeros(1000, length))
    into = put(torch.zeros(1000, length, dtype=torch.int64))
    emission = Emission(source, into)
    emission.emitter.argsort(*emission.views, 1)
    sorts = [step for step in emission.steps() if step.kind is StepKind.ARGSORT]
    assert sorts[0].cores.bit_count() > 8
    assert len(sorts) <= 2
    assert len(emission.steps()) < 15


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from(SIZES),
    rows=st.integers(1, 300),
    dtype=st.sampled_from(DTYPES),
    index_dtype=st.sampled_from([torch.int32, torch.int64]),
    is_transposed=st.booleans(),
    is_row=st.booleans(),
    seed=st.integers(0, 99),
)
def test_gather_elements(
    size: tuple[int, ...],
    rows: int,
    dtype: torch.dtype,
    index_dtype: torch.dtype,
    is_transposed: bool,
    is_row: bool,
    seed: int,
) -> None:
    random = torch.Generator().manual_seed(seed)
    table = torch.randn(rows, generator=random).mul(50).to(dtype)
    index_size = size[-1:] if is_row else size
    index = torch.randint(0, rows, index_size, generator=random).to(index_dtype)
    if is_transposed and not is_row:
        index = index.transpose(0, -1).contiguous().transpose(0, -1)
        on_card = put(index.transpose(0, -1)).like(index)
    else:
        on_card = put(index)
    expected = table[index.long()].expand(size)
    into = result_like(expected)
    emission = Emission(put(table), on_card, into)
    emission.emitter.gather_elements(*emission.views)
    emission.run()
    assert same(into, expected)


REDUCES = {"scatter_add": "sum", "scatter_prod": "prod", "scatter_amax": "amax"}


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from(SIZES),
    rows=st.integers(1, 100),
    dtype=st.sampled_from([torch.float32, torch.int32]),
    name=st.sampled_from(sorted(REDUCES)),
    is_strided=st.booleans(),
    seed=st.integers(0, 99),
)
def test_scatter_elements(
    size: tuple[int, ...],
    rows: int,
    dtype: torch.dtype,
    name: str,
    is_strided: bool,
    seed: int,
) -> None:
    random = torch.Generator().manual_seed(seed)
    table = torch.randint(-2, 3, (rows,), generator=random).to(dtype)
    index = torch.randint(0, rows, size, generator=random)
    source = torch.randint(-2, 3, (*size, 2), generator=random).to(dtype)[..., 1]
    if not is_strided:
        source = source.contiguous()
    expected = table.clone().scatter_reduce_(
        0, index.reshape(-1), source.reshape(-1), REDUCES[name]
    )
    into = put(table)
    emission = Emission(put(source), put(index), into)
    opcode = name if dtype.is_floating_point else f"{name}_int"
    emission.emitter.scatter_elements(opcode, *emission.views)
    emission.run()
    assert same(into, expected)


@pytest.mark.parametrize("size", [(500,), (5, 100), (100, 5), (3, 4, 70)], ids=str)
def test_of_several_writes_to_one_place_the_last_in_row_major_order_stays(
    size: tuple[int, ...],
) -> None:
    count = math.prod(size)
    source = torch.arange(count, dtype=torch.float32).reshape(size).clone()
    index = torch.arange(count).reshape(size) % 7
    into = put(torch.zeros(7))
    emission = Emission(put(source, tuple(reversed(range(len(size))))), put(index), into)
    emission.emitter.scatter_elements("scatter", *emission.views)
    emission.run()
    last = [max(i for i in range(count) if i % 7 == row) for row in range(7)]
    assert into.values().tolist() == last


def test_a_scatter_of_one_value_repeats_it() -> None:
    into = put(torch.zeros(9))
    emission = Emission(put(torch.tensor([2.5])), put(torch.tensor([[1, 3], [8, 3]])), into)
    emission.emitter.scatter_elements("scatter_add", *emission.views)
    emission.run()
    assert into.values().tolist() == [0, 2.5, 0, 5, 0, 0, 0, 0, 2.5]


def test_a_step_that_reads_what_another_wrote_waits_for_it() -> None:
    index, table = put(torch.tensor([2, 0, 1])), put(torch.tensor([1.0, 2.0, 3.0]))
    sorted_into = put(torch.zeros(3))
    emission = Emission(index, table, sorted_into)
    temp = emission.emitter.temp((3,), torch.int32)
    emission.emitter.argsort(emission.views[0], temp, 0)
    emission.emitter.gather_elements(emission.views[1], temp, emission.views[2])
    _, gather = emission.steps()
    assert gather.flags & StepFlags.BARRIER_BEFORE
    emission.run()
    assert sorted_into.values().tolist() == [2, 3, 1]


@pytest.mark.parametrize("what", ["gather", "scatter"])
def test_an_index_outside_is_a_fault(what: str) -> None:
    index, table = put(torch.tensor([0, 5])), put(torch.zeros(5))
    other = put(torch.zeros(2))
    if what == "gather":
        emission = Emission(table, index, other)
        emission.emitter.gather_elements(*emission.views)
    else:
        emission = Emission(other, index, table)
        emission.emitter.scatter_elements("scatter", *emission.views)
    with pytest.raises(_C._card.CardFault, match="index 5 is out of range for a table of 5 rows"):
        emission.run()


def test_nothing_is_written_for_nothing() -> None:
    empty, into = put(torch.zeros(0, 3)), put(torch.zeros(0, 3, dtype=torch.int64))
    emission = Emission(empty, into, into)
    emission.emitter.argsort(emission.views[0], emission.views[1], 0)
    emission.emitter.scan("cummax_index", emission.views[0], emission.views[1], 1)
    emission.emitter.gather_elements(
        Emission(put(torch.zeros(4))).views[0], emission.views[2], emission.views[0]
    )
    assert emission.steps() == []


def test_a_table_is_dense() -> None:
    emission = Emission(put(torch.zeros(3, 70)), put(torch.tensor([0])), put(torch.zeros(1)))
    with pytest.raises(ValueError, match="unpack|dense"):
        emission.emitter.gather_elements(*emission.views)


def test_a_number_is_a_row_of_one() -> None:
    position, total = put(torch.tensor(7)), put(torch.tensor(0.0))
    emission = Emission(put(torch.tensor(3.5)), position, total)
    emission.emitter.argsort(emission.views[0], emission.views[1], 0)
    emission.emitter.scan("cumsum", emission.views[0], emission.views[2], 0)
    emission.run()
    assert position.values() == 0
    assert total.values() == 3.5


def test_more_dimensions_than_a_step_has() -> None:
    """Nine that don't join: rows go through linear temporaries."""
    base = numbers((2,) * 9, torch.float32)
    view = base.permute(1, 3, 5, 7, 0, 2, 4, 6, 8)
    expected = torch.argsort(view, dim=4, stable=True)
    into = result_like(expected)
    emission = Emission(put(base).like(view), into)
    emission.emitter.argsort(*emission.views, 4)
    emission.run()
    assert same(into, expected)
