"""What the host was doing when it asked a card for work, and while a card had nothing to do."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from .read import HostEvent, Thread, Trace

_STEP = "ProfilerStep#"  # a range that every schedule makes


class _Open(NamedTuple):
    """A module or a range that a thread is in, and the ones around it."""

    end: int
    modules: str
    ranges: str


_OUTSIDE = _Open(0, "", "")


def layers_of_calls(trace: Trace) -> dict[int, str]:
    """Where each call stands: in the modules around it, `GraniteModel_0.GraniteMLP_3`, or else in
    the ranges of `record_function`, `[generate.decode]`. Calls outside of both are left out."""
    around = _by_thread(event for event in trace.host if event.category != "cpu_op")
    calls: dict[Thread, list[tuple[int, int]]] = {}
    for number, call in trace.calls.items():
        calls.setdefault(call.thread, []).append((call.start, number))
    found = {}
    for thread, asked in calls.items():
        enter = _sweep(around.get(thread, []))
        for start, number in sorted(asked):
            inside = enter(start)
            layer = inside.modules or (f"[{inside.ranges}]" if inside.ranges else "")
            if layer:
                found[number] = layer
    return found


def _by_thread(events: Iterable[HostEvent]) -> dict[Thread, list[HostEvent]]:
    """Outer events before those within them."""
    threads: dict[Thread, list[HostEvent]] = {}
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        threads.setdefault(event.thread, []).append(event)
    return threads


def _sweep(events: list[HostEvent]) -> Callable[[int], _Open]:
    """Answers what is open at a time; times must not go back."""
    open_ = [_OUTSIDE]
    rest = iter(events)
    coming = next(rest, None)

    def enter(time: int) -> _Open:
        nonlocal coming
        while coming is not None and coming.start <= time:
            _close(open_, coming.start)
            open_.append(_within(open_[-1], coming))
            coming = next(rest, None)
        _close(open_, time)
        return open_[-1]

    return enter


def _close(open_: list[_Open], time: int) -> None:
    while len(open_) > 1 and open_[-1].end < time:
        open_.pop()


def _within(outer: _Open, event: HostEvent) -> _Open:
    if event.category == "module":
        return _Open(event.end, _joined(outer.modules, event.name), outer.ranges)
    if event.name.startswith(_STEP):
        return _Open(event.end, outer.modules, outer.ranges)
    return _Open(event.end, outer.modules, _joined(outer.ranges, event.name))


def _joined(outer: str, name: str) -> str:
    return f"{outer}.{name}" if outer else name


class HostWork:
    """The operations of the host that are in no other one, to ask what took the time of a gap."""

    def __init__(self, host: Iterable[HostEvent]) -> None:
        operations = (event for event in host if event.category == "cpu_op")
        self._threads = [list(_outermost(events)) for events in _by_thread(operations).values()]

    def longest_in(self, start: int, end: int) -> str:
        """The operation that takes most of this time; "" if there is none."""
        best, name = 0, ""
        for events in self._threads:
            # Outermost operations follow each other, so their ends are sorted as well.
            at = bisect_left(events, start, key=lambda event: event.end)
            while at < len(events) and events[at].start < end:
                inside = min(events[at].end, end) - max(events[at].start, start)
                if inside > best:
                    best, name = inside, events[at].name
                at += 1
        return name


def _outermost(events: Iterable[HostEvent]) -> Iterator[HostEvent]:
    end = None
    for event in events:
        if end is None or event.start >= end:
            end = event.end
            yield event
