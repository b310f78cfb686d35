"""What becomes of a model on the device: graphs, fallbacks, and how far it is from float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch._dynamo.utils import counters
from torch.nn import functional

from tests.models.zoo import Entry, Inputs, answer


@dataclass(frozen=True)
class Distance:
    """From the float32 result of the CPU."""

    cosine: float
    largest: float  # error of an element
    reach: float  # the largest value of the CPU's

    @classmethod
    def between(cls, result: torch.Tensor, wanted: torch.Tensor) -> Distance:
        cosine = functional.cosine_similarity(result.flatten(), wanted.flatten(), 0)
        largest = (result - wanted).abs().max()
        return cls(float(cosine), float(largest), float(wanted.abs().max()))


@dataclass(frozen=True)
class Row:
    """A model, forward."""

    name: str
    graphs: int
    breaks: int
    fallbacks: int
    eager: Distance
    compiled: Distance

    def __str__(self) -> str:
        return (
            f"| {self.name} | {self.graphs} | {self.breaks} | {self.fallbacks} "
            f"| {self.eager.cosine:.6f} | {self.compiled.cosine:.6f} "
            f"| {self.compiled.largest:.2g} of {self.compiled.reach:.2g} |"
        )


HEADING = (
    "| model | graphs | breaks | fallbacks | cosine, eager | cosine, compiled | largest error |\n"
    "|---|---|---|---|---|---|---|"
)


def on_card(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return {
        name: (x.to(dtype) if x.is_floating_point() else x).to("spyre")
        for name, x in inputs.items()
    }


@torch.no_grad()
def examine(name: str, entry: Entry) -> Row:
    """Run a model on the CPU in float32, and on the card eager and compiled."""
    torch.manual_seed(0)
    model, inputs = entry.build().eval(), entry.inputs()
    wanted = answer(model(**inputs))
    model, inputs = model.to(entry.dtype).to("spyre"), on_card(inputs, entry.dtype)
    torch.spyre.reset_fallback_stats()
    eager = answer(model(**inputs)).cpu().float()
    torch.compiler.reset()
    counters.clear()
    compiled = answer(torch.compile(model)(**inputs)).cpu().float()
    return Row(
        name,
        counters["stats"]["unique_graphs"],
        len(counters["graph_break"]),
        len(torch.spyre.fallback_stats()),
        Distance.between(eager, wanted),
        Distance.between(compiled, wanted),
    )
