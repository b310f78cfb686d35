"""Caches that grow by concatenation.

A cache that a graph takes, appends a row to and returns will come back one longer, so a graph for
its present length would serve one step and never again (`changes.py`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree


def growing(gm: torch.fx.GraphModule) -> Iterator[tuple[torch.fx.Node, int]]:
    """Inputs that leave the graph with one more row, and the dimension of the rows."""
    (output,) = gm.graph.find_nodes(op="output")
    returned = {node for node in pytree.tree_leaves(output.args) if isinstance(node, torch.fx.Node)}
    for node, cache, dim in _appended(gm):
        # A window over a cache that is shorter than the window is all of it.
        windows = [user for user in node.users if user.target is operator.getitem]
        if returned.intersection((node, *windows)):
            size = cache.meta["example_value"].size(dim)
            if isinstance(size, int) and size > 1:
                yield cache, dim


def _appended(gm: torch.fx.GraphModule) -> Iterator[tuple[torch.fx.Node, torch.fx.Node, int]]:
    """Concatenations of an input and one row: their nodes, the inputs, the dimensions of rows."""
    for node in gm.graph.find_nodes(op="call_function", target=torch.cat):
        parts, dim = _arguments(node)
        if len(parts) == 2 and parts[0].meta.get("grapharg") is not None:
            cache, row = (part.meta["example_value"] for part in parts)
            dim = dim % row.dim()
            if cache.dim() == row.dim() and row.size(dim) == 1:
                yield node, parts[0], dim


def keep_windows(gm: torch.fx.GraphModule) -> None:
    """Return the last rows of a cache as a tensor of its own, not as a view of all its rows.

    A view keeps the row alive that has left the window, and its strides say how many rows there
    were: the steps before, at and after the one that fills the window would be graphs of their own.
    """
    (output,) = gm.graph.find_nodes(op="output")
    for cat, _, _ in _appended(gm):
        for window in [] if output in cat.users else list(cat.users):
            if list(window.users) == [output] and (rows := _last_rows(window)) is not None:
                with gm.graph.inserting_before(window):
                    kept = gm.graph.call_function(last_rows, (cat, *rows))
                kept.meta.update(window.meta)
                output.replace_input_with(window, kept)
                gm.graph.erase_node(window)
    gm.recompile()


def last_rows(x: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    """A copy of so many rows at the end."""
    first = x.size(dim) - count
    return x.index_select(dim, torch.arange(count, device=x.device) + first)


def _last_rows(window: torch.fx.Node) -> tuple[int, int] | None:
    """The dimension and the count of x[..., -count:, :], if there are so many; None of others."""
    places = window.args[1] if window.target is operator.getitem else ()
    cuts = {
        dim: place
        for dim, place in enumerate(places if isinstance(places, tuple) else ())
        if place != slice(None)
    }
    if len(cuts) != 1:
        return None
    ((dim, place),) = cuts.items()
    if not isinstance(place, slice) or not isinstance(place.start, int):
        return None
    is_at_end = place.start < 0 and place == slice(place.start, None)
    rows = window.meta["example_value"].size(dim)
    return (dim, rows) if is_at_end and isinstance(rows, int) and rows == -place.start else None


def _arguments(cat: torch.fx.Node) -> tuple[Sequence[Any], Any]:
    tensors: Any
    tensors, *rest = cat.args or [cat.kwargs["tensors"]]
    return tensors, rest[0] if rest else cat.kwargs.get("dim", 0)
