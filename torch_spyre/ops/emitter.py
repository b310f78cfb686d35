"""Writes the steps of one operation's card program.

The emitter is told what to compute on which views and finds out how: it aligns the operands to
common sticks, copies those that don't align (restickify), divides the work among the cores, places
temporaries, and puts a barrier where a step depends on what other cores did before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import torch

from torch_spyre import ir
from torch_spyre.backend import opcodes
from torch_spyre.backend.program import (
    NO_STICK_DIM,
    STEP_RANK,
    STICK_BYTES,
    Lanes,
    Operand,
    Program,
    Space,
    Step,
    StepFlags,
    StepKind,
    Symbol,
    SymbolKind,
    encode,
)
from torch_spyre.ops.cores import Slices, divide
from torch_spyre.ops.formats import INT32, CardFormat
from torch_spyre.ops.plan import Bind, Sizes
from torch_spyre.ops.views import (
    Index,
    Input,
    Value,
    View,
    Word,
    broadcast_size,
    contiguous_strides,
    layout,
    order_with_stick,
)

_COPIES = ("identity", "identity_int")
_LANES = {"vector": Lanes.VECTOR, "first": Lanes.FIRST}


@dataclass
class _SymbolDraft:
    kind: SymbolKind
    format: int
    nbytes: int = 0
    is_written: bool = False


@dataclass(frozen=True)
class _Walk:
    """How a step goes through one view, in device elements (host elements for an index)."""

    offset: int
    strides: Sizes
    lanes: Lanes
    tiles: int = 1
    tile_stride: int = 0
    tail_tiles: int = 0


@dataclass
class Emitter:
    """The program under construction. `shared` are arguments that share storage with the result."""

    shared: frozenset[Bind] = frozenset()
    temp_bytes: int = 0
    _steps: list[Step] = field(default_factory=list)
    _symbols: dict[Bind, int] = field(default_factory=dict)
    _drafts: list[_SymbolDraft] = field(default_factory=list)
    _constants: dict[int, int] = field(default_factory=dict)
    # What was touched since the last barrier.
    _read: set[Bind] = field(default_factory=set)
    _written: set[Bind] = field(default_factory=set)

    # ---- What callers ask for ------------------------------------------------------------------

    def temp(self, size: Sizes, dtype: torch.dtype, order: Sizes | None = None) -> View:
        """A dense temporary; `order` as for a layout, a trailing -1 makes it sparse."""
        order = order if order is not None else tuple(range(len(size)))
        stride = contiguous_strides(size, [dim for dim in order if dim >= 0])
        device_size, stride_map = layout(size, stride, dtype, order)
        source = Bind("temp", self.temp_bytes)
        view = View(source, ir.Storage(device_size, stride_map, prod(size)), size, stride, 0, dtype)
        nbytes = prod(device_size) * view.format.nbytes
        self.temp_bytes += -(-nbytes // STICK_BYTES) * STICK_BYTES
        return view

    def apply(self, opcode: str, inputs: Sequence[Value], into: View | None = None) -> View:
        """Compute a card operation; without `into` the result is a temporary in 32 bits."""
        if into is None:
            size = broadcast_size(inputs)
            is_int = opcodes.by_name()[opcode].result == "I"
            like = next((v for v in inputs if isinstance(v, View) and v.size == size), None)
            order = order_with_stick(len(size), like.stick_dim if like else None)
            into = self.temp(size, torch.int32 if is_int else torch.float32, order)
        self._pointwise(opcode, list(inputs), into)
        return into

    def index_apply(self, opcode: str, inputs: Sequence[Word | Index], into: View) -> None:
        """Compute on the indices of the elements of `into`, which must be a whole storage."""
        storage = into.storage
        index = _Walk(
            0,
            tuple(max(step, 0) for step in storage.stride_map[:-1]),
            Lanes.VECTOR,
            tile_stride=max(storage.stride_map[-1], 0),
        )
        walk = _Walk(0, storage.device_strides[:-1], Lanes.VECTOR)
        walks = [index if isinstance(value, Index) else None for value in inputs]
        self._step(
            opcode, StepKind.POINTWISE, storage.device_size[:-1], None, inputs, walks, into, walk
        )

    def copy(self, source: View, into: View) -> None:
        """Move elements one by one: any view to any view, between formats of one domain."""
        opcode = "identity_int" if into.format.domain == "I" else "identity"
        accesses = [into.access(), source.broadcast(into.size).access()]
        nests = ir.pieces(into.size, accesses)
        # The pieces write different elements, but of the same sticks: in order, by barriers.
        for nest in ir.in_sticks(nests, STICK_BYTES // into.format.nbytes, STEP_RANK):
            into_walk, source_walk = (
                _Walk(offset, strides, Lanes.ELEMENT)
                for offset, strides in zip(nest.offsets, nest.strides, strict=True)
            )
            self._step(
                opcode,
                StepKind.RESTICKIFY,
                nest.extents,
                None,
                [source],
                [source_walk],
                into,
                into_walk,
            )

    def finish(self) -> tuple[bytes, tuple[Bind, ...]]:
        """The program and what its symbols are bound to."""
        symbols = tuple(Symbol(d.kind, d.format, d.nbytes, d.is_written) for d in self._drafts)
        program = Program(symbols, tuple(self._steps), tuple(self._constants))
        return encode(program), tuple(self._symbols)

    # ---- Alignment -----------------------------------------------------------------------------

    def _pointwise(self, opcode: str, inputs: list[Value], into: View) -> None:
        """One step if all operands walk the same sticks; else copies until they do."""
        attempts = [0] * len(inputs)
        while True:
            positions = [i for i, value in enumerate(inputs) if isinstance(value, View)]
            views = [value.broadcast(into.size) for value in inputs if isinstance(value, View)]
            accesses = [view.access() for view in views]
            aligned = ir.align(into.size, [*accesses, into.access()], outputs=(len(views),))
            if isinstance(aligned, ir.Aligned):
                break
            if opcode in _COPIES and views:
                self.copy(views[0], into)
                return
            if aligned.access == len(views):
                staged = self.temp(into.size, into.dtype)
                self._pointwise(opcode, inputs, staged)
                self.copy(staged, into)
                return
            position = positions[aligned.access]
            if attempts[position] == 2:
                raise AssertionError(f"{opcode}: a dense copy does not align: {aligned.reason}")
            inputs[position] = self._realigned(
                views[aligned.access], into, is_last_resort=attempts[position] == 1
            )
            attempts[position] += 1
        walks: list[_Walk | None] = [None] * len(inputs)
        for position, walk in zip(positions, aligned.operands, strict=False):
            walks[position] = _from_aligned(walk)
        self._step(
            opcode,
            StepKind.POINTWISE,
            aligned.extents,
            aligned.stick_dim,
            inputs,
            walks,
            into,
            _from_aligned(aligned.operands[-1]),
        )

    def _realigned(self, view: View, into: View, is_last_resort: bool) -> View:
        """A copy whose sticks lie as those of `into`, or in the default order as a last resort.

        A repeated operand is copied once, not once per repetition; where it repeats along the
        sticks, each of its elements gets a stick of its own.
        """
        order = tuple(range(len(into.size)))
        if not is_last_resort and order:
            stick_dim = into.stick_dim
            if stick_dim is None:
                stick_dim = order[-1]
            order = order_with_stick(len(order), stick_dim)
            if view.stride[stick_dim] == 0 and into.size[stick_dim] > 1:
                order = (*order, -1)
            view = view.without_repeats()
        copied = self.temp(view.size, view.dtype, order)
        self.copy(view, copied)
        return copied

    # ---- Steps ---------------------------------------------------------------------------------

    def _step(
        self,
        opcode: str,
        kind: StepKind,
        extents: Sizes,
        stick_dim: int | None,
        inputs: Sequence[Input],
        walks: Sequence[_Walk | None],
        into: View,
        into_walk: _Walk,
        may_join: bool = False,
    ) -> None:
        extents = extents or (1,)
        pairs = [(v, w) for v, w in zip(inputs, walks, strict=True) if isinstance(v, View) and w]
        views = [*pairs, (into, into_walk)]
        if kind is StepKind.RESTICKIFY:
            splittable = _splittable(extents, views)
            sticks = prod(extents) * into.format.nbytes // STICK_BYTES
        else:
            splittable = None
            sticks = prod(extents) * max(w.tiles for _, w in views)
        spans = tuple(_span(view, walk) for view, walk in views)
        for slices in divide(extents, spans, sticks, splittable):
            has_tail = any(w.tail_tiles for _, w in views)
            operands = [
                self._operand(value, walk, slices, stick_dim)
                for value, walk in zip(inputs, walks, strict=True)
            ]
            output = self._operand(into, into_walk, slices, stick_dim)
            flags = self._order([v for v, _ in pairs], into, may_join)
            self._drafts[output.symbol].is_written = True
            self._steps.append(
                Step(
                    opcode=opcode,
                    kind=kind,
                    cores=(1 << len(slices.starts)) - 1,
                    extents=slices.extent_rows,
                    inputs=tuple(operands),
                    outputs=(output,),
                    stick_dim=NO_STICK_DIM if stick_dim is None else stick_dim,
                    tail_cores=slices.reaching(stick_dim, extents) if has_tail else 0,
                    flags=flags,
                )
            )
            may_join = True  # parts of one step

    def _operand(
        self, value: Input, walk: _Walk | None, slices: Slices, stick_dim: int | None
    ) -> Operand:
        if isinstance(value, Word):
            return self._word(value)
        assert walk is not None
        strides = walk.strides or (0,)
        if isinstance(value, Index):
            bases = slices.bases(walk.offset, strides)
            return Operand(
                Space.IOTA,
                INT32.value,
                0,
                bases=bases,
                strides=strides,
                tile_stride=walk.tile_stride,
            )
        nbytes = value.format.nbytes
        byte_strides = tuple(step * nbytes for step in strides)
        bases = slices.bases(walk.offset * nbytes, byte_strides)
        symbol = self._symbol(value.source, SymbolKind.ADDRESS, value.format)
        tile_stride = walk.tile_stride * nbytes
        reach = walk.offset * nbytes + slices.reach(byte_strides)
        reach += (walk.tiles - 1) * tile_stride + STICK_BYTES
        if walk.tail_tiles and stick_dim is not None:
            reach -= (walk.tiles - walk.tail_tiles) * tile_stride
        draft = self._drafts[symbol]
        draft.nbytes = max(draft.nbytes, reach // STICK_BYTES * STICK_BYTES)
        return Operand(
            Space.DEVICE,
            value.format.value,
            symbol,
            lanes=walk.lanes,
            bases=bases,
            strides=byte_strides,
            tile_stride=tile_stride,
            tail_tiles=walk.tail_tiles,
        )

    def _word(self, word: Word) -> Operand:
        if word.source is not None:
            symbol = self._symbol(word.source, SymbolKind.SCALAR, word.format)
            return Operand(Space.SCALAR, word.format.value, symbol, lanes=Lanes.FIRST)
        index = self._constants.setdefault(word.bits, len(self._constants))
        return Operand(Space.CONSTANT, word.format.value, index, lanes=Lanes.FIRST)

    def _symbol(self, source: Bind, kind: SymbolKind, format_: CardFormat) -> int:
        index = self._symbols.get(source)
        if index is None:
            index = self._symbols[source] = len(self._drafts)
            nbytes = 0 if kind is SymbolKind.ADDRESS else format_.nbytes
            self._drafts.append(_SymbolDraft(kind, format_.value, nbytes))
        return index

    def _order(self, inputs: Sequence[View], into: View, may_join: bool) -> StepFlags:
        """A barrier before a step that reads what earlier ones wrote, or writes what they read."""
        reads = {self._memory(view.source) for view in inputs}
        write = self._memory(into.source)
        depends = reads & self._written or write in self._read or write in self._written
        if depends and not may_join:
            self._read.clear()
            self._written.clear()
        self._read |= reads
        self._written.add(write)
        return StepFlags.BARRIER_BEFORE if depends and not may_join else StepFlags.NONE

    def _memory(self, source: Bind) -> Bind:
        """What stands for the memory behind a source: one for all that share a storage."""
        return Bind("arg", -1) if source in self.shared else source


def _from_aligned(walk: ir.Walk) -> _Walk:
    return _Walk(
        walk.offset,
        walk.strides,
        _LANES[walk.lanes],
        walk.tiles,
        walk.tile_stride,
        walk.tail_tiles,
    )


def _splittable(extents: Sizes, views: Sequence[tuple[View, _Walk]]) -> tuple[bool, ...]:
    """The dimensions along which cores may divide an element-wise copy.

    Two cores must not write the same stick. They may read the same one, but then it is read
    twice, so dimensions that go from stick to stick on both sides come first.
    """

    def by_sticks(view: View, walk: _Walk) -> tuple[bool, ...]:
        steps = walk.strides or (0,)
        return tuple(step * view.format.nbytes % STICK_BYTES == 0 for step in steps)

    *reads, write = (by_sticks(view, walk) for view, walk in views)
    both = tuple(all(dim) for dim in zip(write, *reads, strict=True))
    return both if any(n > 1 for n, is_ok in zip(extents, both, strict=True) if is_ok) else write


def _span(view: View, walk: _Walk) -> ir.Span:
    """How far a step reaches into a view: per dimension, and within one iteration."""
    nbytes = view.format.nbytes
    strides = tuple(step * nbytes for step in walk.strides or (0,))
    return ir.Span(strides, (walk.tiles - 1) * walk.tile_stride * nbytes + STICK_BYTES)
