"""Copies that only widen: a step widens its operands by itself, so readers take the original."""

from __future__ import annotations

from collections import Counter

import torch

from torch_spyre.ops.formats import Kind, kind_of, matmul_opcode

from ..conversions import is_widening
from ..graph import COPIES, Buffer, Op, Operand, Read, Sizes, SpyreGraph

_FORWARDED = ("pointwise", "reduction")


def forward_widening_copies(graph: SpyreGraph) -> None:
    """Let readers of a tensor that was only converted to more bits read the tensor itself.

    Needs: one operation per buffer.  Leaves: no operation reads such a copy where it can do
    without; dead-code elimination removes those that nobody else reads. (A model that converts to
    float32 and uses the result twice, as norms do, would otherwise hold it in twice the bytes; a
    weight of 8 bits would go through memory in 16 before it is multiplied.)
    """
    writers = Counter(op.output.buffer for op in graph.ops)
    copies: dict[Buffer, Op] = {}
    for op in graph.ops:
        if op.kind in _FORWARDED:
            op.inputs = [_forwarded(operand, copies) for operand in op.inputs]
        elif op.kind == "matmul":
            _forward_factors(op, copies)
        if _is_widening_copy(op, writers):
            copies[op.output.buffer] = op


def _is_widening_copy(op: Op, writers: Counter[Buffer]) -> bool:
    """Does the operation convert all of a tensor that stays as it is, and nothing else?"""
    target = op.output
    if len(op.inputs) != 1 or len(op.reads) != 1 or not target.buffer.is_temporary:
        return False
    (source,) = op.reads
    is_steady = writers[target.buffer] == 1 and not source.buffer.is_mutated
    if not is_steady or writers[source.buffer] > 1:
        return False
    if op.opcode in COPIES:
        return is_widening(source.buffer.dtype, target.buffer.dtype)
    return op.opcode == "int_to_float" and _is_exact_factor(source.buffer, target.buffer)


def _is_exact_factor(source: Buffer, target: Buffer) -> bool:
    """Bytes that the matrix units take for what they are in a float of 16 bits or more."""
    is_float = kind_of(target.dtype) is Kind.FLOAT
    return source.dtype is torch.int8 and is_float and target.format.nbytes > 1


def _forwarded(operand: Operand, copies: dict[Buffer, Op]) -> Operand:
    """An operand of lanewise operations, read in the same places and the same domain."""
    if not isinstance(operand, Read) or operand.buffer not in copies:
        return operand
    copy = copies[operand.buffer]
    (source,) = copy.reads
    is_same_walk = (source.offset, source.strides) == (copy.output.offset, copy.output.strides)
    if is_same_walk and source.buffer.format.domain == operand.buffer.format.domain:
        return operand._replace(buffer=source.buffer)
    return operand


def _forward_factors(op: Op, copies: dict[Buffer, Op]) -> None:
    """Columns, then rows: those of a matmul must not have more elements per stick."""
    rows, columns = op.reads
    columns = _original(columns, op.extents, copies)
    original = _original(rows, op.extents, copies)
    is_float = original.buffer.format.domain == "F"
    if is_float and original.buffer.format.nbytes >= columns.buffer.format.nbytes:
        rows = original
    op.inputs = [rows, columns]
    op.opcode = matmul_opcode(columns.buffer.dtype)


def _original(read: Read, extents: Sizes, copies: dict[Buffer, Op]) -> Read:
    """The read in the tensor that was widened; as it is, if that is no walk through it.

    A copy of as many bits has another purpose: sticks along another dimension, made once for all.
    """
    while read.buffer in copies:
        source = _through(read, extents, copies[read.buffer])
        if source is None or source.buffer.format.nbytes >= read.buffer.format.nbytes:
            break
        read = source
    return read


def _through(read: Read, extents: Sizes, copy: Op) -> Read | None:
    """Where a walk through a copy goes in the original, whose dimensions may lie otherwise."""
    (source,) = copy.reads
    dims = zip(copy.output.strides, copy.extents, source.strides, strict=True)
    nested = sorted((dim for dim in dims if dim[1] > 1), reverse=True)
    left, offset = read.offset - copy.output.offset, source.offset
    room: dict[tuple[int, int], int] = {}  # steps that are left, by the strides of a dimension
    for stride, length, of_source in nested:
        if stride <= 0:
            return None
        digit, left = divmod(left, stride)
        if not 0 <= digit < length:
            return None
        offset += digit * of_source
        room[stride, of_source] = length - digit - 1
    if left:
        return None
    strides = []
    for step, count in zip(read.strides, extents, strict=True):
        if step == 0 or count == 1:
            strides.append(0)
            continue
        # A loop moves along one dimension, the outermost that it could.
        along = next((dim for dim in room if step % dim[0] == 0 and step >= dim[0]), None)
        if along is None:
            return None
        strides.append(step // along[0] * along[1])
        room[along] -= step // along[0] * (count - 1)
    return (
        None if min(room.values(), default=0) < 0 else Read(source.buffer, offset, tuple(strides))
    )
