"""Eager operations on the card against the CPU's own, in one run.

Three questions. What does a call cost that was made before (tensors of one stick: nearly all of it
is the way to the card)? What does the first call of a new signature cost, when the operation is
planned? And what becomes of that in a layer of a model, where the work counts?

Calls on card and CPU take turns. A repeated call is timed in a chain of many, with one wait for the
card at the end, as a program makes them; a round is a chain of each, and the median round counts.
First calls are of shapes that nobody has used, each made once: the median of them counts.

Where the CPU may use threads it is tried with one, too: on a machine with other work, two that wait
for each other can be slower than one alone.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

THREADS = 2
os.environ["SPYRE_CARD_THREADS"] = str(THREADS)  # the card reads it when it is opened
os.environ["OMP_NUM_THREADS"] = str(THREADS)

import torch  # noqa: E402
from _report import Report, median  # noqa: E402
from _workloads import Work, granite_block  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

CALL_TARGET = 8.0  # the card's time over the CPU's, median of the operations
FIRST_TARGET = 20.0  # milliseconds, median
BLOCK_TARGET = 2.0  # the card's fp16 over the CPU's fastest dtype
CHAIN = 200  # calls in a row
UNTIMED, TIMED = 2, 3  # calls of the block in a turn

Tensor = torch.Tensor
Operation = Callable[..., Tensor]


def wait() -> None:
    torch.spyre.synchronize()  # type: ignore[attr-defined]


def require_no_fallback() -> None:
    """Figures of the CPU must not stand in the card's column."""
    stats = torch.spyre.fallback_stats()  # type: ignore[attr-defined]
    if stats:
        raise RuntimeError(f"some of it ran on the CPU: {stats}")


# ---- Repeated calls -----------------------------------------------------------------------------


def _view_and_add(x: Tensor, y: Tensor) -> Tensor:
    return x.view(8, 8) + y.view(8, 8).t()


ONE_STICK: dict[str, tuple[Operation, int]] = {  # with the number of arguments
    "add": (torch.add, 2),
    "mul": (torch.mul, 2),
    "relu": (torch.relu, 1),
    "softmax": (lambda x: torch.softmax(x, -1), 1),
    "view + add": (_view_and_add, 2),
}


@dataclass(frozen=True)
class Repeated:
    """An operation called again and again; microseconds per call, of each round."""

    name: str
    card: list[float]
    cpu: list[float]

    @property
    def ratio(self) -> float:
        """Rounds are compared with the one beside them: both had the same machine."""
        return median([card / cpu for card, cpu in zip(self.card, self.cpu, strict=True)])


def chain(call: Operation, inputs: tuple[Tensor, ...], finish: Callable[[], None]) -> float:
    """Microseconds per call, many in a row."""
    call(*inputs)
    finish()
    start = time.perf_counter()
    for _ in range(CHAIN):
        call(*inputs)
    finish()
    return (time.perf_counter() - start) / CHAIN * 1e6


def repeated(name: str, call: Operation, inputs: tuple[Tensor, ...], rounds: int) -> Repeated:
    on_card = tuple(tensor.to("spyre") for tensor in inputs)
    wanted = call(*inputs)
    largest = wanted.abs().max().item()
    torch.testing.assert_close(call(*on_card).cpu(), wanted, rtol=2**-8, atol=2**-8 * largest)
    card, cpu = [], []
    for _ in range(rounds):
        card.append(chain(call, on_card, wait))
        cpu.append(chain(call, inputs, lambda: None))
    return Repeated(name, card, cpu)


def repeated_calls(rounds: int) -> list[Repeated]:
    """One stick of float16 is 64 elements, one of float32 half of that: fp16, as models have."""

    def noise(*size: int) -> Tensor:
        return torch.randn(size, dtype=torch.float16)

    results = [
        repeated(name, call, tuple(noise(64) for _ in range(count)), rounds)
        for name, (call, count) in ONE_STICK.items()
    ]
    # The CPU's fp16 matmul may go element by element; its float32 one is the alternative.
    square = torch.randn(64, 64)
    half = repeated("mm 64x64", torch.mm, (square.half(), square.half()), rounds)
    ways = [half.cpu]
    for threads in (THREADS, 1):
        torch.set_num_threads(threads)
        ways.append([chain(torch.mm, (square, square), lambda: None) for _ in range(rounds)])
    torch.set_num_threads(THREADS)
    return [*results, Repeated(half.name, half.card, min(ways, key=median))]


# ---- First calls --------------------------------------------------------------------------------

FIRST: dict[str, Operation] = {
    "add": lambda x: x + x,
    "mul by a row": lambda x: x * x[:1],
    "gelu": F.gelu,
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "cast": lambda x: x.to(torch.float16),
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(0),
    "amax": lambda x: x.amax(-1),
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "mm": lambda x: torch.mm(x, x.t()),
    "addmm": lambda x: torch.addmm(x[:, 0], x, x.t()),
    "cat": lambda x: torch.cat([x, x[:2]]),
    "index_select": lambda x: x.index_select(0, torch.zeros(3, dtype=torch.int64, device=x.device)),
    "argmax": lambda x: x.argmax(-1),
    "sort": lambda x: x.sort(-1).values,
    "cumsum": lambda x: x.cumsum(0),
    "tril": torch.tril,
    "conv1d": lambda x: F.conv1d(x[None], x[None, :, :3]),
}


def first_calls(rounds: int, seed: int) -> dict[str, list[float]]:
    """Milliseconds of the first call with each of some random shapes, by operation."""
    shapes = random.Random(seed)
    found: dict[str, list[float]] = {name: [] for name in FIRST}
    used: set[tuple[int, int]] = set()
    for turn in range(rounds + 1):
        for name, call in FIRST.items():
            size = (shapes.randint(3, 200), shapes.randint(3, 300))
            if size in used:
                continue
            used.add(size)
            x = torch.randn(size).to("spyre")
            wait()
            start = time.perf_counter()
            call(x)
            wait()
            if turn:  # the first round imports the compiler
                found[name].append((time.perf_counter() - start) * 1e3)
    return found


# ---- A block ------------------------------------------------------------------------------------


@dataclass
class Place:
    """Where a block runs, and the milliseconds of its timed calls."""

    name: str
    work: Work
    threads: int = THREADS
    times: list[float] = field(default_factory=list)

    @property
    def is_card(self) -> bool:
        return self.name.startswith("card")

    def run(self) -> Tensor:
        result = self.work.run()
        if self.is_card:
            wait()
        return result

    def time(self) -> None:
        """A few calls, after untimed ones: the turn before left its threads and its caches."""
        torch.set_num_threads(self.threads)
        for call in range(UNTIMED + TIMED):
            start = time.perf_counter()
            self.run()
            if call >= UNTIMED:
                self.times.append((time.perf_counter() - start) * 1e3)
        torch.set_num_threads(THREADS)


def block_times(rounds: int) -> list[Place]:
    """A Granite-like block, eager; the card comes first."""
    torch.manual_seed(0)
    work = granite_block()
    wanted = work.run()
    card = Place("card fp16", work.to("spyre", torch.float16))
    places = [card]
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        own = work.to("cpu", dtype)
        places += [Place(f"CPU {name}", own), Place(f"CPU {name}, 1 thread", own, 1)]
    error = (card.run().cpu().float() - wanted).square().mean().sqrt()
    if not error < 2**-7 * wanted.square().mean().sqrt():
        raise RuntimeError(f"the card's block is wrong: {error} in the mean square")
    for _ in range(rounds):
        for place in places:
            place.time()
    return places


# ---- Report -------------------------------------------------------------------------------------


def verdict(value: float, target: float) -> str:
    return "met" if value <= target else "missed"


def report_repeated(report: Report, results: list[Repeated]) -> None:
    report.table(
        f"repeated calls on one-stick tensors, microseconds, chains of {CHAIN} calls",
        ["operation", "card", "CPU", "ratio"],
        [[r.name, median(r.card), median(r.cpu), round(r.ratio, 2)] for r in results],
    )
    ratio = median([result.ratio for result in results])
    report.remark(
        f"Repeated calls: median ratio {ratio:.1f}, target {CALL_TARGET:g}: "
        f"{verdict(ratio, CALL_TARGET)}."
    )


def report_first(report: Report, found: dict[str, list[float]]) -> None:
    report.table(
        "first calls of new signatures, milliseconds",
        ["operation", "best", "median", "worst"],
        [[name, min(times), median(times), max(times)] for name, times in found.items()],
    )
    middle = median([time for times in found.values() for time in times])
    report.remark(
        f"First calls: median {middle:.1f} ms, target {FIRST_TARGET:g}: "
        f"{verdict(middle, FIRST_TARGET)}."
    )


def report_block(report: Report, places: list[Place]) -> None:
    report.table(
        f"a Granite-like block in eager mode, milliseconds, {THREADS} threads",
        ["where", "best", "median", "worst"],
        [[each.name, min(each.times), median(each.times), max(each.times)] for each in places],
    )
    card, *others = places
    cpu = min(others, key=lambda place: median(place.times))
    ratio = median(card.times) / median(cpu.times)
    report.remark(
        f"Block: {ratio:.2f} of {cpu.name}, target {BLOCK_TARGET:g}: "
        f"{verdict(ratio, BLOCK_TARGET)}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="repeated,first,block", help="which of the three")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0, help="of the shapes of first calls")
    parser.add_argument("--json", default="eager", help="name of the file in results")
    options = parser.parse_args()
    parts = options.parts.split(",")

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    torch.spyre.set_downcast_warning(False)  # type: ignore[attr-defined]
    report = Report(options.json, "Eager operations: the card against the CPU")
    with torch.no_grad():
        if "repeated" in parts:
            report_repeated(report, repeated_calls(options.rounds))
        if "first" in parts:
            report_first(report, first_calls(max(options.rounds // 3, 1), options.seed))
        if "block" in parts:
            report_block(report, block_times(max(options.rounds // 2, 1)))
    require_no_fallback()
    report.write()


if __name__ == "__main__":
    main()
