"""A kernel step by step: what the card's clock says, and by hand what bounds each step."""

from __future__ import annotations

from math import sqrt

import torch

from torch_spyre.tools.measure import KernelCost, StepCost, compiled_kernels

M, K, N = 512, 1024, 512


def headline(text: str) -> None:
    print(f"\n== {text}")


def compile_example() -> KernelCost:
    """The softmax of a product, in one kernel."""
    x, w = (torch.rand(shape, dtype=torch.float16).to("spyre") for shape in ((M, K), (K, N)))
    torch.compile(lambda x, w: torch.softmax(x @ w, -1))(x, w)
    return compiled_kernels()[-1]


def show_units(kernel: KernelCost) -> None:
    headline("What the card says, in us")
    units = " ".join(f"{unit:>8}" for unit in ("PT", "SFP", "LPDDR5", "LX", "time"))
    print(f"{'step':12}{units}  bound by")
    for step in kernel.steps:
        busy = step.units
        times = (busy.pt, busy.sfp, busy.memory, busy.lx, step.microseconds)
        figures = " ".join(f"{time:8.3f}" for time in times)
        print(f"{step.operation:12}{figures}  {step.bound}")
    print(f"{'all':12}{kernel.microseconds:44.3f}  {kernel.bound}")


def show_by_hand(kernel: KernelCost) -> None:
    headline("What bounds each step, by hand, in ns")
    for step in kernel.steps:
        formula, time = bound_by_hand(step)
        print(f"{step.operation:12}{step.bound:8}{formula:48} = {time:10,.1f}")


def bound_by_hand(step: StepCost) -> tuple[str, float]:
    """The law of the unit that bounds a step, with the step's numbers in it, and what it gives."""
    if step.bound == "PT":
        rows = -(-M // step.cores)  # the plan divides rows, and a core's may not fill the array
        full = min(1.0, sqrt(rows / 64))
        formula = f"{rows} x {N} x {K} MACs of a core / (1140 x {full:.2f})"
        return formula, rows * N * K / (1140 * full)
    if step.bound == "LX":
        more = max(step.lx_read, step.lx_written)
        return f"{more:,} bytes of a core / 128", more / 128
    read, written = step.bytes_read, step.bytes_written
    less = min(read, written)
    formula = f"({read:,} + {written:,}) / 150 + 0.00574 x {less:,}"
    return formula, (read + written) / 150 + 0.00574 * less


if __name__ == "__main__":
    torch.manual_seed(0)
    cost = compile_example()
    show_units(cost)
    show_by_hand(cost)
