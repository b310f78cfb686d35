"""Work division, scratchpads and coarse tiles, decided together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby

from ..graph import Op, SpyreGraph
from ..price import nanoseconds
from ..tiling import Loop, find_loop, tile_dims
from .division import divide_kernel, least_slices
from .scratchpad import place_kernel

MOST_LOOPS = 16  # of a kernel: a bound on the time to compile
LEAST_BYTES = 1 << 18  # of a result whose way through LPDDR5 is worth a thought
LEAST_GAIN = 1.02  # so many times faster a loop has to be
MOST_WORSE = 2  # numbers of parts that are tried after the best so far


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
        self.shares: set[tuple[str, int, int]] = set()  # parts of results that were good
        self.untiled: dict[tuple[int, ...], float] = {}  # prices of operations without a loop

    def plan(self) -> list[Op]:
        wished = self._wished()
        whole = best = self._try(wished)
        loops = list(wished)
        for seed in self._seeds(whole):
            if len(loops) >= MOST_LOOPS:
                break
            loop = self._best_loop(self._in_loops(loops), seed, loops)
            if loop is not None:
                loops.append((next(self.numbers), loop))
        if len(loops) > len(wished):
            best = min(whole, self._try(loops), key=lambda plan: plan.price)
        self.start.restore()
        best.state.restore()
        return best.ops

    def _wished(self) -> Loops:
        """The loops that hints ask for, outer ones first."""
        loops: Loops = []
        wishes = {wish for op in self.ops for wish in _tiles_of(op)}
        for scope, name, tiles in sorted(wishes):
            ops = self._in_loops(loops)
            members = [op for op in ops if (scope, name, tiles) in _tiles_of(op)]
            loop = _loop_of_wish(ops, members, name, tiles)
            loops.append((next(self.numbers), loop))
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
            ops = _apply(loop, number)
        return ops

    def _seeds(self, plan: _Plan) -> list[Op]:
        """Operations whose results went through LPDDR5, the largest first."""
        plan.state.restore()
        seeds = [
            op
            for op in plan.ops
            if op.output.buffer.is_temporary
            and op.output.buffer.local is None
            and op.output.buffer.nbytes >= LEAST_BYTES
            and tile_dims(op)
        ]
        return sorted(seeds, key=lambda op: -op.output.buffer.nbytes)

    def _best_loop(self, ops: list[Op], seed: Op, loops: Loops) -> Loop | None:
        """The loop over parts of a result with the best plan of what is in it.

        None if no loop is better than none. Where a similar operation had a good loop before, the
        same share of the same dimension is good enough.
        """
        if seed.tiles:
            return None
        assert seed.fit is not None
        options = [
            (dim, parts) for dim in tile_dims(seed) for parts in _counts(seed.fit.extents[dim])
        ]
        known = [
            (dim, parts)
            for dim, parts in options
            if (seed.opcode, dim, seed.fit.extents[dim] // parts) in self.shares
        ]
        found: tuple[float, Loop] | None = None
        worse = dict.fromkeys((dim for dim, _ in options), 0)
        for dim, parts in known or options:
            if worse[dim] == MOST_WORSE:
                continue
            loop = find_loop(ops, seed, dim, parts)
            if loop is None or len(loop.inside) < 2:
                worse[dim] = MOST_WORSE
                continue
            gain = self._gain(loop, loops)
            if gain > LEAST_GAIN and (found is None or gain > found[0]):
                found = gain, loop
                share = seed.fit.extents[dim] // parts
                worse[dim] = 0
            else:
                worse[dim] += 1
        if found is None:
            return None
        self.shares.add((seed.opcode, found[1].inside[seed], share))
        return found[1]

    def _gain(self, loop: Loop, loops: Loops) -> float:
        """How many times faster the loop is than its operations without it, by themselves."""
        read = {read.buffer for op in loop.inside for read in op.reads}
        feeding = [op for op in loop.before if op.output.buffer in read and not op.tiles]
        local = [*feeding, *loop.inside]
        key = tuple(id(op) for op in local)
        if key not in self.untiled:
            self.untiled[key] = self._price(local)
            self._in_loops(loops)
        _apply(loop, next(self.numbers))
        tiled = self._price(local)
        self._in_loops(loops)
        return self.untiled[key] / tiled

    def _price(self, ops: list[Op]) -> float:
        divide_kernel(ops)
        return nanoseconds(place_kernel(self.graph, list(ops)))


def _tiles_of(op: Op) -> set[tuple[int, str, int]]:
    return {(wish.scope, wish.dim_name, wish.tiles) for wish in op.wishes if wish.tiles > 1}


def _loop_of_wish(ops: list[Op], members: list[Op], name: str, tiles: int) -> Loop:
    """A loop around the operations of a hint's scope, from the first that can be its seed."""
    for seed in members:
        for dim in _dims_of_wish(seed, name, tiles):
            loop = find_loop(ops, seed, dim, tiles, only=members)
            if loop is not None:
                return loop
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
    dims = tile_dims(op)
    return [dim for dim in dims if op.fit.plan.variables[dim] in loops]


def _apply(loop: Loop, number: int) -> list[Op]:
    ops = loop.apply(number)
    for op in loop.inside:
        op.slices = least_slices(op) or op.slices
    return ops


def _counts(extent: int) -> list[int]:
    """Numbers of equal parts worth a try, few first: powers of two, or what divides."""
    found = [n for n in (2, 4, 8, 16, 32, 64, 128) if n <= extent and extent % n == 0]
    return found or [n for n in range(2, min(extent, 128) + 1) if extent % n == 0][:8]
