"""The command line of the conformance run."""

from __future__ import annotations

import argparse
import subprocess
import time
from pathlib import Path

import torch

from tests.conformance import pool
from tests.conformance.device_tests import columns_of
from tests.conformance.page import page
from tests.conformance.results import Entry, Key, Scoreboard
from tests.conformance.samples import ALL_DTYPES, dtypes_of, matching

_SAVE_EVERY = 15.0  # seconds


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--ops", default="*", help='names, with *: "sort,*pool2d" (default: all)')
    parser.add_argument("--dtypes", default=",".join(ALL_DTYPES), help="default: all")
    parser.add_argument(
        "--tests", default="", help="device-generic tests of device_tests.toml, or 'all'"
    )
    parser.add_argument("--json", type=Path, help="where to keep the results")
    parser.add_argument("--resume", action="store_true", help="leave out what --json has already")
    parser.add_argument("--again", default="", help='of --json, redo "wrong,error,crash"')
    parser.add_argument("--cap", type=int, default=40, help="samples per entry and dtype")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seconds", type=float, default=120, help="limit per entry and dtype")
    parser.add_argument("--page", type=Path, help="write the page of the docs from the results")
    return parser.parse_args()


def _keys(options: argparse.Namespace, board: Scoreboard) -> list[Key]:
    dtypes, tests, again = map(_listed, (options.dtypes, options.tests, options.again))
    keys = [
        (op, column)
        for op in matching(options.ops)
        for column in (*dtypes_of(op), *columns_of(op))
        if column.split()[-1] in dtypes
        and (" " not in column or "all" in tests or column.split()[0] in tests)
    ]
    if again:
        return [
            key
            for key in keys
            if key in board.entries and board.entries[key].status.name.lower() in again
        ]
    return [key for key in keys if not (options.resume and key in board.entries)]


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def _line(key: Key, entry: Entry) -> str:
    more = entry.detail or ", ".join(entry.fallbacks)
    return f"{entry.status.name.lower():9}{key[0]:45}{key[1]:22}{more[:150]}"


def main() -> int:
    """Run, print a line per entry and the summary; 1 if something is not as it should be."""
    options = _options()
    board = Scoreboard.read(options.json) if options.json else Scoreboard()
    saved = time.monotonic()
    keys = _keys(options, board)
    if keys:
        board.about = {"torch": torch.__version__, "commit": _commit(), "cap": options.cap}
    for key, entry in pool.run(keys, cap=options.cap, jobs=options.jobs, seconds=options.seconds):
        board.entries[key] = entry
        print(_line(key, entry), flush=True)
        if options.json and time.monotonic() > saved + _SAVE_EVERY:
            board.write(options.json)
            saved = time.monotonic()
    if options.json:
        board.write(options.json)
    if options.page:
        options.page.write_text(page(board))
    print(board.summary())
    return 0 if all(entry.status.is_good for entry in board.entries.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
