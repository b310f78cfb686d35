"""The card program as Python values, and its binary form.

Mirrors `csrc/card/program.h`, which documents the fields and the format. In Python a step owns
its operands and a loop owns its body; the tables of the binary form (operands, bases, extents,
nodes) exist only in the bytes. `decode(encode(program)) == program`.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from torch_spyre.backend import opcodes
from torch_spyre.ir import CORES as CORES  # of the format, too
from torch_spyre.ir import STICK_BYTES as STICK_BYTES

STEP_RANK = 8
LOOP_DEPTH = 4
NO_STICK_DIM = 0xFF
TABLE_ROWS = 0xFF  # the dimension of a mask that holds the rows of a Gather's or Scatter's table

MAGIC = 0x43505953
VERSION = 2

_HEADER = struct.Struct("<IHHI8I4x")
_SYMBOL = struct.Struct("<BBB5xq")
_OPERAND = struct.Struct("<BBBBIII8qq4q")
_STEP = struct.Struct("<HBBIIIBBBBIIIIBBBx")
_MASK = struct.Struct("<BB2xIII4q")
_NODE = struct.Struct("<IIII")
_NODE_STEP, _NODE_LOOP = 0, 1


class ProgramError(ValueError):
    """The bytes are not a card program, or the program can't be written as one."""


class SymbolKind(enum.IntEnum):
    """What a launch binds to a symbol."""

    ADDRESS = 0
    SCALAR = 1
    EXTENT = 2


class Space(enum.IntEnum):
    """Where an operand lives."""

    DEVICE = 0
    LX = 1
    SCALAR = 2
    CONSTANT = 3
    IOTA = 4
    RING = 5


class Lanes(enum.IntEnum):
    """How an operand fills the lanes of the sticks of one iteration."""

    VECTOR = 0
    FIRST = 1
    ELEMENT = 2


class StepKind(enum.IntEnum):
    """What a step does with its operands."""

    POINTWISE = 0
    RESTICKIFY = 1
    REDUCTION = 2
    MATMUL = 3
    GATHER = 4
    RING = 5
    SCATTER = 6
    ARGSORT = 7
    SCAN = 8


class StepFlags(enum.IntFlag):
    """Properties of a step."""

    NONE = 0
    BARRIER_BEFORE = 1
    CHAINED = 2
    DISCARDED = 4


@dataclass(frozen=True, slots=True)
class Symbol:
    """What a launch binds: an address of `nbytes` bytes, a scalar, or a valid length."""

    kind: SymbolKind
    format: int
    nbytes: int
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class Operand:
    """How a step walks one tensor: byte strides per dimension, a base per core (or one for all).

    `owners`, in Space.RING: for each core of the step in turn, the cores that its parts come from.
    """

    space: Space
    format: int
    symbol: int
    lanes: Lanes = Lanes.VECTOR
    bases: tuple[int, ...] = (0,)
    strides: tuple[int, ...] = ()
    tile_stride: int = 0
    tail_tiles: int = 0
    loop_strides: tuple[int, ...] = ()
    owners: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Mask:
    """Which positions along an accumulated dimension count: those below `valid`.

    `valid` is the length itself or, with `is_symbol`, the number of an Extent symbol. `bases` are
    the positions at which the cores start, one for each or one for all.
    """

    dim: int
    valid: int
    is_symbol: bool = False
    bases: tuple[int, ...] = (0,)
    loop_strides: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on the cores of `cores`; `extents` is one row, or a row per such core.

    `reduced` has a bit for each dimension that a Reduction or a Matmul accumulates, or the one of
    the dimension along which an Argsort or Scan goes, or those that count the parts of a Ring.
    `ring` is how many cores, neighbours in core order, make a result of a Reduction or a Matmul
    together; 0: each makes its own. Of a Ring it is how many owners a core's parts come from.
    """

    opcode: str
    kind: StepKind
    cores: int
    extents: tuple[tuple[int, ...], ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    stick_dim: int = NO_STICK_DIM
    tail_cores: int = 0
    flags: StepFlags = StepFlags.NONE
    lane_dim: int = NO_STICK_DIM
    reduced: int = 0
    masks: tuple[Mask, ...] = ()
    ring: int = 0

    @property
    def rank(self) -> int:
        return len(self.extents[0])


@dataclass(frozen=True, slots=True)
class Loop:
    """A body that runs `count` times; operands advance by their loop strides."""

    count: int
    body: tuple[Step | Loop, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """Symbols, a tree of loops and steps, and constants (32-bit words in their widened domain)."""

    symbols: tuple[Symbol, ...]
    body: tuple[Step | Loop, ...]
    constants: tuple[int, ...] = ()


class _Counts(NamedTuple):
    symbols: int
    operands: int
    steps: int
    masks: int
    nodes: int
    bases: int
    extents: int
    constants: int


@dataclass
class _Rows:
    """A table of int64 in which equal runs are stored once."""

    values: list[int] = field(default_factory=list)
    seen: dict[tuple[int, ...], int] = field(default_factory=dict)

    def place(self, run: tuple[int, ...]) -> int:
        at = self.seen.get(run)
        if at is None:
            at = self.seen[run] = len(self.values)
            self.values += run
        return at

    def encode(self) -> bytes:
        return struct.pack(f"<{len(self.values)}q", *self.values)


@dataclass
class _Writer:
    operands: list[bytes] = field(default_factory=list)
    steps: list[bytes] = field(default_factory=list)
    masks: list[bytes] = field(default_factory=list)
    nodes: list[bytes] = field(default_factory=list)
    bases: _Rows = field(default_factory=_Rows)
    extents: _Rows = field(default_factory=_Rows)

    def write_body(self, body: tuple[Step | Loop, ...]) -> None:
        for node in body:
            if isinstance(node, Step):
                self.nodes.append(_NODE.pack(_NODE_STEP, len(self.steps), 0, 0))
                self.write_step(node)
            else:
                at = len(self.nodes)
                self.nodes.append(b"")
                self.write_body(node.body)
                size = len(self.nodes) - at - 1
                self.nodes[at] = _NODE.pack(_NODE_LOOP, 0, node.count, size)

    def write_step(self, step: Step) -> None:
        rank = step.rank
        if rank > STEP_RANK:
            raise ProgramError(f"a step has at most {STEP_RANK} dimensions, not {rank}")
        if any(len(row) != rank for row in step.extents):
            raise ProgramError(f"extents of one step differ in rank: {step.extents}")
        first_operand, first_mask = len(self.operands), len(self.masks)
        owners = step.ring * step.cores.bit_count()
        for operand in (*step.inputs, *step.outputs):
            wanted = owners if operand.space is Space.RING else 0
            if len(operand.owners) != wanted:
                raise ProgramError(
                    f"an operand in {operand.space.name} has {len(operand.owners)} owners; "
                    f"its step wants {wanted}"
                )
            self.write_operand(operand)
        for mask in step.masks:
            self.write_mask(mask)
        self.steps.append(
            _STEP.pack(
                opcodes.by_name()[step.opcode].value,
                step.kind,
                rank,
                step.flags,
                step.cores,
                first_operand,
                len(step.inputs),
                len(step.outputs),
                step.stick_dim,
                step.lane_dim,
                self.extents.place(tuple(extent for row in step.extents for extent in row)),
                len(step.extents),
                step.tail_cores,
                first_mask,
                len(step.masks),
                step.reduced,
                step.ring,
            )
        )

    def write_operand(self, operand: Operand) -> None:
        if len(operand.strides) > STEP_RANK or len(operand.loop_strides) > LOOP_DEPTH:
            raise ProgramError(f"too many strides: {operand}")
        strides = operand.strides + (0,) * (STEP_RANK - len(operand.strides))
        self.operands.append(
            _OPERAND.pack(
                operand.space,
                operand.format,
                operand.lanes,
                operand.tail_tiles,
                self.bases.place(operand.owners) if operand.owners else operand.symbol,
                self.bases.place(operand.bases),
                len(operand.bases),
                *strides,
                operand.tile_stride,
                *_padded_loops(operand.loop_strides),
            )
        )

    def write_mask(self, mask: Mask) -> None:
        if len(mask.loop_strides) > LOOP_DEPTH:
            raise ProgramError(f"too many strides: {mask}")
        self.masks.append(
            _MASK.pack(
                mask.dim,
                mask.is_symbol,
                mask.valid if mask.is_symbol else self.extents.place((mask.valid,)),
                self.bases.place(mask.bases),
                len(mask.bases),
                *_padded_loops(mask.loop_strides),
            )
        )


def _padded_loops(strides: tuple[int, ...]) -> tuple[int, ...]:
    return strides + (0,) * (LOOP_DEPTH - len(strides))


def encode(program: Program) -> bytes:
    """The bytes that a card loads."""
    writer = _Writer()
    writer.write_body(program.body)
    symbols = [_SYMBOL.pack(s.kind, s.format, s.is_written, s.nbytes) for s in program.symbols]
    words = program.constants + (0,) * (len(program.constants) % 2)
    tables = b"".join(
        (
            *symbols,
            *writer.operands,
            *writer.steps,
            *writer.masks,
            *writer.nodes,
            writer.bases.encode(),
            writer.extents.encode(),
            struct.pack(f"<{len(words)}I", *words),
        )
    )
    counts = _Counts(
        symbols=len(symbols),
        operands=len(writer.operands),
        steps=len(writer.steps),
        masks=len(writer.masks),
        nodes=len(writer.nodes),
        bases=len(writer.bases.values),
        extents=len(writer.extents.values),
        constants=len(program.constants),
    )
    size = _HEADER.size + len(tables)
    return _HEADER.pack(MAGIC, VERSION, 0, size, *counts) + tables


class _Reader:
    """Tables of a program, cut out of its bytes."""

    def __init__(self, data: bytes) -> None:
        if len(data) < _HEADER.size:
            raise ProgramError(f"{len(data)} bytes are too few for a program's header")
        magic, version, _, size, *entries = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise ProgramError(f"not a card program: it starts with {magic:#010x}")
        if version != VERSION:
            raise ProgramError(f"program version {version}; this reader knows {VERSION}")
        self.counts = _Counts(*entries)
        self._data, self._at = data, _HEADER.size
        padded = self.counts.constants + self.counts.constants % 2
        self.symbols = self._records(_SYMBOL, self.counts.symbols)
        self.operands = self._records(_OPERAND, self.counts.operands)
        self.steps = self._records(_STEP, self.counts.steps)
        self.masks = self._records(_MASK, self.counts.masks)
        self.nodes = self._records(_NODE, self.counts.nodes)
        self.bases = self._words("q", 8, self.counts.bases)
        self.extents = self._words("q", 8, self.counts.extents)
        self.constants = self._words("I", 4, padded)[: self.counts.constants]
        if size != len(data) or self._at != size:
            raise ProgramError(
                f"the header says {size} bytes, the tables take {self._at}, {len(data)} are given"
            )

    def _take(self, nbytes: int) -> bytes:
        chunk = self._data[self._at : self._at + nbytes]
        if len(chunk) != nbytes:
            raise ProgramError(f"the program ends {nbytes - len(chunk)} bytes too early")
        self._at += nbytes
        return chunk

    def _records(self, record: struct.Struct, count: int) -> list[tuple[int, ...]]:
        return list(record.iter_unpack(self._take(record.size * count)))

    def _words(self, code: str, nbytes: int, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}{code}", self._take(nbytes * count))

    def body(self, first: int, count: int, depth: int) -> tuple[Step | Loop, ...]:
        """The nodes [first, first + count), below `depth` loops."""
        if first + count > len(self.nodes) or depth > LOOP_DEPTH:
            raise ProgramError("the loop tree does not close")
        nodes: list[Step | Loop] = []
        at = first
        while at < first + count:
            kind, step, repeat, size = self.nodes[at]
            if kind == _NODE_LOOP:
                if at + 1 + size > first + count:
                    raise ProgramError(f"node {at}: the loop ends behind its enclosing loop")
                nodes.append(Loop(repeat, self.body(at + 1, size, depth + 1)))
                at += 1 + size
            elif kind == _NODE_STEP:
                nodes.append(self.step(step, depth))
                at += 1
            else:
                raise ProgramError(f"node {at} is of unknown kind {kind}")
        return tuple(nodes)

    def step(self, index: int, depth: int) -> Step:
        if index >= len(self.steps):
            raise ProgramError(f"there is no step {index}")
        (
            opcode,
            kind,
            rank,
            flags,
            cores,
            first_operand,
            inputs,
            outputs,
            stick_dim,
            lane_dim,
            extent,
            extent_count,
            tail_cores,
            first_mask,
            masks,
            reduced,
            ring,
        ) = self.steps[index]
        known = opcodes.by_value().get(opcode)
        if known is None:
            raise ProgramError(f"step {index}: {opcode} is no opcode")
        last_operand = first_operand + inputs + outputs
        last_extent = extent + rank * extent_count
        if (
            last_operand > len(self.operands)
            or last_extent > len(self.extents)
            or first_mask + masks > len(self.masks)
        ):
            raise ProgramError(f"step {index} refers behind the end of a table")
        owners = ring * cores.bit_count()
        operands = [
            self.operand(i, rank, depth, owners) for i in range(first_operand, last_operand)
        ]
        rows = tuple(
            self.extents[extent + rank * row : extent + rank * (row + 1)]
            for row in range(extent_count)
        )
        return Step(
            opcode=known.name,
            kind=StepKind(kind),
            cores=cores,
            extents=rows,
            inputs=tuple(operands[:inputs]),
            outputs=tuple(operands[inputs:]),
            stick_dim=stick_dim,
            tail_cores=tail_cores,
            flags=StepFlags(flags),
            lane_dim=lane_dim,
            reduced=reduced,
            masks=tuple(self.mask(i, depth) for i in range(first_mask, first_mask + masks)),
            ring=ring,
        )

    def mask(self, index: int, depth: int) -> Mask:
        dim, is_symbol, valid, base, base_count, *loops = self.masks[index]
        if base + base_count > len(self.bases):
            raise ProgramError(f"mask {index} refers behind the end of the bases")
        if not is_symbol and valid >= len(self.extents):
            raise ProgramError(f"mask {index} refers behind the end of the extents")
        return Mask(
            dim=dim,
            valid=valid if is_symbol else self.extents[valid],
            is_symbol=bool(is_symbol),
            bases=self.bases[base : base + base_count],
            loop_strides=tuple(loops[:depth]),
        )

    def operand(self, index: int, rank: int, depth: int, owners: int) -> Operand:
        space, fmt, lanes, tail_tiles, symbol, base, base_count, *strides = self.operands[index]
        if base + base_count > len(self.bases):
            raise ProgramError(f"operand {index} refers behind the end of the bases")
        loops = tuple(strides[STEP_RANK + 1 :])
        is_owned = space == Space.RING
        if is_owned and symbol + owners > len(self.bases):
            raise ProgramError(f"the owners of operand {index} lie behind the end of the bases")
        return Operand(
            space=Space(space),
            format=fmt,
            symbol=0 if is_owned else symbol,
            lanes=Lanes(lanes),
            bases=self.bases[base : base + base_count],
            strides=tuple(strides[:rank]),
            tile_stride=strides[STEP_RANK],
            tail_tiles=tail_tiles,
            loop_strides=loops[:depth],
            owners=self.bases[symbol : symbol + owners] if is_owned else (),
        )


def decode(data: bytes) -> Program:
    """Read a program back; raises ProgramError for bytes that are none."""
    reader = _Reader(data)
    try:
        symbols = tuple(
            Symbol(SymbolKind(kind), fmt, nbytes, bool(is_written))
            for kind, fmt, is_written, nbytes in reader.symbols
        )
        return Program(symbols, reader.body(0, len(reader.nodes), 0), reader.constants)
    except ValueError as error:
        raise ProgramError(str(error)) from None
