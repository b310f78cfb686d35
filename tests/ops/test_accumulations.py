"""Reductions, matmuls and gathers: the card gives the bits of the numpy model."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops import program_model, step_model
from torch_spyre import _C
from torch_spyre.backend.program import (
    TABLE_ROWS,
    Lanes,
    Loop,
    Mask,
    Operand,
    Program,
    Space,
    Step,
    StepKind,
    Symbol,
    SymbolKind,
    encode,
)

HALF, FLOAT, INT = step_model.SEN169, step_model.FP32, step_model.INT32
FP8, FP8_WIDE, BYTE = step_model.SEN143, step_model.SEN152, step_model.SENINT8
STICK = 128


def run_on_card(
    program: Program, bindings: Sequence[np.ndarray | int], check: str = "off", threads: int = 2
) -> list[np.ndarray | int]:
    """What the bound memory holds after one launch on a card of its own."""
    card = _C._card.Card(memory_bytes=1 << 26, threads=threads, check=check)
    bound, copies = [], []
    for binding in bindings:
        if isinstance(binding, int):
            bound.append((binding, 0))
            continue
        address = card.allocate(binding.size)
        nest = _C._card.DmaNest([binding.size], [1], [1])
        int8 = _C._card.host_formats["int8"]
        how = _C._card.DmaDescriptor(step_model.SENINT8, int8, [nest], binding.size, binding.size)
        card.copy_to_card(address, how, binding.view(np.int8))
        bound.append((address, binding.size))
        copies.append((address, how))
    card.launch(card.load(encode(program)), bound)
    results: list[np.ndarray | int] = []
    for binding in bindings:
        if isinstance(binding, int):
            results.append(binding)
            continue
        address, how = copies.pop(0)
        result = np.zeros(binding.size, np.int8)
        card.wait(card.copy_to_host(address, how, result))
        results.append(result.view(np.uint8))
    return results


def check(program: Program, bindings: Sequence[np.ndarray | int]) -> None:
    """The same bytes on the card and in the model."""
    expected = [b if isinstance(b, int) else b.copy() for b in bindings]
    program_model.Machine(program, expected).run()
    for actual, wanted in zip(run_on_card(program, bindings), expected, strict=True):
        assert np.array_equal(actual, wanted)


def values(fmt: int, count: int, seed: int) -> np.ndarray:
    """Numbers of everyday size as bytes, with a few special ones among the floats."""
    random = np.random.default_rng(seed)
    if not step_model.is_float(fmt):
        return random.integers(-50, 50, count).astype(step_model.RAW[fmt]).view(np.uint8)
    floats = random.normal(size=count).astype(np.float32)
    if seed % 3 == 0:
        floats[random.integers(0, count, 3)] = np.array([np.nan, -np.inf, 0], np.float32)
    return np.ascontiguousarray(step_model.narrow(floats, fmt)).view(np.uint8)


def symbols(*buffers: tuple[int, np.ndarray]) -> tuple[Symbol, ...]:
    """Addresses of these formats and sizes, the last one written."""
    last = len(buffers) - 1
    return tuple(
        Symbol(SymbolKind.ADDRESS, fmt, memory.size, index == last)
        for index, (fmt, memory) in enumerate(buffers)
    )


@settings(max_examples=40, deadline=None)
@given(
    opcode=st.sampled_from(sorted(step_model.REDUCTIONS)),
    rows=st.integers(1, 5),
    tiles=st.integers(1, 4),
    cut=st.integers(0, 70),
    is_row=st.booleans(),
    seed=st.integers(0, 99),
)
def test_reductions(opcode: str, rows: int, tiles: int, cut: int, is_row: bool, seed: int) -> None:
    """Of the rows of a tiled tensor, or of its columns; the last elements masked."""
    fmt = INT if opcode.endswith("_int") else HALF
    lanes = step_model.lanes_of(fmt)
    x = values(fmt, tiles * rows * lanes, seed)
    y = program_model.noise((rows if is_row else tiles) * STICK, seed)
    inputs = [Operand(Space.DEVICE, fmt, 0, strides=(rows * STICK, STICK))]
    if opcode == "mean":
        inputs.append(Operand(Space.CONSTANT, FLOAT, 0, strides=(0, 0)))
    output = Operand(
        Space.DEVICE,
        fmt,
        1,
        Lanes.FIRST if is_row else Lanes.VECTOR,
        strides=(0, STICK) if is_row else (STICK, 0),
    )
    valid = max(0, tiles * lanes - cut) if is_row else max(0, rows - cut % 3)
    step = Step(
        opcode=opcode,
        kind=StepKind.REDUCTION,
        cores=0b100,
        extents=((tiles, rows),),
        inputs=tuple(inputs),
        outputs=(output,),
        stick_dim=0,
        reduced=0b01 if is_row else 0b10,
        masks=(Mask(dim=0 if is_row else 1, valid=valid),),
    )
    count = struct.unpack("<I", struct.pack("<f", 7.0))
    check(Program(symbols((fmt, x), (fmt, y)), (step,), count), [x, y])


def matmul_step(
    m: int, n_sticks: int, k: int, result: int, left: int = HALF, right: int = HALF
) -> Step:
    """[m, k] @ [k, n] on two cores, which share B and take half of the rows each."""
    lanes = step_model.lanes_of(right)
    rows = lanes // step_model.lanes_of(left)
    tiles = lanes // step_model.lanes_of(result)
    stick = tiles * STICK
    return Step(
        opcode="batchmatmul" if step_model.is_float(right) else "batchmatmul_int8",
        kind=StepKind.MATMUL,
        cores=0b11,
        extents=((m // 2, n_sticks, -(-k // lanes)),),
        inputs=(
            Operand(
                Space.DEVICE,
                left,
                0,
                bases=(0, m // 2 * STICK),
                strides=(STICK, 0, rows * m * STICK),
                tile_stride=m * STICK if rows > 1 else 0,
            ),
            Operand(
                Space.DEVICE, right, 1, strides=(0, k * STICK, lanes * STICK), tile_stride=STICK
            ),
        ),
        outputs=(
            Operand(
                Space.DEVICE,
                result,
                2,
                bases=(0, m // 2 * stick),
                strides=(stick, m * stick, 0),
                tile_stride=STICK if tiles > 1 else 0,
            ),
        ),
        stick_dim=1,
        lane_dim=2,
        reduced=0b100,
        masks=(Mask(dim=2, valid=k),),
    )


def matmul_memory(
    m: int, n_sticks: int, k: int, result: int, seed: int, left: int = HALF, right: int = HALF
) -> list[np.ndarray]:
    """A has the sticks in which elements of k count, no more."""
    lanes, per_stick = step_model.lanes_of(right), step_model.lanes_of(left)
    tiles = lanes // step_model.lanes_of(result)
    return [
        values(left, -(-k // per_stick) * m * per_stick, seed),
        values(right, n_sticks * k * lanes, seed + 1),
        program_model.noise(m * n_sticks * tiles * STICK, seed),
    ]


@pytest.mark.parametrize("result", [HALF, FLOAT])
@pytest.mark.parametrize(("m", "n_sticks", "k"), [(2, 1, 64), (6, 2, 100), (4, 1, 33)])
def test_matmul(m: int, n_sticks: int, k: int, result: int) -> None:
    memory = matmul_memory(m, n_sticks, k, result, seed=k)
    buffers = zip((HALF, HALF, result), memory, strict=True)
    check(Program(symbols(*buffers), (matmul_step(m, n_sticks, k, result),)), memory)


@pytest.mark.parametrize("result", [HALF, FLOAT, FP8])
@pytest.mark.parametrize("right", [FP8, FP8_WIDE, BYTE])
@pytest.mark.parametrize("left", [HALF, FLOAT, FP8])
@pytest.mark.parametrize(("m", "n_sticks", "k"), [(2, 1, 64), (6, 2, 100), (4, 1, 161)])
def test_matmul_of_8_bit_columns(
    m: int, n_sticks: int, k: int, left: int, right: int, result: int
) -> None:
    memory = matmul_memory(m, n_sticks, k, result, k, left, right)
    buffers = zip((left, right, result), memory, strict=True)
    step = matmul_step(m, n_sticks, k, result, left, right)
    check(Program(symbols(*buffers), (step,)), memory)


@pytest.mark.parametrize("length", [0, 1, 64, 77, 100])
def test_a_launch_binds_how_much_of_k_counts(length: int) -> None:
    memory = matmul_memory(2, 1, 100, FLOAT, seed=4)
    buffers = zip((HALF, HALF, FLOAT), memory, strict=True)
    step = replace(matmul_step(2, 1, 100, FLOAT), masks=(Mask(dim=2, valid=3, is_symbol=True),))
    extent = Symbol(SymbolKind.EXTENT, INT, 100)
    check(Program((*symbols(*buffers), extent), (step,)), [*memory, length])


def test_a_length_above_its_maximum_is_refused() -> None:
    memory = matmul_memory(2, 1, 100, FLOAT, seed=4)
    buffers = zip((HALF, HALF, FLOAT), memory, strict=True)
    step = replace(matmul_step(2, 1, 100, FLOAT), masks=(Mask(dim=2, valid=3, is_symbol=True),))
    program = Program((*symbols(*buffers), Symbol(SymbolKind.EXTENT, INT, 100)), (step,))
    with pytest.raises(ValueError, match="length 101 is above the maximum 100"):
        run_on_card(program, [*memory, 101])


def test_a_loop_over_tiles_accumulates_through_the_scratchpad() -> None:
    """The sum of two halves of 3 tiles each, one loop iteration per tile, each via LX."""
    x, y = values(HALF, 3 * 2 * 64, 5), program_model.noise(3 * STICK, 1)
    lx = Operand(Space.LX, FLOAT, 0, tile_stride=STICK, strides=(0,))
    to_lx = Step(
        opcode="sum",
        kind=StepKind.REDUCTION,
        cores=1,
        extents=((2,),),
        inputs=(Operand(Space.DEVICE, HALF, 0, strides=(3 * STICK,), loop_strides=(STICK,)),),
        outputs=(lx,),
        reduced=1,
    )
    from_lx = Step(
        opcode="neg",
        kind=StepKind.POINTWISE,
        cores=1,
        extents=((1,),),
        inputs=(lx,),
        outputs=(Operand(Space.DEVICE, HALF, 1, strides=(0,), loop_strides=(STICK,)),),
    )
    check(Program(symbols((HALF, x), (HALF, y)), (Loop(3, (to_lx, from_lx)),)), [x, y])


# ---- Rings --------------------------------------------------------------------------------------


def check_ring(program: Program, bindings: Sequence[np.ndarray | int], *modes: str) -> None:
    """The bits of the model, by any number of threads, and nothing found in these checked modes."""
    expected = [b if isinstance(b, int) else b.copy() for b in bindings]
    program_model.Machine(program, expected).run()
    runs = [(1, "off"), (2, "off"), (5, "off"), *((2, mode) for mode in modes)]
    for threads, mode in runs:
        results = run_on_card(program, bindings, check=mode, threads=threads)
        for actual, wanted in zip(results, expected, strict=True):
            assert np.array_equal(actual, wanted), (threads, mode)


@settings(max_examples=30, deadline=None)
@given(
    opcode=st.sampled_from(sorted(step_model.REDUCTIONS)),
    rows=st.integers(1, 4),
    tiles=st.integers(1, 3),
    ring=st.integers(2, 5),
    cut=st.integers(0, 150),
    seed=st.integers(0, 99),
)
def test_a_row_on_several_cores(
    opcode: str, rows: int, tiles: int, ring: int, cut: int, seed: int
) -> None:
    """Each of `ring` cores has `tiles` tiles of all rows; the last elements are masked."""
    fmt = INT if opcode.endswith("_int") else HALF
    lanes = step_model.lanes_of(fmt)
    x = values(fmt, ring * tiles * rows * lanes, seed)
    y = program_model.noise(rows * STICK, seed)
    starts = tuple(i * tiles * rows * STICK for i in range(ring))
    inputs = [Operand(Space.DEVICE, fmt, 0, bases=starts, strides=(rows * STICK, STICK))]
    if opcode == "mean":
        inputs.append(Operand(Space.CONSTANT, FLOAT, 0, strides=(0, 0)))
    step = Step(
        opcode=opcode,
        kind=StepKind.REDUCTION,
        cores=((1 << ring) - 1) << 3,
        extents=((tiles, rows),),
        inputs=tuple(inputs),
        outputs=(Operand(Space.DEVICE, fmt, 1, Lanes.FIRST, strides=(0, STICK)),),
        stick_dim=0,
        reduced=0b01,
        ring=ring,
        masks=(
            Mask(
                dim=0,
                valid=max(0, ring * tiles * lanes - cut),
                bases=tuple(i * tiles * lanes for i in range(ring)),
            ),
        ),
    )
    count = struct.unpack("<I", struct.pack("<f", 7.0))
    check_ring(Program(symbols((fmt, x), (fmt, y)), (step,), count), [x, y])


def ring_matmul(m: int, n_sticks: int, k_sticks: int, k_cores: int, k: int) -> Step:
    """[m, k] @ [k, n]: a core per stick of n and `k_cores` partners for each, uneven if need be."""
    share = -(-k_sticks // k_cores)
    places = [(n, i * share) for n in range(n_sticks) for i in range(k_cores)]
    whole = k_sticks * 64
    return Step(
        opcode="batchmatmul",
        kind=StepKind.MATMUL,
        cores=(1 << len(places)) - 1,
        extents=tuple((m, 1, min(share, k_sticks - first)) for _, first in places),
        inputs=(
            Operand(
                Space.DEVICE,
                HALF,
                0,
                bases=tuple(first * m * STICK for _, first in places),
                strides=(STICK, 0, m * STICK),
            ),
            Operand(
                Space.DEVICE,
                HALF,
                1,
                bases=tuple((n * whole + first * 64) * STICK for n, first in places),
                strides=(0, 0, 64 * STICK),
                tile_stride=STICK,
            ),
        ),
        outputs=(
            Operand(
                Space.DEVICE,
                HALF,
                2,
                bases=tuple(n * m * STICK for n, _ in places),
                strides=(STICK, 0, 0),
            ),
        ),
        stick_dim=1,
        lane_dim=2,
        reduced=0b100,
        ring=k_cores,
        masks=(Mask(dim=2, valid=k, bases=tuple(first * 64 for _, first in places)),),
    )


@pytest.mark.parametrize(
    ("m", "n_sticks", "k_sticks", "k_cores", "k"),
    [
        (1, 2, 4, 2, 256),
        (3, 2, 5, 3, 300),
        (2, 1, 7, 7, 448),
        (1, 4, 16, 8, 1000),
        (1, 1, 3, 3, 90),
    ],
)
def test_a_k_split_adds_partial_sums_in_core_order(
    m: int, n_sticks: int, k_sticks: int, k_cores: int, k: int
) -> None:
    memory = [
        values(HALF, m * k_sticks * 64, 3),
        values(HALF, n_sticks * k_sticks * 64 * 64, 4),
        program_model.noise(m * n_sticks * STICK, 5),
    ]
    step = ring_matmul(m, n_sticks, k_sticks, k_cores, k)
    program = Program(symbols(*zip((HALF,) * 3, memory, strict=True)), (step,))
    check_ring(program, memory, "memory")


def gather_program(table: np.ndarray, index: np.ndarray, y: np.ndarray, rows: int) -> Program:
    step = Step(
        opcode="gather",
        kind=StepKind.GATHER,
        cores=1,
        extents=((2, 5),),
        inputs=(
            Operand(Space.DEVICE, HALF, 0, strides=(rows * STICK, 0), tile_stride=STICK),
            Operand(Space.DEVICE, INT, 1, Lanes.ELEMENT, strides=(0, 4)),
        ),
        outputs=(Operand(Space.DEVICE, HALF, 2, strides=(5 * STICK, STICK)),),
        stick_dim=0,
        masks=(Mask(dim=TABLE_ROWS, valid=rows),),
    )
    return Program(symbols((HALF, table), (INT, index), (HALF, y)), (step,))


def test_gather() -> None:
    table, y = values(HALF, 2 * 9 * 64, 8), program_model.noise(10 * STICK, 1)
    index = np.zeros(32, np.int32)
    index[:5] = [8, 0, 3, 3, 7]
    memory = [table, index.view(np.uint8), y]
    check(gather_program(table, memory[1], y, 9), memory)


def test_an_index_outside_the_table_is_a_fault() -> None:
    table, y = values(HALF, 2 * 9 * 64, 8), program_model.noise(10 * STICK, 1)
    index = np.full(32, 9, np.int32).view(np.uint8)
    with pytest.raises(_C._card.CardFault, match="IndexError: index 9 is out of range for a table"):
        run_on_card(gather_program(table, index, y, 9), [table, index, y])
