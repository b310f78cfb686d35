"""Weights: parameters of linear layers are laid out for matmul, once, at the first compile.

A linear layer's weight is (out, in); the matmul wants `out` in the sticks. The compiler has the
real tensors at hand, so it lays them out anew in place instead of copying them at every launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME

_LINEAR = {torch.nn.functional.linear, torch._C._nn.linear}
_EMBEDDING = {torch.nn.functional.embedding, torch.embedding}


def lay_out_weights(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Put the output features of linear weights into the sticks.

    A weight that is an embedding table as well stays as it is: its rows must be addressable.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, inputs, strict=True):
        if _is_weight(value) and _is_for_linear(node):
            layout = _C.SpyreTensorLayout(
                list(value.shape), list(value.stride()), value.dtype, [1, 0]
            )
            if _C.get_spyre_tensor_layout(value) != layout:
                _C.set_spyre_tensor_layout(value.detach(), layout)


def _is_weight(value: Any) -> bool:
    return (
        isinstance(value, torch.nn.Parameter)
        and value.device.type == DEVICE_NAME
        and value.dim() == 2
        and value.is_contiguous()
        and value.storage_offset() == 0
        and value.untyped_storage().nbytes() == value.numel() * value.element_size()
    )


def _is_for_linear(node: torch.fx.Node) -> bool:
    uses = [
        (user.target, position)
        for user in node.users
        for position, argument in enumerate(user.args)
        if argument is node
    ]
    is_linear = any(target in _LINEAR and position == 1 for target, position in uses)
    return is_linear and not any(target in _EMBEDDING for target, _ in uses)
