"""Gathers and scatters by element, argsorts, scans: the card gives the numpy model's bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops import program_model, step_model
from tests.ops.test_accumulations import (
    FLOAT,
    HALF,
    INT,
    STICK,
    check,
    run_on_card,
    symbols,
    values,
)
from torch_spyre import _C
from torch_spyre.backend.program import (
    TABLE_ROWS,
    Lanes,
    Mask,
    Operand,
    Program,
    Space,
    Step,
    StepKind,
)

FLOATS = (HALF, FLOAT, step_model.SEN143, step_model.SEN152)
INTS = (INT, step_model.SENINT8, step_model.SENINT16, step_model.SENUINT32)
EXACT_SCANS = sorted((set(step_model.SCANS) | set(step_model.EXTREMA)) - {"logcumsumexp"})


def nbytes(fmt: int) -> int:
    return np.dtype(step_model.RAW[fmt]).itemsize


def padded(raw: np.ndarray) -> np.ndarray:
    """Whole sticks of memory that begin with these bytes; the rest is noise."""
    memory = program_model.noise(-(-max(raw.size, 1) // STICK) * STICK, raw.size)
    memory[: raw.size] = raw
    return memory


def formats_of(opcode: str) -> st.SearchStrategy[int]:
    return st.sampled_from(INTS if opcode.endswith("_int") or "_int_" in opcode else FLOATS)


def indices(count: int, rows: int, seed: int) -> np.ndarray:
    index = np.random.default_rng(seed).integers(0, rows, count).astype(np.int32)
    return padded(index.view(np.uint8))


def element(symbol: int, fmt: int, *strides: int, **more: object) -> Operand:
    return Operand(Space.DEVICE, fmt, symbol, Lanes.ELEMENT, strides=strides, **more)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    opcode=st.sampled_from(("gather", "gather_int")),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 300)),
    rows=st.integers(1, 90),
    repeats=st.booleans(),
    seed=st.integers(0, 99),
)
def test_gather_by_element(
    data: st.DataObject,
    opcode: str,
    shape: tuple[int, int],
    rows: int,
    repeats: bool,
    seed: int,
) -> None:
    """Of a table of single elements; the index may stand still along the outer dimension."""
    table, result = data.draw(formats_of(opcode)), data.draw(formats_of(opcode))
    outer, inner = shape
    memory = [
        padded(values(table, rows + 3 * outer, seed)),
        indices(outer * inner, rows, seed),
        program_model.noise(-(-outer * inner * nbytes(result) // STICK) * STICK, seed),
    ]
    step = Step(
        opcode=opcode,
        kind=StepKind.GATHER,
        cores=1,
        extents=((outer, inner),),
        inputs=(
            element(0, table, nbytes(table), 0, tile_stride=nbytes(table)),
            element(1, INT, 0 if repeats else 4 * inner, 4),
        ),
        outputs=(element(2, result, nbytes(result), nbytes(result) * outer),),
        masks=(Mask(dim=TABLE_ROWS, valid=rows),),
    )
    buffers = zip((table, INT, result), memory, strict=True)
    check(Program(symbols(*buffers), (step,)), memory)


@settings(max_examples=100, deadline=None)
@given(
    data=st.data(),
    opcode=st.sampled_from(sorted(step_model.SCATTERS)),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 300)),
    rows=st.integers(1, 50),
    seed=st.integers(0, 99),
)
def test_scatter_by_element(
    data: st.DataObject, opcode: str, shape: tuple[int, int], rows: int, seed: int
) -> None:
    """Many writes to few places, from a source that is walked against its order in memory."""
    source, table = data.draw(formats_of(opcode)), data.draw(formats_of(opcode))
    outer, inner = shape
    memory = [
        padded(values(source, outer * inner, seed)),
        indices(outer * inner, rows, seed),
        padded(values(table, rows + 2, seed + 1)),
    ]
    step = Step(
        opcode=opcode,
        kind=StepKind.SCATTER,
        cores=0b1000,
        extents=((outer, inner),),
        inputs=(
            element(0, source, nbytes(source), nbytes(source) * outer),
            element(1, INT, 4 * inner, 4),
        ),
        outputs=(element(2, table, nbytes(table), 0, tile_stride=nbytes(table)),),
        masks=(Mask(dim=TABLE_ROWS, valid=rows),),
    )
    buffers = zip((source, INT, table), memory, strict=True)
    check(Program(symbols(*buffers), (step,)), memory)


@settings(max_examples=40, deadline=None)
@given(
    opcode=st.sampled_from(sorted(step_model.SCATTERS)),
    is_same=st.booleans(),
    count=st.integers(1, 20),
    rows=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_scatter_by_row(opcode: str, is_same: bool, count: int, rows: int, seed: int) -> None:
    """Rows of two sticks; with another format the source's have half as many elements."""
    is_int = opcode.endswith("_int")
    table = step_model.SENINT16 if is_int else HALF
    source = table if is_same else INT if is_int else FLOAT
    tiles = 64 // step_model.lanes_of(source)
    memory = [
        values(source, 2 * count * 64, seed),
        indices(count, rows, seed),
        values(table, 2 * rows * 64, seed + 1),
    ]
    from_source = Operand(
        Space.DEVICE,
        source,
        0,
        strides=(count * tiles * STICK, tiles * STICK),
        tile_stride=STICK if tiles > 1 else 0,
    )
    step = Step(
        opcode=opcode,
        kind=StepKind.SCATTER,
        cores=1,
        extents=((2, count),),
        inputs=(from_source, element(1, INT, 0, 4)),
        outputs=(Operand(Space.DEVICE, table, 2, strides=(rows * STICK, 0), tile_stride=STICK),),
        stick_dim=0,
        masks=(Mask(dim=TABLE_ROWS, valid=rows),),
    )
    buffers = zip((source, INT, table), memory, strict=True)
    check(Program(symbols(*buffers), (step,)), memory)


@pytest.mark.parametrize("wrong", [5, -1, 2**31 - 1])
def test_a_scatter_to_an_index_outside_is_a_fault(wrong: int) -> None:
    source, table = padded(values(FLOAT, 4, 1)), padded(values(FLOAT, 5, 2))
    index = padded(np.array([0, 4, wrong, 1], np.int32).view(np.uint8))
    step = Step(
        opcode="scatter_add",
        kind=StepKind.SCATTER,
        cores=1,
        extents=((4,),),
        inputs=(element(0, FLOAT, 4), element(1, INT, 4)),
        outputs=(element(2, FLOAT, 0, tile_stride=4),),
        masks=(Mask(dim=TABLE_ROWS, valid=5),),
    )
    program = Program(symbols((FLOAT, source), (INT, index), (FLOAT, table)), (step,))
    named = "an index" if wrong < 0 else f"index {wrong}"
    what = f"IndexError: {named} is out of range for a table of 5 rows .core 0, iteration 2"
    with pytest.raises(_C._card.CardFault, match=what):
        run_on_card(program, [source, index, table])


def with_ties(fmt: int, count: int, seed: int) -> np.ndarray:
    """Few different values, with both zeros, both infinities and NaN among the floats."""
    random = np.random.default_rng(seed)
    if not step_model.is_float(fmt):
        return random.integers(-3, 4, count).astype(step_model.RAW[fmt]).view(np.uint8)
    pool = np.array([0, -0.0, 1, -1, 1.5, np.inf, -np.inf, np.nan, -np.nan, 448], np.float32)
    picked = random.choice(pool if seed % 3 else pool[:5], count)
    return np.ascontiguousarray(step_model.narrow(picked, fmt)).view(np.uint8)


def row_step(opcode: str, kind: StepKind, source: int, result: int, shape: tuple[int, int]) -> Step:
    """Along the first dimension, whose elements lie `rows` apart; results lie in rows."""
    length, rows = shape
    pitch = -(-length * nbytes(result) // STICK) * STICK
    first = -(-rows // 2)
    return Step(
        opcode=opcode,
        kind=kind,
        cores=0b11 if rows > 1 else 1,
        extents=((length, first), (length, rows - first)) if rows > 1 else ((length, rows),),
        inputs=(
            element(
                0,
                source,
                nbytes(source) * rows,
                nbytes(source),
                bases=(0, first * nbytes(source)) if rows > 1 else (0,),
            ),
        ),
        outputs=(
            element(
                1, result, nbytes(result), pitch, bases=(0, first * pitch) if rows > 1 else (0,)
            ),
        ),
        reduced=0b01,
    )


def check_rows(step: Step, raw: np.ndarray, shape: tuple[int, int]) -> None:
    length, rows = shape
    source, result = step.inputs[0].format, step.outputs[0].format
    pitch = -(-length * nbytes(result) // STICK) * STICK
    memory = [padded(raw), program_model.noise(rows * pitch, 3)]
    buffers = zip((source, result), memory, strict=True)
    check(Program(symbols(*buffers), (step,)), memory)


@settings(max_examples=80, deadline=None)
@given(
    data=st.data(),
    opcode=st.sampled_from(step_model.ARGSORTS),
    shape=st.tuples(st.integers(1, 200), st.integers(1, 5)),
    seed=st.integers(0, 99),
)
def test_argsort(data: st.DataObject, opcode: str, shape: tuple[int, int], seed: int) -> None:
    fmt = data.draw(formats_of(opcode))
    raw = (with_ties if seed % 2 else values)(fmt, max(3, shape[0] * shape[1]), seed)
    check_rows(row_step(opcode, StepKind.ARGSORT, fmt, INT, shape), raw, shape)


@pytest.mark.parametrize("opcode", step_model.ARGSORTS)
@pytest.mark.parametrize("length", [1023, 1024, 5000])
def test_argsort_of_long_rows(opcode: str, length: int) -> None:
    """Long rows go digit by digit: here of elements of all bit patterns."""
    fmt = INT if "_int" in opcode else FLOAT
    raw = program_model.noise(4 * length, length)
    check_rows(row_step(opcode, StepKind.ARGSORT, fmt, INT, (length, 1)), raw, (length, 1))


@settings(max_examples=80, deadline=None)
@given(
    data=st.data(),
    opcode=st.sampled_from(EXACT_SCANS),
    shape=st.tuples(st.integers(1, 200), st.integers(1, 5)),
    seed=st.integers(0, 99),
)
def test_scan_by_element(
    data: st.DataObject, opcode: str, shape: tuple[int, int], seed: int
) -> None:
    fmt = data.draw(formats_of(opcode))
    result = INT if opcode in step_model.EXTREMA else data.draw(formats_of(opcode))
    raw = (with_ties if seed % 2 else values)(fmt, max(3, shape[0] * shape[1]), seed)
    check_rows(row_step(opcode, StepKind.SCAN, fmt, result, shape), raw, shape)


@pytest.mark.parametrize("opcode", EXACT_SCANS)
@pytest.mark.parametrize("length", [2047, 2048, 4100])
def test_scan_of_long_rows(opcode: str, length: int) -> None:
    fmt = INT if opcode.endswith("_int") else FLOAT
    raw = values(fmt, length, 1)
    result = INT if opcode in step_model.EXTREMA else fmt
    check_rows(row_step(opcode, StepKind.SCAN, fmt, result, (length, 1)), raw, (length, 1))


@settings(max_examples=40, deadline=None)
@given(
    opcode=st.sampled_from(EXACT_SCANS),
    length=st.integers(1, 70),
    tiles=st.integers(1, 3),
    tail=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_scan_by_lane(opcode: str, length: int, tiles: int, tail: int, seed: int) -> None:
    """Down the columns of a tiled tensor; of the last stick of an fp32 result a half may lack."""
    is_int = opcode.endswith("_int")
    source = step_model.SENINT16 if is_int else HALF
    result = INT if is_int or opcode in step_model.EXTREMA else FLOAT
    memory = [
        values(source, tiles * length * 64, seed),
        program_model.noise(2 * tiles * length * STICK, seed),
    ]
    step = Step(
        opcode=opcode,
        kind=StepKind.SCAN,
        cores=1,
        extents=((tiles, length),),
        inputs=(Operand(Space.DEVICE, source, 0, strides=(length * STICK, STICK)),),
        outputs=(
            Operand(
                Space.DEVICE,
                result,
                1,
                strides=(2 * length * STICK, 2 * STICK),
                tile_stride=STICK,
                tail_tiles=tail,
            ),
        ),
        stick_dim=0,
        tail_cores=1,
        reduced=0b10,
    )
    buffers = zip((source, result), memory, strict=True)
    check(Program(symbols(*buffers), (step,)), memory)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("length", [1, 2, 100])
def test_logcumsumexp(length: int, special: bool) -> None:
    """Two units in the last place for each element that went in, as for every operation."""
    x = np.random.default_rng(length).normal(scale=4, size=length).astype(np.float32)
    if special:
        x[length // 3] = -np.inf
        x[0] = -np.inf
        x[length // 2] = np.inf
        x[length - 1] = np.nan
    memory = [padded(x.view(np.uint8)), program_model.noise(-(-4 * length // STICK) * STICK, 1)]
    step = row_step("logcumsumexp", StepKind.SCAN, FLOAT, FLOAT, (length, 1))
    program = Program(symbols((FLOAT, memory[0]), (FLOAT, memory[1])), (step,))
    result = run_on_card(program, memory)[1]
    assert isinstance(result, np.ndarray)
    actual = result[: 4 * length].view(np.float32)
    expected = np.logaddexp.accumulate(x.astype(np.float64)).astype(np.float32)
    unit = np.spacing(np.abs(np.where(np.isfinite(expected), expected, 1)))
    count = np.arange(1, length + 1)
    is_close = np.abs(actual - expected) <= 2 * count * unit
    is_same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    assert np.all(is_close | is_same)


def test_a_program_reads_back_and_prints() -> None:
    from torch_spyre.backend.disassemble import disassemble
    from torch_spyre.backend.program import decode, encode

    step = row_step("cummax_index", StepKind.SCAN, HALF, INT, (70, 1))
    program = Program(symbols((HALF, padded(values(HALF, 70, 1))), (INT, np.zeros(384))), (step,))
    assert decode(encode(program)) == program
    assert "step cummax_index (scan)  cores 0  extents 70 x 1  along dim 0" in disassemble(program)
