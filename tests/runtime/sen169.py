"""An independent reference of the card's 16-bit float, in exact rational arithmetic.

Written from the format's description alone: 1 sign, 6 exponent and 9 fraction bits, bias 31, no
subnormals, ties away from zero. Shares nothing with the package.
"""

from __future__ import annotations

from fractions import Fraction

SYMBOL = 0x7FFF


def _magnitude(bits: int) -> Fraction:
    if bits == 0:
        return Fraction(0)
    exponent, fraction = bits >> 9, bits & 0x1FF
    return Fraction(2) ** (exponent - 31) * (1 + Fraction(fraction, 512))


MAGNITUDES = [_magnitude(bits) for bits in range(SYMBOL)]  # increasing


def decode(bits: int) -> float:
    """The value of a pattern; the merged symbol is NaN, or -inf with a sign."""
    sign = -1.0 if bits & 0x8000 else 1.0
    if bits & 0x7FFF == SYMBOL:
        return float("-inf") if bits & 0x8000 else float("nan")
    return sign * float(MAGNITUDES[bits & 0x7FFF])


def encode_saturating(value: float) -> int:
    """The pattern nearest to a value as DMA and constants round it."""
    if value != value or value == float("inf"):
        return SYMBOL
    if value == float("-inf"):
        return 0x8000 | SYMBOL
    negative = str(value).startswith("-")
    exact = abs(Fraction(value))
    low, high = 0, SYMBOL - 1
    while low < high:  # the smallest pattern that is not below the value
        middle = (low + high) // 2
        if MAGNITUDES[middle] < exact:
            low = middle + 1
        else:
            high = middle
    best = low
    if low > 0:
        below, above = exact - MAGNITUDES[low - 1], MAGNITUDES[low] - exact
        if below < above:
            best = low - 1
    return (0x8000 if negative else 0) | best
