"""Complex numbers inside of a graph become pairs of real ones: the card has no format for them.

Rotary embeddings of some models (Llama 4, DeepSeek V2) are a product of complex numbers, which are
made of real ones right before it and taken apart right after it. What enters or leaves a graph as
complex numbers, or meets another operation, stays what it is, and is refused by the translation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from torch_spyre.constants import DEVICE_NAME

aten = torch.ops.aten

Part = Any  # a node, or a number
Pair = tuple[Part, Part]

# What does the same to both parts.
_ALIKE = {
    aten.alias.default,
    aten.clone.default,
    aten.expand.default,
    aten.permute.default,
    aten.reshape.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.squeeze.dim,
    aten.sum.dim_IntList,
    aten.transpose.int,
    aten.unsqueeze.default,
    aten.view.default,
}


def complex_as_pairs(graph: torch.fx.Graph) -> None:
    """Compute with real and imaginary parts what starts and ends with real numbers."""
    pairs = _Pairs(graph)
    for node in list(graph.nodes):
        if _is_on_card(node) and any(map(_is_complex, (node, *node.all_input_nodes))):
            pairs.visit(node)
    for node in reversed(pairs.replaced):
        if not node.users:
            graph.erase_node(node)


@dataclass
class _Pairs:
    """The real and the imaginary part of nodes, as far as there are."""

    graph: torch.fx.Graph
    parts: dict[Node, Pair] = field(default_factory=dict)
    replaced: list[Node] = field(default_factory=list)

    def visit(self, node: Node) -> None:
        make = _MAKERS.get(node.target)
        if make is None:
            return
        with self.graph.inserting_before(node):
            made = make(self, node)
        if isinstance(made, Node):
            node.replace_all_uses_with(made)
        elif made is not None:
            self.parts[node] = made
        if made is not None:
            self.replaced.append(node)

    def emit(self, node: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A call before the node that it stands for, at least in part."""
        values = pytree.tree_map(lambda x: x.meta["val"] if isinstance(x, Node) else x, args)
        made = self.graph.call_function(target, args, kwargs)
        made.meta = {**node.meta, "val": target(*values, **kwargs)}
        return made

    def complex(self, node: Node) -> Pair:
        real, imaginary = node.args
        return real, imaginary

    def polar(self, node: Node) -> Pair:
        length, angle = node.args
        cos, sin = (self.emit(node, op, angle) for op in (aten.cos.default, aten.sin.default))
        real, imaginary = (self.emit(node, aten.mul.Tensor, length, x) for x in (cos, sin))
        return real, imaginary

    def view_as_complex(self, node: Node) -> Pair:
        real, imaginary = (self.emit(node, aten.select.int, node.args[0], -1, i) for i in (0, 1))
        return real, imaginary

    def view_as_real(self, node: Node) -> Node | None:
        pair = self.of(node.args[0])
        if pair is None:
            return None
        columns = [self.emit(node, aten.unsqueeze.default, part, -1) for part in pair]
        return self.emit(node, aten.cat.default, columns, -1)

    def alike(self, node: Node) -> Pair | None:
        source, *others = node.args
        pair = self.of(source)
        if pair is None or "dtype" in node.kwargs:
            return None
        real, imaginary = (
            self.emit(node, node.target, part, *others, **node.kwargs) for part in pair
        )
        return real, imaginary

    def conjugate(self, node: Node) -> Pair | None:
        pair = self.of(node.args[0])
        return pair and (pair[0], self.emit(node, aten.neg.default, pair[1]))

    def product(self, node: Node) -> Pair | None:
        left, right = map(self.of, node.args)
        if left is None or right is None:
            return None
        (a, b), (c, d) = left, right
        times, plus, minus = aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor
        if b == 0:
            return self.emit(node, times, a, c), self.emit(node, times, a, d)
        if d == 0:
            return self.emit(node, times, a, c), self.emit(node, times, b, c)
        ac, bd, ad, bc = (self.emit(node, times, *two) for two in ((a, c), (b, d), (a, d), (b, c)))
        return self.emit(node, minus, ac, bd), self.emit(node, plus, ad, bc)

    def of(self, value: Any) -> Pair | None:
        """The parts of an argument; the imaginary one of a real number is 0."""
        if isinstance(value, Node) and _is_complex(value):
            return self.parts.get(value)
        return (value.real, value.imag) if isinstance(value, complex) else (value, 0)


def _is_complex(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype.is_complex


def _is_on_card(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE_NAME


_MAKERS: dict[Any, Callable[[_Pairs, Node], Node | Pair | None]] = {
    aten._conj.default: _Pairs.conjugate,
    aten.complex.default: _Pairs.complex,
    aten.mul.Scalar: _Pairs.product,
    aten.mul.Tensor: _Pairs.product,
    aten.polar.default: _Pairs.polar,
    aten.view_as_complex.default: _Pairs.view_as_complex,
    aten.view_as_real.default: _Pairs.view_as_real,
    **dict.fromkeys(_ALIKE, _Pairs.alike),
}
