"""A sample of the conformance run, another one for each commit, against the scoreboard."""

from __future__ import annotations

import datetime
import random
import subprocess
from pathlib import Path

from tests.conformance import pool
from tests.conformance.page import page
from tests.conformance.results import Scoreboard
from tests.conformance.samples import dtypes_of, operations

_DOCS = Path(__file__).parents[2] / "docs"
_OPS = 40
_CAP = 4


def _seed() -> str:
    """Changes with every commit; with the day where there is no repository."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=_DOCS, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or datetime.date.today().isoformat()


def test_what_the_scoreboard_calls_right_stays_right() -> None:
    seed = _seed()
    names = random.Random(seed).sample(sorted(operations()), _OPS)
    board = Scoreboard.read(_DOCS / "conformance.json")
    keys = [(name, dtype) for name in names for dtype in dtypes_of(name)]
    keys = [key for key in keys if key in board.entries and board.entries[key].status.is_good]
    worse = {
        key: f"{entry.status.name.lower()}: {entry.detail}"
        for key, entry in pool.run(keys, cap=_CAP)
        if not entry.status.is_good
    }
    assert not worse, f"sample {seed}"


def test_the_page_is_that_of_the_scoreboard() -> None:
    board = Scoreboard.read(_DOCS / "conformance.json")
    assert (_DOCS / "conformance.md").read_text() == page(board)
