"""A Granite block in fp16, in fp8 and with int8 weights: how far off it is, and what it costs."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from torch_spyre.tools.measure import Cost, measure

sys.path.insert(0, str(Path(__file__).parent))
from demo import HIDDEN, LENGTH, Block, rotary_tables
from fp8_linear import Fp8Linear

Inputs = list[torch.Tensor]


class Int8Linear(nn.Module):
    """A weight of bytes with a scale per output channel; activations stay as they are."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(1) / 127
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale.to(linear.weight.dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight.to(x.dtype)) * self.scale


KINDS: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "fp16": copy.deepcopy,
    "fp8": Fp8Linear,
    "int8 weights": Int8Linear,
}


def quantised(model: nn.Module, kind: str) -> nn.Module:
    """A copy in which every linear layer is of this kind."""
    model = copy.deepcopy(model)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear):
            model.set_submodule(name, KINDS[kind](layer))
    return model


def headline(text: str) -> None:
    print(f"\n== {text}")


def apart(a: torch.Tensor, b: torch.Tensor, added: torch.Tensor) -> float:
    """The distance of two results, relative to what the block adds to its input."""
    return float((a.cpu().double() - b.double()).norm() / added.norm())


def granite_block() -> nn.Module:
    """Weights of a size with which the block adds about as much as is there."""
    block = Block()
    for layer in block.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
    return block.half()


def show_errors(block: nn.Module, inputs: Inputs) -> None:
    exact = copy.deepcopy(block).double()(*(tensor.double() for tensor in inputs))
    added = exact - inputs[0].double()
    on_card = [tensor.to("spyre") for tensor in inputs]
    names = ("CPU float32", "CPU float16", "card eager", "compiled")
    results = {}
    for kind in KINDS:
        wide = quantised(copy.deepcopy(block).float(), kind)(*(x.float() for x in inputs))
        model = quantised(block, kind)
        narrow = model(*inputs)
        model = model.to("spyre")
        compiled = torch.compile(model, fullgraph=True)
        results[kind] = (wide, narrow, model(*on_card), compiled(*on_card))
    for title, first in ("from the block in float64", 0), ("from the CPU's float32", 1):
        headline(f"Distances {title}, relative to what the block adds to its input")
        print(f"{'':14}" + "".join(f"{name:>13}" for name in names[first:]))
        for kind, found in results.items():
            base = found[0] if first else exact
            errors = (apart(result, base, added) for result in found[first:])
            print(f"{kind:14}" + "".join(f"{error:13.4f}" for error in errors))


def show_costs(block: nn.Module, inputs: Inputs) -> None:
    headline("Modelled time and traffic")
    print(f"{'':14}{'rows':>6}{'us':>9}{'MiB read':>10}{'written':>9}{'kernels':>9}")
    for rows in LENGTH, 1:
        part = [inputs[0][:, :rows], *(table[:rows] for table in inputs[1:])]
        for kind in KINDS:
            cost = compiled_cost(quantised(block, kind), part)
            read, written = cost.bytes_read / 2**20, cost.bytes_written / 2**20
            print(f"{kind:14}{rows:6}{cost.microseconds:9.1f}{read:10.2f}", end="")
            print(f"{written:9.2f}{cost.launches:9}")


def compiled_cost(model: nn.Module, inputs: Inputs) -> Cost:
    torch.compiler.reset()
    compiled = torch.compile(model.to("spyre"), fullgraph=True, dynamic=False)
    return measure(compiled, *(tensor.contiguous().to("spyre") for tensor in inputs))[1]


if __name__ == "__main__":
    torch.manual_seed(0)
    with torch.no_grad():
        granite = granite_block()
        tensors = [torch.randn(1, LENGTH, HIDDEN), *rotary_tables()]
        show_errors(granite, [tensor.half() for tensor in tensors])
        show_costs(granite, [tensor.half() for tensor in tensors])
    print("\nfallbacks:", torch.spyre.fallback_stats())
