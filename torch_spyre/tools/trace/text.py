"""The analysis in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from torch_spyre.tools.units import time_text

from .analyse import Analysis, CardUse
from .table import BY, Table, copy_table, count_text, gap_table, group_table, percent

_WIDEST = 48  # a cell; kernels have long names


def summary(use: CardUse) -> Iterator[str]:
    """A card in a few lines."""
    cores = use.computed
    yield f"spyre:{use.number}  {use.card.name}"
    yield (
        f"  busy      {time_text(use.busy)} in {time_text(use.span)}, "
        f"{percent(use.share(use.busy))}: "
        f"{_counted(cores.calls, 'kernel', 'kernels')} {time_text(cores.figures.ns)}, "
        f"{_counted(use.transfers, 'copy', 'copies')} {time_text(use.copied)}"
    )
    yield (
        f"  PT        {percent(cores.pt_use)} of {count_text(use.card.mac_rate * 1e9)}MAC/s "
        "while kernels run"
    )
    memory = percent(cores.memory_use)
    yield f"  LPDDR5    {memory} of {use.card.memory_rate:g} GB/s while kernels run"
    yield f"  roofline  {percent(cores.roofline)}, bound by {cores.bound or 'nothing'}"
    if use.exchanges:
        yield (
            f"  link      {time_text(use.linked)} in "
            f"{_counted(use.exchanges, 'exchange', 'exchanges')}, "
            f"{percent(use.share(use.linked))} of the time"
        )
    if use.gaps:
        longest = time_text(use.gaps[0].ns)
        yield (
            f"  idle      {time_text(use.idle)} in {_counted(len(use.gaps), 'gap', 'gaps')}, "
            f"the longest {longest}"
        )


def lines_of(table: Table, top: int | None) -> Iterator[str]:
    """A table with aligned columns: text to the left, numbers to the right."""
    rows = table.rows[:top]
    cells = [[column.title for column in table.columns]]
    cells += [[_short(column.text(column.value(row))) for column in table.columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    is_text = [bool(rows) and isinstance(c.value(rows[0]), str) for c in table.columns]
    for row in cells:
        aligned = (
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(row, widths, is_text, strict=True)
        )
        yield "  ".join(aligned).rstrip()
    if len(table.rows) > len(rows):
        yield f"… and {len(table.rows) - len(rows):,} more"


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _short(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def render(analysis: Analysis, by: str | None, top: int | None) -> str:
    """All tables, or the one asked for."""
    parts = [["Times on the card are modelled; the time line is the host's."]]
    parts += [list(summary(use)) for use in analysis.cards]
    tables = [group_table(analysis, kind) for kind in ([by] if by else BY)]
    if by is None:
        tables += [copy_table(analysis.copies)] if analysis.copies else []
        tables += [gap_table(use.number, use.gaps) for use in analysis.cards if use.gaps]
    parts += [[f"{table.title}", *lines_of(table, top)] for table in tables]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"
