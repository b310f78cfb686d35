"""How the card holds PyTorch's dtypes, as far as planning has to know."""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass

import torch


class Kind(enum.Enum):
    """What the elements of a tensor are. Truth values are floats 1.0 and 0.0 on the card."""

    FLOAT = "float"
    INT = "int"
    BOOL = "bool"

    @property
    def domain(self) -> str:
        """The letter of the domain in a card operation's signature."""
        return "I" if self is Kind.INT else "F"


@dataclass(frozen=True, slots=True)
class CardFormat:
    """A number format of the card: its number, the bytes of an element, its domain."""

    value: int
    nbytes: int
    domain: str


SEN169 = CardFormat(0, 2, "F")
FP32 = CardFormat(1, 4, "F")
INT32 = CardFormat(12, 4, "I")

_HELD_AS = {
    torch.float16: SEN169,
    torch.bfloat16: SEN169,
    torch.bool: SEN169,
    torch.float32: FP32,
    torch.float8_e4m3fn: CardFormat(3, 1, "F"),
    torch.float8_e5m2: CardFormat(4, 1, "F"),
    torch.int8: CardFormat(8, 1, "I"),
    torch.int16: CardFormat(9, 2, "I"),
    torch.int32: INT32,
    torch.int64: INT32,
    torch.uint8: CardFormat(13, 4, "I"),
}

# The largest finite magnitude of each float format that is narrower than fp32.
LARGEST = {
    torch.float16: 8573157376.0,
    torch.bfloat16: 8573157376.0,
    torch.float8_e4m3fn: 448.0,
    torch.float8_e5m2: 57344.0,
}

# SEN169 has one bit of fraction less than float16, and an exponent less wide than bfloat16's.
_SEN169_EPS = 2.0**-9
_SEN169_SMALLEST = 2.0**-31 * (1 + 2.0**-9)


def card_format(dtype: torch.dtype) -> CardFormat:
    """The card's format for a dtype; TypeError for one that it does not hold."""
    held = _HELD_AS.get(dtype)
    if held is None:
        raise TypeError(f"spyre tensors can't have dtype {str(dtype).removeprefix('torch.')}")
    return held


@functools.cache
def kind_of(dtype: torch.dtype) -> Kind:
    if dtype is torch.bool:
        return Kind.BOOL
    return Kind.FLOAT if dtype.is_floating_point else Kind.INT


def matmul_opcode(columns: torch.dtype) -> str:
    """The card's matmul for second operands of this dtype."""
    return "batchmatmul_int8" if columns is torch.int8 else "batchmatmul"


# The prefix of names in formulas that stand for a number that depends on the dtype.
FACT = "dtype."


def fact(name: str, dtype: torch.dtype) -> float:
    """What a formula may ask about the dtype of its computation.

    `dtype.min` and `dtype.max` are PyTorch's. `dtype.step` is the distance of neighbouring numbers
    in units of fp32's last place and `dtype.smallest` the smallest positive number: of those that
    both the card and the host can tell apart.
    """
    info = torch.finfo(dtype)
    is_sen169 = card_format(dtype) is SEN169
    facts: dict[str, float] = {
        "dtype.min": info.min,
        "dtype.max": info.max,
        "dtype.step": max(info.eps, _SEN169_EPS if is_sen169 else 0) / 2.0**-23,
        "dtype.smallest": max(info.eps * info.tiny, _SEN169_SMALLEST if is_sen169 else 0),
    }
    return facts[name]
