"""The binary card program: what is written can be read back, what is none is refused."""

from __future__ import annotations

import array
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torch_spyre
from torch_spyre.backend import opcodes
from torch_spyre.backend.disassemble import disassemble
from torch_spyre.backend.program import (
    CORES,
    LOOP_DEPTH,
    MAGIC,
    NO_STICK_DIM,
    STEP_RANK,
    STICK_BYTES,
    VERSION,
    Lanes,
    Loop,
    Mask,
    Operand,
    Program,
    ProgramError,
    Space,
    Step,
    StepFlags,
    StepKind,
    Symbol,
    SymbolKind,
    decode,
    encode,
)

OPCODES = sorted(opcodes.by_name())
int64 = st.integers(-(2**63), 2**63 - 1)
uint32 = st.integers(0, 2**32 - 1)


@st.composite
def steps(draw: st.DrawFn, depth: int) -> Step:
    rank = draw(st.integers(0, 8))
    cores = draw(st.integers(1, 2**32 - 1))
    rows = draw(st.sampled_from((1, cores.bit_count())))
    ring = draw(st.integers(0, 32))

    def row(length: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(int64, min_size=length, max_size=length)))

    def operand() -> Operand:
        space = draw(st.sampled_from(Space))
        owner = draw(st.integers(0, 31))
        return Operand(
            space=space,
            format=draw(st.integers(0, 18)),
            symbol=0 if space is Space.RING else draw(uint32),
            lanes=draw(st.sampled_from(Lanes)),
            bases=row(draw(st.sampled_from((1, min(cores.bit_count(), 3))))),
            strides=row(rank),
            tile_stride=draw(int64),
            tail_tiles=draw(st.integers(0, 4)),
            loop_strides=row(depth),
            owners=(owner,) * (ring * cores.bit_count()) if space is Space.RING else (),
        )

    def mask() -> Mask:
        is_symbol = draw(st.booleans())
        return Mask(
            dim=draw(st.sampled_from((0, 3, 255))),
            valid=draw(uint32 if is_symbol else int64),
            is_symbol=is_symbol,
            bases=row(draw(st.sampled_from((1, min(cores.bit_count(), 3))))),
            loop_strides=row(depth),
        )

    return Step(
        opcode=draw(st.sampled_from(OPCODES)),
        kind=draw(st.sampled_from(StepKind)),
        cores=cores,
        extents=tuple(row(rank) for _ in range(min(rows, 3))),
        inputs=tuple(operand() for _ in range(draw(st.integers(0, 4)))),
        outputs=(operand(),),
        stick_dim=draw(st.sampled_from((0, 3, 255))),
        tail_cores=draw(uint32),
        flags=draw(st.sampled_from(StepFlags)),
        lane_dim=draw(st.sampled_from((0, 2, 255))),
        reduced=draw(st.integers(0, 255)),
        ring=ring,
        masks=tuple(mask() for _ in range(draw(st.integers(0, 2)))),
    )


def bodies(depth: int) -> st.SearchStrategy[tuple[Step | Loop, ...]]:
    nodes: st.SearchStrategy[Step | Loop] = steps(depth)
    if depth < 2:
        nodes |= st.builds(Loop, st.integers(1, 2**32 - 1), bodies(depth + 1))
    return st.lists(nodes, min_size=1, max_size=2).map(tuple)


symbols = st.builds(
    Symbol, st.sampled_from(SymbolKind), st.integers(0, 18), st.integers(0, 2**62), st.booleans()
)
programs = st.builds(
    Program,
    st.lists(symbols, max_size=4).map(tuple),
    bodies(0),
    st.lists(uint32, max_size=5).map(tuple),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs)
def test_a_program_survives_encoding(program: Program) -> None:
    assert decode(encode(program)) == program


@given(programs)
def test_every_program_can_be_read_as_text(program: Program) -> None:
    has_bad_constant = any(
        operand.space is Space.CONSTANT and operand.symbol >= len(program.constants)
        for step in _steps(program.body)
        for operand in (*step.inputs, *step.outputs)
    )
    if has_bad_constant:
        return
    text = disassemble(program)
    assert text.count("step ") == len(list(_steps(program.body)))


def _steps(body: tuple[Step | Loop, ...]) -> list[Step]:
    found: list[Step] = []
    for node in body:
        found += _steps(node.body) if isinstance(node, Loop) else [node]
    return found


def _copy_program() -> Program:
    def walk(symbol: int) -> Operand:
        return Operand(Space.DEVICE, 0, symbol, bases=(0, 256), strides=(128,))

    step = Step(
        opcode="identity",
        kind=StepKind.POINTWISE,
        cores=0b11,
        extents=((2,),),
        inputs=(walk(0),),
        outputs=(walk(1),),
        stick_dim=0,
    )
    return Program(
        (Symbol(SymbolKind.ADDRESS, 0, 512), Symbol(SymbolKind.ADDRESS, 0, 512, True)), (step,)
    )


def test_the_bytes_are_those_of_the_header_file() -> None:
    """A copy of four sticks on two cores, field by field as in program.h."""
    data = encode(_copy_program())
    magic, version, _, size, *counts = struct.unpack_from("<IHHI8I", data)
    assert (magic, version, size) == (MAGIC, 2, len(data))
    assert counts == [2, 2, 1, 0, 1, 2, 1, 0]
    assert len(data) == 48 + 2 * 16 + 2 * 120 + 40 + 16 + 2 * 8 + 8
    at = 48 + 2 * 16 + 2 * 120
    opcode, kind, rank, flags, cores = struct.unpack_from("<HBBII", data, at)
    assert (opcode, kind, rank, flags, cores) == (1, 0, 1, 0, 0b11)


def test_text_shows_cores_extents_and_bases() -> None:
    assert disassemble(_copy_program()) == (
        "symbol 0  address SEN169_FP16 512 bytes\n"
        "symbol 1  address SEN169_FP16 512 bytes, written\n"
        "step identity  cores 0-1  extents 2  stick dim 0\n"
        "  in   s0 SEN169_FP16 vector  base 0, 256  stride 128\n"
        "  out  s1 SEN169_FP16 vector  base 0, 256  stride 128\n"
    )


def _mean_program() -> Program:
    """Means of the rows of a [4, 100] tensor: 2 tiles of 4 rows, of which 100 elements count."""
    return Program(
        (Symbol(SymbolKind.ADDRESS, 0, 1024), Symbol(SymbolKind.ADDRESS, 0, 512, True)),
        (
            Step(
                opcode="mean",
                kind=StepKind.REDUCTION,
                cores=0b1,
                extents=((2, 4),),
                inputs=(
                    Operand(Space.DEVICE, 0, 0, strides=(512, 128)),
                    Operand(Space.CONSTANT, 1, 0, strides=(0, 0)),
                ),
                outputs=(Operand(Space.DEVICE, 0, 1, Lanes.FIRST, strides=(0, 128)),),
                stick_dim=0,
                reduced=0b01,
                masks=(Mask(dim=0, valid=100),),
            ),
        ),
        constants=(0x42C80000,),
    )


def test_text_shows_what_is_accumulated_and_what_counts() -> None:
    assert disassemble(_mean_program()).splitlines()[2:5] == [
        "step mean (reduction)  cores 0  extents 2 x 4  stick dim 0  accumulates dims 0",
        "  mask dim 0 below 100  base 0",
        "  in   s0 SEN169_FP16 vector  base 0  stride 512, 128",
    ]


def test_figures_are_those_of_the_steps() -> None:
    figures = torch_spyre._C._card.figures(encode(_mean_program()))
    (step,) = figures["steps"]
    assert step["bytes_read"] == figures["bytes_read"] == 1024
    assert step["bytes_written"] == figures["bytes_written"] == 512
    assert step["nanoseconds"] == figures["nanoseconds"] > 0
    assert (step["cores"], step["visits"]) == (1, 1)
    # As the law of row reductions has it: 1024 bytes at min(150, 114 + 61 exp(-4/3700)) GB/s.
    assert step["memory_ns"] == 11
    assert step["sfp_ns"] == 4  # 512 elements at 140 per ns
    assert step["pt_ns"] == step["lx_ns"] == 0


@given(st.integers(0, 355), st.integers(0, 255))
def test_damaged_bytes_give_a_program_or_a_clear_error(position: int, value: int) -> None:
    data = bytearray(encode(_copy_program()))
    data[position % len(data)] = value
    try:
        decode(bytes(data))
    except ProgramError as error:
        assert str(error)  # noqa: PT017


@pytest.mark.parametrize("cut", [0, 10, 40, 100])
def test_a_truncated_program_is_refused(cut: int) -> None:
    with pytest.raises(ProgramError):
        decode(encode(_copy_program())[:cut])


def test_opcodes_come_from_the_card() -> None:
    table = opcodes.by_name()
    assert table["add"].signature == "FF:F"
    assert table["where_int"].signature == "FII:I"
    assert opcodes.by_value()[table["tanh"].value].name == "tanh"


def test_the_format_is_the_one_the_card_reads() -> None:
    card = torch_spyre._C._card
    assert (card.PROGRAM_MAGIC, card.PROGRAM_VERSION) == (MAGIC, VERSION)
    assert (card.STEP_RANK, card.LOOP_DEPTH, card.CORES) == (STEP_RANK, LOOP_DEPTH, CORES)
    assert (card.STICK_BYTES, card.NO_STICK_DIM) == (STICK_BYTES, NO_STICK_DIM)


def test_an_encoded_program_runs_on_a_card() -> None:
    _card = torch_spyre._C._card
    card = _card.Card(memory_bytes=1 << 24, threads=1)
    source, target = card.allocate(512), card.allocate(512)
    whole = _card.DmaNest([256], [1], [1])
    how = _card.DmaDescriptor(0, _card.host_formats["float32"], [whole], 512, 1024)
    data = array.array("f", range(256))
    card.copy_to_card(source, how, data)
    card.launch(card.load(encode(_copy_program())), [(source, 512), (target, 512)])
    back = array.array("f", bytes(1024))
    card.wait(card.copy_to_host(target, how, back))
    assert back == data
