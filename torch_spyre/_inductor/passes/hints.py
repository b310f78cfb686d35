"""Hints: what `spyre_hint` scopes ask of the loops of each operation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch._inductor.graph import GraphLowering

from torch_spyre.ir.terms import Refined

from ..debug import log
from ..dim_names import VIEWS, Dims, is_named, operation_of
from ..graph import Wish
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
    last = {nest.node: nest for nest in nests}
    for operation in lowered.operations:
        nest = last.get(operation.get_operation_name())
        if nest is None:
            continue
        nodes = sorted(n for n in operation.get_origins() if n.op == "call_function")
        scopes = [found for node in nodes if (found := scopes_of(node))]
        if not scopes:
            continue
        nest.wishes = wishes(scopes[-1], _loops(operation, nodes[-1]))
        if len(set(scopes)) > 1:
            log.info("%s is in several scopes, the last one's hints count", nest.node)


def _loops(operation: Any, node: torch.fx.Node) -> Dims:
    """The names of an operation's loops, from the last node that it computes."""
    found = names_of(node)
    is_copy = operation.origin_node is not None and operation.origin_node is not node
    if found is None or is_copy or operation_of(node) in VIEWS:
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


def wishes_over_digits(
    wishes: Iterable[Wish], number: Mapping[int, int], refined: Refined
) -> tuple[Wish, ...]:
    """Wishes over a nest's loops as those over the digits of an operation's, the outermost ones.

    `number` has the loops that the operation has at all; tiles leave the others alone.
    """
    found: list[Wish] = []
    for wish in wishes:
        if wish.output_dim not in number:
            continue
        digit, _ = refined.digits[number[wish.output_dim]][0]
        left = refined.extents[digit]
        for outer in found:
            left //= outer.tiles if outer.output_dim == digit else 1
        if left % wish.tiles:
            log.info("%d tiles of %s: a view divides the loop", wish.tiles, wish.dim_name)
        else:
            found.append(wish._replace(output_dim=digit))
    return tuple(found)
