"""Means over both dimensions: the length is no multiple of a stick, and padding does not count."""

from __future__ import annotations

import torch

from torch_spyre.tools.measure import largest_error, measure

torch.manual_seed(0)
x = torch.rand(1000, 1000, dtype=torch.float16).to("spyre")
host = x.cpu().float()

for dim in (0, 1):
    compiled = torch.compile(lambda t, dim=dim: t.mean(dim))
    mean, cost = measure(compiled, x)
    error = largest_error(mean, host.mean(dim))
    print(f"mean of 1000 x 1000 over dimension {dim}, fp16: largest error {error:.1e}")
    print(f"  {cost}")
    # Over dimension 1 the lanes of a stick are added up, which leaves one element per stick; since
    # the result leaves the graph it is packed into whole sticks again, and that costs bytes.
    print(f"  the result lies in {mean.device_tensor_layout().device_size}")
    assert error < 2**-10, "half a unit in the last place below 1"
