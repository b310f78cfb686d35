"""Expected differences: what `expected.toml` says about an entry."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

_FILE = Path(__file__).with_name("expected.toml")


@dataclass(frozen=True)
class Expectation:
    """How much of an entry is checked, and why not all of it.

    `check` is "values" (all), "shapes" (structure, shapes and dtypes) or "skip".
    """

    check: str = "values"
    reason: str = ""


@functools.cache
def _rules() -> tuple[tuple[tuple[str, ...], tuple[str, ...], Expectation], ...]:
    made = tomllib.loads(_FILE.read_text())["difference"]
    return tuple(
        (tuple(rule["ops"]), tuple(rule.get("dtypes", ["*"])), Expectation(rule["check"], rule["reason"]))
        for rule in made
    )


def expectation(name: str, dtype: str) -> Expectation:
    """What to expect of an entry: by default, everything."""
    for ops, dtypes, expected in _rules():
        if any(fnmatchcase(name, op) for op in ops) and any(fnmatchcase(dtype, d) for d in dtypes):
            return expected
    return Expectation()
