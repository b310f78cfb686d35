"""Copies between LPDDR5 and the scratchpads, and from core to core, that are worth their time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from torch_spyre import ir
from torch_spyre.ir.spec import Allocation
from torch_spyre.ir.terms import Term

from ..graph import Buffer, Fit, Op, Read, SpyreGraph, Tile
from ..price import nanoseconds
from ..sharing import Box, Division, LocalSlice, boxes, boxes_of, widest
from .ownership import leaves, walks_sticks, why_not_lx, writers_of
from .relayout import relayouts


@dataclass
class _Clone:
    """Copies into or out of LX for the sake of some operations, and how to do without them."""

    buffers: Sequence[Buffer]  # that must be in LX
    copies: Sequence[Op]
    served: Sequence[Op]  # and who makes what is copied
    redo: Callable[[], None]
    undo: Callable[[], None]
    relaid: Buffer | None = None  # what goes over the ring, if these are relayouts

    @property
    def is_placed(self) -> bool:
        return all(buffer.place is not None for buffer in self.buffers)

    @property
    def pays(self) -> bool:
        """By the clock, with everything else where it is."""
        self.undo()
        without = nanoseconds(self.served)
        self.redo()
        return nanoseconds((*self.copies, *self.served)) < without


@dataclass
class Clones:
    """The copies of a kernel: made in its list of operations, and taken back."""

    graph: SpyreGraph
    ops: list[Op]
    clones: list[_Clone] = field(default_factory=list)
    refused: set[Buffer] = field(default_factory=set)  # that had better not go over the ring

    def make(self) -> None:
        """All that may be worth it."""
        self._relayout_results()
        self._clone_inputs()
        self._clone_outputs()

    def drop_useless(self) -> bool:
        """Do without copies that cost more than they save; were there any?"""
        useless = [clone for clone in self.clones if not clone.pays]
        self._drop(useless)
        return bool(useless)

    def drop_unplaced(self) -> None:
        """Do without copies for which there was no room."""
        self._drop([clone for clone in self.clones if not clone.is_placed])

    def undo(self) -> None:
        """Leave the operations as they were."""
        self._undo(self.clones)

    def _drop(self, clones: Sequence[_Clone]) -> None:
        """Do without these copies, for good."""
        self.refused.update(clone.relaid for clone in clones if clone.relaid is not None)
        self._undo(clones)

    def _undo(self, clones: Sequence[_Clone]) -> None:
        for clone in reversed(clones):
            clone.undo()
            self._forget(buffer for buffer in clone.buffers if buffer is not clone.relaid)
        self.clones = [clone for clone in self.clones if clone not in clones]

    # ---- Between LPDDR5 and LX -----------------------------------------------------------------

    def _clone_inputs(self) -> None:
        """Read from LPDDR5 once what several operations want, or one in a loop."""
        uses: dict[Buffer, list[tuple[Op, int]]] = {}
        for op in self.ops:
            if op.fit is None or op.kind == "gather":
                continue
            for operand, read in enumerate(op.reads):
                uses.setdefault(read.buffer, []).append((op, operand))
        uses = {buffer: uses[buffer] for buffer in uses if self._comes_from_memory(buffer)}
        for buffer, readers in uses.items():
            # A loop that does not move its operand reads it again and again.
            still = [use for use in readers if not any(use[0].loop_steps(use[1]))]
            for group in _overlapping(still):
                if len(group) > 1 or group[0][0].tiles:
                    self._clone_input(buffer, group, ())
            for loops in dict.fromkeys(op.loops for op, _ in readers):
                parts = [use for use in readers if use[0].loops == loops and use not in still]
                if len(parts) > 1 and len({op.loop_steps(i) for op, i in parts}) == 1:
                    self._clone_input(buffer, parts, parts[0][0].tiles)

    def _comes_from_memory(self, buffer: Buffer) -> bool:
        """An input, or a result that its readers can't have from the scratchpads of its writer."""
        if buffer.is_mutated:
            return False
        writers = writers_of(self.ops, buffer)
        if not writers:
            return True
        is_whole = len(writers) == 1 and not writers[0].tiles
        return is_whole and bool(why_not_lx(buffer, self.ops))

    def _clone_input(
        self, buffer: Buffer, readers: Sequence[tuple[Op, int]], tiles: tuple[Tile, ...]
    ) -> None:
        op, operand = widest(readers)
        fit = _copy_fit(op, operand)
        if fit is None:
            return
        fit = _covering(fit, op, readers, buffer)
        owner = LocalSlice(boxes_of(fit, 0, Division(op.slices, op.core_order)))
        served = [
            (reader, i)
            for reader, i in readers
            if walks_sticks(reader, i) and owner.why_not(boxes(reader, i)) is None
        ]
        if len(served) < 2 and not (served and not tiles and served[0][0].tiles):
            return
        clone = self._buffer_like(buffer)
        source = op.reads[operand]
        copy = _copy_beside(op, fit, source, source._replace(buffer=clone))
        copy.tiles = tiles
        copy.why = (
            f"{len(served)} operations read it: from LPDDR5 once, into LX"
            if len(served) > 1
            else f"{served[0][0].opcode} reads it in every iteration of a loop: into LX once"
        )

        def redo() -> None:
            self.ops.insert(self._place_before(served, tiles), copy)
            _switch(served, clone)

        def undo() -> None:
            self.ops.remove(copy)
            _switch(served, buffer)

        redo()
        self.clones.append(_Clone([clone], [copy], [reader for reader, _ in served], redo, undo))

    def _place_before(self, served: Sequence[tuple[Op, int]], tiles: tuple[Tile, ...]) -> int:
        """Where a copy goes that these read: before them, outside of loops it is not part of."""
        first = min(self.ops.index(reader) for reader, _ in served)
        loops = self.ops[first].loops
        if not tiles and loops:
            first = next(i for i, op in enumerate(self.ops) if op.loops[:1] == loops[:1])
        return first

    def _clone_outputs(self) -> None:
        """Keep an output at hand for those who read it again."""
        for op in list(self.ops):
            buffer = op.output.buffer
            is_only = len(writers_of(self.ops, buffer)) == 1
            if not leaves(buffer, op.kernel) or not is_only or op.fit is None:
                continue
            if buffer.is_mutated:
                continue
            output = len(op.tensors) - 1
            owner = LocalSlice(boxes(op, output))
            served = [
                (reader, i)
                for reader in self.ops
                if reader.fit is not None
                for i, read in enumerate(reader.reads)
                if read.buffer is buffer
                and walks_sticks(reader, i)
                and reader.loops == op.loops
                and owner.why_not(boxes(reader, i)) is None
            ]
            fit = _copy_fit(op, output)
            if served and fit is not None:
                self._clone_output(op, fit, served)

    def _clone_output(self, op: Op, fit: Fit, served: Sequence[tuple[Op, int]]) -> None:
        buffer = op.output.buffer
        clone = self._buffer_like(buffer)
        write = op.output
        copy = _copy_beside(op, fit, write._replace(buffer=clone), write)
        copy.why = "it leaves the kernel, and is read again there: from LX, where it is made"

        def redo() -> None:
            op.output = write._replace(buffer=clone)
            self.ops.insert(self.ops.index(op) + 1, copy)
            _switch(served, clone)

        def undo() -> None:
            self.ops.remove(copy)
            op.output = write
            _switch(served, buffer)

        redo()
        users = [op, *(reader for reader, _ in served)]
        self.clones.append(_Clone([clone], [copy], users, redo, undo))

    # ---- Relayouts -----------------------------------------------------------------------------

    def _relayout_results(self) -> None:
        """Send round the ring what cores make that others read."""
        for op in list(self.ops):
            buffer = op.output.buffer
            if op.fit is None or buffer in self.refused or len(writers_of(self.ops, buffer)) != 1:
                continue
            if why_not_lx(buffer, self.ops):
                self._relayout_result(op, buffer)

    def _relayout_result(self, writer: Op, buffer: Buffer) -> None:
        uses = [(op, i) for op in self.ops for i, r in enumerate(op.reads) if r.buffer is buffer]
        if not all(walks_sticks(*use) for use in uses):
            return
        moves = relayouts(writer, uses, lambda: self._buffer_like(buffer))
        targets = [move.output.buffer for move, _ in moves]
        placed: tuple[Allocation | None, LocalSlice | None] = None, None

        def redo() -> None:
            buffer.place, buffer.local = placed
            for move, served in moves:
                self.ops.insert(self._place_before(served, move.tiles), move)
                _switch(served, move.output.buffer)

        def undo() -> None:
            nonlocal placed
            placed = buffer.place, buffer.local
            buffer.place = buffer.local = None
            for move, served in moves:
                self.ops.remove(move)
                _switch(served, buffer)

        redo()
        if why_not_lx(buffer, self.ops):
            undo()
            self._forget(targets)
            return
        copies = [move for move, _ in moves]
        users = dict.fromkeys((writer, *(op for op, _ in uses)))
        self.clones.append(_Clone([buffer, *targets], copies, list(users), redo, undo, buffer))

    def _buffer_like(self, buffer: Buffer) -> Buffer:
        clone = self.graph.temporary(buffer.size, buffer.dtype, buffer.stride)
        clone.numel, clone.storage = buffer.numel, buffer.storage
        return clone

    def _forget(self, buffers: Iterable[Buffer]) -> None:
        for buffer in buffers:
            del self.graph.buffers[buffer.name]


def _copy_fit(op: Op, operand: int) -> Fit | None:
    """A copy of an operand into the scratchpads, divided as the operation is.

    Cores that read the same have each a copy of their own.
    """
    fit = op.fit
    if fit is None:
        return None
    walk, plan = fit.walks[operand], fit.plan
    if walk.lanes != "vector":
        return None
    extents, strides, stick = list(fit.extents), list(walk.strides), fit.stick
    length: int | None
    if isinstance(plan, ir.MatmulAligned):
        length = plan.n_length
        if operand == 0:  # its sticks run along k
            stick, length = plan.lane, plan.k_length
        elif operand == 1:  # it has a stick for every element of k
            extents[plan.lane], strides[plan.lane] = plan.k_length, plan.row_stride
    else:
        length = plan.length
    if stick is not None and not _divides_alike(walk.tiles, fit.lanes, length, op.slices[stick]):
        return None
    for i, step in enumerate(strides):
        if step == 0 and i != stick:
            extents[i] = op.slices[i]
    walk = walk._replace(strides=tuple(strides))
    copy = ir.Aligned(
        tuple(extents), stick, fit.lanes, (walk, walk), (), length, tuple(plan.variables)
    )
    return Fit(copy, (fit.where[operand], fit.where[operand]))


def _divides_alike(tiles: int, lanes: int, length: int | None, slices: int) -> bool:
    """Has a copy, which goes stick by stick, the slices of its operation, which takes several?

    >>> _divides_alike(2, 64, 192, 2)  # 128 and 64 elements; sticks of 32 would be three and three
    False
    """
    if tiles == 1 or length is None:
        return True
    share, alone = (ceil(ceil(length / n) / slices) * n for n in (lanes, lanes // tiles))
    return share == alone


def _overlapping(uses: Sequence[tuple[Op, int]]) -> list[list[tuple[Op, int]]]:
    """Uses in groups that touch parts of a tensor in common, told by the first core."""
    groups: list[tuple[Box, list[tuple[Op, int]]]] = []
    for use in uses:
        hull, members = boxes(*use)[0], [use]
        rest = []
        for box, others in groups:
            if hull.overlaps(box):
                hull, members = hull.around(box), [*others, *members]
            else:
                rest.append((box, others))
        groups = [*rest, (hull, members)]
    return [members for _, members in groups]


def _covering(fit: Fit, op: Op, readers: Sequence[tuple[Op, int]], buffer: Buffer) -> Fit:
    """A copy that is long enough for all readers, along a dimension that cores do not divide.

    The copy itself if there is none such.
    """
    assert buffer.storage is not None
    own = hull = boxes_of(fit, 0, Division(op.slices, op.core_order))[0]
    for reader, operand in readers:
        hull = hull.around(boxes(reader, operand)[0])
    longer = [
        d for d in range(len(own.low)) if (own.low[d], own.high[d]) != (hull.low[d], hull.high[d])
    ]
    if len(longer) != 1:
        return fit
    (d,) = longer
    where = fit.where[0]
    terms = where[d].terms
    if len(terms) != 1 or terms[0] != Term(terms[0].variable, 1):
        return fit
    dim = terms[0].variable
    if op.slices[dim] != 1 or dim == fit.stick:
        return fit
    assert isinstance(fit.plan, ir.Aligned)
    back = own.low[d] - hull.low[d]
    walk = fit.walks[0]
    walk = walk._replace(offset=walk.offset - back * buffer.storage.device_strides[d])
    extents = list(fit.extents)
    extents[dim] = hull.high[d] - hull.low[d] + 1
    moved = (*where[:d], where[d]._replace(offset=hull.low[d]), *where[d + 1 :])
    return Fit(replace(fit.plan, extents=tuple(extents), operands=(walk, walk)), (moved, moved))


def _copy_beside(op: Op, fit: Fit, source: Read, to: Read) -> Op:
    """A copy of a tensor of an operation, divided as the operation is."""
    return Op(
        to.buffer.copy_opcode,
        "pointwise",
        op.extents,
        [source],
        to,
        origin=op.origin,
        node=op.node,
        fit=fit,
        slices=op.slices,  # 1 along reduced dimensions
        core_order=op.core_order,
        kernel=op.kernel,
    )


def _switch(uses: Sequence[tuple[Op, int]], buffer: Buffer) -> None:
    """Let these reads, named by their position among the tensors, take another buffer."""
    for op, operand in uses:
        position = [i for i, value in enumerate(op.inputs) if isinstance(value, Read)][operand]
        op.inputs[position] = op.reads[operand]._replace(buffer=buffer)
