"""Where things come from: lines of the model, and its layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from traceback import FrameSummary
from typing import Any

import msgspec
import torch

from torch_spyre._inductor.origins import layer_of_node, node_of, origin_of_node, short_path
from torch_spyre.ir.spec import Origin

from .document import Source


def source_of(origin: Origin, layer: str = "") -> Source:
    """An origin of the compiler's, as the document has it."""
    function = _as_written(origin.function)
    return Source(origin.file, origin.line, function, origin.code, origin.aten, layer)


def source_of_node(node: torch.fx.Node) -> Source:
    """The model's line behind a node of a graph."""
    found = source_of(origin_of_node(node), layer_of_node(node))
    return msgspec.structs.replace(found, aten=operation_of(node))


def operation_of(node: torch.fx.Node) -> str:
    """What a node calls: "linear", "aten.mm.default"."""
    if isinstance(node.target, str | torch._ops.OpOverload):
        return str(node.target)
    return getattr(node.target, "__name__", str(node.target))


def source_of_frames(frames: Sequence[FrameSummary]) -> Source:
    """The innermost line of a stack of Dynamo's."""
    if not frames:
        return Source()
    last = frames[-1]
    code = (last.line or "").strip()
    return Source(short_path(last.filename), last.lineno or 0, _as_written(last.name), code)


def _as_written(function: str) -> str:
    """The model's function; behind a graph break Dynamo goes on in one of its own."""
    return re.sub(r"^torch_dynamo_resume_in_(.*)_at_\d+$", r"\1", function)


def layer_of(operation: Any) -> str:
    """The module that an operation of Inductor's belongs to."""
    node = node_of(operation)
    return "" if node is None else layer_of_node(node)


def source_of_operation(operation: Any) -> Source:
    """The model's line behind an operation of Inductor's."""
    node = node_of(operation)
    return Source() if node is None else source_of_node(node)
