"""An explanation for the terminal: tables, the longest rows first."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from torch_spyre.tools.units import bytes_text, time_text

from . import figures
from .document import Explanation, Graph, Source
from .figures import Row, Work

Item = TypeVar("Item")

ROWS = 8
WIDTH = 110  # where there is no terminal that has one
_RIGHT = {"time", "share", "times", "cores", "LX", "pool", "steps", "bytes", "launches", "tensors"}


def summary(explanation: Explanation, rows: int | None = ROWS, width: int = WIDTH) -> str:
    """The summary as plain text; tables have at most so many rows, all with None."""
    stream = io.StringIO()
    Console(file=stream, width=width, no_color=True, highlight=False).print(
        render(explanation, rows)
    )
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def render(explanation: Explanation, rows: int | None = ROWS) -> RenderableType:
    """The summary for a console of rich's."""
    work = list(figures.work_of(explanation))
    parts = [
        _head(explanation),
        *_graphs(explanation, rows),
        *_where(explanation, rows),
        *_layers(work, rows, explanation.duration),
        *_operations(work, rows, explanation.duration),
        *_copies(work, rows, explanation.duration),
        *_cores(work, explanation.duration),
        *_scratchpads(explanation, rows),
        *_roofline(explanation, work),
    ]
    return Group(*parts)


# ---- Parts --------------------------------------------------------------------------------------


def _head(explanation: Explanation) -> Text:
    kernels = len(explanation.kernels)
    text = Text(explanation.title, style="bold")
    text.append(f"  {', '.join(explanation.inputs)}\n", style="not bold")
    text.append(f"{time_text(explanation.duration)} modelled", style="bold green")
    text.append(
        f" for one call: {_plural(len(explanation.launches), 'launch', 'launches')}, "
        f"{_plural(len(explanation.graphs), 'graph')}, "
        f"{_plural(len(explanation.breaks), 'graph break')}, "
        f"{_plural(kernels, 'distinct kernel')}, "
        f"{_plural(sum(explanation.fallbacks.values()), 'CPU fallback')}",
        style="not bold",
    )
    if explanation.fallbacks_elsewhere:
        names = ", ".join(f"{name} ×{n}" for name, n in explanation.fallbacks_elsewhere.items())
        text.append(f"\nOn the CPU elsewhere in the script: {names}", style="not bold yellow")
    return text


def _graphs(explanation: Explanation, rows: int | None) -> Iterator[RenderableType]:
    table = _table("graph", "because", "from", "operations captured → lowered → steps")
    for graph in _first(explanation.graphs, rows):
        counts = f"{sum(graph.captured.values())} → {sum(graph.decomposed.values())} → "
        counts += f"{_steps(explanation, graph)} in {_plural(len(graph.calls), 'call')}"
        _add(table, graph.name, graph.why, _place(graph.source), counts)
    yield from _section("Graphs", table, len(explanation.graphs), rows)
    breaks = _table("at", "graph break")
    for found in _first(explanation.breaks, rows):
        _add(breaks, _place(found.source), found.reason)
    yield from _section("Graph breaks", breaks, len(explanation.breaks), rows)


def _steps(explanation: Explanation, graph: Graph) -> int:
    kernels = (call.kernel for call in graph.calls if call.kernel is not None)
    return sum(len(explanation.kernels[kernel].steps) for kernel in kernels)


def _where(explanation: Explanation, rows: int | None) -> Iterator[RenderableType]:
    """Kernels of graphs, eager operations, transfers, and what the CPU did."""
    found: dict[tuple[str, str], list[int]] = {}
    for launch in explanation.launches:
        kernel = figures.kernel_of(explanation, launch)
        if kernel is not None:
            what = "compiled", kernel.name
        else:
            what = "eager" if launch.kind == "kernel" else launch.kind, launch.name
        found.setdefault(what, []).append(launch.duration)
    table = _table("where", "what", "launches", "time", "share")
    ordered = sorted(found.items(), key=lambda item: -sum(item[1]))
    for (where, name), durations in _first(ordered, rows):
        spent = sum(durations)
        cells = str(len(durations)), time_text(spent), _share(spent, explanation.duration)
        _add(table, where, name, *cells)
    for name, count in explanation.fallbacks.items():
        _add(table, "on the CPU", name, str(count), "", "", style="yellow")
    count = len(found) + len(explanation.fallbacks)
    yield from _section("What ran", table, count, rows)


def _layers(work: list[Work], rows: int | None, total: int) -> Iterator[RenderableType]:
    found = figures.grouped(work, lambda done: figures.pattern(done.layer))
    names: dict[str, set[str]] = {}
    for done in work:
        names.setdefault(figures.pattern(done.layer), set()).add(done.layer)
    table = _table("layer", "times", "time", "share")
    for row in _first(found, rows):
        layer = str(row.key)
        count = f"×{len(names[layer])}" if "*" in layer else ""
        _add(table, layer, count, time_text(row.nanoseconds), _share(row.nanoseconds, total))
    yield from _section("Modelled time per layer", table, len(found), rows)


def _operations(work: list[Work], rows: int | None, total: int) -> Iterator[RenderableType]:
    def likeness(done: Work) -> tuple[object, ...]:
        where = done.source.file, done.source.line, figures.pattern(done.layer)
        return done.op, done.source.aten, where, done.cores, done.bound

    found = figures.grouped(work, likeness)
    table = _table("operation", "times", "time", "share", "cores", "slices", "bound by", "in", "at")
    for row in _first(found, rows):
        done = row.example
        spent = time_text(row.nanoseconds), _share(row.nanoseconds, total)
        cores, slices = str(done.cores or ""), "×".join(map(str, done.slices))
        place = figures.pattern(done.layer), _place(done.source)
        _add(table, done.op, f"×{row.times}", *spent, cores, slices, done.bound, *place)
    yield from _section("Operations that take longest", table, len(found), rows)


def _copies(work: list[Work], rows: int | None, total: int) -> Iterator[RenderableType]:
    copies = [done for done in work if figures.is_copy(done)]
    found = figures.grouped(copies, lambda done: (done.op, figures.plain(done.why)))
    table = _table("copy", "times", "time", "share", "because")
    for row in _first(found, rows):
        spent = time_text(row.nanoseconds), _share(row.nanoseconds, total)
        why = row.example.why or _line(row.example.source)
        _add(table, _copy_name(row), f"×{row.times}", *spent, figures.plain(why))
    yield from _section("Copies that the compiler put in", table, len(found), rows)


def _copy_name(row: Row) -> str:
    done = row.example
    return done.op if done.kind in ("restickify", "relayout") else "clone"


def _cores(work: list[Work], total: int) -> Iterator[RenderableType]:
    spent: Counter[int] = Counter()
    for done in work:
        spent[done.cores] += done.nanoseconds
    shares = [
        f"{_share(spent[cores], total)} on {cores}"
        for cores in sorted(spent, reverse=True)
        if cores and 2000 * spent[cores] >= total
    ]
    if shares:
        yield from _heading("Cores")
        yield Text(f"Of the time of the call, {', '.join(shares)} cores.")


def _scratchpads(explanation: Explanation, rows: int | None) -> Iterator[RenderableType]:
    calls = Counter(
        call.kernel
        for graph in explanation.graphs
        for call in graph.calls
        if call.kernel is not None
    )
    table = _table("kernel", "times", "steps", "time", "LX", "pool", "in LX / pool / outside")
    kernels = sorted(enumerate(explanation.kernels), key=lambda item: -item[1].duration)
    for number, kernel in _first(kernels, rows):
        places = Counter(buffer.component for buffer in kernel.buffers)
        used = f"{bytes_text(kernel.lx_bytes)}, {_share(kernel.lx_bytes, kernel.lx_capacity)}"
        _add(
            table,
            kernel.name,
            f"×{calls[number]}",
            str(len(kernel.steps)),
            time_text(kernel.duration),
            used,
            bytes_text(kernel.pool_bytes),
            f"{places['lx']} / {places['pool']} / {places['argument']}",
        )
    yield from _section("Kernels and scratchpads", table, len(kernels), rows)
    found = figures.spills(explanation.kernels)
    reasons = _table("tensors", "bytes", "in LPDDR5 because")
    for spill in _first(found, rows):
        _add(reasons, str(spill.buffers), bytes_text(spill.nbytes), spill.reason)
    yield from _section("Not in the scratchpads, inside of kernels", reasons, len(found), rows)


def _roofline(explanation: Explanation, work: list[Work]) -> Iterator[RenderableType]:
    if not work:
        return
    found = figures.roofline(explanation, work)
    waited = sorted(found.bound.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{_share(ns, found.nanoseconds)} {unit}" for unit, ns in waited if ns)
    intensity = found.macs / found.nbytes if found.nbytes else 0.0
    ridge = explanation.card.macs_per_ns / explanation.card.bytes_per_ns
    side = "LPDDR5" if intensity < ridge else "PT"
    yield from _heading("Roofline")
    yield Text(
        f"All kernels: {found.macs:,} multiply-adds, {bytes_text(found.nbytes)} through "
        f"LPDDR5, {intensity:.3g} per byte: on the side of {side} (the ridge is at {ridge:.3g}).\n"
        f"At the full rate of the card {time_text(round(found.compute))} of PT and "
        f"{time_text(round(found.memory))} of LPDDR5: "
        f"{_share(round(found.least), found.nanoseconds)} of the "
        f"{time_text(found.nanoseconds)} modelled.\n"
        f"Waited for: {shares}."
    )


# ---- Looks --------------------------------------------------------------------------------------


def _heading(title: str) -> Iterator[RenderableType]:
    yield Text(f"\n{title}", style="bold cyan")


def _section(title: str, table: Table, count: int, rows: int | None) -> Iterator[RenderableType]:
    """A headline and a table; nothing at all if it is empty."""
    if not table.row_count:
        return
    yield from _heading(title)
    yield table
    if rows is not None and count > rows:
        yield Text(f"and {count - rows} more", style="dim")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        is_right = name in _RIGHT
        table.add_column(
            name, justify="right" if is_right else "left", no_wrap=is_right, overflow="fold"
        )
    return table


def _add(table: Table, *cells: str, style: str = "") -> None:
    """A row of plain text: what models and errors say is no markup."""
    table.add_row(*(Text(cell) for cell in cells), style=style)


def _first(items: Sequence[Item], rows: int | None) -> Sequence[Item]:
    return items if rows is None else items[:rows]


def _place(source: Source) -> str:
    return f"{source.file}:{source.line}" if source.file else ""


def _line(source: Source) -> str:
    return "  ".join(part for part in (_place(source), source.code or source.aten) if part)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def _plural(count: int, noun: str, several: str = "") -> str:
    if count == 1:
        return f"1 {noun}"
    return f"{count or 'no'} {several or noun + 's'}"
