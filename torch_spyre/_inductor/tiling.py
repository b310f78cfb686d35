"""Coarse tiles: a run of operations that share a dimension, in a counted loop over parts of it.

What such a run makes and uses inside the loop is as large as one part, so that it fits in the
scratchpads where the whole would not. Which dimensions of two operations are the same is told by
the tensors between them: a part of the one must be a part of the other, in every iteration.
A reduction may take part with what it reduces (see `accumulators`); its result is there after the
loop.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from .accumulators import Accumulation, accumulated_dims, accumulation
from .graph import Buffer, Fit, Op, Sizes, SpyreGraph, Tile
from .parts import tiled
from .sharing import Box, Division, boxes_of


@dataclass
class Loop:
    """Operations around a counted loop: those before it, in it and after it."""

    count: int
    before: list[Op] = field(default_factory=list)
    inside: dict[Op, int] = field(default_factory=dict)  # with the dimension that is tiled
    after: list[Op] = field(default_factory=list)
    totals: dict[Op, Accumulation] = field(default_factory=dict)  # of reductions inside

    def apply(self, number: int, graph: SpyreGraph) -> list[Op]:
        """Put the operations into the loop; returns all of them in their new order."""
        body: list[Op] = []
        for op, dim in self.inside.items():
            body.append(op)
            if op in self.totals:
                self.totals[op].apply(number, graph)
                body.append(self.totals[op].combine.op)
                continue
            assert op.fit is not None
            part = tiled(op.fit, dim, self.count)
            assert part is not None
            op.fit = part
            op.tiles = (*op.tiles, Tile(number, self.count, dim, part.extents[dim]))
        totals = self.totals.values()
        fills, finishes = [made.fill.op for made in totals], [made.finish.op for made in totals]
        return [*self.before, *fills, *body, *finishes, *self.after]

    @property
    def changed(self) -> list[Op]:
        """Operations that `apply` changes or makes."""
        return [*self.inside, *(op for made in self.totals.values() for op in made.made)]


def find_loop(
    ops: Sequence[Op],
    seed: Op,
    dim: int,
    count: int,
    only: Container[Op] | None = None,
    accumulates: bool = False,
) -> Loop | None:
    """The loop over `count` parts of a dimension of the seed, with all that can join it; of
    those in `only`, if given. A seed that is in a loop gets another within that.

    The seed may be a reduction and the dimension one that it reduces; others join so if the loop
    `accumulates`. None if the dimension has no such parts, or if some operation would have to be
    both before and after the loop.
    """
    return _Finder(ops, seed, count, only, accumulates).find(dim)


class _Part(NamedTuple):
    """What a loop's first iteration touches of a tensor, and how far the others move on."""

    box: Box
    step: int


class _Finder:
    def __init__(
        self,
        ops: Sequence[Op],
        seed: Op,
        count: int,
        only: Container[Op] | None,
        accumulates: bool,
    ) -> None:
        self.ops = ops
        self.seed = seed
        self.only = only
        self.accumulates = accumulates
        self.loop = Loop(count)
        self.made: dict[Buffer, _Part] = {}  # by the loop
        self.totals: set[Buffer] = set()  # that are there after the loop
        self.readers: dict[Buffer, list[Op]] = {}
        self.writers: dict[Buffer, list[Op]] = {}
        for op in ops:
            self.writers.setdefault(op.output.buffer, []).append(op)
            for buffer in dict.fromkeys(read.buffer for read in op.reads):
                self.readers.setdefault(buffer, []).append(op)

    def find(self, dim: int) -> Loop | None:
        if not self._join(self.seed, dim):
            return None
        is_behind = False
        behind: list[Op] = []
        for unit in _units(self.ops, len(self.seed.tiles)):
            if self.seed in unit:
                is_behind = True
            elif not is_behind:
                self.loop.before += unit
            elif unit[0].loops[: len(self.seed.tiles)] == self.seed.loops:
                self._place(unit)
            else:
                behind += unit
        self._pull_in()
        self.loop.after += behind
        loop = self.loop
        loop.inside = {op: loop.inside[op] for op in self.ops if op in loop.inside}
        return loop if self._keeps_order() else None

    def _join(self, op: Op, dim: int) -> bool:
        """Put an operation into the loop if its result can be made in parts, or added up."""
        if op.loops != self.seed.loops or (self.only is not None and op not in self.only):
            return False
        if op.output.buffer in self.made or op.output.buffer in self.totals:
            return False
        if dim in accumulated_dims(op):
            return self._join_accumulating(op, dim)
        if dim not in tile_dims(op):
            return False
        part = self._part(op, len(op.tensors) - 1, dim)
        if part is None or part.step <= 0:
            return False
        self.loop.inside[op] = dim
        self.made[op.output.buffer] = part
        return True

    def _join_accumulating(self, op: Op, dim: int) -> bool:
        made = accumulation(op, dim, self.loop.count)
        if made is None:
            return False
        self.loop.inside[op] = dim
        self.loop.totals[op] = made
        self.totals.add(op.output.buffer)
        return True

    def _part(self, op: Op, operand: int, dim: int) -> _Part | None:
        assert op.fit is not None
        part = tiled(op.fit, dim, self.loop.count)
        if part is None:
            return None
        step = part.walks[operand].strides[dim] * part.extents[dim]
        return _Part(whole_box(part, operand), step)

    def _place(self, unit: list[Op]) -> None:
        late = self.totals.union(other.output.buffer for other in self.loop.after)
        touched = {tensor.buffer for op in unit for tensor in op.tensors}
        if not touched.isdisjoint(late):
            self.loop.after += unit
        elif touched.isdisjoint(self.made):
            self.loop.before += unit
        elif len(unit) > 1 or not self._joins_somehow(unit[0]):
            self.loop.after += unit

    def _joins_somehow(self, op: Op) -> bool:
        dims = tile_dims(op)
        if self.accumulates:
            dims += accumulated_dims(op)
        return any(self._reads_parts(op, dim) and self._join(op, dim) for dim in dims)

    def _reads_parts(self, op: Op, dim: int) -> bool:
        """Does each part of an operation read just what the same part of the loop has made?"""
        for operand, read in enumerate(op.reads):
            made = self.made.get(read.buffer)
            if made is None:
                continue
            part = self._part(op, operand, dim)
            if part is None or part.step != made.step or not made.box.holds(part.box):
                return False
        return True

    def _pull_in(self) -> None:
        """Let what only the loop reads, in parts, be made in it too."""
        for op in reversed(list(self.loop.before)):
            buffer = op.output.buffer
            readers = self.readers.get(buffer, ())
            is_ours = all(reader in self.loop.inside for reader in readers)
            is_made_here = len(self.writers[buffer]) == 1 and buffer.is_temporary
            if not readers or not is_ours or not is_made_here:
                continue
            for dim in tile_dims(op):
                if not self._join(op, dim):
                    continue
                if all(self._reads_parts(reader, self.loop.inside[reader]) for reader in readers):
                    self.loop.before.remove(op)
                    break
                del self.loop.inside[op], self.made[buffer]

    def _keeps_order(self) -> bool:
        """Does every operation still find what it reads, and overwrite nothing too early?"""
        order = [*self.loop.before, *self.loop.inside, *self.loop.after]
        place = {op: i for i, op in enumerate(order)}
        written: dict[Buffer, list[int]] = {}  # new places of those that wrote, or read, so far
        read: dict[Buffer, list[int]] = {}
        for op in self.ops:
            here, target = place[op], op.output.buffer
            before = [written.get(tensor.buffer, ()) for tensor in op.tensors]
            if any(there > here for places in (*before, read.get(target, ())) for there in places):
                return False
            written.setdefault(target, []).append(here)
            for tensor in op.reads:
                read.setdefault(tensor.buffer, []).append(here)
        return True


def _units(ops: Sequence[Op], depth: int) -> list[list[Op]]:
    """Operations that stay together: those of a loop within `depth` others, and every other."""
    units: list[list[Op]] = []
    for op in ops:
        loops = op.loops[: depth + 1]
        if len(loops) > depth and units and units[-1][-1].loops[: depth + 1] == loops:
            units[-1].append(op)
        else:
            units.append([op])
    return units


def whole_box(fit: Fit, operand: int) -> Box:
    """What all cores together touch of a tensor operand."""
    division = Division((1,) * len(fit.extents))
    return boxes_of(fit, operand, division)[0]


def new_loops(ops: Sequence[Op]) -> Iterator[int]:
    """Numbers for loops that are none of those there."""
    return count(1 + max((loop for op in ops for loop in op.loops), default=-1))


def loop_spans(ops: Sequence[Op]) -> dict[Op, list[tuple[int, int]]]:
    """The first and last position of the loops around each operation, outermost first."""
    spans: dict[int, tuple[int, int]] = {}
    for i, op in enumerate(ops):
        for loop in op.loops:
            spans[loop] = (spans.get(loop, (i, i))[0], i)
    return {op: [spans[loop] for loop in op.loops] for op in ops}


def tile_dims(op: Op) -> Sizes:
    """The dimensions of an operation that a loop may take in parts."""
    if op.fit is None or op.kind in ("gather", "restickify"):
        return ()
    output = op.fit.walks[-1]
    return tuple(
        i
        for i, extent in enumerate(op.fit.extents)
        if extent > 1 and i not in op.fit.reduced and output.strides[i] > 0
    )
