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

MOST_LOOPS = 16  # of a kernel: a bound on the time to compile
LEAST_BYTES = 1 << 18  # of a result whose way through LPDDR5 is worth a thought
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


Loops = list[tuple[int, Loop]]


class _Kernel:
    def __init__(self, graph: SpyreGraph, ops: list[Op], numbers: Iterator[int]) -> None:
        self.graph = graph
        self.ops = ops
        self.numbers = numbers
        self.start = _State(graph, ops)
        self.tried: set[Buffer] = set()
        self.shares: set[tuple[str, int, int]] = set()  # that were good before

    def plan(self) -> list[Op]:
        loops: Loops = []
        best = self._try(loops)
        for _ in range(MOST_LOOPS):
            loop = self._next_loop(best, loops)
            if loop is None:
                break
            more = [*loops, (next(self.numbers), loop)]
            plan = self._try(more)
            if plan.price < best.price * LEAST_GAIN:
                best, loops = plan, more
        self.start.restore()
        best.state.restore()
        return best.ops

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
            ops = _apply(loop, number)
        return ops

    def _next_loop(self, best: _Plan, loops: Loops) -> Loop | None:
        """A loop around what made or read the largest tensor that went through LPDDR5."""
        for seed in self._seeds(best):
            self.tried.add(seed.output.buffer)
            ops = self._in_loops(loops)
            loop = self._best_loop(ops, seed, loops)
            if loop is not None:
                return loop
        return None

    def _seeds(self, plan: _Plan) -> list[Op]:
        """Whose results went through LPDDR5 only because they had to, the largest first."""
        plan.state.restore()
        seeds = [
            op
            for op in plan.ops
            if op.output.buffer.is_temporary
            and op.output.buffer.local is None
            and op.output.buffer not in self.tried
            and op.output.buffer.nbytes >= LEAST_BYTES
            and not op.tiles
            and tile_dims(op)
        ]
        return sorted(seeds, key=lambda op: -op.output.buffer.nbytes)

    def _best_loop(self, ops: list[Op], seed: Op, loops: Loops) -> Loop | None:
        """The loop over parts of a result with the best plan of what is in it."""
        assert seed.fit is not None
        found: tuple[float, Loop] | None = None
        known = None
        for dim in tile_dims(seed):
            worse = 0
            extent = seed.fit.extents[dim]
            for parts in _counts(extent):
                if self.shares and (seed.opcode, dim, extent // parts) not in self.shares:
                    continue
                loop = find_loop(ops, seed, dim, parts)
                if loop is None or len(loop.inside) < 2:
                    break
                price = self._local_price(loop)
                self._in_loops(loops)
                if found is None or price < found[0]:
                    found, worse, known = (price, loop), 0, (seed.opcode, dim, extent // parts)
                else:
                    worse += 1
                if worse == 2:
                    break
        if known is not None:
            self.shares.add(known)
        elif self.shares:
            self.shares.clear()
            return self._best_loop(ops, seed, loops)
        return found[1] if found else None

    def _local_price(self, loop: Loop) -> float:
        """Of a loop and of what feeds it, planned by themselves."""
        read = {read.buffer for op in loop.inside for read in op.reads}
        feeding = [op for op in loop.before if op.output.buffer in read and not op.tiles]
        _apply(loop, next(self.numbers))
        local = [*feeding, *loop.inside]
        divide_kernel(local)
        return nanoseconds(place_kernel(self.graph, local))


def _apply(loop: Loop, number: int) -> list[Op]:
    ops = loop.apply(number)
    for op in loop.inside:
        op.slices = least_slices(op) or op.slices
    return ops


def _counts(extent: int) -> list[int]:
    """Numbers of equal parts worth a try, few first: powers of two, or what divides."""
    found = [n for n in (2, 4, 8, 16, 32, 64, 128) if n <= extent and extent % n == 0]
    return found or [n for n in range(2, min(extent, 128) + 1) if extent % n == 0][:8]
