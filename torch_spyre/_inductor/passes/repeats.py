"""Equal kernels are planned once: the plan of the first is carried over to the others.

A model of 40 equal layers has 40 equal kernels, and planning is most of the work of compiling one.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..graph import Buffer, Op, Read, SpyreGraph, Tile

Operations = Sequence[Op]


def identity(ops: Operations) -> Hashable:
    """All that a plan of a kernel depends on, with buffers and loops by order of appearance."""
    return _Identity().of(ops)


class _Identity:
    def __init__(self) -> None:
        self._buffers: dict[Buffer, int] = {}
        self._loops: dict[int, int] = {}

    def of(self, ops: Operations) -> Hashable:
        described = tuple(self._op(op) for op in ops)
        return described, tuple(_facts(buffer, ops[0].kernel) for buffer in self._buffers)

    def _op(self, op: Op) -> Hashable:
        return (
            op.opcode,
            op.kind,
            op.extents,
            tuple(self._operand(value) for value in op.inputs),
            self._operand(op.output),
            op.reduced,
            op.rows,
            op.gathered,
            op.masks,
            op.wishes,
            op.fit,
            op.slices,
            op.core_order,
            tuple(t._replace(loop=_number(self._loops, t.loop)) for t in op.tiles),
            op.collection,
        )

    def _operand(self, value: Any) -> Hashable:
        if isinstance(value, Read):
            return _number(self._buffers, value.buffer), value.offset, value.strides
        return type(value), value  # the constants 0, 0.0 and False are not the same


def _number(known: dict[Any, int], key: Any) -> int:
    return known.setdefault(key, len(known))


def _facts(buffer: Buffer, kernel: int) -> Hashable:
    return (
        buffer.size,
        buffer.stride,
        buffer.dtype,
        buffer.numel,
        buffer.is_input,
        buffer.is_output,
        buffer.is_mutated,
        buffer.is_dynamic,
        buffer.storage,
        buffer.kernels <= {kernel},
    )


@dataclass
class Planned:
    """A kernel before and after it was planned."""

    start: Operations
    buffers: list[Buffer]  # in order of appearance, before
    ops: Operations

    @classmethod
    def before(cls, ops: Operations) -> Planned:
        return cls(list(ops), list(_buffers(ops)), ())

    def carry_over(self, ops: Operations, graph: SpyreGraph, loops: Iterator[int]) -> list[Op]:
        """Plan an equal kernel likewise; returns its operations."""
        return _Copy(self, ops, graph, loops).make()


@dataclass
class _Copy:
    """From the names of one kernel to those of another."""

    planned: Planned
    target: Operations
    graph: SpyreGraph
    loops: Iterator[int]
    _buffers: dict[Buffer, Buffer] = field(default_factory=dict)
    _loops: dict[int, int] = field(default_factory=dict)

    def make(self) -> list[Op]:
        theirs, ours = self.planned.start, self.target
        twins = dict(zip(theirs, ours, strict=True))
        self._buffers |= zip(self.planned.buffers, _buffers(ours), strict=True)
        nodes = {op.node: twins[op].node for op in theirs}
        origins = {op.origin: twins[op].origin for op in theirs}
        made = []
        for op in self.planned.ops:
            twin = twins.get(op)
            if twin is None:  # of the planner's making
                twin = replace(op, kernel=ours[0].kernel)
                twin.node, twin.origin = nodes[op.node], origins[op.origin]
            twin.inputs = [self._operand(v) if isinstance(v, Read) else v for v in op.inputs]
            twin.output = self._operand(op.output)
            twin.masks, twin.fit = op.masks, op.fit
            twin.slices, twin.core_order = op.slices, op.core_order
            twin.tiles = tuple(self._tile(tile) for tile in op.tiles)
            made.append(twin)
        self._place({op.output.buffer for op in self.planned.ops})
        return made

    def _operand(self, read: Read) -> Read:
        return read._replace(buffer=self._buffer(read.buffer))

    def _buffer(self, buffer: Buffer) -> Buffer:
        if buffer not in self._buffers:
            twin = replace(buffer, name="", kernels=set())
            self.graph.adopt(twin)
            self._buffers[buffer] = twin
        return self._buffers[buffer]

    def _tile(self, tile: Tile) -> Tile:
        if tile.loop not in self._loops:
            self._loops[tile.loop] = next(self.loops)
        return tile._replace(loop=self._loops[tile.loop])

    def _place(self, written: Iterable[Buffer]) -> None:
        names = {buffer.name: twin.name for buffer, twin in self._buffers.items()}
        for buffer in written:
            twin = self._buffers[buffer]
            twin.place, twin.local = buffer.place, buffer.local
            twin.why_not_lx = re.sub(r"\w+", lambda m: names.get(m[0], m[0]), buffer.why_not_lx)


def _buffers(ops: Operations) -> dict[Buffer, None]:
    return dict.fromkeys(tensor.buffer for op in ops for tensor in op.tensors)
