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
    """How an entry may differ from the CPU, and why.

    `check` is "values" (all is compared), "shapes" (structure, shapes and dtypes are) or "refused".
    """

    check: str = "values"
    wider: bool = False
    host: tuple[int, ...] = ()
    chance: tuple[int | str, ...] = ()
    near: float = 0.0
    relative: float = 0.0
    ties: int | None = None
    skip: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class _Rule:
    ops: tuple[str, ...]
    dtypes: tuple[str, ...]
    expected: Expectation

    def covers(self, name: str, dtype: str) -> bool:
        is_named = any(fnmatchcase(name, op) for op in self.ops)
        return is_named and any(fnmatchcase(dtype, each) for each in self.dtypes)


@functools.cache
def rules() -> tuple[_Rule, ...]:
    """The file, read."""
    made = []
    for rule in tomllib.loads(_FILE.read_text())["difference"]:
        ops, dtypes = tuple(rule.pop("ops")), tuple(rule.pop("dtypes", ["*"]))
        listed = {key: tuple(rule.pop(key, ())) for key in ("host", "chance", "skip")}
        expected = Expectation(**rule, **listed)
        made.append(_Rule(ops, dtypes, expected))
    return tuple(made)


def expectation(name: str, dtype: str) -> Expectation:
    """What to expect of an entry: by default, everything. The first rule that covers it counts."""
    found = (rule.expected for rule in rules() if rule.covers(name, dtype))
    return next(found, Expectation())
