"""Sums over a document: what the summary says about a call, apart from how it looks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from .document import Explanation, Kernel, Launch, Step

UNITS = ("PT", "SFP", "LPDDR5", "LX", "ring")


@dataclass(frozen=True)
class Work:
    """A step of a kernel in one of its calls: how often it ran."""

    step: Step
    kernel: int
    layer: str
    launches: int

    @property
    def nanoseconds(self) -> int:
        return self.step.duration * self.launches


@dataclass
class Row:
    """Some work together: what it has in common, how long it took, how often it ran."""

    key: Hashable
    example: Work
    nanoseconds: int = 0
    times: int = 0


def work_of(explanation: Explanation) -> Iterator[Work]:
    """Every step of the kernels of the graphs that ran in the call."""
    launches = Counter(launch.call for launch in explanation.launches if launch.kind == "kernel")
    for place, count in launches.items():
        if place is None:
            continue
        call = explanation.graphs[place[0]].calls[place[1]]
        if call.kernel is None:
            continue
        steps = explanation.kernels[call.kernel].steps
        for i, step in enumerate(steps):
            layer = call.layers[i] if i < len(call.layers) else step.source.layer
            yield Work(step, call.kernel, layer, count)


def grouped(work: list[Work], key: Callable[[Work], Hashable]) -> list[Row]:
    """Work that has something in common together; what takes longest first."""
    rows: dict[Hashable, Row] = {}
    for done in work:
        row = rows.setdefault(found := key(done), Row(found, done))
        row.nanoseconds += done.nanoseconds
        row.times += done.launches
    return sorted(rows.values(), key=lambda row: -row.nanoseconds)


def pattern(layer: str) -> str:
    """A layer without the numbers of equal ones.

    >>> pattern("model.layers.3.self_attn"), pattern("")
    ('model.layers.*.self_attn', '(outside of modules)')
    """
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", layer) or "(outside of modules)"


def is_copy(step: Step) -> bool:
    """Is it a copy that the compiler put in, or of its kind?"""
    return bool(step.why) or step.kind in ("restickify", "relayout")


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
    """The least time that the work of kernels could take, and where it went."""

    macs: int
    nbytes: int  # through LPDDR5, by the kernels as planned
    nanoseconds: int
    compute: float  # ns: the multiply-adds at the full rate of all matrix units
    memory: float  # ns: the bytes at the full rate of LPDDR5
    bound: dict[str, int]  # ns waited for each unit

    @property
    def least(self) -> float:
        return max(self.compute, self.memory)


def roofline(explanation: Explanation, work: list[Work]) -> Roofline:
    """Of the steps of all kernels in a call."""
    card = explanation.card
    macs = sum(done.step.macs * done.launches for done in work)
    nbytes = sum((done.step.bytes_read + done.step.bytes_written) * done.launches for done in work)
    bound = dict.fromkeys(UNITS, 0)
    for done in work:
        bound[done.step.bound] = bound.get(done.step.bound, 0) + done.nanoseconds
    return Roofline(
        macs,
        nbytes,
        sum(done.nanoseconds for done in work),
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
