"""Rotary position embedding: half of each head is negated and swapped with the other half."""

from __future__ import annotations

import torch

from torch_spyre.tools.measure import largest_error, measure

HEADS, LENGTH, SIZE = 8, 256, 128


def tables(base: float = 10000.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines per position, both halves of a head alike."""
    frequencies = base ** (-torch.arange(0, SIZE, 2) / SIZE)
    angles = torch.outer(torch.arange(LENGTH).float(), frequencies).repeat(1, 2)
    return angles.cos().half(), angles.sin().half()


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


torch.manual_seed(0)
host = (torch.randn(1, HEADS, LENGTH, SIZE).half(), *tables())
x, cos, sin = (tensor.to("spyre") for tensor in host)
rotated, cost = measure(torch.compile(rope), x, cos, sin)
error = largest_error(rotated, rope(*(tensor.cpu().float() for tensor in (x, cos, sin))))
print(f"rope over {tuple(x.shape)}, fp16: largest error against float32 {error:.1e}")
print(f"  {cost}")
assert error < 2**-6, "three roundings of values below 8"
