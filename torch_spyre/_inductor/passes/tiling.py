"""Work division, scratchpads and coarse tiles, decided together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby

from ..graph import Buffer, Op, SpyreGraph
from ..price import nanoseconds
from ..tiling import Loop, find_loop, tile_dims
from .division import divide_kernel, least_slices
from .scratchpad import place_kernel

# Loops of a kernel, and plans that are tried for each: a bound on the time to compile.
MOST_LOOPS = 8
MOST_TRIALS = 24
# A plan must be so much better to be worth a loop.
LEAST_GAIN = 0.98


def plan_together(graph: SpyreGraph) -> None:
    """Divide, place, and where tensors that pass between operations do not fit in the scratchpads,
    put the operations into loops, if that takes less time by the clock.

    Needs: `op.slices` as the span limit asks.  Leaves: what `work_distribution` and
    `scratchpad_planning` leave, and `op.tiles`.
    """
    numbers = count()
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


class _Kernel:
    def __init__(self, graph: SpyreGraph, ops: list[Op], numbers: Iterator[int]) -> None:
        self.graph = graph
        self.ops = ops
        self.numbers = numbers
        self.start = _State(graph, ops)

    def plan(self) -> list[Op]:
        loops: list[tuple[int, Loop]] = []
        best = self._try(loops)
        for _ in range(MOST_LOOPS):
            better = self._with_another_loop(best, loops)
            if better is None:
                break
            best, loops = better
        self.start.restore()
        best.state.restore()
        return best.ops

    def _try(self, loops: Sequence[tuple[int, Loop]]) -> _Plan:
        """Plan the kernel with these loops."""
        ops = self._in_loops(loops)
        divide_kernel(ops)
        ops = place_kernel(self.graph, list(ops))
        return _Plan(ops, _State(self.graph, ops), nanoseconds(ops))

    def _with_another_loop(
        self, best: _Plan, loops: list[tuple[int, Loop]]
    ) -> tuple[_Plan, list[tuple[int, Loop]]] | None:
        """The best plan with one loop more; None if none is worth it."""
        spilled = self._spilled(best)
        if not spilled:
            return None
        ops = self._in_loops(loops)
        found: tuple[_Plan, list[tuple[int, Loop]]] | None = None
        trials = 0
        for seed, dim, parts in self._candidates(ops, spilled):
            loop = find_loop(ops, seed, dim, parts)
            if loop is None or len(loop.inside) < 2:
                continue
            trials += 1
            if trials > MOST_TRIALS:
                break
            more = [*loops, (next(self.numbers), loop)]
            plan = self._try(more)
            limit = best.price * LEAST_GAIN if found is None else found[0].price
            if plan.price < limit:
                found = plan, more
            self._in_loops(loops)
        return found

    def _in_loops(self, loops: Sequence[tuple[int, Loop]]) -> list[Op]:
        """The operations as they are before planning, in these loops, in their order."""
        self.start.restore()
        ops = self.ops
        for number, loop in loops:
            ops = loop.apply(number)
            for op in loop.inside:
                op.slices = least_slices(op) or op.slices
        return ops

    def _spilled(self, plan: _Plan) -> list[Buffer]:
        """Tensors between operations that went through LPDDR5, the largest first."""
        best = {
            op.output.buffer: op.output.buffer.nbytes
            for op in plan.ops
            if op.output.buffer.is_temporary
            and op.output.buffer.local is None
            and op.kind != "restickify"
            and not op.tiles
        }
        return sorted(best, key=lambda buffer: -best[buffer])

    def _candidates(
        self, ops: Sequence[Op], spilled: Sequence[Buffer]
    ) -> Iterator[tuple[Op, int, int]]:
        """Operations whose result did not fit, with dimensions and numbers of parts."""
        seen = set()
        for buffer in spilled[:4]:
            for seed in ops:
                if seed.output.buffer is not buffer or seed.tiles or seed.fit is None:
                    continue
                for dim in tile_dims(seed):
                    extent = seed.fit.extents[dim]
                    for parts in _counts(extent):
                        if (seed, dim, parts) not in seen:
                            seen.add((seed, dim, parts))
                            yield seed, dim, parts


def _counts(extent: int) -> list[int]:
    """Numbers of equal parts worth a try, few first: powers of two, or what divides."""
    found = [n for n in (2, 4, 8, 16, 32, 64, 128) if n <= extent and extent % n == 0]
    return found or [n for n in range(2, min(extent, 128) + 1) if extent % n == 0][:8]
