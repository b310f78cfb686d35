"""Where the buffers of a kernel are, why, and what the scratchpads save."""

from __future__ import annotations

import torch

from torch_spyre._inductor import config
from torch_spyre.tools.follow import follow
from torch_spyre.tools.measure import measure

M, K, N = 512, 1024, 512
SETTINGS = {
    "LX_PLANNING=0": {"lx_planning": False},
    "no room": {"dxp_lx_frac_avail": 0.995},
    "no clones": {"boundary_clones": False},
    "as it is": {},
}


def headline(text: str) -> None:
    print(f"\n== {text}")


def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A norm, a product, a softmax: rows all the way."""
    norm = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
    return torch.softmax(norm @ w, -1)


def show_buffers(x: torch.Tensor, w: torch.Tensor) -> None:
    """The compiler's own list, without layouts."""
    for line in follow(layer, x, w).buffers.splitlines():
        if "device_size" not in line:
            print(line)


def show_settings(x: torch.Tensor, w: torch.Tensor) -> None:
    print(f"{'':14}{'us':>8}{'MiB read':>10}{'written':>9}")
    for name, settings in SETTINGS.items():
        torch.compiler.reset()
        with config.patch(**settings):
            _, cost = measure(torch.compile(layer), x, w)
        moved = f"{cost.bytes_read / 2**20:10.2f}{cost.bytes_written / 2**20:9.2f}"
        print(f"{name:14}{cost.microseconds:8.1f}{moved}")


if __name__ == "__main__":
    torch.manual_seed(0)
    inputs = [torch.rand(shape, dtype=torch.float16).to("spyre") for shape in ((M, K), (K, N))]
    headline("Buffers")
    show_buffers(*inputs)
    headline("With and without")
    show_settings(*inputs)
