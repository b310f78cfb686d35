"""Looking at all cards, again and again: what each did since the last look and since it opened.

A software card belongs to its process: two processes that use card 0 have one each, so a row is a
card of a process.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from spyre_smi.figures import Figures, figures
from spyre_smi.pages import Process, Reading, processes

SCHEMA = 1


@dataclass(frozen=True)
class Row:
    """One card of one process."""

    card: int
    process: Process
    reading: Reading
    window: Figures  # since the last look, or since it opened, if that was later
    total: Figures  # since it opened


@dataclass(frozen=True)
class Sample:
    """All cards at one moment."""

    time: float  # seconds since the epoch
    window: float  # wall seconds since the last look
    rows: list[Row]

    def document(self) -> dict[str, Any]:
        """What `--json` prints."""
        taken = datetime.fromtimestamp(self.time, UTC).isoformat(timespec="milliseconds")
        return {"schema": SCHEMA, "time": taken, "cards": [self._card(row) for row in self.rows]}

    def _card(self, row: Row) -> dict[str, Any]:
        open_for = max(0.0, self.time - row.process.opened)
        return {
            "card": row.card,
            "pid": row.process.pid,
            "command": row.process.command,
            "fault": row.reading.fault_name,
            "memory": {
                "total_bytes": row.reading.memory_total,
                "used_bytes": row.reading.memory_used,
                "host_bytes": row.reading.memory_reserved,
            },
            "window": _interval(min(self.window, open_for), row.window),
            "total": _interval(open_for, row.total),
        }


def _interval(wall: float, over: Figures) -> dict[str, Any]:
    return {
        "wall_seconds": round(wall, 3),
        "kernels": over.kernels,
        "transfers": over.transfers,
        "modelled": {
            "seconds": over.seconds,
            "pt": over.pt,
            "sfp": over.sfp,
            "lpddr5": over.lpddr5,
            "lx": over.lx,
            "pcie_to_card": over.pcie_to_card,
            "pcie_to_host": over.pcie_to_host,
            "lpddr5_gb_per_s": over.lpddr5_rate,
            "pcie_gb_per_s": over.pcie_rate,
            "watts": over.watts,
        },
    }


def samples(
    delay: float, cards: Collection[int] = (), pids: Collection[int] = ()
) -> Iterator[Sample]:
    """A sample after each delay, without end; of the cards and processes named, if any are."""
    last, before = time.monotonic(), _readings(processes())
    while True:
        time.sleep(delay)
        seen = processes()
        now = time.monotonic()
        rows = [
            Row(
                card,
                process,
                reading,
                figures(before.get((process.pid, process.start, card), Reading()), reading),
                figures(Reading(), reading),
            )
            for process in seen
            for card, reading in process.cards.items()
            if (not cards or card in cards) and (not pids or process.pid in pids)
        ]
        rows.sort(key=lambda row: (row.card, row.process.pid))
        yield Sample(time.time(), now - last, rows)
        last, before = now, _readings(seen)


def _readings(seen: list[Process]) -> dict[tuple[int, int, int], Reading]:
    return {
        (process.pid, process.start, card): reading
        for process in seen
        for card, reading in process.cards.items()
    }
