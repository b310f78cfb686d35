"""Weights: what linear layers multiply by is laid out for matmul, once, at the first compile.

A linear layer's weight is (out, in); the matmul wants `out` in the sticks. The compiler has the
real tensors at hand, so it lays them out anew in place instead of copying them at every launch.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME

aten = torch.ops.aten

# Products by a matrix (in, out), and by one (out, in), with the place of that argument.
_PRODUCTS = {
    operator.matmul: 1,
    torch.matmul: 1,
    torch.mm: 1,
    torch.addmm: 2,
    torch._scaled_mm: 1,
    aten._scaled_mm: 1,
    aten._scaled_mm.default: 1,
    torch._scaled_mm_v2: 1,
    functional.scaled_mm: 1,
}
_TURNED_PRODUCTS = {
    functional.linear: 1,
    torch._C._nn.linear: 1,
    torch._weight_int8pack_mm: 1,
    aten._weight_int8pack_mm: 1,
    aten._weight_int8pack_mm.default: 1,
}
LOOKUPS = {functional.embedding, torch.embedding}
# What leaves elements where they are.
_CONVERSIONS = {"to", "to_local", "type", "half", "float", "bfloat16"}
_ARITHMETIC = {operator.mul, operator.truediv, operator.sub, torch.mul, torch.div, torch.sub}


class Use(enum.Enum):
    """What a matrix is to an operation."""

    FACTOR = "multiplied by, (in, out)"
    TURNED_FACTOR = "multiplied by, (out, in)"
    TABLE = "looked up in"
    OTHER = "anything else"


def lay_out_weights(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Put the output features of linear weights into the sticks.

    A weight that is an embedding table as well stays as it is: its rows must be addressable. A
    module's buffer counts as a weight if it is nothing else.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for node, given in zip(placeholders, inputs, strict=True):
        value = local(given)
        if is_of_module(node, given) and is_matrix(value) and _is_for_linear(node, given):
            layout = _C.SpyreTensorLayout(
                list(value.shape), list(value.stride()), value.dtype, [1, 0]
            )
            if _C.get_spyre_tensor_layout(value) != layout:
                _C.set_spyre_tensor_layout(value.detach(), layout)


def local(value: Any) -> Any:
    """This card's part of a distributed tensor; everything else is what it is."""
    return getattr(value, "_local_tensor", value)


def is_of_module(node: torch.fx.Node, value: Any) -> bool:
    """Is the input a parameter, or another tensor that a module holds?"""
    if isinstance(value, torch.nn.Parameter):
        return True
    return "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})


def is_matrix(value: Any) -> bool:
    """Is it a matrix on a card that has its storage for itself?"""
    return (
        not is_traceable_wrapper_subclass(value)
        and isinstance(value, torch.Tensor)
        and value.device.type == DEVICE_NAME
        and value.dim() == 2
        and value.is_contiguous()
        and value.storage_offset() == 0
        and value.untyped_storage().nbytes() == value.numel() * value.element_size()
    )


def _is_for_linear(node: torch.fx.Node, value: torch.Tensor) -> bool:
    uses = set(uses_of(node))
    if not isinstance(value, torch.nn.Parameter):
        return uses == {Use.TURNED_FACTOR}
    return Use.TURNED_FACTOR in uses and Use.TABLE not in uses


def uses_of(node: torch.fx.Node, is_turned: bool = False) -> Iterator[Use]:
    """What becomes of a matrix, through conversions, scales and transpositions."""
    for user in node.users:
        places = [i for i, argument in enumerate(user.args) if argument is node]
        if user.op == "call_function" and _PRODUCTS.get(user.target) in places:
            yield Use.TURNED_FACTOR if is_turned else Use.FACTOR
        elif user.op == "call_function" and _TURNED_PRODUCTS.get(user.target) in places:
            yield Use.FACTOR if is_turned else Use.TURNED_FACTOR
        elif user.target in LOOKUPS:
            yield Use.TABLE
        elif _is_turn(user):
            yield from uses_of(user, not is_turned)
        elif _is_same_matrix(user) and (user.op == "call_function" or places == [0]):
            yield from uses_of(user, is_turned)
        else:
            yield Use.OTHER


def _is_same_matrix(node: torch.fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in _CONVERSIONS
    value = node.meta.get("example_value")
    is_matrix = isinstance(value, torch.Tensor) and value.dim() == 2
    return is_matrix and node.op == "call_function" and node.target in _ARITHMETIC


def _is_turn(node: torch.fx.Node) -> bool:
    """Does it exchange the two dimensions?"""
    rest = node.args[1:]
    if node.target in ("t", torch.t) or (node.target is getattr and rest in (("T",), ("mT",))):
        return True
    if node.target in ("transpose", torch.transpose, "swapaxes", torch.swapaxes):
        return {dim % 2 for dim in rest if isinstance(dim, int)} == {0, 1}
    return node.target in ("permute", torch.permute) and rest in ((1, 0), ((1, 0),), ([1, 0],))
