"""What people see: the table of `spyre-smi` and the lines of `spyre-smi dmon`.

A dash stands where nothing was launched: there is no time to have a share of.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING

from spyre_smi.figures import Figures
from spyre_smi.samples import Sample

if TYPE_CHECKING:
    from rich.table import Table

NOBODY = (
    "no process that you may look at has a Spyre card open, or all of them have SPYRE_MONITOR=0"
)
NOTE = (
    "PT, LPDDR5, PCIe, power and clock are modelled: shares and rates are of the card's own clock."
)
_PIPED_WIDTH = 100  # of a table that goes into a file

# ---- The table ----------------------------------------------------------------------------------


def print_table(sample: Sample) -> None:
    """Two lines per card: what it does now, and all that it has done."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False)
    console.print(f"spyre-smi  {_clock_time(sample.time, '%Y-%m-%d %H:%M:%S')}")
    if not sample.rows:
        console.print(NOBODY, soft_wrap=True)
        return
    console.print(_table(sample))
    console.print(f"now: the last {sample.window:.2g} s; total: since the card was opened")
    console.print(NOTE, soft_wrap=True)


def _table(sample: Sample) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("card", justify="right", no_wrap=True)
    table.add_column(
        "process", min_width=10
    )  # the one column that gives way when the terminal is narrow
    table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name in ("PT\n%", "LPDDR5\nGB/s", "PCIe\nGB/s", "power\nW", "kernels", "clock"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in sample.rows:
        command = Text(row.process.command, no_wrap=True, overflow="ellipsis")
        used, total = row.reading.memory_used, row.reading.memory_total
        pid = str(row.process.pid)
        table.add_row(str(row.card), pid, _bytes(used), "now", *_cells(row.window))
        table.add_row("", command, f"of {_bytes(total)}", "total", *_cells(row.total))
        if row.reading.fault_name:
            table.add_row("!", f"fault: {row.reading.fault_name}", "until reset")
    return table


def _cells(over: Figures) -> tuple[str, ...]:
    return (
        _percent(over.pt),
        _rate(over.lpddr5_rate),
        _rate(over.pcie_rate),
        f"{over.watts:.0f}",
        f"{over.kernels:,}",
        _duration(over.seconds),
    )


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.0f}"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1f}"


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def _clock_time(moment: float, pattern: str) -> str:
    return time.strftime(pattern, time.localtime(moment))


# ---- dmon ---------------------------------------------------------------------------------------

_COLUMNS = (
    # name, unit, width
    ("time", "h:m:s", 8),
    ("card", "", 4),
    ("pid", "", 8),
    ("mem", "MiB", 8),
    ("pt", "%", 4),
    ("sfp", "%", 4),
    ("lx", "%", 4),
    ("lpddr5", "%", 6),
    ("lpddr5", "GB/s", 7),
    ("pcie", "GB/s", 6),
    ("power", "W", 5),
    ("kernels", "", 8),
    ("clock", "us", 11),
)


class Lines:
    """The lines of `dmon`. On a terminal the headings come again before they are out of sight."""

    def __init__(self) -> None:
        self._below = 0  # lines since the headings
        _print_headings()
        print(f"# {NOTE}", flush=True)

    def show(self, sample: Sample) -> None:
        count = max(1, len(sample.rows))
        if sys.stdout.isatty() and self._below + count > shutil.get_terminal_size().lines - 4:
            _print_headings()
            self._below = 0
        _print_lines(sample)
        self._below += count


def _print_headings() -> None:
    """The columns and their units; `#` keeps them out of what reads the lines."""
    for part in (0, 1):
        cells = (str(column[part]).rjust(column[2]) for column in _COLUMNS)
        print("# " + " ".join(cells))


def _print_lines(sample: Sample) -> None:
    """A line per card: what it did since the last one."""
    moment = _clock_time(sample.time, "%H:%M:%S")
    if not sample.rows:
        print(f"# {moment} {NOBODY}", flush=True)
    for row in sample.rows:
        over = row.window
        values = (
            moment,
            str(row.card),
            str(row.process.pid),
            f"{row.reading.memory_used / 2**20:.1f}",
            *(_percent(share) for share in (over.pt, over.sfp, over.lx, over.lpddr5)),
            *(_rate(rate) for rate in (over.lpddr5_rate, over.pcie_rate)),
            f"{over.watts:.0f}",
            str(over.kernels),
            f"{over.seconds * 1e6:.1f}",
        )
        cells = (value.rjust(column[2]) for value, column in zip(values, _COLUMNS, strict=True))
        fault = row.reading.fault_name
        print("  " + " ".join(cells) + (f"  # fault: {fault}" if fault else ""), flush=True)
