"""Caches that grow by concatenation are dynamic from their first step on.

Dynamo takes a size for fixed until it meets another. A cache that a graph takes, appends a row to
and returns will come back one longer, so a graph for its present length would serve one step and
never again. Here Dynamo is told so before anything is compiled, and traces once more.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._dynamo import pgo
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._guards import TracingContext
from torch.utils import _pytree as pytree


def expect_growth(gm: torch.fx.GraphModule) -> None:
    """Make Dynamo trace again, with dynamic lengths, if caches of fixed length grow here.

    It is asked once for each: what stays fixed all the same (marked static, or tied to another
    size that is) is compiled as it comes.
    """
    if TracingContext.try_get() is None or not torch._dynamo.config.automatic_dynamic_shapes:
        return
    news = [_tell_dynamo(node, dim) for node, dim in _growing(gm)]
    if any(news):
        raise TensorifyScalarRestartAnalysis(restart_reason="a cache grows")


def _tell_dynamo(cache: torch.fx.Node, dim: int) -> bool:
    """Note that a size is dynamic; was it not known?"""
    tx = InstructionTranslator.current_tx()
    sizes: list[Any] = [pgo.auto_unset] * cache.meta["example_value"].dim()
    unchanged = pgo.FrameStateSizeEntry.make_size(tuple(sizes))
    name = cache.meta["grapharg"].source.name
    if pgo.update_automatic_dynamic(tx, name, unchanged).is_size_dynamic(dim):
        return False
    sizes[dim] = pgo.auto_dynamic
    pgo.update_automatic_dynamic(tx, name, pgo.FrameStateSizeEntry.make_size(tuple(sizes)))
    return True


def _growing(gm: torch.fx.GraphModule) -> Iterator[tuple[torch.fx.Node, int]]:
    """Inputs that leave the graph with one more row, and the dimension of the rows."""
    (output,) = gm.graph.find_nodes(op="output")
    returned = {node for node in pytree.tree_leaves(output.args) if isinstance(node, torch.fx.Node)}
    for node in gm.graph.find_nodes(op="call_function", target=torch.cat):
        # A window over a cache that is shorter than the window is all of it.
        windows = [user for user in node.users if user.target is operator.getitem]
        if not returned.intersection((node, *windows)):
            continue
        parts, dim = _arguments(node)
        if len(parts) == 2 and parts[0].meta.get("grapharg") is not None:
            cache, row = (part.meta["example_value"] for part in parts)
            dim = dim % row.dim()
            is_one_row = cache.dim() == row.dim() and row.size(dim) == 1
            if is_one_row and isinstance(cache.size(dim), int) and cache.size(dim) > 1:
                yield parts[0], dim


def _arguments(cat: torch.fx.Node) -> tuple[Sequence[Any], Any]:
    tensors: Any
    tensors, *rest = cat.args or [cat.kwargs["tensors"]]
    return tensors, rest[0] if rest else cat.kwargs.get("dim", 0)
