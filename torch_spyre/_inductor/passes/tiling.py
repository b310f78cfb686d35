"""Work division, scratchpads and coarse tiles, decided together."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from math import prod

from .. import config, observe
from ..graph import Op, SpyreGraph
from ..price import copy_nanoseconds, nanoseconds
from ..sharing import forget_boxes
from ..tiling import Loop, find_loop, new_loops, tile_dims
from .division import divide_kernel, least_slices
from .repeats import Planned, identity
from .scratchpad import place_kernel

LEAST_BYTES = 1 << 18  # of a result whose way through LPDDR5 is worth a thought
SIZES = (1 << 18, 1 << 17)  # of results, per core, that loops are made for
AXES = 3  # dimensions of a result that loops are tried along
MOST_PARTS = 256
# A bound on the time to compile: operations that are planned, in all attempts for a kernel.
BUDGET = 1500
LEAST_ATTEMPTS = 5
LEAST_SHARE = 0.02  # of the time of a kernel: what is worth a loop of its own


def plan_together(graph: SpyreGraph) -> None:
    """Divide, place, and where tensors that pass between operations do not fit in the scratchpads,
    put the operations into loops, if that takes less time by the clock.

    Needs: `op.slices` as the span limit asks.  Leaves: what `work_distribution` and
    `scratchpad_planning` leave, and `op.tiles`.
    """
    forget_boxes()
    numbers = new_loops(graph.ops)
    planned: list[Op] = []
    known: dict[Hashable, Planned] = {}
    kernels = [list(stretch) for _, stretch in groupby(graph.ops, key=lambda op: op.kernel)]
    for number, ops in enumerate(kernels):
        for observer in observe.current():
            observer.kernel_planned(number, len(kernels))
        key = identity(ops)
        if key in known:
            planned += known[key].carry_over(ops, graph, numbers)
            continue
        known[key] = Planned.before(ops)
        known[key].ops = _Kernel(graph, ops, numbers).plan()
        planned += known[key].ops
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
            (op, list(op.inputs), op.output, op.masks, op.fit, op.slices, op.core_order, op.tiles)
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
        for op, inputs, output, masks, fit, slices, order, tiles in self.ops:
            op.inputs, op.output, op.masks, op.fit = list(inputs), output, masks, fit
            op.slices, op.core_order, op.tiles = slices, order, tiles


@dataclass(frozen=True)
class _Cut:
    """A loop to be made: over so many parts of a dimension of an operation, with all that joins."""

    seed: Op
    dim: int
    parts: int
    accumulates: bool = False  # reductions join with what they reduce


Loops = list[tuple[int, Loop]]


class _Kernel:
    def __init__(self, graph: SpyreGraph, ops: list[Op], numbers: Iterator[int]) -> None:
        self.graph = graph
        self.ops = ops
        self.numbers = numbers
        self.start = _State(graph, ops)
        self.attempts = max(BUDGET // max(len(ops), 1), LEAST_ATTEMPTS)
        self.tried: dict[tuple[_Cut, ...], float] = {}

    def plan(self) -> list[Op]:
        self.best, self.cuts = self._try([]), tuple[_Cut, ...]()
        large = self._large()
        if large:
            self._search(large)
        self.start.restore()
        self.best.state.restore()
        return self.best.ops

    def _large(self) -> list[Op]:
        """Operations with results that may not fit, the largest first."""
        self.start.restore()
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
        ways = list(product((False, True), range(AXES)))
        prices = {way: self._attempt(self._cuts(large, SIZES[0], *way)) for way in ways}
        way = min(ways, key=lambda way: prices[way])
        for size in SIZES[1:]:
            self._attempt(self._cuts(large, size, *way))
        for seed in large:
            if self._is_costly(seed):
                half = seed.output.buffer.nbytes // (2 * config.sencores)
                self._attempt((*self.cuts, *self._cuts([seed], half, *way)))
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

    def _is_costly(self, op: Op) -> bool:
        """Does the best plan send a result through LPDDR5, outside of loops, and feel it?"""
        self.best.state.restore()
        buffer = op.output.buffer
        time = copy_nanoseconds(buffer.nbytes)
        return buffer.local is None and not op.tiles and time > LEAST_SHARE * self.best.price

    def _cuts(self, large: list[Op], size: int, accumulates: bool, axis: int) -> tuple[_Cut, ...]:
        """Loops in which no result is larger than that, per core."""
        self.start.restore()
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
            loop = find_loop(ops, seed, dim, parts, accumulates=accumulates)
            if loop is None or len(loop.inside) < 2:
                continue
            inside.update(loop.inside)
            ops = self._apply(next(self.numbers), loop)
            cuts.append(_Cut(seed, dim, parts, bool(loop.totals)))
        return tuple(cuts)

    def _attempt(self, cuts: tuple[_Cut, ...]) -> float:
        """Plan with these loops, and keep the plan if it is the best so far."""
        if cuts in self.tried:
            return self.tried[cuts]
        if self.attempts <= 0 or not cuts:
            return self.best.price
        self.attempts -= 1
        loops: Loops = []
        self.start.restore()
        ops = self.ops
        for cut in cuts:
            loop = find_loop(ops, cut.seed, cut.dim, cut.parts, accumulates=cut.accumulates)
            if loop is not None and not cut.seed.tiles:
                loops.append((next(self.numbers), loop))
                ops = self._apply(*loops[-1])
        plan = self._try(loops)
        self.tried[cuts] = plan.price
        if plan.price < self.best.price:
            self.best, self.cuts = plan, cuts
        return plan.price

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


def _counts(extent: int) -> list[int]:
    """Numbers of equal parts worth a try, few first: powers of two, or what divides."""
    found = [n for n in (2, 4, 8, 16, 32, 64, 128, 256) if n <= extent and extent % n == 0]
    return found or [n for n in range(2, min(extent, MOST_PARTS) + 1) if extent % n == 0][:8]
