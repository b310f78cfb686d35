"""Softmax, with and without the scratchpads: the same values, a fraction of the bytes."""

from __future__ import annotations

import torch

from torch_spyre._inductor import config
from torch_spyre.tools.measure import largest_error, measure

ROWS, COLUMNS = 512, 1024

torch.manual_seed(0)
x = torch.randn(ROWS, COLUMNS, dtype=torch.float16).to("spyre")
reference = torch.softmax(x.cpu().float(), 0)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, 0)


for lx_planning in (False, True):
    with config.patch(lx_planning=lx_planning):
        torch.compiler.reset()  # a changed setting is no reason to compile again by itself
        y, cost = measure(torch.compile(softmax), x)
    error = largest_error(y, reference)
    print(f"softmax of {ROWS} x {COLUMNS}, fp16, scratchpads {'on' if lx_planning else 'off'}:")
    print(f"  largest error {error:.1e}; {cost}")
    assert error < 1e-3

least = 2 * ROWS * COLUMNS * 2
print(f"least possible: each element read once and written once, {least:,} bytes in all")
