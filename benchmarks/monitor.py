"""What it costs a program to be watched by `spyre-smi`. Target: less than 1 %.

Three ways of running the same work: *off*, with `SPYRE_MONITOR=0`; *published*, as it is without
that; *watched*, with `spyre-smi dmon` looking ten times a second from another process, ten times as
often as it does by default. Two workloads: eager additions of one stick, which are nearly all
launching, and a compiled Granite block.

Off and published are two processes, which lie differently in memory: that alone makes a difference
of about a percent either way. So there are several pairs of them. Within a pair the three ways take
turns, and a round is compared with the one beside it, which had the same machine. Wall time is what
one waits for; processor time is disturbed less by others on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from _report import Report, median

THREADS = "1"  # the card's, so that the other core of a small machine is left for the watcher
DELAY = 0.1  # seconds, of dmon
TARGET = 1.0  # percent
WAYS = ("off", "published", "watched")
CLOCKS = ("wall", "processor")
SMALL, BLOCK = "eager add, one stick", "Granite block, compiled"
ROUND_SECONDS = 0.25

# ---- In the process that is watched -------------------------------------------------------------


def workload(name: str) -> Callable[[], object]:
    """The work, warm."""
    import torch
    from _workloads import granite_block

    torch.manual_seed(0)
    if name == SMALL:
        x = torch.ones(64, dtype=torch.float16, device="spyre")
        run: Callable[[], object] = lambda: torch.add(x, x)  # noqa: E731
    else:
        run = granite_block().to("spyre", torch.float16).compiled().run
    for _ in range(3):
        run()
    return run


def serve(name: str) -> None:
    """Answers each number on stdin with the seconds that so many calls take, by both clocks."""
    import torch

    torch.set_grad_enabled(False)
    run = workload(name)
    print("ready", flush=True)
    for line in sys.stdin:
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            run()
        torch.spyre.synchronize()  # type: ignore[attr-defined]
        print(time.perf_counter() - wall, time.process_time() - processor, flush=True)


class Worker:
    """A process with the work in it."""

    def __init__(self, name: str, is_published: bool) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", name],
            env=os.environ
            | {
                "SPYRE_MONITOR": str(int(is_published)),
                "SPYRE_CARD_THREADS": THREADS,
                "OMP_NUM_THREADS": THREADS,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def _read(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the worker ended")
        return line

    def seconds(self, calls: int) -> dict[str, float]:
        assert self._process.stdin
        print(calls, file=self._process.stdin, flush=True)
        return dict(zip(CLOCKS, map(float, self._read().split()), strict=True))

    def close(self) -> None:
        self._process.communicate()


# ---- The watcher --------------------------------------------------------------------------------


class Watcher:
    """`spyre-smi dmon`, which looks only between `start` and `stop`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "spyre_smi", "dmon", "-d", str(DELAY), "--json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        if not json.loads(self._process.stdout.readline())["cards"]:
            raise RuntimeError("dmon sees no card")
        self.stop()

    def start(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        self.start()
        self._process.send_signal(signal.SIGINT)
        self._process.communicate()


# ---- Measuring ----------------------------------------------------------------------------------


Rounds = dict[str, list[dict[str, float]]]  # by way; microseconds per call, by clock


def cost(pair: Rounds, clock: str, way: str, reference: str) -> float:
    """What one way takes more than another, in percent."""
    beside = zip(pair[way], pair[reference], strict=True)
    return (median([a[clock] / b[clock] for a, b in beside]) - 1) * 100


def measure_pair(name: str, rounds: int) -> Rounds:
    """The three ways, in one pair of processes."""
    off, on = Worker(name, is_published=False), Worker(name, is_published=True)
    watcher = Watcher()
    calls = max(1, round(ROUND_SECONDS / (on.seconds(20)["wall"] / 20)))
    times: Rounds = {way: [] for way in WAYS}
    for turn in range(rounds):
        for way in (*WAYS[turn % 3 :], *WAYS[: turn % 3]):  # each comes first equally often
            if way == "watched":
                watcher.start()
            worker = off if way == "off" else on
            worker.seconds(max(1, calls // 8))  # whoever ran last has the cache
            seconds = worker.seconds(calls)
            times[way].append({clock: seconds[clock] / calls * 1e6 for clock in CLOCKS})
            if way == "watched":
                watcher.stop()
    for part in (watcher, off, on):
        part.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5, help="of processes, for each workload")
    parser.add_argument("--rounds", type=int, default=24, help="of each way, for each pair")
    parser.add_argument("--serve", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return

    report = Report("monitor", "a program that publishes its counters, and is watched")
    rows = []
    for name in (SMALL, BLOCK):
        pairs = [measure_pair(name, options.rounds) for _ in range(options.pairs)]
        rows += [
            [
                name,
                clock,
                median([times[clock] for pair in pairs for times in pair["off"]]),
                *spread([cost(pair, clock, "published", "off") for pair in pairs]),
                *spread([cost(pair, clock, "watched", "published") for pair in pairs]),
            ]
            for clock in CLOCKS
        ]
    columns = ["workload", "clock", "off, us", "published, %", "least", "most"]
    report.table(
        f"what is added, median of {options.pairs} pairs of processes with {options.rounds} rounds",
        [*columns, "watched, %", "least ", "most "],
        rows,
    )
    watcher_cost(report)
    worst = max(max(row[3], row[6], row[3] + row[6]) for row in rows)
    report.remark(f"the largest of the costs: {worst:.2f} %; the target is less than {TARGET} %")
    report.write()
    if worst >= TARGET:
        raise SystemExit("being watched costs more than it may")


def spread(costs: list[float]) -> tuple[float, float, float]:
    return median(costs), min(costs), max(costs)


def watcher_cost(report: Report) -> None:
    """What dmon itself takes: processor time of a run with many looks against one with few."""
    worker = Worker(SMALL, is_published=True)

    def processor_seconds(looks: int) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "spyre_smi", "dmon", "-d", "0.01", "-c", str(looks)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    few, many = 2, 202
    start, long = (median([processor_seconds(looks) for _ in range(5)]) for looks in (few, many))
    worker.close()
    report.table(
        "processor time of dmon, milliseconds",
        ["what", "time"],
        [["start and end", start * 1e3], ["one look", (long - start) / (many - few) * 1e3]],
    )


if __name__ == "__main__":
    main()
