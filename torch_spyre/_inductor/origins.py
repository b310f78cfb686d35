"""Which line of the model an operation of Inductor's comes from, and what it works on."""

from __future__ import annotations

import os
import re
from typing import Any

import torch

from torch_spyre.ir.spec import Origin

_TORCH = os.path.dirname(torch.__file__) + os.sep

_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)\n\s*(.*)')


def _node_of(operation: Any) -> torch.fx.Node | None:
    """The FX node that an operation was lowered for: the last one of those in its loop."""
    node: torch.fx.Node | None = getattr(operation, "origin_node", None)
    return node or max(getattr(operation, "origins", ()) or (), default=None)


def origin_of(operation: Any) -> Origin:
    """The model's line behind an operation, from the FX node it was lowered for."""
    node = _node_of(operation)
    if node is None:
        return Origin(buffer=operation.get_name())
    return origin_of_node(node, operation.get_name())


def origin_of_node(node: torch.fx.Node, buffer: str = "") -> Origin:
    """The model's line behind an FX node."""
    aten = str(node.target) if node.op == "call_function" else ""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return Origin(aten=aten, buffer=buffer)
    # The model's own line rather than that of a function of PyTorch's which it calls.
    outside = [frame for frame in frames if not frame[0].startswith(_TORCH)]
    file, line, function, code = (outside or frames)[-1]
    return Origin(_short(file), int(line), function, code.strip(), aten, buffer)


def tensors_of(operation: Any) -> tuple[str, ...]:
    """The tensors that an operation of the FX graph takes, for people."""
    node = _node_of(operation)
    found = []
    for source in node.all_input_nodes if node is not None else ():
        value = source.meta.get("val")
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            found.append(f"{source.name}  {dtype}{list(value.shape)} on {value.device}")
    return tuple(found)


def _short(path: str) -> str:
    """The file without the directories of this machine."""
    return os.sep.join(path.split(os.sep)[-2:])
