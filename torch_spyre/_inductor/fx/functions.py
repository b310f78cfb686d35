"""Functions that PyTorch takes apart before our decompositions: replaced in Dynamo's graph.

Attention and rms_norm are composites whose own parts work in float32 throughout. The card widens
16-bit operands by itself, so ours keep in 32 bits only what needs them. one_hot asks the host
whether all classes exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.utils import _pytree as pytree

from torch_spyre.constants import DEVICE_NAME
from torch_spyre.ops import decompositions
from torch_spyre.ops.attention import attention


def rms_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """What `torch.rms_norm` computes, with the mean of the squares in float32.

    Under autocast all of it is in float32, as with PyTorch's.
    """
    if torch.is_autocast_enabled(DEVICE_NAME):
        x, weight = _cast((x, weight), torch.float32)
    if x.numel() == 0:
        return torch.empty_like(x)
    return decompositions.rms_norm(x, normalized_shape, weight, eps)[0]


def scaled_dot_product_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """In the dtype of autocast, where that is on: PyTorch casts in what this stands for."""
    if not torch.is_autocast_enabled(DEVICE_NAME):
        return attention(query, key, value, *args, **kwargs)
    dtype = torch.get_autocast_dtype(DEVICE_NAME)
    given, named = _cast(((query, key, value, *args), kwargs), dtype)
    with torch.autocast(DEVICE_NAME, enabled=False):
        return attention(*given, **named)


def _cast(values: Any, dtype: torch.dtype) -> Any:
    """The same with its floats in this dtype."""

    def cast(x: Any) -> Any:
        is_float = isinstance(x, torch.Tensor) and x.is_floating_point()
        return x.to(dtype) if is_float else x

    return pytree.tree_map(cast, values)


def one_hot(classes: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """A comparison. A class that there is not gives zeros: the host does not look at the data."""
    if num_classes <= 0:
        return functional.one_hot(classes, num_classes)
    numbers = torch.arange(num_classes, device=classes.device)
    return (classes.unsqueeze(-1) == numbers).to(torch.int64)


OWN: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.scaled_dot_product_attention: scaled_dot_product_attention,
    torch.rms_norm: rms_norm,
    functional.one_hot: one_hot,
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
