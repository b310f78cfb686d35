"""The card's operations by name, as the extension (or its header) lists them.

The table lives in `csrc/card/opcodes.h` and nowhere else. With the extension at hand it is asked;
a source tree that has not been built yet (planning needs no card) reads the header.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

_ENTRY = re.compile(r'\bX\((\d+),\s*(\w+),\s*"([FI]+:[FI])"\)')


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


def parse_header(text: str) -> dict[str, tuple[int, str]]:
    """Read name -> (value, signature) out of the text of `opcodes.h`."""
    return {name: (int(value), signature) for value, name, signature in _ENTRY.findall(text)}


def _listed() -> dict[str, tuple[int, str]]:
    try:
        from torch_spyre._C import _card
    except ImportError:
        header = Path(__file__).parent.parent / "csrc" / "card" / "opcodes.h"
        return parse_header(header.read_text())
    listed: dict[str, tuple[int, str]] = _card.opcodes
    return listed


@functools.cache
def by_name() -> dict[str, Opcode]:
    """All operations of the card, by name."""
    table = {}
    for name, (value, signature) in _listed().items():
        operands, result = signature.split(":")
        table[name] = Opcode(name, value, operands, result)
    return table


@functools.cache
def by_value() -> dict[int, Opcode]:
    """All operations of the card, by their number in a program."""
    return {opcode.value: opcode for opcode in by_name().values()}
