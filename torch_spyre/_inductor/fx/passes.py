"""Passes over the FX graph after decomposition. They know nothing of layouts."""

from __future__ import annotations

import operator
from typing import TypeGuard

import torch
from torch._inductor.fx_passes.reinplace import inplaceable_ops
from torch.utils import _pytree as pytree

from torch_spyre.constants import DEVICE_NAME

from ..dim_names import size_of
from ..lengths import is_own_length
from . import custom_ops  # noqa: F401  defines torch.ops.spyre
from .pairs import complex_as_pairs

aten = torch.ops.aten
prims = torch.ops.prims

_MATMULS = {
    aten.mm.default,
    aten.bmm.default,
    aten.addmm.default,
    aten.baddbmm.default,
    torch.ops.spyre.bmm_to_float.default,
}
_VIEWS = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.expand.default,
    aten.permute.default,
    aten.transpose.int,
    aten.unsqueeze.default,
    aten.squeeze.dim,
}
_WAIT = "_c10d_functional.wait_tensor.default"  # a name: PyTorch may be built without it
_COPIES = {prims.device_put.default, aten.copy.default, aten.copy_.default}  # from any device


def run_before_partition(graph: torch.fx.Graph) -> None:
    """What must be seen by the one who decides what a backward graph gets of a forward one."""
    complex_as_pairs(graph)
    graph.lint()


def run(gm: torch.fx.GraphModule) -> None:
    """All other passes, in order."""
    for pass_ in PASSES:
        pass_(gm)
    gm.graph.lint()
    gm.recompile()


def drop_copies_of_expanded_operands(gm: torch.fx.GraphModule) -> None:
    """Let matmuls read repeated operands in place.

    Grouped attention repeats its keys and values for the heads of a group: expand, then a copy,
    because PyTorch can't view an expanded tensor in fewer dimensions. A matmul of the card can
    stand still along a loop, so the copy of what is only multiplied goes.
    """
    for node in list(gm.graph.find_nodes(op="call_function", target=aten.clone.default)):
        source = node.args[0]
        if _is_expanded(source) and _is_only_multiplied(node):
            node.replace_all_uses_with(source)
            gm.graph.erase_node(node)


def _is_expanded(node: object) -> bool:
    return isinstance(node, torch.fx.Node) and node.target == aten.expand.default


def _is_only_multiplied(node: torch.fx.Node) -> bool:
    return bool(node.users) and all(
        user.target in _MATMULS or (user.target in _VIEWS and _is_only_multiplied(user))
        for user in node.users
    )


def copy_flattened_outputs(gm: torch.fx.GraphModule) -> None:
    """Give results buffers of their own size, where they are views of others with dynamic ones.

    A linear layer flattens batch and length. Inside a kernel a bucket stands for that; outside it
    can only stand for the length.
    """
    (output,) = gm.graph.find_nodes(op="output")
    for node in dict.fromkeys(pytree.tree_leaves(output.args)):
        if isinstance(node, torch.fx.Node) and node.target in _VIEWS and _is_flattened(node):
            with gm.graph.inserting_after(node):
                copy = gm.graph.call_function(aten.clone.default, (node,))
            copy.meta = dict(node.meta)
            output.replace_input_with(node, copy)


def _is_flattened(view: torch.fx.Node) -> bool:
    source = view
    while source.target in _VIEWS:
        source = source.args[0]  # type: ignore[assignment]
    value = source.meta.get("val")
    sizes = value.shape if isinstance(value, torch.Tensor) else ()
    return not all(is_own_length(size_of(n)) for n in sizes)


def send_host_scalars(gm: torch.fx.GraphModule) -> None:
    """Copy numbers that the host holds in tensors to the card, once each, before they are used.

    PyTorch lets an operation of the card take a CPU tensor with no dimensions. A Python float that
    may change between calls is one too, in float64: `dynamic=True` makes one of every float.
    """
    sent: dict[tuple[torch.fx.Node, torch.dtype], torch.fx.Node] = {}
    for node in list(gm.graph.nodes):
        value = node.meta.get("val")
        if not _is_on(value, DEVICE_NAME) or node.target in _COPIES:
            continue
        for scalar in node.all_input_nodes:
            number = scalar.meta.get("val")
            if _is_on(number, "cpu") and number.dim() == 0:
                key = scalar, _type_on_card(number.dtype, value.dtype)
                if key not in sent:
                    with gm.graph.inserting_after(scalar):
                        sent[key] = _copied_to_card(gm.graph, scalar, key[1], value.device)
                node.replace_input_with(scalar, sent[key])


def _is_on(value: object, device: str) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.device.type == device


def _type_on_card(number: torch.dtype, result: torch.dtype) -> torch.dtype:
    """The card has no float64; where the result is none, nobody sees that the number is not."""
    return torch.float32 if number == torch.float64 != result else number


def _copied_to_card(
    graph: torch.fx.Graph, scalar: torch.fx.Node, dtype: torch.dtype, device: torch.device
) -> torch.fx.Node:
    value = scalar.meta["val"]
    if value.dtype != dtype:
        narrow = graph.call_function(prims.convert_element_type.default, (scalar, dtype))
        narrow.meta = {**scalar.meta, "val": value.to(dtype)}
        with graph.inserting_after(narrow):
            return _copied_to_card(graph, narrow, dtype, device)
    copy = graph.call_function(prims.device_put.default, (scalar, device))
    copy.meta = {**scalar.meta, "val": value.to(device)}
    return copy


def wait_late(gm: torch.fx.GraphModule) -> None:
    """Wait for a collective where its result is first used, not where it was started.

    What the model computes in between goes on meanwhile. Collectives keep their order, which all
    ranks share. No wait goes past what may write to a tensor: the collective may be reading it.
    """
    for node in list(gm.graph.nodes):
        if str(node.target) != _WAIT:
            continue
        place = node
        while place.next not in node.users and not _may_write(place.next):
            place = place.next
        if place is not node:
            place.append(node)


def _may_write(node: torch.fx.Node) -> bool:
    """Does it change a tensor, or will Inductor let it do so instead of making a new one?"""
    if node.op != "call_function":
        return True
    if node.target is operator.getitem:
        return False
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    return node.target._schema.is_mutable or node.target in inplaceable_ops


PASSES = (
    send_host_scalars,
    drop_copies_of_expanded_operands,
    copy_flattened_outputs,
    wait_late,
)
