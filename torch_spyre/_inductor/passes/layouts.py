"""Layout propagation: a device layout for every buffer, chosen for the whole graph."""

from __future__ import annotations

from collections.abc import Sequence

from torch_spyre import ir

from ..fitting import Misfit, candidates, copy_bytes, copy_for, default_storage, fit, sparse_bytes
from ..graph import Buffer, Op, SpyreGraph
from .restickify import MOST_COPIES, CannotCopyError, substitute

_SWEEPS = 3


def propagate_spyre_tensor_layouts(graph: SpyreGraph) -> None:
    """Choose layouts that leave the fewest bytes to restickify.

    Needs: layouts of the graph's inputs.  Leaves: `buffer.storage` for all. Results follow their
    operands in program order; then each choice is reconsidered with its readers in sight, until
    nothing improves. What leaves the graph has the default layout.
    """
    chooser = _Chooser(graph)
    chooser.follow_operands()
    for _ in range(_SWEEPS):
        if not chooser.improve():
            break


class _Chooser:
    def __init__(self, graph: SpyreGraph) -> None:
        self.graph = graph
        self.users: dict[Buffer, list[Op]] = {}
        self._costs: dict[tuple[object, ...], int] = {}
        for op in graph.ops:
            for buffer in {tensor.buffer: None for tensor in op.tensors}:
                self.users.setdefault(buffer, []).append(op)

    def follow_operands(self) -> None:
        for buffer in self.graph.buffers.values():
            if buffer.storage is None and buffer.is_output:
                buffer.storage = default_storage(buffer)
        for op in self.graph.ops:
            buffer = op.output.buffer
            if buffer.storage is None:
                buffer.storage = self.best(buffer, [op])

    def improve(self) -> bool:
        changed = False
        for buffer, users in self.users.items():
            if buffer.is_temporary and not buffer.is_laid_out and len(buffer.size) > 0:
                best = self.best(buffer, users)
                changed |= best != buffer.storage
                buffer.storage = best
        return changed

    def best(self, buffer: Buffer, users: Sequence[Op]) -> ir.Storage:
        """The layout with the least traffic for these operations; the present one if as good."""
        kept = buffer.storage
        options = candidates(buffer)
        if kept is not None:
            options = [kept, *(option for option in options if option != kept)]
        costs = []
        for option in options:
            buffer.storage = option
            costs.append(sum(self.cost(op) for op in users))
            if costs[-1] == 0:
                break
        buffer.storage = kept
        return options[costs.index(min(costs))]

    def cost(self, op: Op) -> int:
        """Bytes moved to make the operation fit."""
        key = (op, *(tensor.buffer.storage for tensor in op.tensors))
        if key not in self._costs:
            self._costs[key] = _traffic(op)
        return self._costs[key]


def _traffic(op: Op) -> int:
    """Copies that a restickify would insert, tried on a scratch copy of the operation, and what it
    then moves in vain."""
    total = 0
    for _ in range(MOST_COPIES):
        found = fit(op)
        if not isinstance(found, Misfit):
            return total + sparse_bytes(op)
        copy = copy_for(op, found)
        read = op.tensors[found.operand]
        total += copy_bytes(copy, read)
        try:
            op = substitute(op, found, copy)
        except CannotCopyError:
            break
    return 1 << 60
