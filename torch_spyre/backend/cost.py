"""What a card program costs by the card's clock: time, traffic and units of every step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch_spyre import _C
from torch_spyre.backend.program import Loop, Step, StepKind, decode
from torch_spyre.backend.spyrecode import StepInfo
from torch_spyre.ir.superdsc import RELAYOUT, RESTICKIFY


@dataclass(frozen=True)
class UnitTimes:
    """How long each unit is busy, in microseconds. The first four work at the same time."""

    pt: float = 0
    sfp: float = 0
    memory: float = 0
    lx: float = 0
    ring: float = 0

    @property
    def bound(self) -> str:
        """The unit that is waited for longest: the busiest of the four, or the ring after it.

        >>> UnitTimes(pt=3, memory=2).bound, UnitTimes(memory=2, ring=2.5).bound
        ('PT', 'ring')
        """
        times = {
            "LPDDR5": self.memory,
            "PT": self.pt,
            "SFP": self.sfp,
            "LX": self.lx,
            "ring": self.ring,
        }
        return max(times, key=times.__getitem__)

    def __add__(self, other: UnitTimes) -> UnitTimes:
        return UnitTimes(
            self.pt + other.pt,
            self.sfp + other.sfp,
            self.memory + other.memory,
            self.lx + other.lx,
            self.ring + other.ring,
        )


@dataclass(frozen=True)
class StepCost:
    """One step of a card program; all visits of a loop together."""

    operation: str
    cores: int
    visits: int
    microseconds: float
    bytes_read: int  # of LPDDR5, all cores together
    bytes_written: int
    lx_read: int  # of its scratchpad, by the busiest core
    lx_written: int
    ring_bytes: int  # all cores together
    units: UnitTimes
    buffer: str = ""  # that it writes, where it has a name
    source: str = ""

    @property
    def bound(self) -> str:
        """What the step waits for."""
        return self.units.bound


@dataclass(frozen=True)
class KernelCost:
    """A kernel: what one launch of it costs."""

    name: str
    steps: tuple[StepCost, ...]
    lx_bytes: int = 0  # of each scratchpad, in use at most
    pool_bytes: int = 0

    @property
    def microseconds(self) -> float:
        """Steps run one after the other."""
        return sum(step.microseconds for step in self.steps)

    @property
    def bytes_read(self) -> int:
        """Of LPDDR5."""
        return sum(step.bytes_read for step in self.steps)

    @property
    def bytes_written(self) -> int:
        """Of LPDDR5."""
        return sum(step.bytes_written for step in self.steps)

    @property
    def lx_read(self) -> int:
        """Of a scratchpad, by the busiest core of each step."""
        return sum(step.lx_read for step in self.steps)

    @property
    def lx_written(self) -> int:
        """Of a scratchpad, by the busiest core of each step."""
        return sum(step.lx_written for step in self.steps)

    @property
    def ring_bytes(self) -> int:
        """All cores together."""
        return sum(step.ring_bytes for step in self.steps)

    @property
    def units(self) -> UnitTimes:
        """Busy times of all steps together."""
        return sum((step.units for step in self.steps), UnitTimes())

    @property
    def cores(self) -> int:
        """Of the widest step."""
        return max((step.cores for step in self.steps), default=0)

    @property
    def bound(self) -> str:
        """The unit that most of the time is spent waiting for."""
        waiting: dict[str, float] = {}
        for step in self.steps:
            waiting[step.bound] = waiting.get(step.bound, 0) + step.microseconds
        return max(waiting, key=waiting.__getitem__, default="")


def program_cost(
    name: str, program: bytes, steps: Sequence[StepInfo] = (), pool_bytes: int = 0
) -> KernelCost:
    """The figures of an encoded program, as the card derives them when it loads it.

    `steps` say where its steps come from; without them they have the names of their operations.
    """
    figures = _C._card.figures(program)
    infos = steps or [StepInfo(operation) for operation in step_names(program)]
    return KernelCost(
        name,
        tuple(_step_cost(info, step) for info, step in zip(infos, figures["steps"], strict=True)),
        max(figures["lx_high_water"], default=0),
        pool_bytes,
    )


def _step_cost(info: StepInfo, figures: dict[str, Any]) -> StepCost:
    units = (figures[f"{unit}_ns"] / 1000 for unit in ("pt", "sfp", "memory", "lx", "ring"))
    return StepCost(
        info.op,
        figures["cores"],
        figures["visits"],
        figures["nanoseconds"] / 1000,
        figures["bytes_read"],
        figures["bytes_written"],
        figures["lx_read"],
        figures["lx_written"],
        figures["ring_bytes"],
        UnitTimes(*units),
        info.buffers[-1] if info.buffers else "",
        info.source,
    )


_COPIES = {StepKind.RESTICKIFY: RESTICKIFY, StepKind.RING: RELAYOUT}


def step_names(program: bytes) -> Iterator[str]:
    """The names of a program's steps, in the order in which they stand there."""

    def walk(body: tuple[Step | Loop, ...]) -> Iterator[str]:
        for entry in body:
            if isinstance(entry, Loop):
                yield from walk(entry.body)
            else:
                yield _COPIES.get(entry.kind, entry.opcode)

    yield from walk(decode(program).body)
