"""An elementwise product: the smallest thing that can be compiled, in both spellings."""

from __future__ import annotations

import torch

from torch_spyre.tools.measure import largest_error, measure


def mul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y


torch.manual_seed(0)
x, y = (torch.randn(1024, 1024, dtype=torch.float16).to("spyre") for _ in range(2))

# Tensors on the card are enough; naming the backend takes the same way.
for compiled in (torch.compile(mul), torch.compile(mul, backend="spyre")):
    product, cost = measure(compiled, x, y)
    # The reference starts from what is on the card: 16-bit values are rounded on the way in.
    error = largest_error(product, mul(x.cpu().float(), y.cpu().float()))
    print(f"mul over 1024 x 1024, fp16: largest error against float32 {error:.1e}")
    print(f"  {cost}")
    assert error < 2**-9 * 16, "half a unit in the last of 9 fraction bits, for products up to 16"
