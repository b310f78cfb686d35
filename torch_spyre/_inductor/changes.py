"""Sizes that are bound to change are dynamic from the start.

Dynamo takes a size for fixed until it meets another. Some can be told at sight: the length of a
cache that grows, and the sizes of a mask that comes for the first time, with tokens whose sizes
have changed before. Here Dynamo is told so before anything is compiled, and traces once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch._dynamo import pgo
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._guards import TracingContext

from .growth import growing

Dimension = tuple[torch.fx.Node, int]  # of an input


def expect_changes(gm: torch.fx.GraphModule) -> None:
    """Make Dynamo trace again, with dynamic sizes, if sizes are fixed here that will change.

    It is asked once for each: what stays fixed all the same (marked static, or tied to another
    size that is) is compiled as it comes.
    """
    if TracingContext.try_get() is None or not torch._dynamo.config.automatic_dynamic_shapes:
        return
    news = [_tell_dynamo(*dimension) for dimension in chain(growing(gm), _accompanying(gm))]
    if any(news):
        raise TensorifyScalarRestartAnalysis(restart_reason="a size will change")


def _tell_dynamo(node: torch.fx.Node, dim: int) -> bool:
    """Note that a size is dynamic; was it not known?"""
    if _known_of(node).is_size_dynamic(dim):
        return False
    _merge(node, {dim: pgo.auto_dynamic})
    return True


def _known_of(node: torch.fx.Node) -> pgo.FrameStateSizeEntry:
    """What Dynamo has learnt about the sizes of an input."""
    return _merge(node, {})


def _merge(node: torch.fx.Node, sizes: dict[int, Any]) -> pgo.FrameStateSizeEntry:
    rank = node.meta["example_value"].dim()
    entry = tuple(sizes.get(dim, pgo.auto_unset) for dim in range(rank))
    tx, name = InstructionTranslator.current_tx(), node.meta["grapharg"].source.name
    return pgo.update_automatic_dynamic(tx, name, pgo.FrameStateSizeEntry.make_size(entry))


def _accompanying(gm: torch.fx.GraphModule) -> Iterator[Dimension]:
    """Fixed sizes of tokens, masks and places that are those of others in the same dimension, which
    are dynamic.

    That two are equal may be chance. Then a bucket is used that was not needed, nothing else.
    """
    inputs = [*_of_integers(gm)]
    dynamic = {
        (dim, _number(size))
        for node in inputs
        for dim, size in enumerate(node.meta["example_value"].shape)
        if isinstance(size, torch.SymInt) or _known_of(node).is_size_dynamic(dim)
    }
    for node in inputs:
        for dim, size in enumerate(node.meta["example_value"].shape):
            if isinstance(size, int) and size > 1 and (dim, size) in dynamic:
                yield node, dim


def _number(size: Any) -> int | None:
    return size.node.hint if isinstance(size, torch.SymInt) else size


def _of_integers(gm: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """Inputs of integers or flags that no module holds."""
    for node in gm.graph.find_nodes(op="placeholder"):
        value, argument = node.meta.get("example_value"), node.meta.get("grapharg")
        if isinstance(value, torch.Tensor) and argument is not None and value.dim():
            is_held = "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})
            if not (is_held or value.is_floating_point() or value.is_complex()):
                yield node
