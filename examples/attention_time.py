"""Where the time of a causal attention goes: its steps by kind, and the products by hand."""

from __future__ import annotations

import torch
from torch.nn import functional

from torch_spyre.ops.attention import MOST_SECTIONS, SECTION
from torch_spyre.tools.measure import KernelCost, StepCost, compiled_kernels

HEADS, LENGTH, WIDTH = 32, 2048, 128
CORES, MACS_PER_NS = 32, 1140
KINDS = ("products", "softmax, in LX", "keys and values, into LX", "results, out")


def headline(text: str) -> None:
    print(f"\n== {text}")


def compile_example() -> KernelCost:
    q, k, v = (torch.rand(1, HEADS, LENGTH, WIDTH).half().to("spyre") for _ in range(3))
    torch.compile(functional.scaled_dot_product_attention)(q, k, v, is_causal=True)
    return max(compiled_kernels(), key=lambda kernel: kernel.microseconds)


def kind_of(step: StepCost) -> str:
    if step.operation == "batchmatmul":
        return KINDS[0]
    if step.operation in ("restickify", "identity"):
        return KINDS[2]
    return KINDS[3] if step.bytes_written >= 2**20 else KINDS[1]


def show_kinds(kernel: KernelCost) -> None:
    headline("Steps by kind, us")
    print(f"{'':26}{'steps':>5}{'PT':>8}{'SFP':>8}{'LPDDR5':>8}{'LX':>8}{'time':>9}")
    for kind in KINDS:
        part = KernelCost(kind, tuple(step for step in kernel.steps if kind_of(step) == kind))
        busy = part.units
        units = "".join(f"{time:8.1f}" for time in (busy.pt, busy.sfp, busy.memory, busy.lx))
        print(f"{kind:26}{len(part.steps):5}{units}{part.microseconds:9.1f}")
    print(f"{'all':26}{len(kernel.steps):5}{'':32}{kernel.microseconds:9.1f}")


def show_by_hand() -> None:
    headline("Products by hand")
    per_score = 2 * HEADS * WIDTH  # multiply-adds: one product with keys, one with values
    rows = max(SECTION, LENGTH // MOST_SECTIONS)
    keys = range(rows, LENGTH + 1, rows)  # that each section sees
    print(f"{len(keys)} sections of {rows} rows, with {', '.join(map(str, keys))} keys")
    for name, scores in ("all scores", LENGTH**2), ("those of the sections", rows * sum(keys)):
        time = per_score * scores / (CORES * MACS_PER_NS) / 1e3
        print(f"{name}: {scores:,}, {time:.1f} us on the full array")


if __name__ == "__main__":
    show_kinds(compile_example())
    show_by_hand()
