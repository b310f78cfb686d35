"""The order of operations: what belongs together comes together."""

from __future__ import annotations

from itertools import groupby

from ..graph import Buffer, Op, SpyreGraph


def order_for_locality(graph: SpyreGraph) -> None:
    """Compute every result just before it is wanted, so that little is waiting at any time.

    Needs: `op.kernel` grows where operations that are not ours lie between; they stay where they
    are.  Leaves: the same operations; each still comes after those that it depends on.
    """
    ordered: list[Op] = []
    for _, stretch in groupby(graph.ops, key=lambda op: op.kernel):
        ordered += _ordered(list(stretch))
    graph.ops = ordered


def _ordered(ops: list[Op]) -> list[Op]:
    wanted = _predecessors(ops)
    followed = {other for others in wanted.values() for other in others}
    done: dict[Op, None] = {}
    for last in ops:
        if last in followed:
            continue
        stack = [last]
        while stack:
            op = stack[-1]
            waiting = next((other for other in wanted[op] if other not in done), None)
            if waiting is None:
                stack.pop()
                done[op] = None
            else:
                stack.append(waiting)
    return list(done)


def _predecessors(ops: list[Op]) -> dict[Op, list[Op]]:
    """For each operation those that must come before it; who wrote the same tensor first."""
    writers: dict[Buffer, list[Op]] = {}
    readers: dict[Buffer, list[Op]] = {}
    found: dict[Op, list[Op]] = {}
    for op in ops:
        target = op.output.buffer
        before = dict.fromkeys(writers.get(target, [])[-1:])
        before |= dict.fromkeys(readers.get(target, []))
        for read in op.reads:
            before |= dict.fromkeys(writers.get(read.buffer, []))
            readers.setdefault(read.buffer, []).append(op)
        before.pop(op, None)
        found[op] = list(before)
        writers.setdefault(target, []).append(op)
    return found
