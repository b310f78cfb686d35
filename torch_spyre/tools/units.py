"""Figures as people read them."""

from __future__ import annotations


def bytes_text(count: int) -> str:
    """A number of bytes.

    >>> bytes_text(48 << 10), bytes_text(100)
    ('48 KiB', '100 B')
    """
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


def time_text(nanoseconds: int) -> str:
    """A length of time.

    >>> time_text(2_916_590), time_text(7)
    ('2.917 ms', '7 ns')
    """
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.4g} {unit}"
    return f"{nanoseconds} ns"
