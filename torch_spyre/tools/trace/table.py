"""Tables: what their columns are called, in a program's words and in people's."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch_spyre.tools.units import bytes_text, time_text

from .analyse import Analysis, Copies, Gap, Group

BY = ("kernel", "op", "layer", "stream")


class Column(NamedTuple):
    """A column of a table whose rows are objects of one kind."""

    title: str
    name: str  # in a CSV file
    value: Callable[[Any], Any]
    text: Callable[[Any], str] = str


class Table(NamedTuple):
    """Rows for people or programs. The first column is text, the last may be."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Any]


def percent(share: float) -> str:
    """A share of 1.

    >>> percent(0.0834), percent(0.5), percent(1.0)
    ('8.3 %', '50 %', '100 %')
    """
    return f"{100 * share:.1f} %" if 0 < share < 0.0995 else f"{100 * share:.0f} %"


def count_text(count: float) -> str:
    """A large number.

    >>> count_text(33_554_432), count_text(7)
    ('33.6 M', '7')
    """
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g}"


def groups_of(analysis: Analysis, by: str) -> list[Group]:
    return {
        "kernel": lambda: analysis.kernels,
        "op": lambda: analysis.ops,
        "layer": lambda: analysis.layers,
        "stream": lambda: analysis.streams,
    }[by]()


def group_table(analysis: Analysis, by: str) -> Table:
    """Work by kernel, operation, layer or stream."""
    rows = groups_of(analysis, by)
    total = sum(row.figures.ns for row in rows) or 1
    columns = [
        Column(by, by, lambda row: row.name),
        Column("count", "count", lambda row: row.calls, "{:,}".format),
        Column("time", "ns", lambda row: row.figures.ns, time_text),
        Column("share", "share", lambda row: row.figures.ns / total, percent),
        Column("MACs", "macs", lambda row: row.figures.macs, count_text),
        Column("read", "bytes_read", lambda row: row.figures.bytes_read, bytes_text),
        Column("written", "bytes_written", lambda row: row.figures.bytes_written, bytes_text),
    ]
    if by == "stream":  # which has bytes of LPDDR5, of PCIe and of the link
        uses = {use.number: use for use in analysis.cards}
        busy = Column("busy", "busy", lambda row: uses[row.card.id].share(row.figures.ns), percent)
        columns.append(busy)
    else:
        columns += [
            Column("PT", "pt_use", lambda row: row.pt_use, percent),
            Column("LPDDR5", "memory_use", lambda row: row.memory_use, percent),
            Column("roofline", "roofline", lambda row: row.roofline, percent),
            Column("bound by", "bound_by", lambda row: row.bound),
        ]
    return Table(f"By {by}", columns, rows)


def copy_table(copies: Sequence[Copies]) -> Table:
    columns = (
        Column("copies", "direction", lambda row: row.direction),
        Column("card", "card", lambda row: f"spyre:{row.card}"),
        Column("count", "count", lambda row: row.count, "{:,}".format),
        Column("bytes", "bytes", lambda row: row.bytes, bytes_text),
        Column("time", "ns", lambda row: row.ns, time_text),
        Column("rate", "gb_per_s", lambda row: row.rate, lambda rate: f"{rate:.1f} GB/s"),
    )
    return Table("Copies by direction", columns, copies)


def gap_table(card: int, gaps: Sequence[Gap]) -> Table:
    columns = (
        Column("before", "before", lambda row: row.before),
        Column("at", "start_ns", lambda row: row.start, time_text),
        Column("gap", "ns", lambda row: row.ns, time_text),
        Column("next", "after", lambda row: row.after),
        Column("the host was in", "host", lambda row: row.host),
    )
    return Table(f"Longest gaps of spyre:{card}, on the host's clock", columns, gaps)


def csv_text(table: Table) -> str:
    """All rows, with plain numbers."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(column.name for column in table.columns)
    writer.writerows([_plain(column.value(row)) for column in table.columns] for row in table.rows)
    return stream.getvalue()


def _plain(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value
