"""Modelled time of compiled plans against the roofline of their graphs.

All figures are the card's clock, so they are the same on every machine. The roofline of a graph is
the larger of its multiply-adds at the full rate of all matrix units, and its inputs and outputs
once each through LPDDR5.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch
from _report import Report
from _workloads import SwiGLU, Tensors, Work
from torch import nn
from torch.nn import functional

from torch_spyre.tools.measure import Cost, measure

CORES = 32
MACS_PER_NANOSECOND = 1140  # of one core
BYTES_PER_NANOSECOND = 150
TURNAROUND = 0.00574  # nanoseconds per byte that goes against the main direction

HIDDEN, INNER, HEADS, KEY_HEADS, HEAD = 4096, 12800, 32, 8, 128


@dataclass(frozen=True)
class Row:
    """A workload, the multiply-adds it can't do without, and the share of the roofline to reach."""

    name: str
    make: Callable[[], Work]
    macs: int
    target: float  # per cent


# ---- Workloads ----------------------------------------------------------------------------------


def of(call: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> Callable[[], Work]:
    """A function on random tensors; matrices are scaled so that products stay of order one."""

    def make() -> Work:
        return Work(call, tuple(torch.randn(shape) / sqrt(shape[0]) for shape in shapes))

    return make


def softmax(x: torch.Tensor) -> torch.Tensor:
    return functional.softmax(x, -1)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, weight.shape, weight, 1e-5)


def gelu_chain(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x + bias) * x + 1.0


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v)


class GraniteBlock(nn.Module):
    """A layer of Granite 3.3 8B, with the keys and values of earlier positions given."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.RMSNorm(HIDDEN, 1e-5), nn.RMSNorm(HIDDEN, 1e-5)
        self.query = nn.Linear(HIDDEN, HEADS * HEAD, bias=False)
        self.key = nn.Linear(HIDDEN, KEY_HEADS * HEAD, bias=False)
        self.value = nn.Linear(HIDDEN, KEY_HEADS * HEAD, bias=False)
        self.output = nn.Linear(HEADS * HEAD, HIDDEN, bias=False)
        self.mlp = SwiGLU(HIDDEN, INNER)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *past: torch.Tensor):  # type: ignore[no-untyped-def]  # one tensor
        inner = self.norm_attention(x)
        q, k, v = (
            layer(inner).view(1, x.size(1), -1, HEAD).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if past:
            k, v = (torch.cat(both, -2) for both in zip(past, (k, v), strict=True))
        is_prefill = len(past) == 0
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=is_prefill, enable_gqa=True)
        x = x + self.output(y.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.norm_mlp(x))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


def block(length: int, past: int) -> Callable[[], Work]:
    def make() -> Work:
        inputs: Tensors = (
            torch.randn(1, length, HIDDEN),
            torch.randn(length, HEAD),
            torch.randn(length, HEAD),
        )
        if past:
            inputs += tuple(torch.randn(1, KEY_HEADS, past, HEAD) for _ in range(2))
        return Work(GraniteBlock(), inputs)

    return make


def block_macs(length: int, past: int) -> int:
    weights = HIDDEN * (HIDDEN * 2 + 2 * KEY_HEADS * HEAD + 3 * INNER)
    keys = past + length
    return int(length * weights + 2 * HEADS * HEAD * length * keys)


ROWS = [
    Row("softmax 4096x4096", of(softmax, (4096, 4096)), 0, 90),
    Row("layer_norm 4096x4096", of(layer_norm, (4096, 4096), (4096,), (4096,)), 0, 90),
    Row("rms_norm 4096x4096", of(rms_norm, (4096, 4096), (4096,)), 0, 90),
    Row("gelu chain 4096x4096", of(gelu_chain, (4096, 4096), (4096,)), 0, 90),
    Row("matmul 4096x4096x4096", of(torch.matmul, (4096, 4096), (4096, 4096)), 4096**3, 95),
    Row(
        "matmul 32x4096x12800",
        of(torch.matmul, (32, 4096), (4096, 12800)),
        32 * 4096 * 12800,
        95,
    ),
    Row("matmul 1x4096x4096", of(torch.matmul, (1, 4096), (4096, 4096)), 4096**2, 95),
    Row(
        "SwiGLU MLP 512x4096x12800",
        lambda: Work(SwiGLU(HIDDEN, INNER), (torch.randn(512, HIDDEN),)),
        3 * 512 * HIDDEN * INNER,
        85,
    ),
    Row(
        "attention 1x32x2048x128 causal",
        of(causal, *[(1, 32, 2048, 128)] * 3),
        2 * 32 * 128 * 2048 * 2048,
        75,
    ),
    Row(
        "attention decode, 8192 keys",
        of(attention, (1, 32, 1, 128), *[(1, 32, 8192, 128)] * 2),
        2 * 32 * 128 * 8192,
        85,
    ),
    Row("Granite-3.3-8B block, prefill 512", block(512, 0), block_macs(512, 0), 80),
    Row("Granite-3.3-8B block, decode 2048", block(1, 2048), block_macs(1, 2048), 90),
]


# ---- Measuring ----------------------------------------------------------------------------------


def roofline(row: Row, work: Work, result: torch.Tensor) -> float:
    """Microseconds."""
    tensors = list(work.inputs)
    if isinstance(work.call, nn.Module):
        tensors += list(work.call.parameters())
    read = float(torch.float16.itemsize * sum(tensor.numel() for tensor in tensors))
    written = float(torch.float16.itemsize * result.numel())
    array = row.macs / (CORES * MACS_PER_NANOSECOND)
    memory = (read + written) / BYTES_PER_NANOSECOND + TURNAROUND * min(read, written)
    return max(array, memory) / 1e3


def run(row: Row) -> tuple[float, Cost, float]:
    """The roofline, the cost, and the error relative to the largest value."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    work = row.make()
    wanted = work.run()
    result, cost = measure(work.to("spyre", torch.float16).compiled().run)
    error = (result.cpu().float() - wanted).abs().max() / wanted.abs().max()
    return roofline(row, work, wanted), cost, float(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="", help="only those whose name holds one of these, a,b")
    parser.add_argument("--json", default="plans", help="name of the file in results")
    options = parser.parse_args()
    wanted = options.rows.split(",")
    report = Report(options.json, "Plans: modelled time against the roofline")
    lines = []
    missed = []
    with torch.no_grad():
        for row in ROWS:
            if not any(name in row.name for name in wanted):
                continue
            bound, cost, error = run(row)
            share = 100 * bound / cost.microseconds
            if share < row.target:
                missed.append(row.name)
            lines.append(
                [
                    row.name,
                    cost.microseconds,
                    bound,
                    round(share, 1),
                    row.target,
                    "met" if share >= row.target else "missed",
                    cost.bytes_read / 2**20,
                    cost.bytes_written / 2**20,
                    cost.launches,
                    f"{error:.1e}",
                ]
            )
            print(f"  {row.name}: {share:.1f} %", file=sys.stderr)
    report.table(
        "microseconds on the card's clock",
        [
            "workload",
            "modelled",
            "roofline",
            "%",
            "target",
            "verdict",
            "MiB read",
            "MiB written",
            "kernels",
            "error",
        ],
        lines,
    )
    report.remark("All targets met." if not missed else f"Missed: {', '.join(missed)}.")
    report.write()


if __name__ == "__main__":
    main()
