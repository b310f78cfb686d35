"""Tied heads: a table that is looked up and multiplied by becomes two inputs of the graph.

As a table its rows must be addressable; as a weight, its output features lie in the sticks. So the
products get an input of their own, a copy that the runtime keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_spyre import _C

from .weights import LOOKUPS, is_matrix

_LINEAR = {torch.nn.functional.linear, torch._C._nn.linear}


def _uses(node: torch.fx.Node) -> list[tuple[torch.fx.Node, int]]:
    """Who uses a node, as which argument."""
    return [
        (user, position)
        for user in node.users
        for position, argument in enumerate(user.args)
        if argument is node
    ]


def _linear_users(node: torch.fx.Node) -> list[torch.fx.Node]:
    return [user for user, position in _uses(node) if user.target in _LINEAR and position == 1]


def _is_table(node: torch.fx.Node) -> bool:
    return any(user.target in LOOKUPS for user in node.users)


@dataclass(frozen=True)
class Heads:
    """A graph in which tables are other inputs than the same tensors as weights.

    `places` are those of the tables among the inputs. For each, the graph has one input more,
    behind all others.
    """

    graph: torch.fx.GraphModule
    places: tuple[int, ...]

    def examples(self, inputs: Sequence[Any]) -> list[Any]:
        """What to compile the graph with. A copy is nobody's variable: its sizes are fixed."""
        nodes = self.graph.graph.find_nodes(op="placeholder")
        return [*inputs, *(node.meta["example_value"] for node in nodes[len(inputs) :])]

    def copies(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """What the additional inputs are: made anew where a table was written to."""
        return [_C.copy_for_products(inputs[place]) for place in self.places]

    def supplied(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled graph, to be called with the inputs that it had before."""
        if not self.places:
            return compiled

        def call(*inputs: Any) -> Any:
            return compiled(*inputs, *self.copies(inputs))

        return call


def separate_heads(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Heads:
    """Give the products with a table an input of their own, where no gradient shall reach it.

    The graph that is given stays as it is: Dynamo makes guards of it later.
    """
    nodes = gm.graph.find_nodes(op="placeholder")
    places = tuple(
        place
        for place, (node, value) in enumerate(zip(nodes, inputs, strict=True))
        if isinstance(value, torch.nn.Parameter)
        and is_matrix(value)
        and _is_table(node)
        and _linear_users(node)
        and all(user.target in _LINEAR | LOOKUPS for user in node.users)  # none that writes
        and not (value.requires_grad and _may_record(gm))
    )
    if not places:
        return Heads(gm, ())
    gm = _copied(gm)
    nodes = gm.graph.find_nodes(op="placeholder")
    last = nodes[-1]
    for table in (nodes[place] for place in places):
        with gm.graph.inserting_after(last):
            last = gm.graph.placeholder(f"{table.name}_for_products")
        last.meta["example_value"] = _fake_like(table.meta["example_value"])
        last._dynamo_source = None  # it comes from no variable
        for user in _linear_users(table):
            user.replace_input_with(table, last)
    gm.recompile()
    return Heads(gm, places)


def _copied(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph once more, with all that AOTAutograd asks a graph of Dynamo for."""
    graph, twins = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    graph.output(graph.graph_copy(gm.graph, twins))
    for node, twin in twins.items():
        if node.op == "placeholder":
            twin._dynamo_source = getattr(node, "_dynamo_source", None)
    copied = torch.fx.GraphModule(gm, graph)
    copied.meta = gm.meta
    if hasattr(gm, "_param_name_to_source"):
        copied._param_name_to_source = gm._param_name_to_source
    return copied


def _may_record(gm: torch.fx.GraphModule) -> bool:
    """Are gradients recorded, at the start of the graph or by a part of it?"""
    switches = gm.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled)
    return torch.is_grad_enabled() or any(node.args[0] for node in switches)


def _fake_like(value: torch.Tensor) -> torch.Tensor:
    with value.fake_mode:  # type: ignore[attr-defined]
        return torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )
