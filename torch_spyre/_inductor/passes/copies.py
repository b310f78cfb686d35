"""Copies that only widen: a step widens its operands by itself, so readers take the original."""

from __future__ import annotations

from collections import Counter

from ..conversions import is_widening
from ..graph import COPIES, Buffer, Op, Operand, Read, SpyreGraph

_FORWARDED = ("pointwise", "reduction")


def forward_widening_copies(graph: SpyreGraph) -> None:
    """Let readers of a tensor that was only converted to more bits read the tensor itself.

    Needs: one operation per buffer.  Leaves: no pointwise operation or reduction reads such a
    copy; dead-code elimination removes those that nobody else reads. (A model that converts to
    float32 and uses the result twice, as norms do, would otherwise hold it in twice the bytes.)
    """
    writers = Counter(op.output.buffer for op in graph.ops)
    originals: dict[Buffer, Buffer] = {}
    for op in graph.ops:
        if op.kind in _FORWARDED:
            op.inputs = [_forwarded(operand, originals) for operand in op.inputs]
        original = _original(op, writers)
        if original is not None:
            originals[op.output.buffer] = original


def _forwarded(operand: Operand, originals: dict[Buffer, Buffer]) -> Operand:
    if not isinstance(operand, Read):
        return operand
    return operand._replace(buffer=originals.get(operand.buffer, operand.buffer))


def _original(op: Op, writers: Counter[Buffer]) -> Buffer | None:
    """What the operation copies element for element to the same places, if that is all it does."""
    target = op.output
    if op.opcode not in COPIES or len(op.reads) != 1 or not target.buffer.is_temporary:
        return None
    (source,) = op.reads
    is_same_walk = (source.offset, source.strides) == (target.offset, target.strides)
    is_steady = writers[target.buffer] == 1 and not source.buffer.is_mutated
    is_steady = is_steady and writers[source.buffer] <= 1
    if is_same_walk and is_steady and is_widening(source.buffer.dtype, target.buffer.dtype):
        return source.buffer
    return None
