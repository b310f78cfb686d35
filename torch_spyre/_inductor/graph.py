"""The loop-level IR that the passes work on: buffers, and operations over loops.

Inductor's lowered graph is translated into this once (`translate.py`); from there on everything is
integers, no sympy. An operation starts as a loop nest around an expression (`Nest`) and becomes one
or more card operations (`Op`), each with one result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from torch_spyre import ir
from torch_spyre.ir.align_gather import GatherAligned
from torch_spyre.ir.arguments import Plan
from torch_spyre.ir.spec import Allocation, Coordinate, Kind, Mask, Origin
from torch_spyre.ops.formats import CardFormat, card_format

if TYPE_CHECKING:
    from .sharing import LocalSlice

Sizes: TypeAlias = tuple[int, ...]

COPIES = ("identity", "identity_int")


class NeedsStaticSizesError(Exception):
    """The graph uses a symbolic size in a way that a bucket can't stand for."""


@dataclass(eq=False)
class Buffer:
    """A tensor of the graph: its host shape, and what the passes decide about it."""

    name: str
    size: Sizes
    stride: Sizes
    dtype: torch.dtype
    numel: int  # elements of the storage behind it
    is_input: bool = False
    is_output: bool = False  # somebody outside the graph's kernels reads it
    is_mutated: bool = False
    is_laid_out: bool = False  # the model asked for its layout
    is_dynamic: bool = False  # `size` is that of a bucket
    shape: tuple[Any, ...] = ()  # the size as Inductor has it, with symbols
    steps: tuple[Any, ...] = ()  # the stride likewise
    kernels: set[int] = field(default_factory=set)  # that touch it
    storage: ir.Storage | None = None  # the device layout
    place: Allocation | None = None
    local: LocalSlice | None = None  # in a scratchpad: what each core holds
    why_not_lx: str = ""  # the reason why it is not in one

    @property
    def format(self) -> CardFormat:
        return card_format(self.dtype)

    @property
    def copy_opcode(self) -> str:
        """The operation that copies its elements."""
        return "identity_int" if self.format.domain == "I" else "identity"

    @property
    def is_temporary(self) -> bool:
        return not (self.is_input or self.is_output)

    @property
    def nbytes(self) -> int:
        """On the card, with padding."""
        assert self.storage is not None, self.name
        return prod(self.storage.device_size) * self.format.nbytes

    def describe(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        where = f" device_size {list(self.storage.device_size)}" if self.storage else ""
        return f"{self.name}  {dtype}{list(self.size)} stride {list(self.stride)}{where}"


class Read(NamedTuple):
    """A tensor operand: host offset = offset + Σ strides[i] · loop i."""

    buffer: Buffer
    offset: int
    strides: Sizes

    def access(self) -> ir.Access:
        return ir.Access(self.buffer.storage, self.offset, self.strides)


class Constant(NamedTuple):
    """A scalar operand."""

    value: float | int | bool
    domain: str  # F or I


class Index(NamedTuple):
    """The position in the loops as an int32: offset + Σ strides[i] · loop i."""

    offset: int
    strides: Sizes


Operand: TypeAlias = Read | Constant | Index


class Tile(NamedTuple):
    """A counted loop around an operation, which takes one of its dimensions in equal parts."""

    loop: int  # operations of the same loop have the same number
    parts: int
    dim: int  # of the operation's fit
    share: int  # iterations of the dimension in each part; 0: it does the same in every part


class Wish(NamedTuple):
    """What a hint asks of an operation: that one of its dimensions is taken in so many tiles."""

    scope: int  # operations of the same scope have the same number
    dim_name: str
    tiles: int
    output_dim: int  # of the operation's `extents`; a reduced one if the name is summed over


class WishedLoop(NamedTuple):
    """A wish over a loop before loops are split, whose tiles are shares of `span` iterations."""

    wish: Wish
    span: int


@dataclass(frozen=True)
class Collection:
    """How the cores of a relayout find their slices of its source, in parts."""

    owners: tuple[Sizes, ...]  # per core: in whose scratchpad each part is
    parts: Sizes  # the dimensions of the operation's fit that count them
    inside: tuple[Coordinate, ...]  # where iterations find it in an owner's slice


@dataclass(eq=False)
class Op:
    """One card operation over loops; the reduced ones are named by position."""

    opcode: str
    kind: Kind
    extents: Sizes
    inputs: list[Operand]
    output: Read
    reduced: Sizes = ()
    rows: int = 0  # gather: of the table
    gathered: int = 0  # gather: host elements from one row of the table to the next
    masks: tuple[Mask, ...] = ()  # over loops
    origin: Origin = field(default_factory=Origin)
    node: str = ""  # the Inductor operation it belongs to
    wishes: tuple[Wish, ...] = ()  # of hints, the outermost scope's first
    # Filled in by the passes.
    fit: Fit | None = None  # how it walks whole sticks
    slices: Sizes = ()  # per dimension of `fit`
    core_order: Sizes = ()  # dimensions in the order in which cores count through their slices
    kernel: int = 0
    tiles: tuple[Tile, ...] = ()  # loops around it, outermost first; `fit` is that of one part
    collection: Collection | None = None  # of a relayout
    why: str = ""  # of a copy that a pass put in: the reason

    @property
    def reads(self) -> list[Read]:
        return [operand for operand in self.inputs if isinstance(operand, Read)]

    @property
    def tensors(self) -> list[Read]:
        return [*self.reads, self.output]

    @property
    def loops(self) -> Sizes:
        """The numbers of the loops around it, outermost first."""
        return tuple(tile.loop for tile in self.tiles)

    def loop_steps(self, operand: int) -> Sizes:
        """Elements of a tensor operand's storage by which each loop moves it on."""
        if not self.tiles:
            return ()
        assert self.fit is not None
        strides = self.fit.walks[operand].strides
        return tuple(strides[tile.dim] * tile.share if tile.share else 0 for tile in self.tiles)

    def loops_moving(self, operand: int) -> Sizes:
        """The numbers of the loops that take a tensor operand in parts."""
        steps = zip(self.loops, self.loop_steps(operand), strict=True)
        return tuple(loop for loop, step in steps if step)

    def describe(self) -> str:
        args = ", ".join(o.buffer.name if isinstance(o, Read) else str(o) for o in self.inputs)
        return f"{self.output.buffer.name} = {self.opcode}({args}) over {list(self.extents)}"


@dataclass(frozen=True)
class Fit:
    """An operation in whole sticks: its alignment, and where iterations find each tensor operand
    (inputs that are tensors in order, then the output)."""

    plan: Plan
    where: tuple[tuple[Coordinate, ...], ...]

    @property
    def extents(self) -> Sizes:
        """Iterations per dimension; `stick` and `lane` count sticks."""
        return self.plan.extents

    @property
    def stick(self) -> int | None:
        return self.plan.stick if isinstance(self.plan, ir.MatmulAligned) else self.plan.stick_dim

    @property
    def lane(self) -> int | None:
        """Of a matmul: the dimension of k's sticks."""
        return self.plan.lane if isinstance(self.plan, ir.MatmulAligned) else None

    @property
    def lanes(self) -> int:
        return self.plan.lanes

    @property
    def reduced(self) -> Sizes:
        return () if isinstance(self.plan, GatherAligned) else self.plan.reduced

    @property
    def walks(self) -> tuple[ir.Walk, ...]:
        return self.plan.operands


@dataclass(eq=False)
class SpyreGraph:
    """Operations in order, and all buffers by name."""

    ops: list[Op]
    buffers: dict[str, Buffer]
    name: str = "graph"
    extents: tuple[int, ...] = ()  # buckets of the dynamic lengths
    pool_bytes: dict[int, int] = field(default_factory=dict)  # per kernel
    _fresh: int = 0

    def temporary(self, size: Sizes, dtype: torch.dtype, stride: Sizes | None = None) -> Buffer:
        """A new buffer for a result inside the graph, dense unless strides are given."""
        buffer = Buffer("", size, stride or dense(size), dtype, prod(size))
        self.adopt(buffer)
        return buffer

    def adopt(self, buffer: Buffer) -> None:
        """Take a buffer into the graph, under a new name if it has none."""
        if not buffer.name:
            buffer.name = f"tmp{self._fresh}"
            self._fresh += 1
        self.buffers[buffer.name] = buffer

    def drop_unused_buffers(self) -> None:
        """Forget temporaries that no operation touches any more."""
        used = {tensor.buffer.name for op in self.ops for tensor in op.tensors}
        self.buffers = {
            name: buffer
            for name, buffer in self.buffers.items()
            if name in used or not buffer.is_temporary
        }

    def writers(self, buffer: Buffer) -> Iterator[Op]:
        return (op for op in self.ops if op.output.buffer is buffer)

    def readers(self, buffer: Buffer) -> Iterator[Op]:
        return (op for op in self.ops if any(read.buffer is buffer for read in op.reads))


def dense(size: Sequence[int]) -> Sizes:
    """Row-major strides."""
    strides = []
    step = 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))
