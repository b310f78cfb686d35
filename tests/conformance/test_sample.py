"""Samples of the conformance run against the scoreboard: a constant one, and one per commit."""

from __future__ import annotations

import datetime
import random
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.conformance import pool
from tests.conformance.page import page
from tests.conformance.results import Key, Scoreboard
from tests.conformance.samples import dtypes_of, operations

_DOCS = Path(__file__).parents[2] / "docs"
_OPS = 40
_CAP = 4

# Their only reference is a kernel of the CPU for fp8 operands, with nothing wider to fall back on:
# it accumulates and rounds as the machine's matrix units do.
_MACHINE_DEPENDENT = ("_scaled_mm*",)


def _sample(seed: str) -> list[str]:
    """Names of entries whose reference is the same on every machine."""
    names = [
        name
        for name in sorted(operations())
        if not any(fnmatchcase(name, pattern) for pattern in _MACHINE_DEPENDENT)
    ]
    return random.Random(seed).sample(names, _OPS)


def _worse(names: list[str]) -> dict[Key, str]:
    """What the scoreboard calls right and is not."""
    board = Scoreboard.read(_DOCS / "conformance.json")
    keys = [(name, dtype) for name in names for dtype in dtypes_of(name)]
    keys = [key for key in keys if key in board.entries and board.entries[key].status.is_good]
    return {
        key: f"{entry.status.name.lower()}: {entry.detail}"
        for key, entry in pool.run(keys, cap=_CAP)
        if not entry.status.is_good
    }


def test_what_the_scoreboard_calls_right_stays_right() -> None:
    # A constant sample: a set that nobody ran before must not decide about a commit.
    assert not _worse(_sample("the sample of make test"))


def _seed_of_the_commit() -> str:
    """Changes with every commit; with the day where there is no repository."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=_DOCS, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or datetime.date.today().isoformat()


@pytest.mark.slow
def test_so_it_does_in_another_sample_for_each_commit() -> None:
    seed = _seed_of_the_commit()
    assert not _worse(_sample(seed)), f"sample {seed}"


def test_the_page_is_that_of_the_scoreboard() -> None:
    board = Scoreboard.read(_DOCS / "conformance.json")
    assert (_DOCS / "conformance.md").read_text() == page(board)
