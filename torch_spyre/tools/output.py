"""Standard output of commands."""

from __future__ import annotations

import os
import sys


def write_out(text: str) -> None:
    """Print all of a text; who reads it may stop early, as `head` does."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # what is left of it must not fail once more when the process ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
