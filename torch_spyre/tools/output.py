"""Standard output of commands."""

from __future__ import annotations

import errno
import os
import sys


def is_terminal() -> bool:
    """Is it one? `OSError` if it was closed before the command began."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "standard output is closed")
    return sys.stdout.isatty()


def write_out(text: str) -> None:
    """Print all of a text; who reads it may stop early, as `head` does."""
    is_terminal()
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # what is left of it must not fail once more when the process ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
