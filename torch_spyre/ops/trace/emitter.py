"""Writes operations into the compiler's graph: what `ops.emitter` is for card programs."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import torch

from torch_spyre import ir
from torch_spyre._inductor.graph import Buffer, Constant, Op, Operand, Read, SpyreGraph
from torch_spyre.backend import opcodes
from torch_spyre.ir.spec import Kind
from torch_spyre.ops.plan import Bind, Sizes
from torch_spyre.ops.views import Input, Value, View, Word, broadcast_size

# Layouts are decided by the passes: until then nobody knows along which dimension sticks run.
_UNDECIDED = ir.Storage((1,), (-1,), 1)


class GraphEmitter:
    """Appends to a graph. Views name their buffers by number."""

    def __init__(self, graph: SpyreGraph) -> None:
        self.graph = graph
        self.segment = 0  # grows where steps that are not the graph's lie between
        self._buffers: list[Buffer] = []

    # ---- Buffers -------------------------------------------------------------------------------

    def add(self, buffer: Buffer) -> Bind:
        """Make a buffer known; returns what stands for it in views."""
        self.graph.buffers[buffer.name] = buffer
        self._buffers.append(buffer)
        return Bind("buffer", len(self._buffers) - 1)

    def buffer(self, source: Bind) -> Buffer:
        return self._buffers[source.index]

    def temp(self, size: Sizes, dtype: torch.dtype, order: Sizes | None = None) -> View:
        """A dense temporary; its layout is up to the passes, whatever `order` says."""
        del order
        buffer = self.graph.temporary(size, dtype)
        return View(self.add(buffer), _UNDECIDED, size, buffer.stride, 0, dtype)

    def view(self, source: Bind, tensor: torch.Tensor) -> View:
        """A meta tensor whose storage the buffer stands for."""
        return View(
            source,
            _UNDECIDED,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
            tensor.dtype,
        )

    # ---- Operations ----------------------------------------------------------------------------

    def apply(self, opcode: str, inputs: Sequence[Value], into: View | None = None) -> View:
        """Compute a card operation; without `into` the result is a temporary in 32 bits."""
        if into is None:
            is_int = opcodes.by_name()[opcode].result == "I"
            into = self.temp(broadcast_size(inputs), torch.int32 if is_int else torch.float32)
        self.emit(opcode, "pointwise", into.size, inputs, into)
        return into

    def emit(
        self,
        opcode: str,
        kind: Kind,
        extents: Sizes,
        inputs: Sequence[Input],
        output: View,
        reduced: Sizes = (),
        **more: Any,
    ) -> None:
        """One operation over loops; views have a stride for each, or are broadcast to them.

        Loops of one iteration are left out, as the compiler does.
        """
        if 0 in extents:
            return
        kept = [i for i, n in enumerate(extents) if n != 1]

        def read(view: View) -> Read:
            whole = view.broadcast(extents) if len(view.stride) != len(extents) else view
            strides = [
                step if n != 1 else 0 for n, step in zip(whole.size, whole.stride, strict=True)
            ]
            return Read(self.buffer(view.source), view.offset, tuple(strides[i] for i in kept))

        operands: list[Operand] = [
            read(value) if isinstance(value, View) else _constant(value) for value in inputs
        ]
        self.graph.ops.append(
            Op(
                opcode,
                kind,
                tuple(extents[i] for i in kept),
                operands,
                read(output),
                reduced=tuple(kept.index(i) for i in reduced if i in kept),
                node=str(self.segment),
                kernel=self.segment,
                **more,
            )
        )

    def squared(self, view: View) -> View | None:
        """x, if the view is all of x * x and that was computed for it."""
        buffer = self.buffer(view.source)
        writers = [op for op in self.graph.ops if op.output.buffer is buffer]
        if len(writers) != 1 or writers[0].opcode != "mul" or writers[0].kernel != self.segment:
            return None
        (op,) = writers
        first, second = op.inputs
        kept = [i for i, n in enumerate(view.size) if n != 1]
        is_all = (
            first == second
            and isinstance(first, Read)
            and op.extents == tuple(view.size[i] for i in kept)
            and op.output.strides == tuple(view.stride[i] for i in kept)
            and op.output.offset == view.offset
        )
        if not is_all or not isinstance(first, Read):
            return None
        stride = [0] * len(view.size)
        for i, step in zip(kept, first.strides, strict=True):
            stride[i] = step
        source = Bind("buffer", self._buffers.index(first.buffer))
        return View(source, _UNDECIDED, view.size, tuple(stride), first.offset, first.buffer.dtype)


def _constant(word: Input) -> Constant:
    assert isinstance(word, Word)
    assert word.source is None, "numbers are part of a traced plan"
    return Constant(word_number(word), "I" if word.format.domain == "I" else "F")


def word_number(word: Word) -> float | int:
    """The number behind a constant's bits."""
    bits = word.bits & 0xFFFFFFFF
    if word.format.domain == "I":
        return bits - (1 << 32) if bits >> 31 else bits
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])
