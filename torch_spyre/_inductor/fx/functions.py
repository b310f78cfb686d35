"""Functions that PyTorch takes apart before our decompositions: replaced in Dynamo's graph.

Attention and rms_norm are composites whose own parts work in float32 throughout. The card widens
16-bit operands by itself, so ours keep in 32 bits only what needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from torch_spyre.constants import DEVICE_NAME

from . import decompositions
from .attention import attention


def rms_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """What `torch.rms_norm` computes, with the mean of the squares in float32."""
    if x.numel() == 0:
        return torch.empty_like(x)
    return decompositions.rms_norm(x, normalized_shape, weight, eps)[0]


OWN: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.scaled_dot_product_attention: attention,
    torch.rms_norm: rms_norm,
}


def use_own_functions(gm: torch.fx.GraphModule) -> None:
    """Replace them where their result is on the card."""
    for function, own in OWN.items():
        for node in gm.graph.find_nodes(op="call_function", target=function, sort=False):
            if _is_on_card(node):
                node.target = own
    gm.recompile()


def _is_on_card(node: torch.fx.Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE_NAME
