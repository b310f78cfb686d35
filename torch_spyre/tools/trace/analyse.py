"""From the work in a trace to what people ask for: shares, utilisation, rooflines, gaps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

from .host import HostWork, layers_of_calls
from .read import (
    EXCHANGE,
    FILL,
    KERNEL,
    ON_CARD,
    TO_CARD,
    TO_HOST,
    Card,
    Figures,
    Step,
    Trace,
    Work,
)

NO_LAYER = "(no layer)"
_COMPUTED = (KERNEL, ON_CARD, FILL)  # by cores
_COPIED = (TO_CARD, TO_HOST)  # over PCIe; exchanges go over the link between cards
_UNITS = {"PT": "pt", "SFP": "sfp", "LPDDR5": "memory", "LX": "lx", "ring": "ring"}


@dataclass
class Group:
    """Work that belongs together: of one kernel, operation, layer or stream."""

    name: str
    card: Card  # for its limits
    calls: int = 0
    figures: Figures = field(default_factory=Figures)

    def add(self, figures: Figures, times: int = 1) -> None:
        self.calls += times
        self.figures = Figures(*(a + b * times for a, b in zip(self.figures, figures, strict=True)))

    @property
    def bytes(self) -> int:
        """Of LPDDR5, both ways."""
        return self.figures.bytes_read + self.figures.bytes_written

    @property
    def pt_use(self) -> float:
        """Multiply-adds, as a share of what all cores can do in 16 bits in that time."""
        return self.figures.macs / (self.figures.ns * self.card.mac_rate or 1)

    @property
    def memory_use(self) -> float:
        """Bytes, as a share of what LPDDR5 can move one way in that time."""
        return self.bytes / (self.figures.ns * self.card.memory_rate or 1)

    @property
    def roofline(self) -> float:
        """The least time that the array or LPDDR5 needs for this work, as a share of its time."""
        return max(self.pt_use, self.memory_use)

    @property
    def intensity(self) -> float:
        """Multiply-adds per byte of LPDDR5."""
        return self.figures.macs / (self.bytes or 1)

    @property
    def rate(self) -> float:
        """Multiply-adds per nanosecond."""
        return self.figures.macs / (self.figures.ns or 1)

    @property
    def bound(self) -> str:
        """The unit that is busy longest."""
        busy = {unit: getattr(self.figures, name) for unit, name in _UNITS.items()}
        unit = max(busy, key=busy.__getitem__)
        return unit if busy[unit] else ""


@dataclass(frozen=True)
class Copies:
    """Copies in one direction; exchanges have bytes in both."""

    card: int
    direction: str
    count: int
    bytes: int
    ns: int

    @property
    def rate(self) -> float:
        """Bytes per nanosecond: GB/s."""
        return self.bytes / (self.ns or 1)


@dataclass(frozen=True)
class Gap:
    """A time in which a card had nothing to do."""

    start: int  # from the start of the trace
    ns: int
    before: str  # the work that had ended, and the work that came next
    after: str
    host: str  # the operation that the host was in, for most of it


@dataclass
class CardUse:
    """A card from its first work to its last."""

    number: int
    card: Card
    span: int
    busy: int  # at least one stream has work
    computed: Group  # by the cores
    copied: int  # ns over PCIe
    transfers: int
    linked: int  # ns over the link to other cards
    exchanges: int
    gaps: list[Gap] = field(default_factory=list)  # longest first

    @property
    def idle(self) -> int:
        return self.span - self.busy

    def share(self, nanoseconds: int) -> float:
        """Of the time from its first work to its last."""
        return nanoseconds / (self.span or 1)


# How often equal work occurs in a group: its name, its card, its figures. The launches of a kernel
# are all alike, so there are far fewer of these than there are events.
Parts: TypeAlias = "Counter[tuple[str, int, Figures]]"


class Analysis:
    """All tables of a trace. Groups come longest first."""

    def __init__(self, trace: Trace, depth: int | None = None) -> None:
        self._trace = trace
        self._depth = depth  # of layers: so many parts of their names

    def _card(self, number: int) -> Card:
        return self._trace.cards.get(number, Card(number))

    @property
    def _computed(self) -> Iterable[Work]:
        return (work for work in self._trace.works if work.kind in _COMPUTED)

    # ---- Groups ---------------------------------------------------------------------------------

    @cached_property
    def kernels(self) -> list[Group]:
        return self._grouped(lambda work: work.name, self._computed)

    @cached_property
    def streams(self) -> list[Group]:
        return self._grouped(_stream_name, self._trace.works)

    @cached_property
    def ops(self) -> list[Group]:
        return self._by_step(lambda step: step.op, lambda work: _op_name(work.name))

    @cached_property
    def layers(self) -> list[Group]:
        of_calls = layers_of_calls(self._trace)
        return self._by_step(
            lambda step: self._layer(step.layer),
            lambda work: self._layer(of_calls.get(-1 if work.call is None else work.call, "")),
        )

    def _layer(self, name: str) -> str:
        if self._depth is not None:
            name = ".".join(name.split(".")[: self._depth])
        return name or NO_LAYER

    def _grouped(self, name_of: Callable[[Work], str], works: Iterable[Work]) -> list[Group]:
        return self._summed(Counter((name_of(work), work.card, work.figures) for work in works))

    def _by_step(
        self, name_of_step: Callable[[Step], str], name_of_work: Callable[[Work], str]
    ) -> list[Group]:
        """Kernels whose steps are known count step by step, the others as a whole."""
        parts: Parts = Counter()
        launches: Counter[tuple[int, int]] = Counter()
        for work in self._computed:
            if work.kernel is not None and 0 <= work.kernel < len(self._trace.kernels):
                launches[work.kernel, work.card] += 1
            else:
                parts[name_of_work(work), work.card, work.figures] += 1
        for (kernel, card), times in launches.items():
            for step in self._trace.kernels[kernel]:
                parts[name_of_step(step), card, step.figures] += times
        return self._summed(parts)

    def _summed(self, parts: Parts) -> list[Group]:
        groups: dict[str, Group] = {}
        for (name, card, figures), times in parts.items():
            if name not in groups:
                groups[name] = Group(name, self._card(card))
            groups[name].add(figures, times)
        return sorted(groups.values(), key=lambda group: (-group.figures.ns, group.name))

    # ---- Cards ----------------------------------------------------------------------------------

    @cached_property
    def copies(self) -> list[Copies]:
        sums: dict[tuple[int, str], list[int]] = {}
        for work in self._trace.works:
            if work.kind not in (*_COPIED, ON_CARD, EXCHANGE):
                continue
            total = sums.setdefault((work.card, work.kind), [0, 0, 0])
            read, written = work.figures.bytes_read, work.figures.bytes_written
            total[0] += 1
            total[1] += written if work.kind == ON_CARD else read + written
            total[2] += work.figures.ns
        return [Copies(card, kind, *total) for (card, kind), total in sorted(sums.items())]

    @cached_property
    def cards(self) -> list[CardUse]:
        by_card: dict[int, list[Work]] = {}
        for work in self._trace.works:
            by_card.setdefault(work.card, []).append(work)
        host = HostWork(self._trace.host)
        return [self._use(number, works, host) for number, works in sorted(by_card.items())]

    def _use(self, number: int, works: list[Work], host: HostWork) -> CardUse:
        runs = _runs(works)
        computed = self._grouped(lambda _: "", (w for w in works if w.kind in _COMPUTED))
        copied = [work.figures.ns for work in works if work.kind in _COPIED]
        linked = [work.figures.ns for work in works if work.kind == EXCHANGE]
        use = CardUse(
            number,
            self._card(number),
            span=runs[-1].end - runs[0].start,
            busy=sum(run.end - run.start for run in runs),
            computed=computed[0] if computed else Group("", self._card(number)),
            copied=sum(copied),
            transfers=len(copied),
            linked=sum(linked),
            exchanges=len(linked),
        )
        gaps = sorted(pairwise(runs), key=lambda pair: pair[0].end - pair[1].start)
        for before, after in gaps:
            name = host.longest_in(before.end, after.start) if len(use.gaps) < _NAMED_GAPS else ""
            start = before.end - self._trace.works[0].start
            ns = after.start - before.end
            use.gaps.append(Gap(start, ns, before.last, after.first, name))
        return use


_NAMED_GAPS = 100  # the longest ones: to ask what the host did takes time


@dataclass
class _Run:
    """Work of a card without a pause."""

    start: int
    end: int
    first: str
    last: str


def _runs(works: Iterable[Work]) -> list[_Run]:
    """In order; of several streams together."""
    runs: list[_Run] = []
    for work in works:
        if runs and work.start <= runs[-1].end + 1:  # times in a file are rounded
            if work.end > runs[-1].end:
                runs[-1].end, runs[-1].last = work.end, work.name
        else:
            runs.append(_Run(work.start, work.end, work.name, work.name))
    return runs


def _stream_name(work: Work) -> str:
    stream = "default stream" if work.stream == 0 else f"stream {work.stream}"
    return f"spyre:{work.card}, {stream}"


def _op_name(name: str) -> str:
    """An eager kernel as the compiled ones are called.

    >>> _op_name("aten::add.Tensor"), _op_name("Memcpy DtoD")
    ('aten.add', 'Memcpy DtoD')
    """
    library, found, operation = name.partition("::")
    return f"{library}.{operation.split('.')[0]}" if found else name
