"""Accumulators: a reduction of which a loop takes the reduced dimension in parts.

    total = neutral value             before the loop
    loop: part = sum(part of x)       the operation itself, with another result
          total = total + part        in float32, or int32 for integers
    result = total                    after it, rounded once

Maxima, minima and integers come out as without the loop, bit for bit. Sums of floats are added up
in another order, in float32.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import msgspec
import torch

from torch_spyre.ir.arguments import space_extents
from torch_spyre.ir.spec import Mask
from torch_spyre.ir.superdsc import neutral_bits

from .fitting import candidates, fit
from .graph import Buffer, Constant, Fit, Op, Operand, Read, Sizes, SpyreGraph, Tile, dense
from .parts import tiled

_COMBINED_BY = {
    "batchmatmul": "add",
    "batchmatmul_int8": "add",
    "sum": "add",
    "sum_squares": "add",
    "prod": "mul",
    "amax": "maximum",
    "amin": "minimum",
    "sum_int": "add_int",
    "prod_int": "mul_int",
    "amax_int": "maximum_int",
    "amin_int": "minimum_int",
}


def accumulated_dims(op: Op) -> Sizes:
    """The dimensions of an operation's fit that are reduced and may be taken in parts."""
    if op.fit is None or op.opcode not in _COMBINED_BY:
        return ()
    return tuple(i for i in op.fit.reduced if op.fit.extents[i] > 1)


@dataclass(frozen=True)
class _Placed:
    """An operation with how it walks sticks in the loops around it."""

    op: Op
    fit: Fit
    tiles: tuple[Tile, ...]

    def place(self, tiles: tuple[Tile, ...]) -> None:
        """Make the operation such, whatever it was planned to be before."""
        self.op.fit, self.op.tiles = self.fit, tiles
        self.op.slices = self.op.core_order = ()


@dataclass(frozen=True)
class Accumulation:
    """What takes the place of a reduction in a loop over parts of what it reduces."""

    part: _Placed  # the reduction itself; its last tile is that of the loop
    output: Read  # what it writes now
    masks: tuple[Mask, ...]
    fill: _Placed
    combine: _Placed
    finish: _Placed

    @property
    def made(self) -> tuple[Op, ...]:
        """The operations beside the reduction."""
        return self.fill.op, self.combine.op, self.finish.op

    def apply(self, number: int, graph: SpyreGraph) -> None:
        """Put it into the graph and into the loop of this number, as if it had never been there."""
        for buffer in (self.output.buffer, self.fill.op.output.buffer):
            graph.adopt(buffer)
            buffer.place = buffer.local = None
        *around, last = self.part.tiles
        self.part.op.output, self.part.op.masks = self.output, self.masks
        self.part.place((*around, last._replace(loop=number)))
        self.fill.place(self.fill.tiles)
        self.combine.place((*self.combine.tiles, Tile(number, last.parts, dim=0, share=0)))
        self.finish.place(self.finish.tiles)


def accumulation(op: Op, dim: int, count: int) -> Accumulation | None:
    """The reduction in `count` parts along a reduced dimension of its fit; None if it has none.

    Loops that are around it already will be around all of it.
    """
    kept = tuple(i for i in range(len(op.extents)) if i not in op.reduced)
    output = _partial_result(op, kept)
    if output is None:
        return None
    beside = _Beside(op, kept)
    total = replace(output.buffer)
    here = Read(total, 0, total.stride)
    added = here._replace(buffer=output.buffer)
    result = op.output._replace(strides=tuple(op.output.strides[i] for i in kept))
    whole = fit(replace(op, output=output))
    assert isinstance(whole, Fit)
    part, masks = beside.part(whole, Tile(-1, count, dim, share=0)), beside.masks(whole)
    fill = beside.step(total.copy_opcode, [_neutral(op)], here)
    combine = beside.step(_COMBINED_BY[op.opcode], [here, added], here)
    finish = beside.step(op.output.buffer.copy_opcode, [here], result)
    if part is None or masks is None or fill is None or combine is None or finish is None:
        return None
    # Loops that hints want within this one are around the combining too.
    combine.op.wishes = tuple(
        wish._replace(output_dim=kept.index(wish.output_dim))
        for wish in op.wishes
        if wish.output_dim in kept
    )
    return Accumulation(part, output, masks, fill, combine, finish)


def _partial_result(op: Op, kept: Sizes) -> Read | None:
    """A buffer for the results of one part, over the loops that are not reduced."""
    size = tuple(op.extents[i] for i in kept)
    dtype = torch.int32 if op.opcode.endswith("_int") else torch.float32
    buffer = Buffer("", size, dense(size), dtype, prod(size))
    if op.kind == "matmul" and buffer.format.nbytes > 2 * op.reads[0].buffer.format.nbytes:
        return None  # the array makes no results so wide of operands so narrow
    strides = [0] * len(op.extents)
    for loop, stride in zip(kept, buffer.stride, strict=True):
        strides[loop] = stride
    output = Read(buffer, 0, tuple(strides))
    for storage in candidates(buffer):
        buffer.storage = storage
        if isinstance(fit(replace(op, output=output)), Fit):
            return output
    return None


def _neutral(op: Op) -> Constant:
    """What an accumulator starts with."""
    bits = neutral_bits(op.opcode)
    assert bits is not None, op.opcode
    is_integer = op.opcode.endswith("_int")
    (value,) = struct.unpack("<i" if is_integer else "<f", struct.pack("<I", bits))
    return Constant(value, "I" if is_integer else "F")


class _Beside:
    """Makes operations over loops of a reduction, in the tiles that the reduction is in."""

    def __init__(self, op: Op, kept: Sizes) -> None:
        self.op = op
        self.kept = kept
        whole = fit(op)  # not in loops
        assert isinstance(whole, Fit), op.describe()
        self.whole = whole
        self._all = tuple(range(len(op.extents)))

    def part(self, whole: Fit, tile: Tile) -> _Placed | None:
        """The reduction itself, that would walk sticks so, in one more tile."""
        return self._in_tiles(self.op, whole, (*self.op.tiles, tile), self._all)

    def masks(self, whole: Fit) -> tuple[Mask, ...] | None:
        """Those of the reduction, if it walks sticks so."""
        masks = []
        for mask in self.op.masks:
            dim = self._same_dim(whole, mask.dim, self._all)
            if dim is None:
                return None
            masks.append(msgspec.structs.replace(mask, dim=dim))
        return tuple(masks)

    def step(self, opcode: str, inputs: Sequence[Operand], output: Read) -> _Placed | None:
        """A pointwise operation over the loops that are not reduced."""
        op = self.op
        extents = tuple(op.extents[i] for i in self.kept)
        step = Op(
            opcode,
            "pointwise",
            extents,
            list(inputs),
            output,
            origin=op.origin,
            node=op.node,
            kernel=op.kernel,
        )
        found = fit(step)
        return self._in_tiles(step, found, op.tiles, self.kept) if isinstance(found, Fit) else None

    def _in_tiles(self, op: Op, whole: Fit, tiles: Sequence[Tile], loops: Sizes) -> _Placed | None:
        own = []
        result = whole
        for tile in tiles:
            if self.whole.plan.variables[tile.dim] not in loops:
                own.append(tile._replace(dim=0, share=0))
                continue
            dim = self._same_dim(whole, tile.dim, loops)
            part = None if dim is None else tiled(result, dim, tile.parts)
            if dim is None or part is None:
                return None
            result = part
            own.append(tile._replace(dim=dim, share=part.extents[dim]))
        return _Placed(op, result, tuple(own))

    def _same_dim(self, other: Fit, dim: int, loops: Sizes) -> int | None:
        """The dimension of another operation's fit that is the same digit of the same loop.

        `loops` are the reduction's loops that the other operation is over.
        """
        mine, theirs = self.whole.plan.variables, other.plan.variables
        loop = mine[dim]
        here = [i for i, variable in enumerate(mine) if variable == loop]
        there = [i for i, v in enumerate(theirs) if v is not None and loops[v] == loop]
        if loop is None or len(here) != len(there):
            return None
        found = there[here.index(dim)]
        is_same = space_extents(self.whole.plan)[dim] == space_extents(other.plan)[found]
        return found if is_same else None
