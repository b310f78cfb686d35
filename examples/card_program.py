"""A card program by hand: written, read, run on a bare card, and one that the card refuses."""

from __future__ import annotations

import dataclasses
from array import array

import torch  # noqa: F401  the extension needs torch's libraries to be loaded

from torch_spyre._C import _card
from torch_spyre.backend.disassemble import disassemble
from torch_spyre.backend.program import (
    Operand,
    Program,
    Space,
    Step,
    StepKind,
    Symbol,
    SymbolKind,
    encode,
)

FP32 = _card.formats["IEEE_FP32"]
STICK = 128
CORES, STICKS_PER_CORE = 4, 8
NBYTES = CORES * STICKS_PER_CORE * STICK

# Each core starts at its own slice and walks it stick by stick.
walk = {
    "bases": tuple(core * STICKS_PER_CORE * STICK for core in range(CORES)),
    "strides": (STICK,),
}
program = Program(
    symbols=(
        Symbol(SymbolKind.ADDRESS, FP32, NBYTES),
        Symbol(SymbolKind.ADDRESS, FP32, NBYTES, is_written=True),
    ),
    body=(
        Step(
            opcode="square",
            kind=StepKind.POINTWISE,
            cores=(1 << CORES) - 1,
            extents=((STICKS_PER_CORE,),),
            inputs=(Operand(Space.DEVICE, FP32, symbol=0, **walk),),
            outputs=(Operand(Space.DEVICE, FP32, symbol=1, **walk),),
            stick_dim=0,
        ),
    ),
)
print(disassemble(program))

card = _card.Card(memory_bytes=1 << 20)
source, result = card.allocate(NBYTES), card.allocate(NBYTES)
numbers = array("f", range(NBYTES // 4))
plain = _card.DmaDescriptor(
    FP32, _card.host_formats["float32"], [_card.DmaNest([len(numbers)], [1], [1])], NBYTES, NBYTES
)
card.copy_to_card(source, plain, numbers)
card.launch(card.load(encode(program)), [(source, NBYTES), (result, NBYTES)])
back = array("f", bytes(NBYTES))
card.wait(card.copy_to_host(result, plain, back))
print("squares are right:", all(b == a * a for a, b in zip(numbers, back, strict=True)))
print("modelled time on the card:", card.counters()["compute_busy_ns"], "ns")

# The same program, but the result is declared one stick too small.
small = dataclasses.replace(program.symbols[1], nbytes=NBYTES - STICK)
try:
    card.load(encode(dataclasses.replace(program, symbols=(program.symbols[0], small))))
except ValueError as error:
    print(error)
