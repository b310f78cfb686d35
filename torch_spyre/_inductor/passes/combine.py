"""Operations that the card has one for: two of a graph become one."""

from __future__ import annotations

from collections import Counter

import torch

from ..graph import Buffer, Constant, Op, Operand, Read, SpyreGraph


def combine_exponentials(graph: SpyreGraph) -> None:
    """exp(a - b) and exp((a - b)·c) in one step, as softmax has them.

    Needs: one operation per buffer.  Leaves: no such pair whose tensor between is float32 and read
    by nobody else. (A 16-bit one would round on the way: then it stays.)
    """
    readers = Counter(read.buffer for op in graph.ops for read in op.reads)
    writers = Counter(op.output.buffer for op in graph.ops)
    made: dict[Buffer, Op] = {}
    gone: set[Op] = set()

    def source(operand: Operand, op: Op) -> Op | None:
        """The operation behind an operand, if that is all it is for."""
        if not isinstance(operand, Read):
            return None
        before, buffer = made.get(operand.buffer), operand.buffer
        if before is None or readers[buffer] != 1 or writers[buffer] != 1:
            return None
        is_same = before.extents == op.extents and before.kernel == op.kernel
        is_same = is_same and before.output[1:] == operand[1:]
        is_exact = buffer.is_temporary and buffer.dtype is torch.float32
        return before if is_same and is_exact else None

    for op in graph.ops:
        if op.opcode == "exp":
            factor: Operand = Constant(1.0, "F")
            inner = source(op.inputs[0], op)
            used = [inner]
            if inner is not None and inner.opcode == "mul" and _is_number(inner.inputs[1]):
                factor = inner.inputs[1]
                inner = source(inner.inputs[0], op)
                used.append(inner)
            if inner is not None and _is_difference(inner) and _is_steady(inner, op, graph):
                op.opcode, op.inputs = "exp_sub", [*inner.inputs[:2], factor]
                gone.update(each for each in used if each is not None)
        made[op.output.buffer] = op
    graph.ops = [op for op in graph.ops if op not in gone]
    graph.drop_unused_buffers()


def _is_number(operand: Operand) -> bool:
    return isinstance(operand, Constant)


def _is_difference(op: Op) -> bool:
    if op.opcode == "sub":
        return True
    alpha = op.inputs[-1]
    return op.opcode == "sub_scaled" and isinstance(alpha, Constant) and alpha.value == 1


def _is_steady(op: Op, until: Op, graph: SpyreGraph) -> bool:
    """Do its operands hold the same values when the later operation runs?"""
    first, last = graph.ops.index(op), graph.ops.index(until)
    written = {other.output.buffer for other in graph.ops[first + 1 : last]}
    return not any(read.buffer in written for read in op.reads)
