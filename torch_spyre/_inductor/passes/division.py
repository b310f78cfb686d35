"""Core division: into how many slices each dimension of an operation is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import prod
from typing import Any

from torch_spyre import _C, ir
from torch_spyre.ir import STICK_BYTES

from .. import config
from ..division import (
    MatmulShape,
    MatmulSplit,
    are_partners_neighbours,
    matmul_division,
    ring_order,
    span_slices,
    work_division,
)
from ..fitting import move_splittable
from ..graph import Buffer, Op, Sizes, SpyreGraph
from ..price import describe_work, partners
from ..sharing import Boxes, Division, boxes, can_serve, matching_division, together, widest

# Partners of a ring that are tried. Two gain too little: what is computed from the few results may
# have to leave the scratchpads. Beyond the small ring the way round grows more than the work of
# each core shrinks, unless there is much of it.
_RINGS = (4, 8, 16, 32)
_SMALL_RING = 8


def least_slices(op: Op) -> Sizes | None:
    """The fewest slices with which no core spans too much of a tensor; None if there are none."""
    assert op.fit is not None
    spans = [_span(op, i) for i in range(len(op.tensors))]
    for may in (splittable(op), _splittable_in_rings(op)):
        fewest = span_slices(op.fit.extents, spans, config.sencores, splittable=may)
        if fewest is not None:
            return fewest
    return None


def _span(op: Op, operand: int) -> ir.Span:
    assert op.fit is not None
    walk = op.fit.walks[operand]
    nbytes = op.tensors[operand].buffer.format.nbytes
    inner = (walk.tiles - 1) * abs(walk.tile_stride) * nbytes + STICK_BYTES
    return ir.Span(tuple(step * nbytes for step in walk.strides), inner)


def splittable(op: Op) -> Sequence[bool]:
    """Where every core has results of its own: not along dimensions where they stand still."""
    fit = op.fit
    assert fit is not None
    if op.kind == "restickify":
        source, into = (walk.strides for walk in fit.walks)
        return move_splittable(op, source, into, fit.extents)
    output = fit.walks[-1]
    return tuple(
        extent > 1 and i not in fit.reduced and output.strides[i] != 0
        for i, extent in enumerate(fit.extents)
    )


def _splittable_in_rings(op: Op) -> tuple[bool, ...]:
    """The same, and what is accumulated: cores that share a result combine their parts of it.

    A matmul's k is cut between sticks of its first operand, and along no other dimension of k.
    """
    fit = op.fit
    assert fit is not None
    long = [i for i in fit.reduced if fit.extents[i] > 1]
    if op.kind == "matmul" and long != [fit.lane]:
        long = []
    return tuple(may or i in long for i, may in enumerate(splittable(op)))


def work_distribution(graph: SpyreGraph) -> None:
    """Divide every operation among the cores.

    Needs: `op.slices` as the span limit asks.  Leaves: `op.slices` and `op.core_order`. Matmuls
    are divided by the cost model. Others follow the division of a neighbour with whom they share a
    tensor where that keeps it in the scratchpads and the clock agrees, else they take the most
    even division.
    """
    for _, stretch in groupby(graph.ops, key=lambda op: op.kernel):
        divide_kernel(list(stretch))


def divide_kernel(ops: Sequence[Op]) -> None:
    """`work_distribution` of one kernel."""
    _Divider([op for op in ops if op.fit is not None]).run()


class _Divider:
    """Divides the operations of a kernel, each following its neighbours where that pays.

    What follows whom depends on who is divided first. A few orders are tried, and the one with the
    least modelled time wins.
    """

    def __init__(self, ops: Sequence[Op]) -> None:
        # What reads nothing has no division of its own that it would miss: it follows its readers.
        self.ops = sorted(ops, key=lambda op: not op.reads)
        self.least = {op: op.slices for op in ops}
        self.may = {op: _splittable_in_rings(op) for op in ops}
        self.uses: dict[Buffer, list[tuple[Op, int]]] = {}
        self.divided: set[Op] = set()
        # The same questions come again and again.
        self._known_options: dict[Op, list[Division]] = {}
        self._known_matches: dict[tuple[Op, int, int], Division | None] = {}
        self._known_boxes: dict[tuple[Op, int, Sizes, Sizes], Boxes] = {}
        self._known_shared: dict[tuple[Buffer, tuple[int, ...]], bool] = {}
        self._known_times: dict[tuple[Op, Sizes, tuple[bool, ...]], float] = {}
        for op in ops:
            for operand, tensor in enumerate(op.tensors):
                if _is_owned(op, operand):
                    self.uses.setdefault(tensor.buffer, []).append((op, operand))

    def run(self) -> None:
        matmuls = {op: _matmul(op) for op in self.ops if op.kind == "matmul"}
        by_rows = {op: _matmul(op, most_n=1) for op in matmuls}
        plans = self._plans(matmuls)
        if by_rows != matmuls:
            # Results that are divided by rows can stay with the cores that reduce rows.
            plans += self._plans(by_rows)
        for op, division in min(plans, key=lambda plan: plan[0])[1].items():
            self._take(op, division)

    def _plans(self, matmuls: dict[Op, Division]) -> list[tuple[float, dict[Op, Division]]]:
        """Divisions of all operations that follow those of the matmuls, with their times."""
        others = [op for op in self.ops if op.kind != "matmul"]
        # A reduction is best not cut along what it reduces, so it has the least choice.
        constrained = sorted(others, key=lambda op: op.kind != "reduction")
        backwards = others[::-1]
        plans = []
        attempts = [(matmuls, (self.ops,)), (matmuls, (self.ops, backwards))]
        attempts += [
            (fixed, (constrained, backwards)) for fixed in (matmuls, *self._rings(matmuls))
        ]
        for fixed, orders in attempts:
            self.divided.clear()
            for op, division in fixed.items():
                self._take(op, division)
                if orders[0] is constrained:
                    self.divided.add(op)
            for order in orders:
                for op in order:
                    if op not in fixed:
                        self._take(op, self._best(op))
                    self.divided.add(op)
            plan = {op: Division(op.slices, op.core_order) for op in self.ops}
            plans.append((sum(self._time(op) for op in self.ops), plan))
        return plans

    def _rings(self, matmuls: dict[Op, Division]) -> Iterator[dict[Op, Division]]:
        """Divisions of reductions that only pay if their neighbours follow.

        A row on few cores keeps all that is computed from it there, too. So reductions that leave
        cores idle are tried in rings, small ones and large ones.
        """
        options = {op: self._options(op) for op in self.ops if op.kind == "reduction"}
        before: dict[Op, Division] = {}
        for most in (_SMALL_RING, config.sencores):
            rings = {}
            for op, divisions in options.items():
                small = [d for d in divisions if partners(op, d.slices) <= most]
                largest = max(small, key=lambda d: partners(op, d.slices), default=divisions[0])
                if partners(op, largest.slices) > 1:
                    rings[op] = largest
            if rings != before:
                yield {**matmuls, **rings}
            before = rings

    @staticmethod
    def _take(op: Op, division: Division) -> None:
        op.slices, op.core_order = division

    def _best(self, op: Op) -> Division:
        options = self._options(op)
        if len(options) == 1:
            return options[0]
        before = Division(op.slices, op.core_order)
        self.divided.add(op)
        costs = []
        for option in options:
            self._take(op, option)
            costs.append(self._cost_around(op))
        self._take(op, before)
        # Among equals one without rings, then the later ones, which follow a neighbour.
        rings = [partners(op, option.slices) for option in options]
        return options[min(range(len(options)), key=lambda i: (costs[i], rings[i], -i))]

    def _options(self, op: Op) -> list[Division]:
        options = dict.fromkeys(self._own_options(op))
        may = self.may[op]
        for operand, tensor in enumerate(op.tensors):
            if not _is_owned(op, operand):
                continue
            for other, position in self.uses[tensor.buffer]:
                if other is op or other not in self.divided:
                    continue
                found = self._match(self._boxes(other, position), op, operand)
                if found is not None and self._is_legal(op, found, may):
                    options[found] = None
        return list(options)

    def _own_options(self, op: Op) -> list[Division]:
        """Divisions that depend on no neighbour."""
        known = self._known_options.get(op)
        if known is not None:
            return known
        assert op.fit is not None
        least, may = self.least[op], splittable(op)
        if any(count > 1 and not ok for count, ok in zip(least, may, strict=True)):
            may = _splittable_in_rings(op)  # the span limit asks for it
        own = work_division(op.fit.extents, may, config.sencores, least)
        options = dict.fromkeys((_ordered(op, own), *self._in_rings(op, own)))
        self._known_options[op] = list(options)
        return self._known_options[op]

    def _match(self, owners: Boxes, op: Op, operand: int) -> Division | None:
        key = (op, operand, id(owners))
        if key not in self._known_matches:
            self._known_matches[key] = matching_division(owners, op, operand)
        return self._known_matches[key]

    def _boxes(self, op: Op, operand: int) -> Boxes:
        key = (op, operand, op.slices, op.core_order)
        known = self._known_boxes.get(key)
        if known is None:
            known = self._known_boxes[key] = boxes(op, operand)
        return known

    @staticmethod
    def _in_rings(op: Op, slices: Sizes) -> list[Division]:
        """With the cores that are left, along one dimension that is accumulated."""
        assert op.fit is not None
        left = config.sencores // prod(slices)
        found = []
        for dim, may in enumerate(_splittable_in_rings(op)):
            if not may or dim not in op.fit.reduced or slices[dim] > 1:
                continue
            extent = op.fit.extents[dim]
            for wanted in _RINGS:
                if wanted <= min(left, extent):
                    count = -(-extent // -(-extent // wanted))  # none of them idle
                    found.append(_ordered(op, (*slices[:dim], count, *slices[dim + 1 :])))
        return found

    def _is_legal(self, op: Op, division: Division, may: Sequence[bool]) -> bool:
        assert op.fit is not None
        if not are_partners_neighbours(*division, op.fit.reduced):
            return False
        dims = zip(op.fit.extents, division.slices, may, self.least[op], strict=True)
        return all(
            (count == 1 or (allowed and _is_useful(extent, count))) and count >= least
            for extent, count, allowed, least in dims
        )

    # ---- Cost ----------------------------------------------------------------------------------

    def _cost_around(self, op: Op) -> float:
        """Modelled time of an operation and of all that share a tensor with it."""
        around = {
            other: None
            for tensor in op.tensors
            for other, _ in self.uses.get(tensor.buffer, ())
            if other in self.divided
        }
        return sum(self._time(other) for other in {**around, op: None})

    def _time(self, op: Op) -> float:
        """Modelled nanoseconds, tensors that stay with their owners not counted as traffic."""
        kept = tuple(
            _is_owned(op, operand) and self._is_shared(tensor.buffer)
            for operand, tensor in enumerate(op.tensors)
        )
        key = op, op.slices, kept
        known = self._known_times.get(key)
        if known is None:
            known = self._known_times[key] = _time(op, kept)
        return known

    def _is_shared(self, buffer: Buffer) -> bool:
        """Would all who touch the buffer find it in their own scratchpads?"""
        uses = [use for use in self.uses[buffer] if use[0] in self.divided]
        found = [self._boxes(*use) for use in uses]
        key = (buffer, tuple(map(id, found)))
        known = self._known_shared.get(key)
        if known is not None:
            return known
        made = [
            part for part, use in zip(found, uses, strict=True) if use[0].output.buffer is buffer
        ]
        if made:
            owners = together(made)
        else:  # an input that is read once comes from outside
            owners = self._boxes(*widest(uses)) if len(uses) > 1 else None
        known = owners is not None and all(can_serve(owners, part) for part in found)
        self._known_shared[key] = known
        return known


def _time(op: Op, kept: Sequence[bool]) -> float:
    """Modelled nanoseconds, if these tensors stay in the scratchpads."""
    assert op.fit is not None
    read = sum(
        tensor.buffer.nbytes for tensor, is_kept in zip(op.reads, kept, strict=False) if not is_kept
    )
    output = op.output.buffer
    step: Any = _C._cost.Step()
    step.cores = prod(op.slices)
    step.bytes_read = read
    step.bytes_written = 0 if output.is_temporary and kept[-1] else output.nbytes
    shares = [-(-n // s) for n, s in zip(op.fit.extents, op.slices, strict=True)]
    describe_work(op, shares, step)
    parts = _C._cost.breakdown(step)
    busy = parts.pt + parts.sfp
    return max(busy, parts.memory) + parts.ring + 1e-6 * busy


def _is_owned(op: Op, operand: int) -> bool:
    """Can it be said which core touches what? Not of a table or an index."""
    return op.kind != "gather" or operand == 2


def _ordered(op: Op, slices: Sizes) -> Division:
    assert op.fit is not None
    return Division(slices, ring_order(slices, op.fit.reduced))


def _is_useful(extent: int, count: int) -> bool:
    return -(-extent // -(-extent // count)) == count


def _matmul(op: Op, most_n: int = 1 << 30) -> Division:
    """Slices by the cost model, of n no more than so many."""
    fit = op.fit
    assert fit is not None
    assert fit.stick is not None
    a, b, c = op.tensors
    walk_a, walk_b, _ = fit.walks
    rows: list[int] = []
    batch: list[int] = []
    for i in range(len(fit.extents)):
        if i == fit.stick or i in fit.reduced:
            continue
        (rows if walk_b.strides[i] == 0 else batch).append(i)
    plan = fit.plan
    assert isinstance(plan, ir.MatmulAligned)
    k = prod(fit.extents[i] for i in fit.reduced if i != plan.lane) * plan.k_length
    shape = MatmulShape(
        batch=tuple(fit.extents[i] for i in batch),
        m=tuple(fit.extents[i] for i in rows),
        n_sticks=fit.extents[fit.stick],
        k=k,
        a_bytes=a.buffer.nbytes,
        b_bytes=b.buffer.nbytes,
        c_bytes=c.buffer.nbytes,
        bits=8 * max(a.buffer.format.nbytes, b.buffer.format.nbytes),
        n_lanes=fit.lanes,
        k_lanes=plan.lanes,
        a_batched=any(walk_a.strides[i] for i in batch),
        b_batched=bool(batch),
    )
    least = MatmulSplit(
        tuple(op.slices[i] for i in batch),
        tuple(op.slices[i] for i in rows),
        op.slices[fit.stick],
        op.slices[plan.lane],
    )
    may_cut_k = _splittable_in_rings(op)[plan.lane]
    k_slices = tuple(range(1, config.sencores + 1)) if may_cut_k else (1,)
    split = matmul_division(shape, config.sencores, least, k_slices, most_n=max(most_n, least.n))
    slices = [1] * len(fit.extents)
    for i, count in zip(batch, split.batch, strict=True):
        slices[i] = count
    for i, count in zip(rows, split.m, strict=True):
        slices[i] = count
    slices[fit.stick] = split.n
    slices[plan.lane] = split.k
    return _ordered(op, tuple(slices))
