"""What the compiler is measured on: functions with their inputs, made alike for host and card."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Work:
    """Something to call, and what to call it with; float32, on the host."""

    call: Callable[..., torch.Tensor]
    inputs: Tensors

    def to(self, device: str, dtype: torch.dtype) -> Work:
        """The same elsewhere, with weights of its own."""
        call = self.call
        if isinstance(call, nn.Module):
            call = copy.deepcopy(call).to(device=device, dtype=dtype)
        inputs = (x.to(dtype) if x.is_floating_point() else x for x in self.inputs)
        return Work(call, tuple(x.to(device) for x in inputs))

    def compiled(self) -> Work:
        return Work(torch.compile(self.call, dynamic=False), self.inputs)

    def run(self) -> torch.Tensor:
        return self.call(*self.inputs)


# ---- Single operations --------------------------------------------------------------------------


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def linear(a: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.linear(a, weight)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return functional.softmax(x, -1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, weight.shape, weight, 1e-5)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v)


def attention_in_steps(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return functional.softmax(scores, -1) @ v


# ---- Layers -------------------------------------------------------------------------------------


class SwiGLU(nn.Module):
    """The MLP of a Granite layer."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class SwiGLUByProducts(nn.Module):
    """The same with transposed weights and `@`."""

    def __init__(self, mlp: SwiGLU) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Parameter(layer.weight.detach().t().contiguous())
            for layer in (mlp.gate, mlp.up, mlp.down)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (functional.silu(x @ self.gate) * (x @ self.up)) @ self.down


def granite_block() -> Work:
    """The block of `make demo`: RMSNorm, rotary attention with few key heads, SwiGLU."""
    demo = example("demo")
    x = torch.randn(1, demo.LENGTH, demo.HIDDEN)
    return Work(demo.Block(), (x, *demo.rotary_tables()))


def example(name: str) -> ModuleType:
    """A script of `examples/` as a module."""
    path = Path(__file__).parent.parent / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, path
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- Graphs by their size -----------------------------------------------------------------------


def one_op() -> Work:
    return Work(torch.add, (torch.randn(256, 512), torch.randn(256, 512)))


def twenty_ops() -> Work:
    """Twenty operations of all kinds: elementwise, broadcasts, reductions, views, matmuls."""

    def graph(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)
        gate = torch.sigmoid(scaled @ weight + bias)
        heads = (gate * scaled).view(256, 8, 64).transpose(0, 1)
        scores = torch.exp(heads @ heads.transpose(1, 2) * 0.125)
        shares = scores / scores.sum(-1, keepdim=True)
        return (shares @ heads).transpose(0, 1).reshape(256, 512) + torch.tanh(x)

    return Work(graph, (torch.randn(256, 512), torch.randn(512, 512) * 0.05, torch.randn(512)))


class Logits(nn.Module):
    """A HuggingFace language model, from tokens to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(tokens, use_cache=False).logits


def granite_model(layers: int) -> Work:
    """A Granite model of hidden size 512."""
    import transformers

    config = transformers.GraniteConfig(
        vocab_size=4096,
        hidden_size=512,
        intermediate_size=1600,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    model = transformers.GraniteForCausalLM(config).eval()
    return Work(Logits(model), (torch.randint(config.vocab_size, (1, 128)),))


GRAPHS: dict[str, Callable[[], Work]] = {
    "1 op": one_op,
    "20 ops": twenty_ops,
    "Granite block": granite_block,
    "Granite, 4 layers": lambda: granite_model(4),
    "Granite, 40 layers": lambda: granite_model(40),
}
