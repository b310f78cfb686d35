"""Copies of 64 MB between host and card against the CPU's own copies, in the same run.

Two comparisons. *As written*: `x.to("spyre")` and `.cpu()` against `clone()` or, for a permuted
tensor, `contiguous()`: each makes its result, page faults included. *In place*: `copy_` into memory
that is already there, against the CPU's `copy_` in the same dtype and with a conversion (to
bfloat16), which is what the card's DMA does on its way. Targets, as written: fp16 contiguous at
least half as fast as `clone`, permuted at least as fast as `contiguous`. Rounds are interleaved,
the best of each counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from _report import Report

BYTES = 64 << 20
ROUNDS = 12

Actions = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Case:
    """A host tensor in some order, its copy on the card and dense ones on the host."""

    name: str
    host: torch.Tensor
    card: torch.Tensor  # dense, in the order of `host`
    view: torch.Tensor  # on the card in the same order in which `host` lies in its memory
    dense: torch.Tensor
    converted: torch.Tensor

    def as_written(self) -> Actions:
        is_dense = self.host.is_contiguous()
        return {
            "cpu": self.host.clone if is_dense else self.host.contiguous,
            "to card": lambda: self.host.to("spyre"),
            "to host": lambda: self.view.to("cpu", memory_format=torch.contiguous_format),
        }

    def in_place(self) -> Actions:
        return {
            "cpu": lambda: self.dense.copy_(self.host),
            "converting": lambda: self.converted.copy_(self.host),
            "to card": lambda: self.card.copy_(self.host),
            "to host": lambda: self.host.copy_(self.card),
        }


def case(name: str, dtype: torch.dtype, order: tuple[int, ...] | None) -> Case:
    elements = BYTES // dtype.itemsize
    rows = (4096,) if order is not None and len(order) == 2 else (64, 64)
    shape = (*rows, elements // 4096)
    base = torch.arange(elements, dtype=torch.int32).remainder_(500).to(dtype).reshape(shape)
    host = base if order is None else base.permute(order)
    dense = torch.zeros(host.shape, dtype=dtype)
    converted = torch.zeros(host.shape, dtype=torch.bfloat16)
    view = base.to("spyre") if order is None else base.to("spyre").permute(order)
    return Case(f"{str(dtype)[6:]} {name}", host, dense.to("spyre"), view, dense, converted)


def cases() -> list[Case]:
    orders = {
        "contiguous": None,
        "transposed 2-D": (1, 0),
        "permuted (2, 0, 1)": (2, 0, 1),
        "permuted (1, 0, 2)": (1, 0, 2),
    }
    return [
        case(name, dtype, order)
        for dtype in (torch.float16, torch.float32)
        for name, order in orders.items()
    ]


def rates(actions: Actions) -> dict[str, float]:
    """GB/s of the fastest round of each action, rounds interleaved."""
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(ROUNDS):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: BYTES / seconds / 1e9 for name, seconds in best.items()}


def row(name: str, rate: dict[str, float]) -> list[Any]:
    ratios = [rate["to card"] / rate["cpu"], rate["to host"] / rate["cpu"]]
    return [name, *(round(value, 2) for value in (*rate.values(), *ratios))]


def main() -> None:
    report = Report("copies", "Copies of 64 MB: host to card and back against the CPU's own copies")
    as_written, in_place = [], []
    for each in cases():
        in_place.append(row(each.name, rates(each.in_place())))
        assert torch.equal(each.card.cpu(), each.host), f"{each.name}: the copy is wrong"
        as_written.append(row(each.name, rates(each.as_written())))
    ratios = ["to card/CPU", "to host/CPU"]
    report.table(
        "as written: x.to('spyre'), x.cpu() against clone() or contiguous(), GB/s",
        ["tensor", "CPU", "to card", "to host", *ratios],
        as_written,
    )
    report.table(
        "in place: copy_ into existing memory, GB/s",
        ["tensor", "CPU", "CPU to bf16", "to card", "to host", *ratios],
        in_place,
    )
    worst_dense = min(min(cells[-2:]) for cells in as_written if "16 contiguous" in cells[0])
    worst_permuted = min(min(cells[-2:]) for cells in as_written if "contiguous" not in cells[0])
    for what, worst, target in (
        ("float16 contiguous", worst_dense, 0.5),
        ("permuted", worst_permuted, 1.0),
    ):
        verdict = "met" if worst >= target else "missed"
        report.remark(f"Target, as written: {what} >= {target}; worst ratio {worst}: {verdict}.")
    report.write()


if __name__ == "__main__":
    main()
