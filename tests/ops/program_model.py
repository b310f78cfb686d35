"""Runs card programs in numpy, iteration by iteration: slow, short, and independent of the card.

Memory that nothing has written is filled with noise, so that a program whose result depends on
padding or on a step out of order does not pass by luck. Cores run in reverse between barriers.
Of a ring, one partner computes for all, with what the others would send it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tests.ops import step_model
from torch_spyre.backend.program import (
    STICK_BYTES,
    TABLE_ROWS,
    Lanes,
    Loop,
    Mask,
    Operand,
    Program,
    Space,
    Step,
    StepFlags,
    StepKind,
    SymbolKind,
)

LX_BYTES = (2 * 1024 - 64) * 1024


def noise(nbytes: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


class Machine:
    """A program and what its symbols are bound to: byte arrays, or numbers for the others."""

    def __init__(self, program: Program, bindings: Sequence[np.ndarray | int]) -> None:
        self.program = program
        self.bindings = bindings
        for symbol, bound in zip(program.symbols, bindings, strict=True):
            if symbol.kind is SymbolKind.ADDRESS:
                assert isinstance(bound, np.ndarray)
                assert symbol.nbytes <= bound.size, "the program relies on more than is bound"
            elif symbol.kind is SymbolKind.EXTENT:
                assert isinstance(bound, int)
                assert 0 <= bound <= symbol.nbytes, "an extent is bound above its maximum"

    def run(self) -> None:
        group: list[tuple[Step, tuple[int, ...]]] = []
        for step, loops in _visits(self.program.body, ()):
            if step.flags & StepFlags.BARRIER_BEFORE or step.ring:
                self._run_group(group)
                group = []
            if step.kind is StepKind.RING:
                for part in relayout_parts(step):
                    self._run_group([(part, loops)])
            elif step.ring:
                self._run_rings(step, loops)
            else:
                group.append((step, loops))
        self._run_group(group)

    def _run_rings(self, step: Step, loops: tuple[int, ...]) -> None:
        """All partners read before any of them stores."""
        cores = [CoreStep(self, step, core, loops) for core in range(32) if step.cores >> core & 1]
        for i in range(0, len(cores), step.ring):
            partners = cores[i : i + step.ring]
            results = list(partners[0].ring_results(partners))
            for partner in partners:
                for point, result in results:
                    partner.store(point, result)

    def _run_group(self, visits: Sequence[tuple[Step, tuple[int, ...]]]) -> None:
        """Between barriers cores run independently: each does all steps, the last core first."""
        for core in reversed(range(32)):
            for step, loops in visits:
                if step.cores >> core & 1:
                    CoreStep(self, step, core, loops).run()

    @functools.cache  # noqa: B019
    def scratchpad(self, core: int) -> np.ndarray:
        return noise(LX_BYTES, seed=core)

    def memory(self, step: Step, operand: Operand, core: int) -> np.ndarray:
        if operand.space is Space.LX:
            return self.scratchpad(core)
        if operand.space is Space.RING:
            return self.scratchpad(operand.owners[_slot(step, core)])
        memory = self.bindings[operand.symbol]
        assert isinstance(memory, np.ndarray)
        return memory[: self.program.symbols[operand.symbol].nbytes]


def _visits(
    body: Sequence[Step | Loop], loops: tuple[int, ...]
) -> Iterator[tuple[Step, tuple[int, ...]]]:
    """Steps in the order in which they run, with the indices of the loops around them."""
    for node in body:
        if isinstance(node, Step):
            yield node, loops
        else:
            for index in range(node.count):
                yield from _visits(node.body, (*loops, index))


def relayout_parts(step: Step) -> Iterator[Step]:
    """A Ring step as copies of one part for each core, each from the one owner that it names."""
    (source,), (target,) = step.inputs, step.outputs
    parts = [n if step.reduced >> dim & 1 else 1 for dim, n in enumerate(step.extents[0])]
    for number, place in enumerate(itertools.product(*map(range, parts))):
        start = sum(map(int.__mul__, place, target.strides))
        yield replace(
            step,
            kind=StepKind.POINTWISE,
            extents=tuple(
                tuple(1 if step.reduced >> dim & 1 else n for dim, n in enumerate(row))
                for row in step.extents
            ),
            inputs=(replace(source, owners=source.owners[number :: step.ring]),),
            outputs=(replace(target, bases=tuple(base + start for base in target.bases)),),
            reduced=0,
            ring=0,
        )


def _slot(step: Step, core: int) -> int:
    return (step.cores & ((1 << core) - 1)).bit_count()


Point = tuple[int, ...]


@dataclass(frozen=True)
class CoreStep:
    """One visit of a step on one core."""

    machine: Machine
    step: Step
    core: int
    loops: tuple[int, ...]

    def run(self) -> None:
        kinds: dict[StepKind, Callable[[Point], None]] = {
            StepKind.POINTWISE: self._compute,
            StepKind.RESTICKIFY: self._compute,
            StepKind.REDUCTION: self._reduce,
            StepKind.MATMUL: self._multiply,
            StepKind.GATHER: self._gather,
            StepKind.SCATTER: self._scatter,
            StepKind.ARGSORT: self._argsort,
            StepKind.SCAN: self._scan,
        }
        if 0 in self.extents:
            return
        for point in self._points():
            kinds[self.step.kind](point)

    def ring_results(self, partners: Sequence[CoreStep]) -> Iterator[tuple[Point, np.ndarray]]:
        """What the partners, of which this is the first, make together."""
        is_matmul = self.step.kind is StepKind.MATMUL
        combine = np.add if is_matmul else step_model.REDUCTIONS[self.step.opcode].combine
        for point in self._points():
            parts = [core._products(point) if is_matmul else core._sums(point) for core in partners]
            with np.errstate(all="ignore"):
                whole = functools.reduce(combine, parts)
            yield point, step_model.one_nan(whole) if is_matmul else self._finished(point, whole)

    def store(self, point: Point, result: np.ndarray) -> None:
        if self.step.outputs[0].lanes is Lanes.FIRST:
            at_stick = self._place(self.step.outputs[0], point)
            memory = self.machine.memory(self.step, self.step.outputs[0], self.core)
            memory[at_stick : at_stick + STICK_BYTES] = 0
        self._write(point, result)

    def _points(self) -> Iterator[Point]:
        """The iterations, those that are accumulated counted as one."""
        return itertools.product(
            *(
                range(1) if self._is_reduced(dim) else range(extent)
                for dim, extent in enumerate(self.extents)
            )
        )

    # ---- Kinds ----------------------------------------------------------------------------------

    def _compute(self, point: Point) -> None:
        operands = [self._read(operand, point) for operand in self.step.inputs]
        result = step_model.run(self.step.opcode, *operands)
        self._write(point, np.broadcast_to(result, (self.lanes,)))

    def _reduce(self, point: Point) -> None:
        self.store(point, self._finished(point, self._sums(point)))

    def _sums(self, point: Point) -> np.ndarray:
        """Of each lane."""
        reduction = step_model.REDUCTIONS[self.step.opcode]
        sums = np.full(self.lanes, reduction.neutral)
        with np.errstate(all="ignore"):
            for at in self._accumulated(point):
                valid = self._valid_lanes(at)
                if valid.any():
                    values = np.broadcast_to(self._read(self.step.inputs[0], at), (self.lanes,))
                    taken = reduction.combine(sums, reduction.prepare(values))
                    sums = np.where(valid, taken, sums)
        return sums

    def _finished(self, point: Point, sums: np.ndarray) -> np.ndarray:
        combine = step_model.REDUCTIONS[self.step.opcode].combine
        with np.errstate(all="ignore"):
            while self.step.outputs[0].lanes is Lanes.FIRST and len(sums) > 1:
                half = len(sums) // 2
                sums = combine(sums[:half], sums[half:])
            if self.step.opcode == "mean":
                sums = sums / self._read(self.step.inputs[1], point)
        return sums

    def _multiply(self, point: Point) -> None:
        self._write(point, step_model.one_nan(self._products(point)))

    def _products(self, point: Point) -> np.ndarray:
        left, right = self.step.inputs
        sums = np.zeros(self.lanes, np.float32)
        for at in self._accumulated(point):
            valid = self._valid_lanes(at)
            if not valid.any():
                continue
            per_stick = _lanes(left)
            rows: dict[int, np.ndarray] = {}  # by stick: those without an element are not there
            for k in map(int, np.flatnonzero(valid)):
                tile, lane = divmod(k, per_stick)
                if tile not in rows:
                    rows[tile] = self._stick(left, self._place(left, at) + tile * left.tile_stride)
                stick = self._stick(right, self._place(right, at) + k * right.tile_stride)
                # Bytes count as floats.
                sums = step_model.fma(rows[tile][lane], stick.astype(np.float32), sums)
        return sums

    def _gather(self, point: Point) -> None:
        table, _ = self.step.inputs
        at = self._row(table, point)
        is_element = table.lanes is Lanes.ELEMENT
        if table.format == self.step.outputs[0].format:
            size = np.dtype(step_model.RAW[table.format]).itemsize if is_element else STICK_BYTES
            memory = self.machine.memory(self.step, table, self.core)
            self._put(self._place(self.step.outputs[0], point), memory[at : at + size].copy())
            return
        self._write(point, self._element(table, at) if is_element else self._stick(table, at))

    def _row(self, table: Operand, point: Point) -> int:
        """The place of the row that the index names."""
        row = int(self._read(self.step.inputs[1], point)[0])
        (mask,) = self.step.masks
        assert mask.dim == TABLE_ROWS
        rows = self._length(mask) - self._start(mask)
        if not 0 <= row < rows:
            raise IndexError(f"index {row} of a table of {rows} rows")
        return self._place(table, point) + row * table.tile_stride

    def _scatter(self, point: Point) -> None:
        assert self.step.cores.bit_count() == 1
        source, table = self.step.inputs[0], self.step.outputs[0]
        at = self._row(table, point)
        is_element = table.lanes is Lanes.ELEMENT
        is_move = self.step.opcode in ("scatter", "scatter_int")
        if is_move and source.format == table.format:
            size = np.dtype(step_model.RAW[table.format]).itemsize if is_element else STICK_BYTES
            place = self._place(source, point)
            self._put(
                at, self.machine.memory(self.step, source, self.core)[place : place + size].copy()
            )
            return
        old = self._element(table, at) if is_element else self._stick(table, at)
        with np.errstate(all="ignore"):
            new = step_model.SCATTERS[self.step.opcode](old, self._read(source, point))
        new = new if is_move else step_model.one_nan(new)
        self._put(at, step_model.narrow(np.ascontiguousarray(new), table.format).view(np.uint8))

    def _argsort(self, point: Point) -> None:
        places = list(self._accumulated(point))
        keys = np.concatenate([self._read(self.step.inputs[0], at) for at in places])
        order = step_model.argsort(self.step.opcode, keys)
        for at, position in zip(places, order, strict=True):
            self._write(at, np.array([position]))

    def _scan(self, point: Point) -> None:
        opcode, places = self.step.opcode, list(self._accumulated(point))
        reached = self._read(self.step.inputs[0], places[0])  # the extremum so far
        result = np.zeros(self.lanes, np.int32)
        for i, at in enumerate(places):
            x = self._read(self.step.inputs[0], at)
            if opcode in step_model.EXTREMA:
                is_new = step_model.EXTREMA[opcode](x, reached)
                reached = np.where(is_new, x, reached)
                result = np.where(is_new, np.int32(i), result)
            else:
                start, combine = step_model.SCANS[opcode]
                with np.errstate(all="ignore"):
                    result = combine(start if i == 0 else result, x).astype(x.dtype)
            self._write(at, step_model.one_nan(result))

    # ---- Points, lanes, masks -------------------------------------------------------------------

    @property
    def slot(self) -> int:
        return (self.step.cores & ((1 << self.core) - 1)).bit_count()

    @property
    def extents(self) -> tuple[int, ...]:
        return self.step.extents[self.slot if len(self.step.extents) > 1 else 0]

    @property
    def lanes(self) -> int:
        vectors = (
            operand
            for operand in (*self.step.inputs, *self.step.outputs)
            if operand.lanes is Lanes.VECTOR
            and operand.space in (Space.DEVICE, Space.LX, Space.RING)
        )
        return max(map(_lanes, vectors), default=1)

    def _is_reduced(self, dim: int) -> bool:
        return bool(self.step.reduced >> dim & 1)

    def _accumulated(self, point: Point) -> Iterator[Point]:
        """The iterations that go into a result, in their order."""
        return itertools.product(
            *(
                range(extent) if self._is_reduced(dim) else (point[dim],)
                for dim, extent in enumerate(self.extents)
            )
        )

    def _length(self, mask: Mask) -> int:
        if not mask.is_symbol:
            return mask.valid
        bound = self.machine.bindings[mask.valid]
        assert isinstance(bound, int)
        return bound

    def _start(self, mask: Mask) -> int:
        base = mask.bases[self.slot if len(mask.bases) > 1 else 0]
        return base + sum(i * step for i, step in zip(self.loops, mask.loop_strides, strict=False))

    def _valid_lanes(self, point: Point) -> np.ndarray:
        is_matmul = self.step.kind is StepKind.MATMUL
        lane_dim = self.step.lane_dim if is_matmul else self.step.stick_dim
        valid = np.ones(self.lanes, bool)
        for mask in self.step.masks:
            position = np.full(self.lanes, point[mask.dim])
            if mask.dim == lane_dim:
                position = position * self.lanes + np.arange(self.lanes)
            valid &= position + self._start(mask) < self._length(mask)
        return valid

    # ---- Memory ---------------------------------------------------------------------------------

    def _place(self, operand: Operand, point: Point) -> int:
        """The byte offset of the first stick (or the element) of one iteration."""
        base = operand.bases[self.slot if len(operand.bases) > 1 else 0]
        base += sum(i * step for i, step in zip(point, operand.strides, strict=False))
        return base + sum(i * s for i, s in zip(self.loops, operand.loop_strides, strict=False))

    def _sticks(self, operand: Operand, point: Point) -> list[int]:
        """Byte offsets of the sticks that are there."""
        at = self._place(operand, point)
        assert at % STICK_BYTES == 0
        tiles = self.lanes // _lanes(operand)
        stick_dim = self.step.stick_dim
        has_tail = self.step.tail_cores >> self.core & 1 and operand.tail_tiles
        if has_tail and point[stick_dim] == self.extents[stick_dim] - 1:
            tiles = operand.tail_tiles
        return [at + tile * operand.tile_stride for tile in range(tiles)]

    def _stick(self, operand: Operand, at: int) -> np.ndarray:
        raw = step_model.RAW[operand.format]
        assert at >= 0
        stick = self.machine.memory(self.step, operand, self.core)[at : at + STICK_BYTES].view(raw)
        assert stick.size == _lanes(operand), "a stick lies outside its symbol"
        return step_model.widen(stick, operand.format)

    def _element(self, operand: Operand, at: int) -> np.ndarray:
        raw = step_model.RAW[operand.format]
        element = self.machine.memory(self.step, operand, self.core)[
            at : at + np.dtype(raw).itemsize
        ]
        return step_model.widen(element.view(raw), operand.format)

    def _read(self, operand: Operand, point: Point) -> np.ndarray:
        is_float = step_model.is_float(operand.format)
        if operand.space is Space.IOTA:
            steps = operand.tile_stride * np.arange(self.lanes)
            return (self._place(operand, point) + steps).astype(np.int32)
        if operand.space in (Space.SCALAR, Space.CONSTANT):
            is_scalar = operand.space is Space.SCALAR
            words = self.machine.bindings if is_scalar else self.machine.program.constants
            word = np.array([words[operand.symbol]], dtype=np.uint32)
            return word.view(np.float32 if is_float else np.int32)
        if operand.lanes is not Lanes.VECTOR:
            return self._element(operand, self._place(operand, point))
        values = np.zeros(self.lanes, np.float32 if is_float else np.int32)
        per_stick = _lanes(operand)
        for tile, at in enumerate(self._sticks(operand, point)):
            values[tile * per_stick : (tile + 1) * per_stick] = self._stick(operand, at)
        return values

    def _write(self, point: Point, values: np.ndarray) -> None:
        operand = self.step.outputs[0]
        raw = step_model.narrow(np.ascontiguousarray(values), operand.format).view(np.uint8)
        is_vector = operand.lanes is Lanes.VECTOR
        places = self._sticks(operand, point) if is_vector else [self._place(operand, point)]
        size = STICK_BYTES if is_vector else raw.size
        for tile, at in enumerate(places):
            self._put(at, raw[tile * size : (tile + 1) * size])

    def _put(self, at: int, raw: np.ndarray) -> None:
        """Bytes of the result, at their place."""
        operand = self.step.outputs[0]
        is_device = operand.space is Space.DEVICE
        assert not is_device or self.machine.program.symbols[operand.symbol].is_written
        memory = self.machine.memory(self.step, operand, self.core)
        assert 0 <= at <= memory.size - raw.size, "a result lies outside its symbol"
        memory[at : at + raw.size] = raw


def _lanes(operand: Operand) -> int:
    return step_model.lanes_of(operand.format)
