"""What profiling costs: the Granite-like block with the profiler off, on, and never used.

Two processes take turns. One never has a profiler. The other one runs each burst of calls twice,
with the profiler off and on. Neighbouring bursts are compared, and the median of their ratios
counts: what else runs on the machine slows both. Starting and stopping the profiler is not part of
a burst; it has a column of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import torch
from _report import Report, median
from _workloads import granite_block
from torch.profiler import ProfilerActivity, profile

ACTIVITIES = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
MOST_ON = 1.10  # times the wall time without it
MOST_OFF = 1.02  # likewise, against a process that has none
CALLS = 10  # per burst
SMALL_OPS = 200


def compiled_block() -> Callable[[], object]:
    return granite_block().to("spyre", torch.float16).compiled().run


def eager_block() -> Callable[[], object]:
    return granite_block().to("spyre", torch.float16).run


def small_operations() -> Callable[[], object]:
    """Nearly all of the time is the way to the card: the worst case, for information."""
    x = torch.ones(64, dtype=torch.float16, device="spyre")

    def run() -> None:
        for _ in range(SMALL_OPS):
            x + x

    return run


WORKLOADS = {
    "Granite block, compiled": compiled_block,
    "Granite block, eager": eager_block,
    f"{SMALL_OPS} adds of one stick": small_operations,
}
WITH_TARGETS = ("Granite block, compiled", "Granite block, eager")


@dataclass(frozen=True)
class Burst:
    seconds: float  # of a call
    around: float = 0.0  # starting and stopping the profiler
    events: int = 0


def burst(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    torch.spyre.synchronize()
    return (time.perf_counter() - began) / CALLS


def profiled_burst(call: Callable[[], object]) -> Burst:
    began = time.perf_counter()
    with profile(activities=ACTIVITIES) as prof:
        seconds = burst(call)
    around = time.perf_counter() - began - CALLS * seconds
    return Burst(seconds, around, len(prof.profiler.kineto_results.events()))


def serve(connection: Connection) -> None:
    """A process that runs bursts as it is told: the name of a workload, and whether to profile."""
    calls: dict[str, Callable[[], object]] = {}
    with torch.no_grad(), contextlib.suppress(EOFError):
        while True:
            name, is_profiled = connection.recv()
            if name not in calls:
                calls[name] = WORKLOADS[name]()
            call = calls[name]
            connection.send(profiled_burst(call) if is_profiled else Burst(burst(call)))


class Process:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._end, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def burst(self, name: str, is_profiled: bool = False) -> Burst:
        self._end.send((name, is_profiled))
        return self._end.recv()

    def close(self) -> None:
        self._end.close()
        self._process.join()


@dataclass
class Found:
    never: list[Burst] = field(default_factory=list)
    off: list[Burst] = field(default_factory=list)
    on: list[Burst] = field(default_factory=list)

    @property
    def ratio_on(self) -> float:
        return _ratio(self.on, self.off)

    @property
    def ratio_off(self) -> float:
        return _ratio(self.off, self.never)


def _milliseconds(bursts: list[Burst]) -> float:
    return 1e3 * median([each.seconds for each in bursts])


def _ratio(these: list[Burst], those: list[Burst]) -> float:
    pairs = zip(these, those, strict=True)
    return median([this.seconds / that.seconds for this, that in pairs])


def measure(name: str, plain: Process, used: Process, rounds: int) -> Found:
    found = Found()
    for process, is_profiled in ((plain, False), (used, False), (used, True)):
        process.burst(name, is_profiled)  # compiles; the first profile sets kineto up
    for _ in range(rounds):
        found.never.append(plain.burst(name))
        found.off.append(used.burst(name))
        found.on.append(used.burst(name, is_profiled=True))
    return found


def missed(found: dict[str, Found]) -> list[str]:
    return [
        f"{name}: {what} {ratio:.3f}"
        for name in WITH_TARGETS
        for what, ratio, most in (
            ("on/off", found[name].ratio_on, MOST_ON),
            ("off/never", found[name].ratio_off, MOST_OFF),
        )
        if ratio > most
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="bursts of each kind (default 20)")
    options = parser.parse_args()
    report = Report("profiling", "The profiler: what it costs")
    plain, used = Process(), Process()
    found = {name: measure(name, plain, used, options.rounds) for name in WORKLOADS}
    plain.close()
    used.close()
    report.table(
        "Wall time of a call, on this machine",
        ["", "never ms", "off ms", "on ms", "off/never", "on/off", "start+stop ms", "events"],
        [
            [
                name,
                *map(_milliseconds, (each.never, each.off, each.on)),
                f"{each.ratio_off:.3f}",
                f"{each.ratio_on:.3f}",
                1e3 * median([b.around for b in each.on]),
                each.on[-1].events,
            ]
            for name, each in found.items()
        ],
    )
    report.finish(missed(found), "the profiler costs more than it may")


if __name__ == "__main__":
    main()
