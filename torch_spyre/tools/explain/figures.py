"""Sums over a document: what the summary says about a call, apart from how it looks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from .document import Call, Explanation, Kernel, Launch, Source

UNITS = ("PT", "SFP", "LPDDR5", "LX", "ring")


@dataclass(frozen=True)
class Work:
    """A step of a kernel in one of its calls, or a launch that is no compiled kernel."""

    op: str
    kind: str  # of a step; of a launch "eager", or the launch's own
    nanoseconds: int  # all launches together, and so are the next two
    macs: int
    nbytes: int  # through LPDDR5
    launches: int
    layer: str
    source: Source
    cores: int
    bound: str
    slices: tuple[int, ...] = ()  # not known of a launch
    why: str = ""


@dataclass
class Row:
    """Some work together: what it has in common, how long it took, how often it ran."""

    key: Hashable
    example: Work
    nanoseconds: int = 0
    times: int = 0


def work_of(explanation: Explanation) -> Iterator[Work]:
    """All that the card did in the call, in steps as far as it was compiled."""
    places: Counter[tuple[int, int]] = Counter()
    for launch in explanation.launches:
        if kernel_of(explanation, launch) is None:
            yield _launched(explanation, launch)
        elif launch.call is not None:
            places[launch.call] += 1
    for (graph, place), count in places.items():
        yield from _steps(explanation, explanation.graphs[graph].calls[place], count)


def _steps(explanation: Explanation, call: Call, launches: int) -> Iterator[Work]:
    assert call.kernel is not None
    for i, step in enumerate(explanation.kernels[call.kernel].steps):
        yield Work(
            op=step.op,
            kind=step.kind,
            nanoseconds=step.duration * launches,
            macs=step.macs * launches,
            nbytes=(step.bytes_read + step.bytes_written) * launches,
            launches=launches,
            layer=call.layers[i] if i < len(call.layers) else step.source.layer,
            source=step.source,
            cores=step.cores,
            bound=step.bound,
            slices=tuple(step.slices.values()),
            why=step.why,
        )


def _launched(explanation: Explanation, launch: Launch) -> Work:
    is_eager = launch.kind == "kernel"
    kind = "eager" if is_eager else launch.kind
    source = Source()
    if launch.call is not None:
        graph, place = launch.call
        source = explanation.graphs[graph].calls[place].source
    return Work(
        op=launch.name,
        kind=kind,
        nanoseconds=launch.duration,
        macs=launch.macs,
        nbytes=launch.bytes_read + launch.bytes_written if is_eager else 0,
        launches=1,
        layer=source.layer or f"({kind})",
        source=source,
        cores=launch.cores,
        bound=launch.bound,
    )


def grouped(work: list[Work], key: Callable[[Work], Hashable]) -> list[Row]:
    """Work that has something in common together; what takes longest first."""
    rows: dict[Hashable, Row] = {}
    for done in work:
        row = rows.setdefault(found := key(done), Row(found, done))
        row.nanoseconds += done.nanoseconds
        row.times += done.launches
    return sorted(rows.values(), key=lambda row: -row.nanoseconds)


def pattern(layer: str) -> str:
    """A layer without the numbers of equal ones; those of the model's own modules are names.

    >>> pattern("model.layers.3.self_attn"), pattern("0.up"), pattern("")
    ('model.layers.*.self_attn', '0.up', '(outside of modules)')
    """
    return re.sub(r"\.\d+(?=\.|$)", ".*", layer) or "(outside of modules)"


def is_copy(work: Work) -> bool:
    """Is it a copy that the compiler put in, or of its kind?"""
    return bool(work.why) or work.kind in ("restickify", "relayout")


def kernel_of(explanation: Explanation, launch: Launch) -> Kernel | None:
    """The compiled kernel that was launched; None for other work."""
    if launch.call is None or launch.kind != "kernel":
        return None
    graph, place = launch.call
    number = explanation.graphs[graph].calls[place].kernel
    return None if number is None else explanation.kernels[number]


# ---- Roofline -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Roofline:
    """The least time that the work of a call could take, and where it went."""

    macs: int
    nbytes: int  # through LPDDR5
    nanoseconds: int  # of the call
    compute: float  # ns: the multiply-adds at the full rate of all matrix units
    memory: float  # ns: the bytes at the full rate of LPDDR5
    bound: dict[str, int]  # ns waited for each unit, "PCIe" and "link"

    @property
    def least(self) -> float:
        return max(self.compute, self.memory)


def roofline(explanation: Explanation, work: list[Work]) -> Roofline:
    """Of all work in a call."""
    card = explanation.card
    macs = sum(done.macs for done in work)
    nbytes = sum(done.nbytes for done in work)
    bound = dict.fromkeys(UNITS, 0)
    for done in work:
        bound[done.bound] = bound.get(done.bound, 0) + done.nanoseconds
    return Roofline(
        macs,
        nbytes,
        explanation.duration,
        macs / card.macs_per_ns if card.macs_per_ns else 0.0,
        nbytes / card.bytes_per_ns if card.bytes_per_ns else 0.0,
        bound,
    )


# ---- Scratchpads --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spill:
    """Tensors inside of kernels that are in LPDDR5 for the same reason."""

    reason: str
    buffers: int  # distinct ones
    nbytes: int


def spills(kernels: tuple[Kernel, ...]) -> list[Spill]:
    """What was made and read inside of one kernel and yet not in LX; the most bytes first."""
    found: dict[str, tuple[int, int]] = {}
    for kernel in kernels:
        for buffer in kernel.buffers:
            if buffer.component == "pool":
                reason = plain(buffer.why_not_lx)
                count, nbytes = found.get(reason, (0, 0))
                found[reason] = count + 1, nbytes + buffer.nbytes
    rows = [Spill(reason, count, nbytes) for reason, (count, nbytes) in found.items()]
    return sorted(rows, key=lambda row: -row.nbytes)


def plain(reason: str) -> str:
    """A reason without the names of buffers, so that equal ones are equal.

    >>> plain("add of buf47: core 0 reads 0..7 but owns 0..0")
    'add: core 0 reads 0..7 but owns 0..0'
    """
    return re.sub(r" of (buf|tmp|arg)\w*", "", reason)
