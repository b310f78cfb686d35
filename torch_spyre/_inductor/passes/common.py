"""Common subexpressions: what two operations compute alike is computed once."""

from __future__ import annotations

from collections import Counter

from ..graph import Buffer, Operand, Read, SpyreGraph


def merge_equal_operations(graph: SpyreGraph) -> None:
    """Let readers of a result that was there before read the earlier one.

    Inductor computes small things anew in every kernel that wants them; so do the masks of the
    sections of causal attention come in, all alike.

    Needs: operations of one kernel have one number.  Leaves: no two of the same opcode, loops,
    operands and target layout in a kernel whose operands hold still.
    """
    writers = Counter(op.output.buffer for op in graph.ops)
    merged: dict[Buffer, Buffer] = {}
    known: dict[tuple[object, ...], Buffer] = {}

    def is_steady(buffer: Buffer) -> bool:
        return writers[buffer] <= 1 and not buffer.is_mutated

    def renamed(operand: Operand) -> Operand:
        if not isinstance(operand, Read):
            return operand
        return operand._replace(buffer=merged.get(operand.buffer, operand.buffer))

    kept = []
    for op in graph.ops:
        op.inputs = [renamed(operand) for operand in op.inputs]
        target = op.output.buffer
        if all(is_steady(tensor.buffer) for tensor in op.tensors) and target.is_temporary:
            works = op.opcode, op.kind, op.extents, op.reduced, op.rows, op.gathered, op.masks
            shape = target.size, target.stride, target.dtype, target.numel, target.is_laid_out
            # A hint asks something of its own operation.
            place = op.output[1:], op.kernel, op.wishes
            key = (*works, tuple(map(_key, op.inputs)), *shape, *place)
            before = known.setdefault(key, target)
            if before is not target:
                merged[target] = before
                continue
        kept.append(op)
    graph.ops = kept
    graph.drop_unused_buffers()


def _key(operand: Operand) -> tuple[object, ...]:
    """Equal numbers of different types are different operands: 1 and 1.0, 0.0 and -0.0."""
    if isinstance(operand, Read):
        return operand
    return (type(operand), *map(repr, operand))
