"""What `make demo` shows: models of HuggingFace at work, then what is beneath them.

A Granite model that writes, sentence embeddings, a transformer block kernel by kernel, the device.
"""

from __future__ import annotations

import importlib
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import torch_spyre
from torch_spyre.tools.measure import (
    KernelCost,
    StepCost,
    compiled_kernels,
    largest_error,
    measure,
)

LENGTH, HIDDEN, INNER = 128, 1024, 2560
HEADS, KEY_HEADS, HEAD = 8, 2, 128


def headline(text: str) -> None:
    print(f"\n== {text}")


# ---- The model ----------------------------------------------------------------------------------


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def rotary_tables() -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
    angles = torch.outer(torch.arange(LENGTH).float(), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


class Block(nn.Module):
    """A layer as Granite has them: RMSNorm, rotary attention with few key heads, SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.RMSNorm(HIDDEN, 1e-5), nn.RMSNorm(HIDDEN, 1e-5)
        self.query = nn.Linear(HIDDEN, HEADS * HEAD, bias=False)
        self.key_value = nn.Linear(HIDDEN, 2 * KEY_HEADS * HEAD, bias=False)
        self.output = nn.Linear(HEADS * HEAD, HIDDEN, bias=False)
        self.gate, self.up = (nn.Linear(HIDDEN, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm_attention(x), cos, sin)
        inner = self.norm_mlp(x)
        return x + self.down(functional.silu(self.gate(inner)) * self.up(inner))

    def attend(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q = self.query(x).view(batch, length, HEADS, HEAD).transpose(1, 2)
        both = self.key_value(x).view(batch, length, 2 * KEY_HEADS, HEAD).transpose(1, 2)
        k, v = both.chunk(2, 1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.output(y.transpose(1, 2).reshape(batch, length, HEADS * HEAD))


# ---- What is shown ------------------------------------------------------------------------------


def show_example(text: str, name: str) -> None:
    """Another example as an act of this one; it may need packages that are not everywhere."""
    headline(text)
    try:
        example = importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(f"left out: there is no {error.name} here; pip install 'torch-spyre[models]'")
        return
    torch.spyre.reset_fallback_stats()
    example.main()


@torch.no_grad()
def show_block() -> None:
    headline("Beneath it: a transformer block, compiled")
    block = Block().half()
    inputs = [torch.randn(1, LENGTH, HIDDEN).half(), *(table.half() for table in rotary_tables())]
    exact = Block()
    exact.load_state_dict(block.state_dict())
    wanted = exact(*(tensor.float() for tensor in inputs))

    on_card = [tensor.to("spyre") for tensor in inputs]
    compiled = torch.compile(block.to("spyre"))
    began = time.perf_counter()
    compiled(*on_card).cpu()
    compiling = time.perf_counter() - began
    got, cost = measure(compiled, *on_card)
    wall = min(_wall(lambda: compiled(*on_card).cpu()) for _ in range(5))

    weights = sum(parameter.numel() for parameter in block.parameters())
    print(f"RMSNorm, rotary attention ({HEADS} heads, {KEY_HEADS} for keys), SwiGLU;")
    print(f"{LENGTH} positions of {HIDDEN}, {weights / 1e6:.1f} million weights, fp16")
    print(f"largest error against float32   {largest_error(got, wanted):.4f}", end="")
    print(f" (values up to {wanted.abs().max():.1f})")
    print(f"on the card, modelled           {cost.microseconds / 1000:.3f} ms")
    print(
        f"on this machine, wall           {wall * 1000:.1f} ms, after {compiling:.1f} s compiling"
    )
    print(f"LPDDR5                          {cost.bytes_read / 2**20:.1f} MiB read, ", end="")
    print(f"{cost.bytes_written / 2**20:.1f} MiB written; launches: {cost.launches}")
    print_kernels(compiled_kernels()[-1:])
    page = Path(tempfile.gettempdir()) / "spyre-demo.html"
    torch_spyre.explain(compiled, *on_card).save(page)
    print(f"The same to look at, step by step, core by core: open {page} in a browser.")


def _wall(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def print_kernels(kernels: list[KernelCost]) -> None:
    """A line per kernel, and under it the operations that take most of its time."""
    print("\nkernel / operation     steps  cores     LX/core    MiB read  written  modelled us")
    for kernel in kernels:
        print(
            f"{kernel.name[:21]:22}{len(kernel.steps):6}{kernel.cores:7}"
            f"{kernel.lx_bytes >> 10:8} KiB{_figures(kernel)}"
        )
        grouped: dict[str, list[StepCost]] = defaultdict(list)
        for step in kernel.steps:
            grouped[step.operation].append(step)
        parts = [KernelCost(operation, tuple(steps)) for operation, steps in grouped.items()]
        parts.sort(key=lambda part: -part.microseconds)
        for part in parts[:5]:
            print(f"  {part.name:20}{len(part.steps):6}{part.cores:7}{'':12}{_figures(part)}")
        rest = ", ".join(part.name for part in parts[5:])
        print(f"  and {rest}" if rest else "")


def _figures(cost: KernelCost) -> str:
    return (
        f"{cost.bytes_read / 2**20:12.2f}{cost.bytes_written / 2**20:9.2f}{cost.microseconds:13.1f}"
    )


def show_device() -> None:
    headline("The device itself, with no card in the machine")
    properties = torch.spyre.get_device_properties()
    print(
        f"{properties.name}: {properties.cores} cores, {properties.lx_bytes >> 20} MiB LX each, ",
        end="",
    )
    print(f"{properties.total_memory / 2**30:.0f} GiB device memory, driver {properties.driver}")
    host = torch.ones(4096, 4096, dtype=torch.float16).pin_memory()
    x, copies = host.to("spyre"), torch.spyre.Stream()
    torch.spyre.synchronize()
    events = [torch.spyre.Event(enable_timing=True) for _ in range(3)]
    events[0].record()
    torch.sigmoid(x) * x
    events[1].record()
    with torch.spyre.stream(copies):
        host.to("spyre", non_blocking=True)
        events[2].record(copies)
    torch.spyre.synchronize()
    kernels, copy = (events[0].elapsed_time(event) for event in events[1:])
    print(f"two kernels {kernels:.3f} ms beside a copy {copy:.3f} ms, modelled")
    torch.spyre.reset_fallback_stats()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.linalg.inv(torch.eye(8).to("spyre"))
    print("what has no card kernel runs on the CPU, and is counted:", torch.spyre.fallback_stats())


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.spyre.set_downcast_warning(False)
    show_example("A Granite model learns a text on the card, and writes it", "granite_generate")
    show_example("Sentence embeddings with real weights", "embed_sentences")
    show_block()
    show_device()
