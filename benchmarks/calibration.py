"""The card's clock beside what was published: every law as a sweep, then the single figures.

The laws were fitted by others on hardware and are reproduced as they stand. Each sweep has card
programs written for it, loaded by the card and priced by it (`card`), beside the law, which is
written down here once more (`law`); the run fails if the two differ. The single figures are shown
beside what the compiler makes of the same work today, and nothing is tuned to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from _programs import (
    CORES,
    broadcast_add,
    column_sums,
    figures,
    matmul,
    pointwise,
    restickify,
    restickify_in_lx,
    row_sums,
)
from _report import Report

from torch_spyre import _C
from torch_spyre._inductor import config
from torch_spyre.backend.program import Program
from torch_spyre.tools.measure import measure

cost = _C._cost

FP16 = 2
MICROSECOND = 1000


@dataclass(frozen=True)
class Point:
    """One program (or description) of a sweep: its time by the card and by the law, in ns."""

    labels: Sequence[Any]
    work: float  # what rates are per nanosecond of
    card: int
    law: float
    visits: int = 1

    @property
    def agrees(self) -> bool:
        """The card counts whole nanoseconds, rounded up at each visit."""
        return -1e-6 * self.law <= self.card - self.law < self.visits + 1e-6 * self.law


@dataclass
class Laws:
    """Prints sweeps and remembers where card and law differ."""

    report: Report
    points: int = 0
    wrong: list[str] = field(default_factory=list)

    def sweep(self, title: str, columns: Sequence[str], unit: str, points: list[Point]) -> None:
        """A row per point: labels, then the rate by the card and by the law."""
        self._check(title, points)
        rows = [[*p.labels, p.work / p.card, p.work / p.law] for p in points]
        self.report.table(title, [*columns, f"card, {unit}", "law"], rows)

    def times(self, title: str, columns: Sequence[str], points: list[Point]) -> None:
        """A row per point: labels, then the time in microseconds."""
        self._check(title, points)
        rows = [[*p.labels, p.card / MICROSECOND, p.law / MICROSECOND] for p in points]
        self.report.table(title, [*columns, "card, us", "law"], rows)

    def _check(self, title: str, points: list[Point]) -> None:
        self.points += len(points)
        self.wrong += [f"{title}: {list(p.labels)}" for p in points if not p.agrees]


# ---- LPDDR5 -------------------------------------------------------------------------------------


def fused(read: float, written: float) -> float:
    """The law of everything that has none of its own."""
    return (read + written) / 150 + 0.00574 * min(read, written)


def memory_point(labels: Sequence[Any], program: Program, law: Callable[..., float]) -> Point:
    """The memory term of a program of one step; the law takes the bytes of both directions."""
    step = figures(program)
    read, written, visits = step["bytes_read"], step["bytes_written"], step["visits"]
    time = law(read / visits, written / visits) * visits
    return Point(labels, read + written, step["memory_ns"], time, visits)


def memory_sweeps(laws: Laws) -> None:
    """Traffic by direction, and the steps that have a law of their own when they stand alone."""
    shapes = ((512, 512), (4096, 2048))
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        ("in, to LX", {"to_lx": True}),
        ("3 in, 1 out", {"reads": 3}),
        ("2 in, 1 out", {"reads": 2}),
        ("1 in, 1 out", {}),
        ("out, from LX", {"from_lx": True}),
    )
    laws.sweep(
        "LPDDR5, everything not named below (published: 150 GB/s one way, about 105 balanced)",
        ["rows", "columns", "traffic"],
        "GB/s",
        [
            memory_point((rows, columns, name), pointwise(rows, columns, **how), fused)
            for rows, columns in shapes
            for name, how in kinds
        ],
    )
    alone = (
        ("restickify", 116, restickify),
        ("cross-row reduction", 113, column_sums),
        ("pointwise with a broadcast operand", 118, broadcast_add),
    )
    laws.sweep(
        "LPDDR5, standalone steps (published: 116, 113 and 118 GB/s)",
        ["rows", "columns", "step"],
        "GB/s",
        [
            memory_point(
                (rows, columns, name), build(rows, columns), lambda r, w, rate=rate: (r + w) / rate
            )
            for name, rate, build in alone
            for rows, columns in ((512, 2048), (4096, 4096), (16384, 2048))
        ],
    )


def row_reduction_sweep(laws: Laws) -> None:
    """Reads by the published rate; what is written, a stick per row, at 150 GB/s, is ours."""

    def law(rows: int) -> Callable[..., float]:
        rate = min(150.0, 114 + 61 * math.exp(-rows / 3700))
        return lambda read, written: read / rate + written / 150

    laws.sweep(
        "LPDDR5, standalone row reduction, 8192 columns\n"
        "  (published: reads at min(150, 114 + 61 exp(-rows/3700)) GB/s)",
        ["rows"],
        "GB/s",
        [
            memory_point((rows,), row_sums(rows, 8192), law(rows))
            for rows in (1, 32, 512, 1024, 2048, 4096, 8192, 16384)
        ],
    )


def tile_sweep(laws: Laws) -> None:
    """The same traffic in loops; rows and columns are those of a core and a visit (our reading)."""

    def law(rows: int, columns: int) -> Callable[..., float]:
        efficiency = min(1.0, (rows / 7.9) ** 0.50 * (columns / 2048) ** 0.38)
        return lambda read, written: fused(read, written) / efficiency

    laws.sweep(
        "LPDDR5, coarse tiles: one of four visits of a loop, into LX\n"
        "  (published: time / min(1, (rows per core and tile / 7.9)^0.50 (columns / 2048)^0.38))",
        ["rows per core", "columns"],
        "GB/s",
        [
            memory_point(
                (rows, columns),
                pointwise(rows * CORES, columns, to_lx=True, tiles=4),
                law(rows, columns),
            )
            for rows in (1, 2, 4, 8, 16)
            for columns in (256, 1024, 2048, 8192)
        ],
    )


# ---- PT -----------------------------------------------------------------------------------------


def matmul_sweeps(laws: Laws) -> None:
    """The array's rate by rows and by width, and operands that cores share."""

    def pt(label: Any, m: int, form: str = "SEN169_FP16", factor: float = 1.0) -> Point:
        macs = m * 1024 * 1024
        fill = min(1.0, math.sqrt(m / 8 / 8))
        time = figures(matmul(m, 1024, 1024, form=form))["pt_ns"]
        return Point((label,), macs, time, macs / (1140 * factor * fill))

    laws.sweep(
        "PT, one core, [M, 1024] @ [1024, 1024]\n"
        "  (published: 1140 MACs/ns when eight passes of 8 rows fill it)",
        ["M"],
        "MACs/ns",
        [pt(m, m) for m in (1, 8, 16, 32, 64, 128, 1024)],
    )
    macs = 64 * 1024 * 1024
    narrow = cost.nanoseconds(cost.Step(m=64, n=1024, k=1024, bits=4))
    laws.sweep(
        "PT, one core, M = 64, by width of the operands (ours)",
        ["format"],
        "MACs/ns",
        [
            pt(f"{form}, times {factor:g}", 64, form, factor)
            for form, factor in (("SEN143_FP8", 2.0), ("SEN169_FP16", 1.0), ("IEEE_FP32", 0.25))
        ]
        + [Point(("4 bits, times 4, by description",), macs, narrow, macs / (1140 * 4))],
    )

    def shared(cores: int) -> Point:
        m = n = k = 1024
        step = figures(matmul(m, n, k, cores=cores))
        once = fused((m * k + k * n) * FP16, m * n * FP16)
        time = once + k * n * FP16 / 150 * max(0.0, cores / 8 - 1)
        return Point((cores,), step["bytes_read"], step["memory_ns"], time)

    laws.sweep(
        "matmul 1024 x 1024 x 1024, rows over cores that all read B\n"
        "  (published: free for up to 8 cores, then its bandwidth falls with them)",
        ["cores"],
        "GB/s read",
        [shared(cores) for cores in (1, 2, 4, 8, 16, 32)],
    )


# ---- Ring ---------------------------------------------------------------------------------------


def ring_sweeps(laws: Laws) -> None:
    """Priced from descriptions: what a split or a relayout is does not depend on a program."""

    def split(k: int, elements: int) -> Point:
        time = cost.nanoseconds(cost.Step(k_split=k, output_elements=elements))
        return Point((k, elements), elements, time, (k - 1) * elements * 1.4e-4 * MICROSECOND)

    laws.times(
        "ring, K split, by description (published: (k - 1) x output elements x 1.4e-4 us)",
        ["k", "elements"],
        [split(k, elements) for k in (1, 2, 4, 32) for elements in (64 * 64, 512 * 512)],
    )

    def relayout(split: int, nbytes: int) -> Point:
        time = cost.nanoseconds(cost.Step(relayout_bytes=nbytes, relayout_split=split))
        return Point((split, nbytes), nbytes, time, nbytes / (550 / split))

    laws.times(
        "ring, relayout of LX, by description (published: 550 GB/s / split)",
        ["split", "bytes"],
        [relayout(split, size) for split in (1, 2, 4, 8) for size in (2**16, 2**21)],
    )


# ---- Ours ---------------------------------------------------------------------------------------


def own_rates(laws: Laws) -> None:
    """Assumptions, until someone measures."""
    rows, columns = 1024, 1024
    step = figures(pointwise(rows, columns, from_lx=True, to_lx=True))
    share = rows * columns // CORES
    in_lx = share * FP16
    square = 256 * 256 * FP16
    moved = figures(restickify_in_lx(256))
    transfer = 50 * 2**20
    laws.sweep(
        "ours, until someone measures: 1024 x 1024 from LX to LX on 32 cores, and 50 MiB by PCIe",
        ["unit", "of"],
        "rate",
        [
            Point(("SFP", "elements/ns/core"), share, step["sfp_ns"], share / 140),
            Point(("LX", "B/ns/core, each way"), in_lx, step["lx_ns"], in_lx / 128),
            Point(("restickify in LX", "the same"), square, moved["nanoseconds"], square / 128),
            Point(("PCIe", "GB/s"), transfer, cost.dma_nanoseconds(transfer), transfer / 50),
        ],
    )


# ---- Single figures -----------------------------------------------------------------------------


def half(*shape: int) -> torch.Tensor:
    """Random values on the card."""
    return torch.rand(shape, dtype=torch.float16).to("spyre")


def compiled(work: Callable[..., torch.Tensor], *tensors: torch.Tensor, **settings: Any) -> float:
    """Modelled microseconds of what the compiler makes of it."""
    torch.compiler.reset()
    with config.patch(**settings):
        return measure(torch.compile(work), *tensors)[1].microseconds


def softmax(rows: int, columns: int, dim: int, **settings: Any) -> float:
    """Modelled microseconds of a compiled softmax."""
    return compiled(lambda x: torch.softmax(x, dim), half(rows, columns), **settings)


def relayout_time(split: int) -> float:
    """2.1 MB, by description."""
    return cost.nanoseconds(cost.Step(relayout_bytes=2_100_000, relayout_split=split)) / MICROSECOND


def single_figures(report: Report) -> None:
    """Published times beside the model's of the same work, compiled for the card as it is."""
    x = half(1024, 1024)
    measured, predicted = "measured", "prediction"
    report.table(
        "single figures, us",
        ["workload", "published", "kind", "modelled", "remark"],
        [
            [
                "softmax 512x1024 dim 0, 1 core, through LPDDR5",
                "32.51",
                measured,
                softmax(512, 1024, 0, sencores=1, lx_planning=False),
                "8 MiB in 32.51 us would be 258 GB/s: contradicts every LPDDR5 law",
            ],
            [
                "the same on 4 cores",
                "32.17",
                measured,
                softmax(512, 1024, 0, sencores=4, lx_planning=False),
                "contradicts them likewise; both say that cores don't matter here",
            ],
            [
                "1 core, reductions in LX",
                "27.66",
                measured,
                softmax(512, 1024, 0, sencores=1, dxp_lx_frac_avail=0.99),
                "saves 4 rows of 4096, so the model sees no gain; 15 % were measured",
            ],
            [
                "... and in place",
                "23.93",
                measured,
                softmax(512, 1024, 0, sencores=1, boundary_clones=False),
                "3 MiB; our LX rate bounds four of five steps and looks too low",
            ],
            [
                "... and the input cloned",
                "23.67",
                measured,
                softmax(512, 1024, 0, sencores=1),
                "2 MiB; on one core the copy takes more LX time than it saves of LPDDR5",
            ],
            [
                "add, three full passes (1024x1024 assumed)",
                "52",
                measured,
                compiled(torch.add, x, half(1024, 1024)),
                "shape not published; the ratio of the two is what counts",
            ],
            [
                "add with a broadcast operand, likewise",
                "30-33",
                measured,
                compiled(torch.add, x, half(1024)),
                "published ratio 1.6 to 1.7",
            ],
            [
                "LX relayout of 2.1 MB, 8 cores, best slices",
                "2.3",
                measured,
                relayout_time(1),
                "by description; the law's 550 GB/s is below the best geometry",
            ],
            [
                "LX relayout of 2.1 MB, 8 cores, worst slices",
                "24.2",
                measured,
                relayout_time(8),
                "... and with split 8 slower than the worst",
            ],
            [
                "softmax 4096x2048",
                "320",
                predicted,
                softmax(4096, 2048, -1),
                "the law of the whole kernel; our steps read or write and don't turn around",
            ],
            [
                "row-tiled matmul 4096x2048 @ 2048x1024",
                "423",
                predicted,
                figures(matmul(4096, 1024, 2048, cores=CORES))["nanoseconds"] / MICROSECOND,
                "rows over 32 cores that all read B; tiles not published",
            ],
            [
                "... as our compiler divides it",
                "",
                "",
                compiled(torch.matmul, half(4096, 2048), half(2048, 1024)),
                "rows and columns divided; no surcharge",
            ],
        ],
    )


def main() -> None:
    """Prints everything; fails if the card does not follow a law."""
    report = Report("calibration", "the card's clock: modelled, not measured on this machine")
    laws = Laws(report)
    memory_sweeps(laws)
    row_reduction_sweep(laws)
    tile_sweep(laws)
    matmul_sweeps(laws)
    ring_sweeps(laws)
    own_rates(laws)
    single_figures(report)
    report.remark(
        "Matmuls on hardware were measured 20-30 % above max(compute, memory); the model adds no\n"
        "surcharge, so read its matmul times as a lower bound. The sweeps reproduce the published\n"
        "laws because the card computes by them; only the single figures say something about the\n"
        "model, and where they disagree nothing was tuned."
    )
    report.remark(
        f"{laws.points - len(laws.wrong)} of {laws.points} points of the sweeps follow their law"
    )
    report.write()
    if laws.wrong:
        raise SystemExit("the card does not follow its laws: " + "; ".join(laws.wrong))


if __name__ == "__main__":
    main()
