"""Constants: a fill that only feeds other operations becomes their scalar operand."""

from __future__ import annotations

from collections import Counter

from torch_spyre import _C

from ..graph import COPIES, Buffer, Constant, Op, Operand, Read, SpyreGraph

# Operations that write their constant as it is.
_FILLS = (*COPIES, "int_to_float")


def promote_constants(graph: SpyreGraph) -> None:
    """Read constants as scalars, and compute equal counts and fills once.

    Needs: one operation per buffer.  Leaves: no buffer that holds one value and is only read by
    pointwise operations; one buffer per distinct constant or count.
    """
    writers = Counter(op.output.buffer for op in graph.ops)
    scalars: dict[Buffer, Constant] = {}
    same: dict[tuple[object, ...], Buffer] = {}
    replaced: dict[Buffer, Buffer] = {}
    kept: list[Op] = []
    for op in graph.ops:
        op.inputs = [_replaced(operand, op, scalars, replaced) for operand in op.inputs]
        buffer = op.output.buffer
        is_source = not op.reads and buffer.is_temporary and writers[buffer] == 1
        if is_source and len(op.inputs) == 1:
            (value,) = op.inputs
            if isinstance(value, Constant) and op.opcode in _FILLS:
                scalars[buffer] = _as_stored(value, buffer)
            key = (op.opcode, repr(value), buffer.size, buffer.stride, buffer.dtype, op.kernel)
            replaced[buffer] = same.setdefault(key, buffer)
            if replaced[buffer] is not buffer:
                continue
        kept.append(op)
    graph.ops = kept


def _replaced(
    operand: Operand, op: Op, scalars: dict[Buffer, Constant], same: dict[Buffer, Buffer]
) -> Operand:
    if not isinstance(operand, Read):
        return operand
    if op.kind == "pointwise" and operand.buffer in scalars:
        return scalars[operand.buffer]
    return operand._replace(buffer=same.get(operand.buffer, operand.buffer))


def _as_stored(value: Constant, buffer: Buffer) -> Constant:
    """The number that a reader of the buffer would have found."""
    if buffer.format.domain == "I":
        return value
    card = _C._card
    bits = card.encode(buffer.format.value, float(value.value), True)
    return Constant(card.decode(buffer.format.value, bits), "F")
