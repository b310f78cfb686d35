"""The span limit: how much of a tensor one core can address."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, groupby, product
from math import prod
from typing import NamedTuple

from ..accumulators import accumulated_dims
from ..graph import Fit, Op, Sizes, SpyreGraph
from ..parts import tiled
from ..tiling import Loop, find_loop, new_loops, tile_dims
from .division import least_slices, splittable


def span_reduction(graph: SpyreGraph) -> None:
    """Split operations until no core spans more than 256 MiB of any tensor.

    Needs: `op.fit`.  Leaves: `op.slices` with the fewest slices that satisfy the limit, 1 for
    operations within it. Where all cores together are not enough, the operation is put into loops
    (`op.tiles`) over the fewest parts that are within the limit, with all that can join it.
    """
    numbers = new_loops(graph.ops)
    within: list[Op] = []
    for _, stretch in groupby(graph.ops, key=lambda op: op.kernel):
        ops = list(stretch)
        while (over := next(filter(_is_over, ops), None)) is not None:
            for cut in _fewest_cuts(over):
                ops = _loop(ops, over, cut).apply(next(numbers), graph)
        within += ops
    graph.ops = within
    for op in graph.ops:
        if op.fit is not None:
            op.slices = least_slices(op) or op.slices


def _is_over(op: Op) -> bool:
    return op.fit is not None and least_slices(op) is None


class _Cut(NamedTuple):
    dim: int
    parts: int


def _fewest_cuts(op: Op) -> tuple[_Cut, ...]:
    """The loops, one within the other, that take an operation in parts within the limit."""
    options = {dim: list(_parts(op, dim)) for dim in _dims(op)}
    for depth in (1, 2):
        found = [
            tuple(map(_Cut, dims, counts))
            for dims in combinations(options, depth)
            for counts in product(*(options[dim] for dim in dims))
        ]
        for cuts in sorted(found, key=lambda cuts: prod(cut.parts for cut in cuts)):
            if _is_within(op, cuts):
                return cuts
    raise _refusal(op)


def _dims(op: Op) -> Sizes:
    """What loops may take in parts: rather results than what is added up."""
    if op.kind == "restickify":
        return tuple(dim for dim, may in enumerate(splittable(op)) if may)
    return (*tile_dims(op), *accumulated_dims(op))


def _parts(op: Op, dim: int) -> Iterator[int]:
    assert op.fit is not None
    extent = op.fit.extents[dim]
    return (n for n in range(2, extent + 1) if extent % n == 0)


def _is_within(op: Op, cuts: tuple[_Cut, ...]) -> bool:
    part: Fit | None = op.fit
    for dim, parts in cuts:
        part = None if part is None else tiled(part, dim, parts)
    return part is not None and least_slices(replace(op, fit=part)) is not None


def _loop(ops: list[Op], op: Op, cut: _Cut) -> Loop:
    """A loop with all that can join it; around the operation alone if there is none such."""
    loop = find_loop(ops, op, *cut) or find_loop(ops, op, *cut, only=(op,))
    if loop is not None:
        return loop
    if cut.dim in accumulated_dims(op):
        raise _refusal(op)
    at = ops.index(op)
    return Loop(cut.parts, ops[:at], {op: cut.dim}, ops[at + 1 :])


def _refusal(op: Op) -> Exception:
    from ..errors import Unsupported  # its base is Dynamo's: only where it is needed

    return Unsupported(
        f"{op.origin.aten or op.opcode} on tensors of this size",
        "a core can address 256 MiB of each tensor; there are not enough cores, and no loop over "
        "equal parts of whole sticks keeps within that",
        origin=op.origin,
        tensors=tuple(tensor.buffer.describe() for tensor in op.tensors),
        way_out="more cores (SENCORES), smaller tensors (split the batch), or sizes that divide",
    )
