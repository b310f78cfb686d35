"""The environment variables that Python code reads.

The runtime checks the values of all of them, here and in C++, when the device is first asked for,
so a value that gets as far as this makes sense.
"""

from __future__ import annotations

import os

from torch_spyre import _C


def text(name: str, default: str = "") -> str:
    """The value of a variable; the default if it is not set or empty."""
    _C.check_environment()
    return os.environ.get(name) or default


def choice(name: str, default: str) -> str:
    """The value of a variable that is one of a few words, in lower case."""
    return text(name, default).lower()


def flag(name: str, default: bool) -> bool:
    """The value of a switch: 0/1, true/false, on/off."""
    return choice(name, str(int(default))) in ("1", "true", "on")
