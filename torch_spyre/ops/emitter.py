"""Writes the steps of one operation's card program.

The emitter is told what to compute on which views and finds out how: it aligns the operands to
common sticks, copies those that don't align (restickify), divides the work among the cores, places
temporaries, and puts a barrier where a step depends on what other cores did before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import torch

from torch_spyre import ir
from torch_spyre.backend import opcodes
from torch_spyre.backend.program import (
    NO_STICK_DIM,
    STEP_RANK,
    STICK_BYTES,
    TABLE_ROWS,
    Lanes,
    Mask,
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
from torch_spyre.ops.nests import element_access, in_groups, ordered_nest, row_nest
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
from torch_spyre.ops.walks import Walk, element_walks, from_aligned, sharing, span_of, table_walk

_COPIES = ("identity", "identity_int")


@dataclass
class _SymbolDraft:
    kind: SymbolKind
    format: int
    nbytes: int = 0
    is_written: bool = False


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
        index = Walk(
            0,
            tuple(max(step, 0) for step in storage.stride_map[:-1]),
            Lanes.VECTOR,
            tile_stride=max(storage.stride_map[-1], 0),
        )
        walk = Walk(0, storage.device_strides[:-1], Lanes.VECTOR)
        walks = [index if isinstance(value, Index) else None for value in inputs]
        self._step(
            opcode, StepKind.POINTWISE, storage.device_size[:-1], None, inputs, walks, into, walk
        )

    def copy(self, source: View, into: View) -> None:
        """Move elements one by one: any view to any view, between formats of one domain."""
        opcode = "identity_int" if into.format.domain == "I" else "identity"
        for nest in self._pieces(into, source):
            into_walk, source_walk = element_walks(nest)
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

    def gather_elements(self, table: View, index: View, into: View) -> None:
        """into[i] = table[index[i]]; the table is a 1-D dense view, the index broadcasts to `into`.

        An index outside the table is a fault of the launch.
        """
        opcode = "gather_int" if into.format.domain == "I" else "gather"
        rows, masks = table_walk(table)
        for nest in self._pieces(into, index):
            into_walk, index_walk = element_walks(nest)
            walks = [replace(rows, strides=(0,) * len(nest.extents)), index_walk]
            self._step(
                opcode,
                StepKind.GATHER,
                nest.extents,
                None,
                [table, index],
                walks,
                into,
                into_walk,
                masks=masks,
            )

    def scatter_elements(self, opcode: str, source: View, index: View, table: View) -> None:
        """table[index[i]] = source[i], or combined with it, for i in row-major order.

        `opcode` is one of the card's scatter operations, of the table's domain; the table is a 1-D
        dense view, source and index broadcast to one size. An index outside is a fault.
        """
        size = broadcast_size([source, index])
        if prod(size) == 0:
            return
        views = [source.broadcast(size), index.broadcast(size)]
        nest = ordered_nest(size, views)
        if nest is None:
            # Those that can't be walked in one nest by themselves, then all of them.
            views = [v if ordered_nest(size, [v]) else self._linear_copy(v) for v in views]
            nest = ordered_nest(size, views)
        if nest is None:
            views = [self._linear_copy(view) for view in views]
            nest = ordered_nest(size, views)
        assert nest is not None
        rows, masks = table_walk(table)
        self._step(
            opcode,
            StepKind.SCATTER,
            nest.extents,
            None,
            views,
            element_walks(nest),
            table,
            replace(rows, strides=(0,) * len(nest.extents)),
            masks=masks,
        )

    def scatter_rows(self, plan: ir.GatherAligned, source: View, index: View, table: View) -> None:
        """Sticks of the source to the rows of the table that an index names.

        The plan is that of the gather which would read them back.
        """
        rows, places, sticks = (from_aligned(walk) for walk in plan.operands)
        self._step(
            "scatter_int" if table.format.domain == "I" else "scatter",
            StepKind.SCATTER,
            plan.extents,
            plan.stick_dim,
            [source, index],
            [sticks, places],
            table,
            replace(rows, tiles=plan.rows, tile_stride=plan.row_stride),
            masks=(Mask(dim=TABLE_ROWS, valid=plan.rows),),
        )

    def argsort(self, source: View, into: View, dim: int, descending: bool = False) -> None:
        """The positions of the elements along a dimension in their stable order, as int32."""
        opcode = "argsort_int" if source.format.domain == "I" else "argsort"
        opcode += "_descending" if descending else ""
        self._along_rows(opcode, StepKind.ARGSORT, source, into, dim)

    def scan(self, opcode: str, source: View, into: View, dim: int) -> None:
        """Running results along a dimension, by one of the card's scan operations."""
        if not self._scan_sticks(opcode, source, into, dim):
            self._along_rows(opcode, StepKind.SCAN, source, into, dim)

    def finish(self) -> tuple[bytes, tuple[Bind, ...]]:
        """The program and what its symbols are bound to."""
        symbols = tuple(Symbol(d.kind, d.format, d.nbytes, d.is_written) for d in self._drafts)
        program = Program(symbols, tuple(self._steps), tuple(self._constants))
        return encode(program), tuple(self._symbols)

    # ---- Element by element --------------------------------------------------------------------

    def _pieces(self, into: View, source: View) -> Iterator[ir.Nest]:
        """Nests that write each element of `into` once, so that cores can share them.

        The pieces write different elements, but of the same sticks: in order, by barriers.
        """
        accesses = [element_access(into), element_access(source.broadcast(into.size))]
        lanes = STICK_BYTES // into.format.nbytes
        for nest in ir.in_sticks(ir.pieces(into.size, accesses), lanes, STEP_RANK):
            yield from in_groups(nest, lanes)

    def _linear_temp(self, size: Sizes, dtype: torch.dtype, last: int | None = None) -> View:
        """A dense temporary without tiles; dimension `last` varies fastest, or the last one."""
        flat = self.temp((prod(size),), dtype)
        stride = contiguous_strides(size, order_with_stick(len(size), last))
        return replace(flat, size=size, stride=stride)

    def _linear_copy(self, view: View, last: int | None = None) -> View:
        copied = self._linear_temp(view.size, view.dtype, last)
        self.copy(view, copied)
        return copied

    def _along_rows(self, opcode: str, kind: StepKind, source: View, into: View, dim: int) -> None:
        """A step that takes whole rows along `dim`, through linear temporaries where it must."""
        if prod(into.size) == 0:
            return
        if not into.size:
            source, into, dim = source.broadcast((1,)), into.broadcast((1,)), 0
        nest, target = row_nest(dim, into, source), into
        if nest is None:
            if row_nest(dim, source) is None:
                source = self._linear_copy(source, dim)
            if row_nest(dim, into) is None:
                target = self._linear_temp(into.size, into.dtype, dim)
            nest = row_nest(dim, target, source)
        if nest is None:
            source = self._linear_copy(source, dim)
            target = self._linear_temp(into.size, into.dtype, dim)
            nest = row_nest(dim, target, source)
        assert nest is not None
        lanes = STICK_BYTES // target.format.nbytes
        may_join = False
        for part in in_groups(nest, lanes, has_rows=True):
            into_walk, source_walk = element_walks(part)
            self._step(
                opcode,
                kind,
                part.extents,
                None,
                [source],
                [source_walk],
                target,
                into_walk,
                may_join,
                row_dim=len(part.extents) - 1,
            )
            may_join = True  # the groups of one nest share no stick
        if target is not into:
            self.copy(target, into)

    def _scan_sticks(self, opcode: str, source: View, into: View, dim: int) -> bool:
        """A scan whose lanes stand for themselves, if the operands' sticks allow it.

        A sparse column that moves along `dim` alone keeps that loop apart from the others.
        """
        size = into.size
        if len(size) < 2 or size[dim] < 2 or 0 in size:
            return False
        device_size, stride_map = layout((size[dim],), (1,), into.dtype, (0, -1))
        column = ir.Access(
            ir.Storage(device_size, stride_map, size[dim]),
            0,
            tuple(int(i == dim) for i in range(len(size))),
        )
        aligned = ir.align(size, [source.access(), column, into.access()], outputs=(2,))
        if not isinstance(aligned, ir.Aligned):
            return False
        source_walk, column_walk, into_walk = aligned.operands
        along = [i for i, step in enumerate(column_walk.strides) if step]
        if len(along) != 1 or source_walk.lanes != "vector" or along[0] == aligned.stick_dim:
            return False
        self._step(
            opcode,
            StepKind.SCAN,
            aligned.extents,
            aligned.stick_dim,
            [source],
            [from_aligned(source_walk)],
            into,
            from_aligned(into_walk),
            row_dim=along[0],
        )
        return True

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
        walks: list[Walk | None] = [None] * len(inputs)
        for position, walk in zip(positions, aligned.operands, strict=False):
            walks[position] = from_aligned(walk)
        self._step(
            opcode,
            StepKind.POINTWISE,
            aligned.extents,
            aligned.stick_dim,
            inputs,
            walks,
            into,
            from_aligned(aligned.operands[-1]),
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
        walks: Sequence[Walk | None],
        into: View,
        into_walk: Walk,
        may_join: bool = False,
        *,
        masks: tuple[Mask, ...] = (),
        row_dim: int | None = None,
    ) -> None:
        """`row_dim` is the dimension along which an argsort or scan goes."""
        extents = extents or (1,)
        pairs = [(v, w) for v, w in zip(inputs, walks, strict=True) if isinstance(v, View) and w]
        views = [*pairs, (into, into_walk)]
        splittable, sticks = sharing(kind, extents, views, row_dim)
        spans = tuple(span_of(view, walk) for view, walk in views)
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
                    reduced=0 if row_dim is None else 1 << row_dim,
                    masks=masks,
                )
            )
            may_join = True  # parts of one step

    def _operand(
        self, value: Input, walk: Walk | None, slices: Slices, stick_dim: int | None
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
