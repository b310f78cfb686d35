"""How a kernel is divided among the cores, and what other divisions of its product would cost."""

from __future__ import annotations

import torch

from torch_spyre._C import _cost
from torch_spyre.tools.follow import Levels, follow

M, K, N = 1024, 1024, 4096
VOCABULARY = 49155


def headline(text: str) -> None:
    print(f"\n== {text}")


def show_divisions(levels: Levels) -> None:
    """Every operation with its iteration space: the extent of a dimension, and its slices."""
    for operation in levels.kernels[0].spec.body:
        dims = ", ".join(f"{dim.extent} in {dim.slices}" for dim in operation.iteration_space)
        cores = 1
        for dim in operation.iteration_space:
            cores *= dim.slices
        print(f"{operation.op:12}{cores:3} cores: {dims}")


def show_product(m_slices: int, n_slices: int) -> None:
    """The clock's answer for one division of x @ w; n is divided in sticks of 64."""
    step = _cost.Step(
        traffic=_cost.Traffic.Matmul,
        cores=m_slices * n_slices,
        m=M // m_slices,
        n=64 * -(-(N // 64) // n_slices),
        k=K,
        bytes_read=2 * K * (M + N),
        a_bytes=2 * M * K,
        b_bytes=2 * K * N,
        a_broadcast=n_slices,
        b_broadcast=m_slices,
    )
    local, array = _cost.nanoseconds(step), _cost.breakdown(step).pt
    step.bytes_written = 2 * M * N
    times = "".join(f"{time / 1e3:9.1f}" for time in (array, _cost.nanoseconds(step), local))
    print(f"{m_slices:8}{n_slices:10}{times}")


if __name__ == "__main__":
    torch.manual_seed(0)
    x, w = (torch.rand(shape, dtype=torch.float16).to("spyre") for shape in ((M, K), (K, N)))
    headline("Divisions")
    show_divisions(follow(lambda x, w: torch.softmax(x @ w, -1), x, w))
    headline("The product, us by the clock")
    print("m slices  n slices       PT  written    in LX")
    for slices in ((1, 32), (4, 8), (8, 4), (32, 1), (16, 1), (8, 1)):
        show_product(*slices)
    headline("A dimension that no number of cores divides")
    logits = torch.rand(1, VOCABULARY, dtype=torch.float16).to("spyre")
    show_divisions(follow(lambda x: x * 0.5, logits))
