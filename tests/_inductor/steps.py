"""Runs programs one step at a time: on a card of their own, and each step by the numpy model.

A scratchpad can't be seen from outside. So for this the program is rewritten: what lay in LX lies
in device memory, one piece per core, and each step becomes a program that reads and writes there.
The step is the same to the last address bit; only where its operands live is not.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from bundle_checks import check_bundle
from compiled import Launch

from tests.ops import program_model, step_model
from torch_spyre._C import _card
from torch_spyre.backend.program import (
    CORES,
    STICK_BYTES,
    Loop,
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

_SEN169, _INT32 = 0, 12


@functools.cache
def private_card() -> _card.Card:
    """A card that nobody else uses."""
    return _card.Card(memory_bytes=1 << 28, threads=2)


class Memory:
    """Byte arrays on the private card, bound to the address symbols of a program."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self.card = private_card()
        self.sizes = [array.size for array in arrays]
        self.addresses = [self.card.allocate(max(size, STICK_BYTES)) for size in self.sizes]
        for address, array in zip(self.addresses, arrays, strict=True):
            if array.size:
                self.card.copy_to_card(address, _words(array.size), array.view(np.int32))

    def launch(self, program: Program, extents: Sequence[int]) -> None:
        bindings = [*zip(self.addresses, self.sizes, strict=True), *((n, 4) for n in extents)]
        loaded = self.card.load(encode(program))
        self.card.launch(loaded, bindings)
        self.card.synchronize()
        self.card.unload(loaded)

    def read(self) -> list[np.ndarray]:
        arrays = [np.zeros(size, np.uint8) for size in self.sizes]
        for address, array in zip(self.addresses, arrays, strict=True):
            if array.size:
                how = _words(array.size)
                self.card.wait(self.card.copy_to_host(address, how, array.view(np.int32)))
        return arrays

    def free(self) -> None:
        for address in self.addresses:
            self.card.free(address)


def _words(nbytes: int) -> object:
    """Copies 32-bit words as they are."""
    nest = _card.DmaNest([nbytes // 4], [1], [1])
    return _card.DmaDescriptor(_INT32, _card.host_formats["int32"], [nest], nbytes, nbytes)


def bytes_of(launch: Launch) -> list[np.ndarray]:
    """What the address symbols of a launch are bound to: arguments, then the pool."""
    arrays = [array.copy() for array in launch.before]
    if launch.bundle.pool_bytes:
        arrays.append(program_model.noise(launch.bundle.pool_bytes, seed=99))
    return arrays


def run_whole(launch: Launch, arrays: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
    """The bytes of the arguments after the program as it is ran on the private card."""
    memory = Memory(bytes_of(launch) if arrays is None else arrays)
    memory.launch(launch.program, launch.extents)
    result = memory.read()
    memory.free()
    return result[: len(launch.before)]


def with_other_noise(launch: Launch) -> list[np.ndarray]:
    """As `bytes_of`, with other bytes in padding and in what nothing has written."""
    arrays = []
    for i, (array, layout) in enumerate(zip(launch.before, launch.layouts, strict=True)):
        other = program_model.noise(array.size, seed=1000 + i)
        if not launch.is_fresh[i]:
            raw = step_model.RAW[layout.format]
            other.view(raw)[layout.places] = array.view(raw)[layout.places]
        arrays.append(other)
    if launch.bundle.pool_bytes:
        arrays.append(program_model.noise(launch.bundle.pool_bytes, seed=1999))
    return arrays


def run_model(launch: Launch) -> list[np.ndarray]:
    """The bytes of the arguments after the numpy model ran the program."""
    arrays = bytes_of(launch)
    program_model.Machine(launch.program, [*arrays, *launch.extents]).run()
    return arrays[: len(launch.before)]


# ---- Steps by themselves ------------------------------------------------------------------------


@dataclass(frozen=True)
class Spilled:
    """A program's steps as programs of their own, over its symbols and one that stands for LX."""

    programs: tuple[Program, ...]
    lx_bytes: int  # of all cores


def spill(program: Program) -> Spilled:
    """Put what is in LX into device memory, and take the program apart."""
    per_core = max((_lx_end(step) for step, _ in _visits(program.body, ())), default=0)
    per_core = -(-per_core // STICK_BYTES) * STICK_BYTES
    addresses = sum(symbol.kind is SymbolKind.ADDRESS for symbol in program.symbols)
    symbols = list(program.symbols)
    if per_core:
        symbols.insert(addresses, Symbol(SymbolKind.ADDRESS, _SEN169, per_core * CORES, True))
    mover = _Mover(addresses, per_core)
    programs = tuple(
        Program(tuple(symbols), (mover.step(part, loops),), program.constants)
        for step, loops in _visits(program.body, ())
        for part in (program_model.relayout_parts(step) if step.kind is StepKind.RING else (step,))
    )
    return Spilled(programs, per_core * CORES)


def _visits(
    body: Sequence[Step | Loop], loops: tuple[int, ...]
) -> Iterator[tuple[Step, tuple[int, ...]]]:
    for node in body:
        if isinstance(node, Step):
            yield node, loops
        else:
            for index in range(node.count):
                yield from _visits(node.body, (*loops, index))


def _lx_end(step: Step) -> int:
    """An upper bound of the scratchpad bytes that a step touches."""
    end = 0
    for operand in (*step.inputs, *step.outputs):
        if operand.space in (Space.LX, Space.RING):
            reach = sum(abs(step_) * (n - 1) for step_, n in _strided(operand, step))
            tiles = abs(operand.tile_stride) * 127
            end = max(end, max(operand.bases) + reach + tiles + STICK_BYTES)
    return end


def _strided(operand: Operand, step: Step) -> Iterator[tuple[int, int]]:
    longest = [max(row[dim] for row in step.extents) for dim in range(step.rank)]
    return zip(operand.strides, longest, strict=False)


@dataclass(frozen=True)
class _Mover:
    """Rewrites steps so that LX is the symbol number `lx`."""

    lx: int
    per_core: int

    def step(self, step: Step, loops: tuple[int, ...]) -> Step:
        cores = [core for core in range(CORES) if step.cores >> core & 1]
        return replace(
            step,
            inputs=tuple(self._operand(operand, cores, loops) for operand in step.inputs),
            outputs=tuple(self._operand(operand, cores, loops) for operand in step.outputs),
            masks=tuple(self._mask(mask, loops) for mask in step.masks),
            flags=StepFlags.NONE,
        )

    def _operand(self, operand: Operand, cores: list[int], loops: tuple[int, ...]) -> Operand:
        start = sum(i * stride for i, stride in zip(loops, operand.loop_strides, strict=False))
        bases = tuple(base + start for base in operand.bases)
        if operand.space in (Space.LX, Space.RING):
            owners = operand.owners or cores
            if len(bases) == 1:
                bases = bases * len(cores)
            bases = tuple(
                base + core * self.per_core for base, core in zip(bases, owners, strict=True)
            )
            return replace(
                operand,
                space=Space.DEVICE,
                symbol=self.lx,
                bases=bases,
                loop_strides=(),
                owners=(),
            )
        symbol = operand.symbol
        if operand.space is Space.SCALAR and self.per_core and symbol >= self.lx:
            symbol += 1
        return replace(operand, symbol=symbol, bases=bases, loop_strides=())

    def _mask(self, mask: Mask, loops: tuple[int, ...]) -> Mask:
        start = sum(i * stride for i, stride in zip(loops, mask.loop_strides, strict=False))
        bases = tuple(base + start for base in mask.bases)
        valid = mask.valid + (mask.is_symbol and self.per_core > 0 and mask.valid >= self.lx)
        return replace(mask, bases=bases, loop_strides=(), valid=int(valid))


# ---- Claims -------------------------------------------------------------------------------------


def check_launch(launch: Launch) -> None:
    """Assert that a launch did what its steps mean.

    Each step on the card gives the bits of the numpy model (a transcendental one a unit in the last
    place beside them at most), on the bytes that the step before left on the card; the program as a
    whole gives the bits of its steps, whatever lies in padding; the launch gave what the program
    gives. The bundle is read back as it was written, and fits the schema.
    """
    check_bundle(launch.bundle)
    spilled = spill(launch.program)
    arrays = bytes_of(launch)
    if spilled.lx_bytes:
        arrays.append(program_model.noise(spilled.lx_bytes, seed=5))
    memory = Memory(arrays)
    for number, program in enumerate(spilled.programs):
        expected = [array.copy() for array in arrays]
        program_model.Machine(program, [*expected, *launch.extents]).run()
        memory.launch(program, launch.extents)
        arrays = memory.read()
        _compare(program, number, arrays, expected)
    memory.free()
    whole = run_whole(launch)
    check_padding_is_ignored(launch, whole)
    for i in launch.written:
        layout = launch.layouts[i]
        values = layout.values(whole[i])
        by_steps = layout.values(arrays[i])
        assert np.array_equal(by_steps, values, equal_nan=True), (
            f"argument {i}: the program and its steps one by one differ"
        )
        if launch.is_exact:
            host = torch.from_numpy(values).to(layout.dtype)
            assert same(launch.after[i], host), (
                f"argument {i}: the launch gave other values than its program"
            )


def check_padding_is_ignored(launch: Launch, whole: Sequence[np.ndarray]) -> None:
    """Assert that results do not change with what lies in padding and unwritten memory."""
    noise = with_other_noise(launch)
    other = run_whole(launch, noise)
    for i in launch.written:
        layout = launch.layouts[i]
        a, b = layout.values(whole[i]), layout.values(other[i])
        # What this launch leaves alone in a new buffer is still noise.
        is_left = (layout.elements(whole[i]) == layout.elements(launch.before[i])) & (
            layout.elements(other[i]) == layout.elements(noise[i])
        )
        is_same = (a == b) | ((a != a) & (b != b)) | (is_left & launch.is_fresh[i])
        assert is_same.all(), f"argument {i}: padding or unwritten memory reaches the result"


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal dtype, shape and values; NaN equals itself."""
    if a.dtype is not b.dtype or a.shape != b.shape:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _compare(
    program: Program, number: int, card: Sequence[np.ndarray], model: Sequence[np.ndarray]
) -> None:
    (step,) = program.body
    assert isinstance(step, Step)
    (output,) = step.outputs
    is_exact = step.kind is not StepKind.POINTWISE or step_model.OPERATIONS[step.opcode].is_exact
    for symbol, (got, want) in enumerate(zip(card, model, strict=True)):
        if np.array_equal(got, want):
            continue
        assert symbol == output.symbol, f"step {number}, {step.opcode}: wrote symbol {symbol}"
        raw = step_model.RAW[output.format]
        at = np.flatnonzero(got.view(raw) != want.view(raw))
        a = step_model.widen(got.view(raw)[at], output.format)
        b = step_model.widen(want.view(raw)[at], output.format)
        apart = distance(a, b, output.format)
        worst = int(np.argmax(apart))
        assert apart[worst] <= (0 if is_exact else 1), (
            f"step {number}, {step.opcode}: {len(at)} results differ, the worst by {apart[worst]} "
            f"units: card {a[worst]!r}, model {b[worst]!r}, element {at[worst]} of symbol {symbol}"
        )


def distance(a: np.ndarray, b: np.ndarray, fmt: int) -> np.ndarray:
    """How many numbers of the format lie between; 0 for two NaNs."""
    if not step_model.is_float(fmt):
        return np.abs(a.astype(np.int64) - b.astype(np.int64))
    steps = np.abs(_rank(a, fmt) - _rank(b, fmt))
    return np.where(np.isnan(a) & np.isnan(b), 0, steps)


def _rank(values: np.ndarray, fmt: int) -> np.ndarray:
    """The place of each value in the order of the format's numbers."""
    raw = step_model.narrow(values, fmt)
    unsigned = {1: np.uint8, 2: np.uint16, 4: np.uint32}[raw.dtype.itemsize]
    bits = raw.view(unsigned).astype(np.int64)
    sign = 1 << (8 * raw.dtype.itemsize - 1)
    return np.where(bits & sign, -(bits & (sign - 1)), bits)
