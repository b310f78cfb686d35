"""Who owns what: may a buffer live in the scratchpads, and what does each core have of it?"""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Buffer, Op
from ..sharing import Boxes, LocalSlice, boxes, together


def why_not_lx(buffer: Buffer, ops: Sequence[Op]) -> str:
    """The one place that decides whether a buffer may live in a scratchpad; empty if it may."""
    if not buffer.is_temporary:
        return "it enters or leaves the graph"
    if leaves(buffer, ops[0].kernel):
        return "another kernel reads it, and nothing in LX survives a kernel"
    writers = writers_of(ops, buffer)
    if any(writer.fit is None for writer in writers):
        return "it is written element by element (restickify)"
    writer = writers[0]
    moving = writer.loops_moving(len(writer.tensors) - 1)
    if any(other.loops_moving(len(other.tensors) - 1) != moving for other in writers):
        return f"{len(writers)} operations in different loops write parts of it"
    owners = owners_of(writers)
    if owners is None:
        return f"{len(writers)} operations write parts of it, on different cores"
    owner = LocalSlice(owners)
    for op in ops:
        for operand, read in enumerate(op.reads):
            if read.buffer is not buffer:
                continue
            if op.fit is None:
                return f"{op.opcode} reads it element by element (restickify)"
            if op.kind == "gather" and operand < 2:
                return "it is indirectly addressed (gather)"
            if _divides_sticks(op, operand):
                return f"cores of {op.opcode} share sticks of it"
            if any(step < 0 for step in op.fit.walks[operand].strides):
                return f"{op.opcode} walks through it backwards"
            if op.kind == "relayout":  # made for these owners
                continue
            taking = op.loops_moving(operand)
            if taking != moving:
                if moving:
                    return "it is read outside of the loop that writes it in parts"
                return "a loop takes it in parts"
            reason = owner.why_not(boxes(op, operand))
            if reason is not None:
                return f"{op.opcode} of {op.output.buffer.name}: {reason}"
    return ""


def writers_of(ops: Sequence[Op], buffer: Buffer) -> list[Op]:
    return [op for op in ops if op.output.buffer is buffer]


def owners_of(writers: Sequence[Op]) -> Boxes | None:
    """What each core has of a tensor after these wrote it; None if that is no box."""
    return together([boxes(op, len(op.tensors) - 1) for op in writers])


def leaves(buffer: Buffer, kernel: int) -> bool:
    """Does somebody outside this kernel see the buffer?"""
    return buffer.is_output or not buffer.kernels <= {kernel}


def walks_sticks(op: Op, operand: int) -> bool:
    """Is it known which core touches which sticks of an operand, and does each take them whole?

    Not of copies element by element, nor of tables.
    """
    return op.fit is not None and op.kind != "gather" and not _divides_sticks(op, operand)


def _divides_sticks(op: Op, operand: int) -> bool:
    """Do cores begin within sticks? In LX all begin where their slice does."""
    assert op.fit is not None
    lanes = op.fit.where[operand][-1].terms
    return op.kind == "restickify" and any(op.slices[term.variable] > 1 for term in lanes)
