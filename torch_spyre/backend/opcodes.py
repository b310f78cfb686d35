"""The card's operations by name, as the extension lists them: `csrc/card/opcodes.h`."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from torch_spyre import _C


@dataclass(frozen=True, slots=True)
class Opcode:
    """One operation: its number in a program and the domains of its operands and result."""

    name: str
    value: int
    operands: str  # a letter per operand: F float, I integer
    result: str

    @property
    def signature(self) -> str:
        return f"{self.operands}:{self.result}"


@functools.cache
def by_name() -> dict[str, Opcode]:
    """All operations of the card, by name."""
    table = {}
    for name, (value, signature) in _C._card.opcodes.items():
        operands, result = signature.split(":")
        table[name] = Opcode(name, value, operands, result)
    return table


@functools.cache
def by_value() -> dict[int, Opcode]:
    """All operations of the card, by their number in a program."""
    return {opcode.value: opcode for opcode in by_name().values()}
