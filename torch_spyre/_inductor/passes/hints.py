"""Hints: what `spyre_hint` scopes ask of the loops of each operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch._inductor.graph import GraphLowering

from torch_spyre import ir
from torch_spyre.ir import Term

from ..debug import log
from ..dim_names import VIEWS, Dims, is_named, operation_of
from ..graph import Wish, WishedLoop
from ..hints import names_of, scopes_of, wishes

if TYPE_CHECKING:
    from ..translate import Nest


def wish_for_tiles(nests: Iterable[Nest], lowered: GraphLowering) -> None:
    """Put the wishes of hints on the loops that were lowered from the nodes of a scope.

    Needs: FX nodes with names and scopes (`hints.follow_names`).  Leaves: `nest.wishes`, from which
    operations get theirs when bodies are split. Several nodes may be in one loop: the last one that
    is in a scope decides.
    """
    # Copies of uneven views belong to the same node; its own loops come after them.
    own = {nest.node: nest for nest in nests}
    for operation, nodes in _nodes_in(lowered.operations):
        nest = own.get(operation.get_operation_name())
        scopes = [found for node in nodes if (found := scopes_of(node))]
        if nest is None or not scopes:
            continue
        nest.wishes = wishes(scopes[-1], _loops(operation, nodes[-1]))
        if len(set(scopes)) > 1:
            log.info("%s is in several scopes, the last one's hints count", nest.node)


def _nodes_in(operations: Iterable[Any]) -> Iterator[tuple[Any, list[torch.fx.Node]]]:
    """The nodes that each operation computes, in order.

    Inductor counts those of operands among an operation's origins even where the operands have
    become buffers, so what an operation before it computes is taken away.
    """
    computed: dict[torch.fx.Node, list[torch.fx.Node]] = {}  # by the last of them
    for operation in operations:
        origins = sorted(node for node in operation.get_origins() if node.op == "call_function")
        if not origins:
            continue
        *others, last = origins
        elsewhere = {node for other in others for node in computed.get(other, ())}
        nodes = [node for node in origins if node not in elsewhere]
        computed[last] = origins
        yield operation, nodes


def _loops(operation: Any, node: torch.fx.Node) -> Dims:
    """The names of an operation's loops, from the last node that it computes."""
    own = operation.origin_node
    if own is not None:
        # Inductor's own answer. It is older than `node` where a view was copied, whose loops are
        # not its; and younger where a view came after that changes nothing.
        found = names_of(own) if own >= node else None
    else:
        # A step of a node that takes several. Views take none: which loops are these?
        found = names_of(node) if operation_of(node) not in VIEWS else None
    if found is None:
        return ()
    reduced = getattr(operation.data, "reduction_ranges", ())
    sizes = [*operation.data.ranges, *reduced]
    for result in found.results:
        loops = result + (found.reduced if reduced else ())
        if _have_sizes(loops, sizes):
            return loops
    return ()


def _have_sizes(loops: Dims, sizes: list[Any]) -> bool:
    """Are the loops those of the node? Some lowerings take steps in between with other loops."""
    return len(loops) == len(sizes) and all(
        prod(part.size for part in dim) == size
        for dim, size in zip(loops, sizes, strict=True)
        if is_named(dim)
    )


def refine_for_tiles(
    extents: Sequence[int],
    expressions: Sequence[ir.Expression],
    wished: Sequence[WishedLoop],
    number: Mapping[int, int],
) -> tuple[ir.Refined, tuple[Wish, ...]]:
    """Split an operation's loops for its operands, and where tiles are of a part of a loop.

    `number` has the loops of the nest that the operation has; tiles leave the others alone.
    """
    own = [
        WishedLoop(wish._replace(output_dim=number[wish.output_dim]), span)
        for wish, span in wished
        if wish.output_dim in number
    ]
    cuts = tuple(Term(wish.output_dim, 1, floordiv=span) for wish, span in own)
    try:
        refined = ir.refine(extents, [*expressions, ir.Expression(None, 0, cuts)])
    except ir.UnevenSplitError:
        refined = ir.refine(extents, expressions)
    return refined, tuple(_over_digits(own, refined))


def _over_digits(wished: Sequence[WishedLoop], refined: ir.Refined) -> Iterator[Wish]:
    """Each wish at the outermost digit of the stretch that its tiles are shares of."""
    left = list(refined.extents)
    for wish, span in wished:
        for digit, weight in refined.digits[wish.output_dim]:
            is_outermost = weight * refined.extents[digit] == span
            if is_outermost and left[digit] % wish.tiles == 0:
                left[digit] //= wish.tiles
                yield wish._replace(output_dim=digit)
                break
        else:
            log.info("no %d tiles of %s: a view divides the loop", wish.tiles, wish.dim_name)
