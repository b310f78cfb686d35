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
    REFUSED = 1  # as expected.toml has it
    DTYPE = 2  # needs a dtype that the card lacks, and says so
    CARD = 3
    FALLBACK = 4
    ERROR = 5
    WRONG = 6
    CRASH = 7  # the process died, or didn't come to an end

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


Key = tuple[str, str]  # the entry's name; a dtype, or a device-generic test and a dtype


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

    def counts(self, *columns: str) -> Counter[Status]:
        """How many entries of these columns there are of each status."""
        return Counter(
            entry.status for (_, column), entry in self.entries.items() if column in columns
        )

    def columns(self) -> tuple[list[str], list[str]]:
        """The dtypes, and the device-generic tests."""
        found = sorted({column for _, column in self.entries})
        return [x for x in found if " " not in x], [x for x in found if " " in x]

    def summary(self) -> str:
        """The figures that the project is held to."""
        dtypes, tests = self.columns()
        rows = {dtype: [dtype] for dtype in dtypes} | {"all dtypes": dtypes}
        rows |= {test: [test] for test in tests}
        lines = [f"{'':22}" + "".join(f"{status.name.lower():>10}" for status in Status)]
        for row, columns in rows.items():
            counts = self.counts(*columns)
            numbers = "".join(f"{counts[status]:>10}" for status in Status)
            lines.append(f"{row:22}{numbers}")
        lines.append("")
        lines += [f"{name:46}{share:7.1%}" for name, share in self.shares().items()]
        return "\n".join(lines)

    def shares(self) -> dict[str, float]:
        """Fractions of the entries that need no dtype the card lacks."""
        counts = self.counts(*self.columns()[0])
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
