"""Copies of 64 MB between host and card against the CPU's own copies, in the same run.

Two references, both with memory that is already there on either side, so that nobody's page
faults are measured: `clone` is a plain copy in the same dtype and order, `contiguous` the copy that
brings a permuted tensor into order. Targets: fp16 contiguous at least half as fast as `clone`,
permuted at least as fast as `contiguous`. Rounds are interleaved; the best of each counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from _report import Report

BYTES = 64 << 20
ROUNDS = 15


@dataclass(frozen=True)
class Case:
    """A host tensor in some order, its copy on the card and a dense one on the host."""

    name: str
    host: torch.Tensor
    card: torch.Tensor
    dense: torch.Tensor

    def actions(self) -> dict[str, Callable[[], object]]:
        return {
            "cpu": lambda: self.dense.copy_(self.host),
            "to card": lambda: self.card.copy_(self.host),
            "to host": lambda: self.host.copy_(self.card),
        }


def case(name: str, dtype: torch.dtype, order: tuple[int, ...] | None) -> Case:
    elements = BYTES // dtype.itemsize
    shape = (
        (64, 64, elements // 4096) if order is None or len(order) == 3 else (4096, elements // 4096)
    )
    base = torch.arange(elements, dtype=torch.int32).remainder_(1000).to(dtype).reshape(shape)
    host = base if order is None else base.permute(order)
    dense = torch.zeros(host.shape, dtype=dtype)
    return Case(f"{str(dtype)[6:]} {name}", host, torch.zeros_like(dense).to("spyre"), dense)


def cases() -> list[Case]:
    made = []
    for dtype in (torch.float16, torch.float32):
        made.append(case("contiguous 64x64xN", dtype, None))
        made.append(case("transposed 2-D", dtype, (1, 0)))
        made.append(case("permuted (2, 0, 1)", dtype, (2, 0, 1)))
        made.append(case("permuted (1, 0, 2)", dtype, (1, 0, 2)))
    return made


def best_times(actions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of the fastest round of each action, rounds interleaved."""
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(ROUNDS):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    report = Report("copies", "Copies of 64 MB: host to card and back against the CPU's own copy")
    rows = []
    for each in cases():
        times = best_times(each.actions())
        assert torch.equal(each.card.cpu(), each.host), f"{each.name}: the copy is wrong"
        rate = {name: BYTES / seconds / 1e9 for name, seconds in times.items()}
        rows.append(
            [
                each.name,
                round(rate["cpu"], 2),
                round(rate["to card"], 2),
                round(rate["to host"], 2),
                round(rate["to card"] / rate["cpu"], 2),
                round(rate["to host"] / rate["cpu"], 2),
            ]
        )
    columns = ["tensor", "CPU GB/s", "to card GB/s", "to host GB/s", "to card/CPU", "to host/CPU"]
    report.table("contiguous: CPU is clone; permuted: CPU is contiguous()", columns, rows)
    report.remark("Target: ratio of float16 contiguous >= 0.5, ratios of permuted rows >= 1.")
    report.write()


if __name__ == "__main__":
    main()
