"""A linear layer in fp8, in user code: a scale per output channel, activations quantised by row."""

from __future__ import annotations

import torch
from torch import nn

from torch_spyre.tools.measure import measure

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max


def quantised(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in fp8, and the scale of each, which makes its largest element the largest of fp8."""
    scale = rows.abs().amax(1, keepdim=True).float().clamp_min(1e-12) / LARGEST
    return (rows / scale).clamp(-LARGEST, LARGEST).to(FP8), scale


class Fp8Linear(nn.Module):
    """What a linear layer computes, from a weight of half the bytes."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, scale = quantised(linear.weight.detach())
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale.t().contiguous())
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, scale = quantised(x.reshape(-1, x.shape[-1]))
        y = torch._scaled_mm(
            rows, self.weight.t(), scale, self.scale, bias=self.bias, out_dtype=x.dtype
        )
        return y.view(*x.shape[:-1], -1)


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(4096, 4096, bias=False)
    x = torch.randn(1, 4096).half()
    wanted = linear(x.float())
    for layer in linear.half(), Fp8Linear(linear):
        model = torch.compile(layer.to("spyre"), fullgraph=True)
        y, cost = measure(model, x.to("spyre"))
        error = float((y.cpu().float() - wanted).norm() / wanted.norm())
        print(f"{type(layer).__name__}: {cost.microseconds:.1f} us modelled, ", end="")
        print(f"{cost.bytes_read / 2**20:.1f} MiB read, relative error {error:.4f}")
    print("fallbacks:", torch.spyre.fallback_stats())


if __name__ == "__main__":
    main()
