"""Attention over eight heads: two matmuls with a softmax between them, in one kernel."""

from __future__ import annotations

import torch
from torch.nn import functional

from torch_spyre.tools.measure import largest_error, measure

SHAPE = (1, 8, 256, 128)  # batch, heads, positions, head size

torch.manual_seed(0)
q, k, v = (torch.randn(SHAPE, dtype=torch.float16).to("spyre") for _ in range(3))

for is_causal in (False, True):
    attention = torch.compile(
        lambda q, k, v, causal=is_causal: functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal
        )
    )
    out, cost = measure(attention, q, k, v)
    host = (tensor.cpu().float() for tensor in (q, k, v))
    error = largest_error(out, functional.scaled_dot_product_attention(*host, is_causal=is_causal))
    print(f"attention over {SHAPE}, fp16{', causal' if is_causal else ''}: error {error:.1e}")
    print(f"  {cost}")
    assert error < 1e-2
