"""What every benchmark prints and writes: where it ran, aligned tables, one JSON file."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
# Settings that change what is measured; shown only when set.
SETTINGS = (
    "SPYRE_CARD_THREADS",
    "SPYRE_CARD_MEMORY",
    "SPYRE_CARD_CHECK",
    "SENCORES",
    "OMP_NUM_THREADS",
)


def machine() -> dict[str, Any]:
    """Says what the figures were measured on: processor, cores, load, versions, settings."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),  # others on the machine make figures worse
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "torch-spyre": _version("torch-spyre"),
        "settings": {name: os.environ[name] for name in SETTINGS if name in os.environ},
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    """The model name that Linux gives, or what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


class Report:
    """Collects the tables of one benchmark, prints them as they come, writes them at the end.

    >>> report = Report("copies", "host-card copies of 64 MB")
    >>> report.table("to the card", ["dtype", "GB/s"], [["float16", 4.1]])
    >>> report.write()
    """

    def __init__(self, name: str, title: str) -> None:
        self.name = name
        self.machine = machine()
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self.remarks: list[str] = []
        self.title = title
        print(f"{title}\n  on {self.machine['processor']}, {self.machine['cores']} cores,", end=" ")
        print(f"load {self.machine['load']}, torch {self.machine['torch']},", end=" ")
        print(f"python {self.machine['python']}")
        for setting, value in self.machine["settings"].items():
            print(f"  {setting}={value}")

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Prints one table; numbers to the right, text to the left."""
        rows = [list(row) for row in rows]
        self.tables[title] = [dict(zip(columns, row, strict=True)) for row in rows]
        cells = [list(columns), *([_text(value) for value in row] for row in rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
        numeric = [bool(rows) and isinstance(rows[0][i], int | float) for i in range(len(columns))]
        print(f"\n{title}")
        for row in cells:
            aligned = (
                text.rjust(width) if right else text.ljust(width)
                for text, width, right in zip(row, widths, numeric, strict=True)
            )
            print(("  " + "  ".join(aligned)).rstrip())

    def remark(self, text: str) -> None:
        """Prints a sentence that belongs to the figures and keeps it with them."""
        self.remarks.append(text)
        print(f"\n{text}")

    def write(self) -> Path:
        """Writes `results/<name>.json` and returns its path."""
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        content = {
            "title": self.title,
            "machine": self.machine,
            "tables": self.tables,
            "remarks": self.remarks,
        }
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        print(f"\nwritten to benchmarks/results/{path.name}")
        return path

    def finish(self, missed: Sequence[str], complaint: str) -> None:
        """Says which targets were missed, writes, and ends the program with a complaint if any."""
        self.remark(f"Missed: {'; '.join(missed)}." if missed else "All targets met.")
        self.write()
        if missed:
            raise SystemExit(complaint)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def median(samples: Sequence[float]) -> float:
    """The middle of repeated measurements: one disturbed run doesn't move it."""
    return statistics.median(samples)
