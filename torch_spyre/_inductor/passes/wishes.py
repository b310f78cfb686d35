"""Coarse tiling, hint-driven: the loops that `spyre_hint` and `coarse_tile` ask for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from ..accumulators import accumulated_dims
from ..graph import Op, SpyreGraph
from ..tiling import Loop, find_loop, new_loops, tile_dims


def tile_as_wished(graph: SpyreGraph) -> None:
    """Put operations into the loops that hints wish for, outer scopes first.

    Needs: `op.fit` and `op.wishes`.  Leaves: `op.tiles`; reductions whose reduced dimension is in
    parts have accumulators. A scope has several loops where one operation reads all of what
    another makes in parts.
    """
    numbers = new_loops(graph.ops)
    tiled: list[Op] = []
    for _, stretch in groupby(graph.ops, key=lambda op: op.kernel):
        ops = list(stretch)
        for wanted in sorted({wanted for op in ops for wanted in _wanted(op)}):
            ops = _in_loops_of(wanted, ops, numbers, graph)
        tiled += ops
    graph.ops = tiled


class _Wanted(NamedTuple):
    """What a scope asks of its operations."""

    scope: int
    name: str
    tiles: int


def _wanted(op: Op) -> set[_Wanted]:
    return {_Wanted(wish.scope, wish.dim_name, wish.tiles) for wish in op.wishes if wish.tiles > 1}


def _in_loops_of(
    wanted: _Wanted, ops: list[Op], numbers: Iterator[int], graph: SpyreGraph
) -> list[Op]:
    left = [op for op in ops if wanted in _wanted(op)]
    loop = _loop(ops, left, wanted)
    if loop is None:
        raise _refusal(left, wanted)
    while loop is not None:
        ops = loop.apply(next(numbers), graph)
        left = [op for op in left if op not in loop.inside]
        loop = _loop(ops, left, wanted)
    return ops


def _loop(ops: list[Op], members: list[Op], wanted: _Wanted) -> Loop | None:
    """A loop around operations of the scope, from the first that can be its seed."""
    for seed in members:
        for dim in _dims(seed, wanted):
            loop = find_loop(ops, seed, dim, wanted.tiles, only=members, accumulates=True)
            if loop is not None:
                return loop
    return None


def _dims(op: Op, wanted: _Wanted) -> list[int]:
    """The dimensions that the wish's loop became, outermost first."""
    if op.fit is None:
        return []
    loops = {wish.output_dim for wish in op.wishes if (wish.scope, *wish[1:3]) == wanted}
    dims = (*tile_dims(op), *accumulated_dims(op))
    return [dim for dim in dims if op.fit.plan.variables[dim] in loops]


def _refusal(members: list[Op], wanted: _Wanted) -> Exception:
    from ..errors import Unsupported  # its base is Dynamo's: only where it is needed

    _, name, tiles = wanted
    return Unsupported(
        f"spyre_hint(num_tiles_per_dim={{{name!r}: {tiles}}})",
        f"none of the operations in its scope can be taken in {tiles} equal parts of {name!r}: the "
        "parts must be whole sticks, and what one operation makes in parts the next must read so",
        origin=members[0].origin,
        tensors=tuple(op.output.buffer.describe() for op in members),
        way_out="another number of tiles, another dimension, or fewer operations in the scope",
    )
