"""The way of hints from the model to the loops: scopes and names on the nodes of FX graphs.

Dynamo and AOTAutograd carry a scope as an annotation of the nodes in it, and names as calls of
`spyre::name_dims`. Before Inductor's passes see the graph, `follow_names` takes those calls out and
leaves the names of every node's dimensions in `node.meta`.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from torch_spyre.hints import ANNOTATION, GENERATED, declared_sizes, near

from . import config
from .debug import log
from .dim_names import VIEWS, Dims, Named, Size, follow, named, operation_of, span_of
from .errors import HintError
from .graph import Wish, WishedLoop
from .origins import origin_of_node

_NAMES = "spyre_names"  # of node.meta: Named, or None where it is known that there are no names


class Scope(NamedTuple):
    """A `with spyre_hint(...)` around a node."""

    number: int
    dim: str  # empty if it only names
    tiles: int
    named: tuple[str | None, ...]

    def __str__(self) -> str:
        return f'spyre_hint(num_tiles_per_dim={{"{self.dim}": {self.tiles}}})'


def scopes_of(node: torch.fx.Node) -> tuple[Scope, ...]:
    """The scopes around a node, outermost first. Inputs were only first used in one."""
    if node.op != "call_function" and node.op != "call_method":
        return ()
    custom = node.meta.get("custom") or {}
    return tuple(Scope(*scope) for scope in custom.get(ANNOTATION, ()))


def digest(gm: torch.fx.GraphModule) -> str:
    """Tells graphs with different hints apart; the same in every process."""
    place = {node: i for i, node in enumerate(gm.graph.nodes)}
    scopes = [(place[node], tuple(map(tuple, found))) for node, found in _scopes_in(gm).items()]
    names = [(place[node], found) for node, found in _naming(gm)]
    found = repr((scopes, names)).encode()
    return hashlib.sha256(found).hexdigest() if scopes or names else ""


def _scopes_in(gm: torch.fx.GraphModule) -> dict[torch.fx.Node, tuple[Scope, ...]]:
    """The scopes of nodes that are in any, numbered anew: Dynamo's count on from graph to graph."""
    numbers: dict[int, int] = {}
    result = {}
    for node in gm.graph.nodes:
        if scopes := scopes_of(node):
            for scope in scopes:
                numbers.setdefault(scope.number, len(numbers))
            result[node] = tuple(scope._replace(number=numbers[scope.number]) for scope in scopes)
    return result


def following_names(compile_inner: Callable[..., Any]) -> Callable[..., Any]:
    """Read names and scopes of each graph that AOTAutograd makes before it is compiled."""

    @functools.wraps(compile_inner)
    def compile_graph(gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        with config.patch(hints=digest(gm)):
            follow_names(gm, is_backward=bool(kwargs.get("is_backward")))
            return compile_inner(gm, *args, **kwargs)

    return compile_graph


def follow_names(gm: torch.fx.GraphModule, is_backward: bool = False) -> None:
    """Leave the names of its dimensions on every node, and take the calls that gave them out.

    Those calls would be users of the tensors, for which Inductor computes them by themselves. A
    backward graph has the scopes of the forward graph but few of its names, so there nothing is
    demanded.
    """
    given = _given(gm)
    for node in gm.graph.find_nodes(op="call_function", target=_NAME_DIMS):
        gm.graph.erase_node(node)
    scopes = _scopes_in(gm)
    if not given and not scopes:
        return
    for node, found in scopes.items():
        node.meta["custom"] = {**node.meta["custom"], ANNOTATION: found}
    gm.recompile()
    for node in gm.graph.nodes:
        names = given.get(node) or _names_in_scope(node)
        if names is None:
            node.meta[_NAMES] = follow(node, names_of)
        else:
            node.meta[_NAMES] = Named((named(node.meta["val"].shape, names),))
    if not is_backward:
        _check(gm.graph.nodes)


def names_of(node: torch.fx.Node) -> Named | None:
    """The names of a node's dimensions, also if a pass of Inductor's made the node."""
    if _NAMES not in node.meta:
        node.meta[_NAMES] = follow(node, names_of)
    result: Named | None = node.meta[_NAMES]
    return result


def wishes(scopes: Iterable[Scope], loops: Dims) -> tuple[WishedLoop, ...]:
    """What scopes ask of loops: each its first loop that carries the name, if there is one."""
    found: list[WishedLoop] = []
    tiles: Counter[str] = Counter()
    for scope in scopes:
        tiles[scope.dim] = scope.tiles * (tiles[scope.dim] or 1)
        for at, dim in enumerate(loops):
            span = span_of(dim, scope.dim, tiles[scope.dim]) if scope.dim else 0
            if span:
                wish = Wish(scope.number, scope.dim, scope.tiles, at)
                found.append(WishedLoop(wish, span))
                break
    return tuple(found)


_NAME_DIMS = torch.ops.spyre.name_dims.default


def _naming(gm: torch.fx.GraphModule) -> Iterator[tuple[torch.fx.Node, tuple[str, ...]]]:
    """Nodes that the model named, in order."""
    for node in gm.graph.find_nodes(op="call_function", target=_NAME_DIMS):
        source, names = node.args
        yield source, tuple(names)


def _given(gm: torch.fx.GraphModule) -> dict[torch.fx.Node, tuple[str, ...]]:
    """The names of nodes; where several calls name a dimension, the last one's holds."""
    given: dict[torch.fx.Node, tuple[str, ...]] = {}
    for node, names in _naming(gm):
        before = given.get(node, names)
        given[node] = tuple(new or old for new, old in zip(names, before, strict=True))
    return given


def _names_in_scope(node: torch.fx.Node) -> tuple[str, ...] | None:
    """Names for the result of an operation without inputs, of the innermost scope that has any."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or node.all_input_nodes:
        return None
    for scope in reversed(scopes_of(node)):
        if len(scope.named) == value.dim() and scope.named:
            return tuple(name or "" for name in scope.named)
        if scope.named:
            log.info("%s has not the dimensions %s", node, list(scope.named))
    return None


# ---- What can't be followed ---------------------------------------------------------------------


def _check(nodes: Iterable[torch.fx.Node]) -> None:
    sizes: dict[str, Size] = {}
    followed: set[int] = set()
    inside: dict[int, tuple[Scope, torch.fx.Node]] = {}
    for node in nodes:
        found = node.meta[_NAMES]
        loops = [*found.results, found.reduced] if found else []
        for part in (part for dims in loops for dim in dims for part in dim if part.name):
            _check_size(part.name, part.whole, sizes.setdefault(part.name, part.whole), node)
        scopes = scopes_of(node)
        for scope in scopes:
            inside.setdefault(scope.number, (scope, node))
        if operation_of(node) not in VIEWS:  # which have no loops
            followed |= {wished.wish.scope for dims in loops for wished in wishes(scopes, dims)}
    for scope, node in inside.values():
        if scope.dim and scope.number not in followed:
            _refuse(scope, node, sizes)


def _check_size(name: str, size: Size, known: Size, node: torch.fx.Node) -> None:
    known = declared_sizes().get(name, known)
    if size != known and not name.startswith(GENERATED):
        raise HintError(
            f"a dimension {name} that is {size} long",
            f"{name} is also the name of one that is {known} long",
            origin=origin_of_node(node),
            way_out="give dimensions of different sizes different names",
        )


def _refuse(scope: Scope, node: torch.fx.Node, sizes: dict[str, Size]) -> None:
    """Say why nothing in a scope could be tiled as it asks."""
    size = sizes.get(scope.dim, declared_sizes().get(scope.dim))
    if size is None:
        known = ", ".join(sorted({*sizes, *declared_sizes()})) or "none"
        why = f"no tensor has a dimension of the name {scope.dim}; there are: {known}"
        way_out = f'name_tensor_dims(x, ["{scope.dim}", …]) before the scope'
    elif not isinstance(size, int):
        why = f"{scope.dim} has a size that changes between calls"
        way_out = f'give it one: declare_tensor_dim("{scope.dim}", 1024)'
    elif size % scope.tiles:
        why = f"{scope.tiles} tiles do not divide {scope.dim}, which is {size} long"
        way_out = near(size, scope.tiles)
    else:
        why = (
            f"no operation in it has {scope.dim} in a loop that these tiles (with those of scopes "
            f"around it) divide"
        )
        way_out = (
            f'name_tensor_dims(x, ["{scope.dim}", …]) for a tensor x that operations in the scope '
            f"read, or take the scope away"
        )
    raise HintError(str(scope), why, origin=origin_of_node(node), way_out=way_out)
