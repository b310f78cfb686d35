"""The analysis as one HTML page: tables and a roofline, no script, nothing from the network."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence

from torch_spyre.tools.units import time_text

from .analyse import Analysis, Group
from .read import Card
from .table import BY, Table, copy_table, gap_table, group_table, percent
from .text import summary

_STYLE = """
:root { color-scheme: light dark; }
:root { --line: #8884; --bar: #4a90d955; --dot: #2a6fbb; --open: #c0702a; }
body { font: 15px/1.45 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 80rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
pre, td, th, text { font-variant-numeric: tabular-nums; }
pre { font-size: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; white-space: nowrap; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right; }
th.text, td.text { text-align: left; }
td.share { background: linear-gradient(to right, var(--bar) var(--part), transparent var(--part)); }
svg { max-width: 100%; height: auto; }
svg text { fill: currentColor; font-size: 12px; }
.grid { stroke: var(--line); } .roof { stroke: currentColor; stroke-width: 2; fill: none; }
.kernel { fill: var(--dot); fill-opacity: .65; }
.layer { fill: none; stroke: var(--open); stroke-width: 1.5; }
"""


def render(analysis: Analysis, title: str, by: str | None = None, top: int | None = None) -> str:
    """The page, as text."""
    return "\n".join(_lines(analysis, html.escape(title), by, top)) + "\n"


def _lines(analysis: Analysis, title: str, by: str | None, top: int | None) -> Iterator[str]:
    yield "<!DOCTYPE html>"
    yield f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield f"<style>{_STYLE}</style></head><body>"
    yield f"<h1>{title}</h1>"
    yield "<p>Times on the card are modelled; the time line is the host's.</p>"
    for use in analysis.cards:
        yield f"<pre>{html.escape(chr(10).join(summary(use)))}</pre>"
    yield "<h2>Roofline</h2>"
    yield from roofline(analysis.cards[0].card, analysis.kernels, analysis.layers)
    for kind in [by] if by else BY:
        yield from _table(group_table(analysis, kind), top)
    if by is None:
        if analysis.copies:
            yield from _table(copy_table(analysis.copies), top)
        for use in analysis.cards:
            if use.gaps:
                yield from _table(gap_table(use.number, use.gaps[:_MOST_GAPS]), top)
    yield "</body></html>"


_MOST_GAPS = 50


def _table(table: Table, top: int | None) -> Iterator[str]:
    rows = table.rows[:top]
    yield f'<h2>{html.escape(table.title)}</h2><div class="wide"><table><tr>'
    is_text = [bool(rows) and isinstance(c.value(rows[0]), str) for c in table.columns]
    for column, left in zip(table.columns, is_text, strict=True):
        yield f"<th{' class=text' if left else ''}>{html.escape(column.title)}</th>"
    yield "</tr>"
    for row in rows:
        cells = []
        for column, left in zip(table.columns, is_text, strict=True):
            value = column.value(row)
            mark = " class=text" if left else ""
            if column.name == "share":
                mark = f' class=share style="--part: {100 * value:.1f}%"'
            cells.append(f"<td{mark}>{html.escape(column.text(value))}</td>")
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</table></div>"


# ---- Roofline -----------------------------------------------------------------------------------

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 25, 35, 45  # margins


class _Axis:
    """Decades of a logarithmic axis, and where values are on it."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low = math.floor(math.log10(min(values)))
        self.high = max(math.ceil(math.log10(max(values))), self.low + 1)
        self._start, self._step = start, (end - start) / (self.high - self.low)

    def at(self, value: float) -> float:
        """In the picture; values below the axis are on its edge."""
        return self._start + self._step * max(math.log10(value) - self.low, 0.0)

    @property
    def decades(self) -> list[float]:
        return [10.0**exponent for exponent in range(self.low, self.high + 1)]


def roofline(card: Card, kernels: Iterable[Group], layers: Iterable[Group]) -> Iterator[str]:
    """Multiply-adds per nanosecond over multiply-adds per byte: kernels as discs whose area is
    their time, layers as rings. Work without multiply-adds or bytes has no place in it."""
    shown = {
        kind: [group for group in groups if group.figures.macs and group.bytes]
        for kind, groups in (("kernel", kernels), ("layer", layers))
    }
    groups = [*shown["kernel"], *shown["layer"]]
    if not groups:
        yield "<p>No work with multiply-adds in this trace.</p>"
        return
    ridge = card.mac_rate / card.memory_rate
    x = _Axis([ridge, *(g.intensity for g in groups)], _LEFT, _WIDTH - _RIGHT)
    y = _Axis([card.mac_rate, *(g.rate for g in groups)], _HEIGHT - _BOTTOM, _TOP)
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}"'
    yield f'<svg {size} role="img" aria-label="Roofline">'
    yield from _grid(x, y)
    left = x.decades[0]
    roof = ((left, min(left * card.memory_rate, card.mac_rate)), (ridge, card.mac_rate))
    points = [f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in (*roof, (x.decades[-1], card.mac_rate))]
    yield f'<polyline class="roof" points="{" ".join(points)}"/>'
    most = max(group.figures.ns for group in groups) or 1
    for kind, members in shown.items():
        for group in members:
            radius = 3 + 15 * math.sqrt(group.figures.ns / most) if kind == "kernel" else 4
            place = f'cx="{x.at(group.intensity):.1f}" cy="{y.at(group.rate):.1f}"'
            tip = f"<title>{html.escape(_tip(group))}</title>"
            yield f'<circle class="{kind}" {place} r="{radius:.1f}">{tip}</circle>'
    yield "</svg>"
    yield "<p>Discs are kernels, their area is time; rings are layers. Point at one to read it.</p>"


def _grid(x: _Axis, y: _Axis) -> Iterator[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for value in x.decades:
        at = x.at(value)
        yield f'<line class="grid" x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{bottom}"/>'
        yield f'<text x="{at:.1f}" y="{bottom + 17}" text-anchor="middle">{value:g}</text>'
    for value in y.decades:
        at = y.at(value)
        yield f'<line class="grid" x1="{_LEFT}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:g}</text>'
    below = f'x="{(_LEFT + right) / 2}" y="{_HEIGHT - 8}" text-anchor="middle"'
    yield f"<text {below}>MACs per byte of LPDDR5</text>"
    yield f'<text x="{_LEFT - 55}" y="{_TOP - 18}">MACs per ns</text>'


def _tip(group: Group) -> str:
    return (
        f"{group.name}\n{time_text(group.figures.ns)} in {group.calls}, "
        f"{group.intensity:.3g} MACs per byte, {percent(group.roofline)} of the roofline, "
        f"bound by {group.bound}"
    )
