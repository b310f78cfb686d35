"""Which line of the model an operation of Inductor's comes from, and what it works on."""

from __future__ import annotations

import os
import re
from typing import Any

import msgspec
import torch

from torch_spyre.ir.spec import Origin

_TORCH = os.path.dirname(torch.__file__) + os.sep

_ROOT = re.compile(r"^[LG]\['[^']*'\]")  # the model itself, as Dynamo spells it
_CHILD = re.compile(r"\._modules\['([^']*)'\]|\['([^']*)'\]|\[(\d+)\]")
_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)\n\s*(.*)')


def node_of(operation: Any) -> torch.fx.Node | None:
    """The FX node that an operation was lowered for: the last one of those in its loop."""
    node: torch.fx.Node | None = getattr(operation, "origin_node", None)
    return node or max(getattr(operation, "origins", ()) or (), default=None)


def origin_of(operation: Any) -> Origin:
    """The model's line behind an operation, from the FX node it was lowered for."""
    node = node_of(operation)
    if node is None:
        return Origin(buffer=operation.get_name())
    return origin_of_node(node, operation.get_name())


def origin_of_node(node: torch.fx.Node, buffer: str = "") -> Origin:
    """The model's line behind an FX node."""
    aten = str(node.target) if node.op == "call_function" else ""
    original = node.meta.get("original_aten")
    known = Origin(
        aten=aten,
        original=str(getattr(original, "overloadpacket", original) or ""),
        layer=layer_of_node(node),
        buffer=buffer,
    )
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return known
    # The model's own line rather than that of a function of PyTorch's which it calls.
    outside = [frame for frame in frames if not frame[0].startswith(_TORCH)]
    file, line, function, code = (outside or frames)[-1]
    return msgspec.structs.replace(
        known, file=short_path(file), line=int(line), function=function, code=code.strip()
    )


def layer_of_node(node: torch.fx.Node) -> str:
    """The module that a node belongs to: "layers.3.attention"; "" outside of modules.

    Inductor makes one operation of a product and a sum behind it, and says that it is where the
    sum is. The product is what takes time: if its weight is one of a module in there, that counts.
    """
    layer = _layer(node)
    if node.target is torch.ops.aten.addmm.default:
        weights = (arg for arg in node.all_input_nodes if _is_of_input(arg))
        inner = [name for name in map(_layer, weights) if name.startswith(f"{layer}.".lstrip("."))]
        layer = max(inner, key=len, default=layer)
    return layer


def _is_of_input(node: torch.fx.Node) -> bool:
    """Is it a view of an input of the graph?"""
    return [source.op for source in node.all_input_nodes] == ["placeholder"]


def _layer(node: torch.fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path, _ = list(stack.values())[-1]
    return layer_name(str(path))


def layer_name(path: str) -> str:
    """A module's path without Dynamo's spelling of it.

    >>> layer_name("L['self'].layers._modules['3'].mlp"), layer_name("L['fn']")
    ('layers.3.mlp', '')
    """
    rest = _ROOT.sub("", path)
    return _CHILD.sub(lambda match: "." + next(filter(None, match.groups())), rest).strip(".")


def tensors_of(operation: Any) -> tuple[str, ...]:
    """The tensors that an operation of the FX graph takes, for people."""
    node = node_of(operation)
    found = []
    for source in node.all_input_nodes if node is not None else ():
        value = source.meta.get("val")
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            found.append(f"{source.name}  {dtype}{list(value.shape)} on {value.device}")
    return tuple(found)


def short_path(path: str) -> str:
    """The file without the directories of this machine."""
    return os.sep.join(path.split(os.sep)[-2:])
