"""What a run found: kept as JSON, one line per entry, and counted."""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Status(enum.IntEnum):
    """What came of an entry, the worst of its calls; later is worse."""

    SKIPPED = 0  # nothing to compare with
    DTYPE = 1  # needs a dtype that the card lacks, and says so
    CARD = 2
    FALLBACK = 3
    ERROR = 4
    WRONG = 5
    CRASH = 6  # the process died, or didn't come to an end

    @property
    def is_good(self) -> bool:
        """Did it do what it should?"""
        return self <= Status.FALLBACK


@dataclass(frozen=True)
class Entry:
    """One entry of op_db for one dtype."""

    status: Status
    calls: int = 0
    fallbacks: tuple[str, ...] = ()
    detail: str = ""

    def as_json(self) -> dict[str, Any]:
        """Only what there is to say."""
        made: dict[str, Any] = {"status": self.status.name.lower(), "calls": self.calls}
        if self.fallbacks:
            made["fallbacks"] = list(self.fallbacks)
        if self.detail:
            made["detail"] = self.detail
        return made

    @staticmethod
    def from_json(made: Mapping[str, Any]) -> Entry:
        """The inverse of `as_json`."""
        return Entry(
            Status[made["status"].upper()],
            made.get("calls", 0),
            tuple(made.get("fallbacks", ())),
            made.get("detail", ""),
        )


Key = tuple[str, str]  # the entry's name, the dtype's


@dataclass
class Scoreboard:
    """All entries of a run."""

    about: dict[str, Any] = field(default_factory=dict)
    entries: dict[Key, Entry] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> Scoreboard:
        """From JSON; an absent file is an empty board."""
        if not path.exists():
            return Scoreboard()
        made = json.loads(path.read_text())
        entries = {
            (name, dtype): Entry.from_json(entry)
            for name, of_dtypes in made["entries"].items()
            for dtype, entry in of_dtypes.items()
        }
        return Scoreboard(made["about"], entries)

    def write(self, path: Path) -> None:
        """As JSON with one line per entry and dtype, so that changes read well."""
        by_name: dict[str, list[str]] = {}
        for (name, dtype), entry in sorted(self.entries.items()):
            line = f"      {json.dumps(dtype)}: {json.dumps(entry.as_json(), ensure_ascii=False)}"
            by_name.setdefault(name, []).append(line)
        blocks = [
            f"    {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n    }"
            for name, lines in by_name.items()
        ]
        text = (
            f'{{\n  "about": {json.dumps(self.about)},\n  "entries": {{\n'
            + ",\n".join(blocks)
            + "\n  }\n}\n"
        )
        scratch = path.with_suffix(".writing")
        scratch.write_text(text)
        scratch.replace(path)

    def counts(self, dtype: str | None = None) -> Counter[Status]:
        """How many entries there are of each status."""
        return Counter(
            entry.status for (_, of), entry in self.entries.items() if dtype in (None, of)
        )

    def summary(self) -> str:
        """The figures that the project is held to."""
        lines = [f"{'':10}" + "".join(f"{status.name.lower():>10}" for status in Status)]
        for dtype in (*sorted({dtype for _, dtype in self.entries}), None):
            counts = self.counts(dtype)
            numbers = "".join(f"{counts[status]:>10}" for status in Status)
            lines.append(f"{dtype or 'all':10}{numbers}")
        lines.append("")
        lines += [f"{name:46}{share:7.1%}" for name, share in self.shares().items()]
        return "\n".join(lines)

    def shares(self) -> dict[str, float]:
        """Fractions of the entries that need no dtype the card lacks."""
        counts = self.counts()
        total = sum(n for status, n in counts.items() if status >= Status.CARD) or 1
        half = self.counts("float16")
        halves = sum(n for status, n in half.items() if status >= Status.CARD) or 1
        return {
            "run": (counts[Status.CARD] + counts[Status.FALLBACK]) / total,
            "wrong": counts[Status.WRONG] / total,
            "error": counts[Status.ERROR] / total,
            "crash": counts[Status.CRASH] / total,
            "float16 entirely on the card": half[Status.CARD] / halves,
        }
