"""Card programs of one step each, written out by hand: what a law is about and nothing else.

Tensors lie as layouts have them: a column of sticks after the other, in each the rows in order.
Cores take equal slices of the rows, unless a function says something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_spyre import _C
from torch_spyre.backend.program import (
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

STICK = _C._card.STICK_BYTES
FORMATS = _C._card.formats
FP16 = FORMATS["SEN169_FP16"]
LANES = 64  # of fp16
CORES = _C._card.CORES


def figures(program: Program) -> dict[str, Any]:
    """What the card derives of the only step of a program when it loads it."""
    (step,) = _C._card.figures(encode(program))["steps"]
    return step


def _mask(cores: int) -> int:
    return (1 << cores) - 1


def _tensors(sizes: Sequence[int], written: int, form: int = FP16) -> tuple[Symbol, ...]:
    return tuple(
        Symbol(SymbolKind.ADDRESS, form, size, is_written=number == written)
        for number, size in enumerate(sizes)
    )


# ---- Pointwise, copies ---------------------------------------------------------------------------

_BY_OPERANDS = {1: "neg", 2: "add", 3: "where"}


def pointwise(
    rows: int,
    columns: int,
    reads: int = 1,
    *,
    from_lx: bool = False,
    to_lx: bool = False,
    cores: int = CORES,
    tiles: int = 1,
) -> Program:
    """An operation of `reads` operands, `tiles` times in a loop, on `rows` rows each time."""
    sticks, share = columns // LANES, rows // cores
    tile = share * STICK  # of a core, in a column of sticks
    height = tiles * cores * tile
    strides = (height, STICK)
    size = sticks * height

    def in_memory(symbol: int) -> Operand:
        bases = tuple(core * tiles * tile for core in range(cores))
        return Operand(
            Space.DEVICE, FP16, symbol, bases=bases, strides=strides, loop_strides=(tile,)
        )

    in_lx = Operand(Space.LX, FP16, 0, strides=(tile, STICK))
    step = Step(
        _BY_OPERANDS[reads],
        StepKind.POINTWISE,
        _mask(cores),
        ((sticks, share),),
        tuple(in_lx if from_lx else in_memory(number) for number in range(reads)),
        (in_lx if to_lx else in_memory(reads),),
        stick_dim=0,
    )
    return Program(_tensors([size] * (reads + 1), written=reads), (Loop(tiles, (step,)),))


def broadcast_add(rows: int, columns: int, cores: int = CORES) -> Program:
    """Adds one row to all rows."""
    sticks, share = columns // LANES, rows // cores
    strides, bases = (rows * STICK, STICK), tuple(core * share * STICK for core in range(cores))
    x, y = (Operand(Space.DEVICE, FP16, n, bases=bases, strides=strides) for n in (0, 2))
    row = Operand(Space.DEVICE, FP16, 1, strides=(STICK, 0))
    step = Step(
        "add", StepKind.POINTWISE, _mask(cores), ((sticks, share),), (x, row), (y,), stick_dim=0
    )
    size = rows * sticks * STICK
    return Program(_tensors([size, sticks * STICK, size], written=2), (step,))


def restickify(rows: int, columns: int) -> Program:
    """Moves the stick from the columns to the rows; cores take equal slices of the columns."""
    sticks, share = columns // LANES // CORES, rows // LANES
    # Dimensions: sticks and lanes of the columns, sticks and lanes of the rows.
    extents = ((sticks, LANES, share, LANES),)
    source = Operand(
        Space.DEVICE,
        FP16,
        0,
        Lanes.ELEMENT,
        tuple(core * sticks * rows * STICK for core in range(CORES)),
        (rows * STICK, 2, LANES * STICK, STICK),
    )
    target = Operand(
        Space.DEVICE,
        FP16,
        1,
        Lanes.ELEMENT,
        tuple(core * sticks * LANES * STICK for core in range(CORES)),
        (LANES * STICK, STICK, columns * STICK, 2),
    )
    step = Step("identity", StepKind.RESTICKIFY, _mask(CORES), extents, (source,), (target,))
    size = rows * columns * 2
    return Program(_tensors([size, size], written=1), (step,))


def restickify_in_lx(edge: int) -> Program:
    """Moves the stick within a square that every core has in its scratchpad."""
    sticks = edge // LANES
    across, along = (edge * STICK, 2, LANES * STICK, STICK), (LANES * STICK, STICK, edge * STICK, 2)
    source = Operand(Space.LX, FP16, 0, Lanes.ELEMENT, (0,), across)
    target = Operand(Space.LX, FP16, 0, Lanes.ELEMENT, (edge * edge * 2,), along)
    extents = ((sticks, LANES, sticks, LANES),)
    step = Step("identity", StepKind.RESTICKIFY, _mask(CORES), extents, (source,), (target,))
    return Program((), (step,))


# ---- Reductions ----------------------------------------------------------------------------------


def row_sums(rows: int, columns: int) -> Program:
    """A sum along every row. Cores take equal slices of the rows, as many cores as that fits."""
    cores = min(CORES, rows)
    sticks, share = columns // LANES, rows // cores
    bases = tuple(core * share * STICK for core in range(cores))
    source = Operand(Space.DEVICE, FP16, 0, bases=bases, strides=(rows * STICK, STICK))
    target = Operand(Space.DEVICE, FP16, 1, Lanes.FIRST, bases, (0, STICK))
    return _reduction(cores, (sticks, share), source, target, rows * STICK, reduced=0b01)


def column_sums(rows: int, columns: int) -> Program:
    """A sum along every column. Cores take equal slices of the columns."""
    sticks = columns // LANES // CORES
    bases = tuple(core * sticks * rows * STICK for core in range(CORES))
    source = Operand(Space.DEVICE, FP16, 0, bases=bases, strides=(rows * STICK, STICK))
    bases = tuple(core * sticks * STICK for core in range(CORES))
    target = Operand(Space.DEVICE, FP16, 1, bases=bases, strides=(STICK, 0))
    return _reduction(CORES, (sticks, rows), source, target, columns * 2, reduced=0b10)


def _reduction(
    cores: int,
    extents: tuple[int, int],
    source: Operand,
    target: Operand,
    written: int,
    reduced: int,
) -> Program:
    step = Step(
        "sum",
        StepKind.REDUCTION,
        _mask(cores),
        (extents,),
        (source,),
        (target,),
        stick_dim=0,
        reduced=reduced,
    )
    read = cores * extents[0] * extents[1] * STICK
    return Program(_tensors([read, written], written=1), (step,))


# ---- Matmul --------------------------------------------------------------------------------------


def matmul(m: int, n: int, k: int, *, cores: int = 1, form: str = "SEN169_FP16") -> Program:
    """A [m, k] @ B [k, n]; cores take equal slices of the rows of A and all read B."""
    number = FORMATS[form]
    lanes = _C._card.elems_per_stick(number)
    share = m // cores
    bases = tuple(core * share * STICK for core in range(cores))
    # Dimensions: rows, sticks of n, sticks of k.
    a = Operand(Space.DEVICE, number, 0, bases=bases, strides=(STICK, 0, m * STICK))
    b = Operand(Space.DEVICE, number, 1, strides=(0, k * STICK, lanes * STICK), tile_stride=STICK)
    c = Operand(Space.DEVICE, number, 2, bases=bases, strides=(STICK, m * STICK, 0))
    step = Step(
        "batchmatmul",
        StepKind.MATMUL,
        _mask(cores),
        ((share, n // lanes, k // lanes),),
        (a, b),
        (c,),
        stick_dim=1,
        lane_dim=2,
        reduced=0b100,
        masks=(Mask(dim=2, valid=k),),
    )
    sizes = [rows * columns // lanes * STICK for rows, columns in ((m, k), (k, n), (m, n))]
    return Program(_tensors(sizes, written=2, form=number), (step,))
