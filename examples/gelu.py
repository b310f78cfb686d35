"""GELU, exact and by tanh: one operation of the card each, not the formula that it stands for."""

from __future__ import annotations

import torch
from torch.nn import functional

from torch_spyre.tools.measure import largest_error, measure

torch.manual_seed(0)
x = torch.randn(1024, 4096, dtype=torch.float16).to("spyre")

for approximate in ("none", "tanh"):
    gelu = torch.compile(lambda t, how=approximate: functional.gelu(t, approximate=how))
    y, cost = measure(gelu, x)
    error = largest_error(y, functional.gelu(x.cpu().float(), approximate=approximate))
    print(f"gelu ({approximate}) over 1024 x 4096, fp16: largest error {error:.1e}")
    print(f"  {cost}")
    assert error < 2**-8, "half a unit in the last place below 8"
