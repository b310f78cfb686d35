"""Work division, scratchpads and coarse tiles, decided together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from typing import NoReturn

from .. import config
from ..accumulators import accumulated_dims
from ..graph import Op, SpyreGraph
from ..price import nanoseconds
from ..sharing import forget_boxes
from ..tiling import Loop, find_loop, new_loops, tile_dims
from .division import divide_kernel, least_slices
from .scratchpad import place_kernel

LEAST_BYTES = 1 << 18  # of a result whose way through LPDDR5 is worth a thought
SIZES = (1 << 18, 1 << 17)  # of results, per core, that loops are made for
AXES = 3  # dimensions of a result that loops are tried along
MOST_PARTS = 256
# A bound on the time to compile: operations that are planned, in all attempts for a kernel.
BUDGET = 3000
LEAST_ATTEMPTS = 5


def plan_together(graph: SpyreGraph) -> None:
    """Divide, place, and where tensors that pass between operations do not fit in the scratchpads,
    put the operations into loops, if that takes less time by the clock.

    Needs: `op.slices` as the span limit asks.  Leaves: what `work_distribution` and
    `scratchpad_planning` leave, and `op.tiles`.
    """
    forget_boxes()
    numbers = new_loops(graph.ops)
    planned: list[Op] = []
    for _, stretch in groupby(graph.ops, key=lambda op: op.kernel):
        planned += _Kernel(graph, list(stretch), numbers).plan()
    graph.ops = planned


@dataclass
class _Plan:
    """A finished plan of a kernel, and its price."""

    ops: list[Op]
    state: _State
    price: float


class _State:
    """All that planning changes."""

    def __init__(self, graph: SpyreGraph, ops: Sequence[Op]) -> None:
        self.graph = graph
        self.ops = [
            (op, list(op.inputs), op.output, op.fit, op.slices, op.core_order, op.tiles)
            for op in ops
        ]
        self.buffers = dict(graph.buffers)
        self.places = [
            (buffer, buffer.place, buffer.local, buffer.why_not_lx)
            for buffer in graph.buffers.values()
        ]

    def restore(self) -> None:
        self.graph.buffers = dict(self.buffers)
        for buffer, place, local, why in self.places:
            buffer.place, buffer.local, buffer.why_not_lx = place, local, why
        for op, inputs, output, fit, slices, order, tiles in self.ops:
            op.inputs, op.output, op.fit = list(inputs), output, fit
            op.slices, op.core_order, op.tiles = slices, order, tiles


@dataclass(frozen=True)
class _Cut:
    """A loop to be made: over so many parts of a dimension of an operation, with all that joins."""

    seed: Op
    dim: int
    parts: int


Loops = list[tuple[int, Loop]]


class _Kernel:
    def __init__(self, graph: SpyreGraph, ops: list[Op], numbers: Iterator[int]) -> None:
        self.graph = graph
        self.ops = ops
        self.numbers = numbers
        self.start = _State(graph, ops)
        self.wished = self._wished()
        self.attempts = max(BUDGET // max(len(ops), 1), LEAST_ATTEMPTS)
        self.tried: dict[tuple[_Cut, ...], float] = {}

    def plan(self) -> list[Op]:
        self.best, self.cuts = self._try(self.wished), tuple[_Cut, ...]()
        large = self._large()
        if large:
            self._search(large)
        self.start.restore()
        self.best.state.restore()
        return self.best.ops

    def _large(self) -> list[Op]:
        """Operations with results that may not fit, the largest first."""
        self._in_loops(self.wished)
        large = [
            op
            for op in self.ops
            if op.output.buffer.is_temporary
            and op.output.buffer.nbytes >= LEAST_BYTES
            and not op.tiles
            and tile_dims(op)
        ]
        return sorted(large, key=lambda op: -op.output.buffer.nbytes)

    def _search(self, large: list[Op]) -> None:
        """Loops for all large results at first, so that they fit in the room that is left to them;
        then each loop by itself."""
        axes = {axis: self._attempt(self._cuts(large, SIZES[0], axis)) for axis in range(AXES)}
        axis = min(axes, key=lambda axis: axes[axis])
        for size in SIZES[1:]:
            self._attempt(self._cuts(large, size, axis))
        for seed in large:
            if self._is_in_memory(seed):
                half = seed.output.buffer.nbytes // (2 * config.sencores)
                self._attempt((*self.cuts, *self._cuts([seed], half, axis)))
        is_better = bool(self.cuts)
        while is_better and self.attempts > 0:
            is_better = False
            for i, cut in enumerate(self.cuts):
                before, now = self.best.price, self.cuts
                for other in _variants(cut):
                    self._attempt((*now[:i], *other, *now[i + 1 :]))
                is_better |= self.best.price < before
                if len(self.cuts) != len(now):
                    break

    def _is_in_memory(self, op: Op) -> bool:
        """Does the best plan send a result through LPDDR5, outside of loops?"""
        self.best.state.restore()
        return op.output.buffer.local is None and not op.tiles

    def _cuts(self, large: list[Op], size: int, axis: int) -> tuple[_Cut, ...]:
        """Loops in which no result is larger than that, per core."""
        self._in_loops(self.wished)
        cuts = []
        inside: set[Op] = set()
        ops = self.ops
        for seed in large:
            assert seed.fit is not None
            wanted = -(-seed.output.buffer.nbytes // (size * config.sencores))
            if wanted < 2 or seed in inside:
                continue
            dims = tile_dims(seed)
            dim = dims[min(axis, len(dims) - 1)]
            parts = next((n for n in _counts(seed.fit.extents[dim]) if n >= wanted), None)
            if parts is None:
                continue
            loop = find_loop(ops, seed, dim, parts)
            if loop is None or len(loop.inside) < 2:
                continue
            inside.update(loop.inside)
            ops = self._apply(next(self.numbers), loop)
            cuts.append(_Cut(seed, dim, parts))
        return tuple(cuts)

    def _attempt(self, cuts: tuple[_Cut, ...]) -> float:
        """Plan with these loops, and keep the plan if it is the best so far."""
        if cuts in self.tried:
            return self.tried[cuts]
        if self.attempts <= 0 or not cuts:
            return self.best.price
        self.attempts -= 1
        loops = list(self.wished)
        ops = self._in_loops(loops)
        for cut in cuts:
            loop = find_loop(ops, cut.seed, cut.dim, cut.parts)
            if loop is not None and not cut.seed.tiles:
                loops.append((next(self.numbers), loop))
                ops = self._apply(*loops[-1])
        plan = self._try(loops)
        self.tried[cuts] = plan.price
        if plan.price < self.best.price:
            self.best, self.cuts = plan, cuts
        return plan.price

    def _wished(self) -> Loops:
        """The loops that hints ask for, outer ones first.

        A scope has several loops where an operation reads all of what another makes in parts.
        """
        loops: Loops = []
        wishes = {wish for op in self.ops for wish in _tiles_of(op)}
        for scope, name, tiles in sorted(wishes):
            inside: set[Op] = set()
            while True:
                ops = self._in_loops(loops)
                members = [op for op in ops if (scope, name, tiles) in _tiles_of(op)]
                rest = [op for op in members if op not in inside]
                loop = _loop_of_wish(ops, rest, name, tiles)
                if loop is None:
                    break
                inside.update(loop.inside)
                loops.append((next(self.numbers), loop))
            if not inside:
                _refuse(members, name, tiles)
        self.start.restore()
        return loops

    def _try(self, loops: Loops) -> _Plan:
        """Plan the kernel with these loops."""
        ops = self._in_loops(loops)
        divide_kernel(ops)
        ops = place_kernel(self.graph, list(ops))
        return _Plan(ops, _State(self.graph, ops), nanoseconds(ops))

    def _in_loops(self, loops: Loops) -> list[Op]:
        """The operations as they are before planning, in these loops, in their order."""
        self.start.restore()
        ops = self.ops
        for number, loop in loops:
            ops = self._apply(number, loop)
        return ops

    def _apply(self, number: int, loop: Loop) -> list[Op]:
        ops = loop.apply(number, self.graph)
        for op in loop.changed:
            op.slices = least_slices(op) or op.slices
        return ops


def _variants(cut: _Cut) -> list[tuple[_Cut, ...]]:
    """Without the loop, and with more or fewer parts."""
    assert cut.seed.fit is not None
    counts = _counts(cut.seed.fit.extents[cut.dim] * prod(t.parts for t in cut.seed.tiles))
    at = counts.index(cut.parts) if cut.parts in counts else 0
    near = [counts[i] for i in (at - 1, at + 1) if 0 <= i < len(counts)]
    return [(), *((replace(cut, parts=parts),) for parts in near)]


def _tiles_of(op: Op) -> set[tuple[int, str, int]]:
    return {(wish.scope, wish.dim_name, wish.tiles) for wish in op.wishes if wish.tiles > 1}


def _loop_of_wish(ops: list[Op], members: list[Op], name: str, tiles: int) -> Loop | None:
    """A loop around the operations of a hint's scope, from the first that can be its seed."""
    for seed in members:
        for dim in _dims_of_wish(seed, name, tiles):
            loop = find_loop(ops, seed, dim, tiles, only=members, accumulates=True)
            if loop is not None:
                return loop
    return None


def _refuse(members: list[Op], name: str, tiles: int) -> NoReturn:
    from ..errors import Unsupported  # its base is Dynamo's: only where it is needed

    raise Unsupported(
        f"spyre_hint(num_tiles_per_dim={{{name!r}: {tiles}}})",
        f"none of the operations in its scope can be taken in {tiles} equal parts of {name!r}: the "
        "parts must be whole sticks, and what one operation makes in parts the next must read so",
        origin=members[0].origin,
        tensors=tuple(op.output.buffer.describe() for op in members),
        way_out="another number of tiles, another dimension, or fewer operations in the scope",
    )


def _dims_of_wish(op: Op, name: str, tiles: int) -> list[int]:
    """The dimensions that a wish's loop became, outermost first."""
    if op.fit is None:
        return []
    loops = {wish.output_dim for wish in op.wishes if (wish.dim_name, wish.tiles) == (name, tiles)}
    dims = (*tile_dims(op), *accumulated_dims(op))
    return [dim for dim in dims if op.fit.plan.variables[dim] in loops]


def _counts(extent: int) -> list[int]:
    """Numbers of equal parts worth a try, few first: powers of two, or what divides."""
    found = [n for n in (2, 4, 8, 16, 32, 64, 128, 256) if n <= extent and extent % n == 0]
    return found or [n for n in range(2, min(extent, MOST_PARTS) + 1) if extent % n == 0][:8]
