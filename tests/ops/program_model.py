"""Runs card programs in numpy, iteration by iteration: slow, short, and independent of the card.

Memory that nothing has written is filled with noise, so that a program whose result depends on
padding or on a step out of order does not pass by luck. Cores run in reverse between barriers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import step_model

from torch_spyre.backend.program import (
    STICK_BYTES,
    Lanes,
    Operand,
    Program,
    Space,
    Step,
    StepFlags,
    StepKind,
    SymbolKind,
)


def noise(nbytes: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


class Machine:
    """A program and what its symbols are bound to: byte arrays for addresses, words for scalars."""

    def __init__(self, program: Program, bindings: Sequence[np.ndarray | int]) -> None:
        self.program = program
        self.bindings = bindings
        for symbol, bound in zip(program.symbols, bindings, strict=True):
            if symbol.kind is SymbolKind.ADDRESS:
                assert isinstance(bound, np.ndarray)
                assert symbol.nbytes <= bound.size, "the program relies on more than is bound"

    def run(self) -> None:
        group: list[Step] = []
        for node in self.program.body:
            assert isinstance(node, Step)
            if node.flags & StepFlags.BARRIER_BEFORE:
                self._run_group(group)
                group = []
            group.append(node)
        self._run_group(group)

    def _run_group(self, steps: Sequence[Step]) -> None:
        """Between barriers cores run independently: each does all steps, the last core first."""
        for core in reversed(range(32)):
            for step in steps:
                if step.cores >> core & 1:
                    self._run_core(step, core)

    def _run_core(self, step: Step, core: int) -> None:
        slot = (step.cores & ((1 << core) - 1)).bit_count()
        extents = step.extents[slot if len(step.extents) > 1 else 0]
        vectors = [o for o in (*step.inputs, *step.outputs) if o.lanes is Lanes.VECTOR]
        lanes = max((_lanes(o) for o in vectors if o.space is Space.DEVICE), default=1)
        if step.kind is StepKind.RESTICKIFY:
            lanes = 1
        for point in itertools.product(*map(range, extents)):
            is_tail = (
                step.tail_cores >> core & 1 and point[step.stick_dim] == extents[step.stick_dim] - 1
            )
            operands = [self._read(o, point, slot, lanes, is_tail) for o in step.inputs]
            result = np.broadcast_to(step_model.run(step.opcode, *operands), (lanes,))
            self._write(step.outputs[0], point, slot, lanes, is_tail, result)

    def _places(
        self, operand: Operand, point: Sequence[int], slot: int, lanes: int, is_tail: bool
    ) -> list[int]:
        """Byte offsets of the sticks (or the element) of one iteration."""
        base = operand.bases[slot if len(operand.bases) > 1 else 0]
        base += sum(i * step for i, step in zip(point, operand.strides, strict=True))
        if operand.lanes is not Lanes.VECTOR:
            return [base]
        assert base % STICK_BYTES == 0
        tiles = lanes // _lanes(operand)
        if is_tail and operand.tail_tiles:
            tiles = operand.tail_tiles
        return [base + tile * operand.tile_stride for tile in range(tiles)]

    def _memory(self, operand: Operand) -> np.ndarray:
        memory = self.bindings[operand.symbol]
        assert isinstance(memory, np.ndarray)
        return memory[: self.program.symbols[operand.symbol].nbytes]

    def _read(
        self, operand: Operand, point: Sequence[int], slot: int, lanes: int, is_tail: bool
    ) -> np.ndarray:
        if operand.space is Space.IOTA:
            base = operand.bases[slot if len(operand.bases) > 1 else 0]
            base += sum(i * step for i, step in zip(point, operand.strides, strict=True))
            return (base + operand.tile_stride * np.arange(lanes)).astype(np.int32)
        if operand.space in (Space.SCALAR, Space.CONSTANT):
            words = self.bindings if operand.space is Space.SCALAR else self.program.constants
            word = np.array([words[operand.symbol]], dtype=np.uint32)
            return word.view(np.float32 if step_model.is_float(operand.format) else np.int32)
        raw = step_model.RAW[operand.format]
        memory = self._memory(operand)
        if operand.lanes is not Lanes.VECTOR:
            at = self._places(operand, point, slot, lanes, is_tail)[0]
            element = memory[at : at + np.dtype(raw).itemsize].view(raw)
            return step_model.widen(element, operand.format)
        values = np.zeros(lanes, np.float32 if step_model.is_float(operand.format) else np.int32)
        per_stick = _lanes(operand)
        for tile, at in enumerate(self._places(operand, point, slot, lanes, is_tail)):
            stick = memory[at : at + STICK_BYTES].view(raw)
            assert stick.size == per_stick, "a stick lies outside its symbol"
            values[tile * per_stick : (tile + 1) * per_stick] = step_model.widen(
                stick, operand.format
            )
        return values

    def _write(
        self,
        operand: Operand,
        point: Sequence[int],
        slot: int,
        lanes: int,
        is_tail: bool,
        values: np.ndarray,
    ) -> None:
        assert self.program.symbols[operand.symbol].is_written
        raw = step_model.narrow(np.ascontiguousarray(values), operand.format).view(np.uint8)
        memory = self._memory(operand)
        places = self._places(operand, point, slot, lanes, is_tail)
        size = raw.size if operand.lanes is Lanes.ELEMENT else STICK_BYTES
        for tile, at in enumerate(places):
            memory[at : at + size] = raw[tile * size : (tile + 1) * size]


def _lanes(operand: Operand) -> int:
    return step_model.lanes_of(operand.format)
