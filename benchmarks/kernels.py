"""Compiled kernels on the card against the CPU's fastest way to do the same, in one run.

The card computes in fp16; the CPU in fp16 and fp32, eager and compiled, with matmuls as `a @ b` and
as `F.linear` with the weight transposed beforehand: whichever is fastest counts. Both have two
threads. Timed calls follow an untimed one of the same spelling, so that neither finds the other's
data in the caches nor its threads still spinning; rounds are interleaved and the best call counts:
on a machine with other work that is the one that was left alone. A spelling that is far behind when
first tried is left out of the rounds, and said so. The C library is told to keep freed memory, as
the card's allocator does: the CPU pays for no page faults of fresh results.

*modelled* is the card's clock. *roofline* is the least time that its array (all cores at full rate)
or its LPDDR5 (every input and output moved once, at the one-way rate) needs for the work, as a
share of the modelled time.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, prod

THREADS = 2
os.environ["SPYRE_CARD_THREADS"] = str(THREADS)  # the card reads it when it is opened
os.environ["OMP_NUM_THREADS"] = str(THREADS)

import torch  # noqa: E402
from _report import Report, median  # noqa: E402
from _workloads import (  # noqa: E402
    SwiGLU,
    SwiGLUByProducts,
    Work,
    attention,
    attention_in_steps,
    granite_block,
    linear,
    product,
    rms_norm,
    softmax,
)
from torch import nn  # noqa: E402

from torch_spyre.tools.measure import measure  # noqa: E402

A_MOMENT = 0.05  # seconds of timed calls in a row; what takes no longer is never left out
HOPELESS = 10.0  # times the best when first tried
A_WHILE = 0.5  # seconds
# Spellings whose matmul is `@`. In fp16 the CPU may do it element by element: if the first call is
# hopeless and takes a while, there is no second one.
BY_PRODUCTS = ("a @ b", "in steps")
CORES, MACS_PER_NANOSECOND, BYTES_PER_NANOSECOND = 32, 1140, 150
# The card's fp16 has nine bits after the point: each rounding is off by 2^-10 at most, a handful of
# them in a row stays below these. A wrong kernel is off by the size of its values.
TYPICAL_ERROR, LARGEST_ERROR = 2**-8, 2**-5


@dataclass(frozen=True)
class Row:
    """A workload: how the card does it, the CPU's spellings, and what the card must reach."""

    name: str
    card: Work
    spellings: dict[str, Work]
    macs: int
    target: float  # the card's time over the CPU's, at most


def matmul_row(name: str, m: int, k: int, n: int, target: float) -> Row:
    a, b = torch.randn(m, k), torch.randn(k, n) * k**-0.5
    spellings = {"F.linear": Work(linear, (a, b.t().contiguous())), "a @ b": Work(product, (a, b))}
    return Row(name, spellings["a @ b"], spellings, m * k * n, target)


def softmax_row(name: str) -> Row:
    work = Work(softmax, (torch.randn(4096, 1024),))
    return Row(name, work, {"softmax": work}, 0, 2.0)


def rms_norm_row(name: str) -> Row:
    work = Work(rms_norm, (torch.randn(4096, 4096), torch.rand(4096) + 0.5))
    return Row(name, work, {"rms_norm": work}, 0, 2.0)


def mlp_row(name: str) -> Row:
    rows, hidden, inner = 64, 4096, 12800
    mlp, x = SwiGLU(hidden, inner), torch.randn(rows, hidden)
    spellings = {"F.linear": Work(mlp, (x,)), "a @ b": Work(SwiGLUByProducts(mlp), (x,))}
    return Row(name, spellings["F.linear"], spellings, 3 * rows * hidden * inner, 1.0)


def attention_row(name: str) -> Row:
    shape = (1, 32, 256, 128)
    inputs = tuple(torch.randn(shape) for _ in range(3))
    work = Work(attention, inputs)
    spellings = {"sdpa": work, "in steps": Work(attention_in_steps, inputs)}
    return Row(name, work, spellings, 2 * prod(shape) * 256, 2.0)


def block_row(name: str) -> Row:
    work = granite_block()
    rows, hidden = work.inputs[0].shape[1:]
    assert isinstance(work.call, nn.Module)
    linears = sum(p.numel() for p in work.call.parameters() if p.dim() == 2)
    scores = 2 * rows * rows * hidden  # both matmuls of attention; its heads fill the hidden size
    return Row(name, work, {"F.linear, sdpa": work}, rows * linears + scores, 1.0)


ROWS: dict[str, Callable[[str], Row]] = {
    "matmul 1024^3": lambda name: matmul_row(name, 1024, 1024, 1024, 1.0),
    "matmul 64x4096x12800": lambda name: matmul_row(name, 64, 4096, 12800, 1.0),
    "gemv 1x4096x4096": lambda name: matmul_row(name, 1, 4096, 4096, 2.0),
    "softmax 4096x1024": softmax_row,
    "rms_norm 4096x4096": rms_norm_row,
    "SwiGLU MLP 64x4096x12800": mlp_row,
    "attention 1x32x256x128": attention_row,
    "Granite-like block": block_row,
}


# ---- Correctness --------------------------------------------------------------------------------


def check(name: str, got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The relative error of a result in the mean square; raises if it is no rounding error."""
    difference = (got.cpu().double() - wanted.double()).abs()
    typical = float(difference.square().mean().sqrt() / wanted.double().square().mean().sqrt())
    largest = float(difference.max() / wanted.abs().max())
    if not (typical < TYPICAL_ERROR and largest < LARGEST_ERROR):  # also if they are NaN
        raise RuntimeError(
            f"{name}: the result is wrong: relative error {typical:.2g} in the mean square "
            f"(allowed {TYPICAL_ERROR:.2g}), {largest:.2g} at worst (allowed {LARGEST_ERROR:.2g})"
        )
    return typical


# ---- Time ---------------------------------------------------------------------------------------


@dataclass
class Spelling:
    """A way to do the work, and the seconds of its timed calls."""

    name: str
    work: Work
    on_card: bool = False
    seconds: list[float] = field(default_factory=list)

    def run(self) -> torch.Tensor:
        result = self.work.run()
        if self.on_card:
            torch.spyre.synchronize()  # type: ignore[attr-defined]
        return result

    def time(self) -> None:
        """One untimed call, then timed ones for a moment."""
        self.run()
        end = time.perf_counter() + A_MOMENT
        while True:
            start = time.perf_counter()
            self.run()
            now = time.perf_counter()
            self.seconds.append(now - start)
            if now >= end:
                return

    @property
    def best(self) -> float:
        return min(self.seconds, default=inf)


def cpu_spellings(row: Row) -> tuple[list[Spelling], list[str]]:
    """All ways on the CPU that have a chance, right and tried; and those that have none."""
    tried: list[Spelling] = []
    left_out: list[str] = []
    wanted = row.card.run()
    for dtype, dtype_name in ((torch.float32, "fp32"), (torch.float16, "fp16")):
        for name, work in row.spellings.items():
            eager = Spelling(f"{dtype_name} {name} eager", work.to("cpu", dtype))
            start = time.perf_counter()
            check(f"{row.name}, CPU {eager.name}", eager.run(), wanted)
            first = time.perf_counter() - start
            best = min((spelling.best for spelling in tried), default=inf)
            if name in BY_PRODUCTS and first > max(A_WHILE, HOPELESS * best):
                left_out.append(f"{eager.name} {first * 1e3:,.0f} ms (nor compiled: same matmul)")
                continue
            compiled = Spelling(f"{dtype_name} {name} compiled", eager.work.compiled())
            check(f"{row.name}, CPU {compiled.name}", compiled.run(), wanted)
            for spelling in (eager, compiled):
                spelling.time()
                tried.append(spelling)
    limit = max(A_MOMENT, HOPELESS * min(spelling.best for spelling in tried))
    left_out += [f"{each.name} {each.best * 1e3:.1f} ms" for each in tried if each.best > limit]
    return [spelling for spelling in tried if spelling.best <= limit], left_out


def roofline(row: Row) -> float:
    """Milliseconds that the card needs at least, by its array and by its LPDDR5."""
    tensors = [*row.card.inputs, row.card.run()]
    if isinstance(row.card.call, nn.Module):
        tensors += [parameter.detach() for parameter in row.card.call.parameters()]
    moved = torch.float16.itemsize * sum(tensor.numel() for tensor in tensors)
    array = row.macs / (CORES * MACS_PER_NANOSECOND)
    return max(array, moved / BYTES_PER_NANOSECOND) / 1e6


def keep_freed_memory() -> None:
    """Makes glibc hand out memory again that it had before, instead of new pages."""
    trim_threshold, mmap_threshold, enough = -1, -3, 1 << 30
    libc = ctypes.CDLL(None)
    for parameter in (trim_threshold, mmap_threshold):
        if not libc.mallopt(parameter, enough):
            raise RuntimeError(f"mallopt({parameter}) failed: the CPU's times would be too long")


@dataclass(frozen=True)
class Result:
    """A row measured."""

    row: Row
    error: float
    card: Spelling
    cpu: list[Spelling]
    left_out: list[str]
    modelled: float  # milliseconds

    @property
    def ratio(self) -> float:
        return self.card.best / self.best_cpu.best

    @property
    def best_cpu(self) -> Spelling:
        return min(self.cpu, key=lambda spelling: spelling.best)

    @property
    def is_met(self) -> bool:
        return self.ratio <= self.row.target


def measure_row(row: Row, rounds: int) -> Result:
    torch._dynamo.reset()
    wanted = row.card.run()
    card = Spelling("card", row.card.to("spyre", torch.float16).compiled(), on_card=True)
    error = check(row.name, card.run(), wanted)
    _, cost = measure(card.work.run)
    cpu, left_out = cpu_spellings(row)
    for spelling in cpu:
        spelling.seconds.clear()
    for turn in range(rounds):
        spellings = [card, *cpu]
        for spelling in spellings[turn % len(spellings) :] + spellings[: turn % len(spellings)]:
            spelling.time()
    return Result(row, error, card, cpu, left_out, cost.microseconds / 1e3)


# ---- Report -------------------------------------------------------------------------------------


def report_results(report: Report, results: list[Result], rounds: int) -> None:
    report.table(
        f"milliseconds, best call of {rounds} interleaved rounds, {THREADS} threads each",
        [
            "workload",
            "card",
            "CPU best",
            "which",
            "ratio",
            "modelled",
            "roofline %",
            "error",
            "target",
            "verdict",
        ],
        [
            [
                result.row.name,
                result.card.best * 1e3,
                result.best_cpu.best * 1e3,
                result.best_cpu.name,
                round(result.ratio, 2),
                result.modelled,
                round(100 * roofline(result.row) / result.modelled),
                f"{result.error:.1e}",
                result.row.target,
                "met" if result.is_met else "missed",
            ]
            for result in results
        ],
    )
    report.table(
        "every spelling, milliseconds",
        ["workload", "spelling", "best", "median", "worst"],
        [
            [result.row.name, s.name, s.best * 1e3, median(s.seconds) * 1e3, max(s.seconds) * 1e3]
            for result in results
            for s in (result.card, *sorted(result.cpu, key=lambda each: each.best))
        ],
    )
    for result in results:
        if result.left_out:
            report.remark(
                f"{result.row.name}: left out of the rounds, over {HOPELESS:g} times the "
                f"best: {'; '.join(result.left_out)}."
            )
    met = sum(result.is_met for result in results)
    report.remark(f"Targets met: {met} of {len(results)}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="", help="only those whose name holds one of these, a,b")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", default="kernels", help="name of the file in results")
    options = parser.parse_args()
    wanted = options.rows.split(",")
    names = [name for name in ROWS if any(part.lower() in name.lower() for part in wanted)]
    if not names:
        parser.error(f"no row matches {options.rows!r}; there are {', '.join(ROWS)}")

    keep_freed_memory()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    report = Report(options.json, "Compiled kernels: the card's fp16 against the CPU's fastest way")
    results = []
    with torch.no_grad():
        for name in names:
            results.append(measure_row(ROWS[name](name), options.rounds))
            done = results[-1]
            print(f"  {name}: {done.ratio:.2f} of {done.best_cpu.name}", flush=True)
        report_results(report, results, options.rounds)
    report.write()


if __name__ == "__main__":
    main()
