"""Restickify: copies that make the operands of every operation agree on their sticks."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ..fitting import Copy, Misfit, copy_for, fit, fit_move, storage_for
from ..graph import COPIES, Buffer, Op, Operand, Read, Sizes, SpyreGraph, dense

MOST_COPIES = 6  # of one operation: all its operands, some twice


def insert_restickifies(graph: SpyreGraph) -> None:
    """Copy operands to layouts in which their operation walks whole sticks.

    Needs: a layout on every buffer.  Leaves: `op.fit` for all operations but copies element by
    element that are more than one loop nest. Equal copies of one operand are made once.
    """
    inserter = _Inserter(graph)
    ops, graph.ops = graph.ops, []
    for op in ops:
        inserter.insert(op)


class CannotCopyError(Exception):
    """An operand's walk has no form on a copy of its buffer."""


class _Inserter:
    def __init__(self, graph: SpyreGraph) -> None:
        self.graph = graph
        self._copies: dict[tuple[object, ...], Buffer] = {}

    def insert(self, op: Op) -> None:
        after: list[Op] = []
        for _ in range(MOST_COPIES):
            found = fit(op)
            if not isinstance(found, Misfit):
                op.fit = found
                self._append(op, *after)
                return
            if op.opcode in COPIES and op.reads:
                # A copy already: element by element, any layout goes to any other.
                op.kind = "restickify"
                op.why = f"the model copies from one layout to another: {found.reason}"
                op.fit = fit_move(op)
                self._append(op, *after)
                return
            copy = copy_for(op, found)
            is_output = found.operand == len(op.tensors) - 1
            try:
                made = self._output if is_output else self._input
                op = made(op, found, copy, after)
            except CannotCopyError:
                break
        from ..errors import Unsupported  # its base is Dynamo's: only where it is needed

        raise Unsupported(
            f"{op.origin.aten or op.opcode} on these layouts",
            found.reason if isinstance(found, Misfit) else "no layout fits",
            origin=op.origin,
            tensors=tuple(tensor.buffer.describe() for tensor in op.tensors),
            way_out="call .contiguous() on its inputs",
            is_loop=True,
        )

    def _append(self, *ops: Op) -> None:
        """Add operations; what was copied before from what they write is of no use now."""
        self.graph.ops += ops
        written = {op.output.buffer for op in ops}
        self._copies = {key: made for key, made in self._copies.items() if key[0] not in written}

    def _input(self, op: Op, misfit: Misfit, copy: Copy, _: list[Op]) -> Op:
        read = op.tensors[misfit.operand]
        moved = _original(read, misfit, copy)
        key = (read.buffer, moved, copy)
        made = self._copies.get(key)
        if made is None:
            made = self._copies[key] = _buffer_for(copy, read.buffer, self.graph)
            source = Read(read.buffer, *moved)
            to = Read(made, 0, _strides(copy, made))
            self.graph.ops.append(_move(op, copy, source, to, f"before {op.opcode}", misfit))
        return substitute(op, misfit, copy, made)

    def _output(self, op: Op, misfit: Misfit, copy: Copy, after: list[Op]) -> Op:
        write = op.output
        made = _buffer_for(copy, write.buffer, self.graph)
        moved = _original(write, misfit, copy)
        source = Read(made, 0, _strides(copy, made))
        to = Read(write.buffer, *moved)
        after.insert(0, _move(op, copy, source, to, f"after {op.opcode}", misfit))
        return substitute(op, misfit, copy, made)


def _move(op: Op, copy: Copy, source: Read, to: Read, when: str, misfit: Misfit) -> Op:
    """A copy element by element, for the sake of an operation and in its kernel."""
    opcode, inputs = to.buffer.copy_opcode, list[Operand]([source])
    move = Op(
        opcode,
        "restickify",
        copy.extents,
        inputs,
        to,
        origin=op.origin,
        node=op.node,
        kernel=op.kernel,
        why=f"{when}: {misfit.reason}",
    )
    move.fit = fit_move(move)
    return move


def _strides(copy: Copy, made: Buffer) -> Sizes:
    return dense(copy.extents) if copy.is_flat else made.stride


def _original(read: Read, misfit: Misfit, copy: Copy) -> tuple[int, Sizes]:
    """Offset and strides of the original over the loops of the copy."""
    if misfit.is_whole:
        return 0, tuple(read.buffer.stride[d] for d in copy.loops)
    return read.offset, tuple(read.strides[i] for i in copy.loops)


def _buffer_for(copy: Copy, like: Buffer, graph: SpyreGraph | None = None) -> Buffer:
    if graph is None:
        buffer = Buffer("copy", copy.size, dense(copy.size), like.dtype, prod(copy.size))
    else:
        buffer = graph.temporary(copy.size, like.dtype)
    buffer.storage = storage_for(buffer, copy.order)
    return buffer


def substitute(op: Op, misfit: Misfit, copy: Copy, made: Buffer | None = None) -> Op:
    """The operation with one operand taken from its copy."""
    read = op.tensors[misfit.operand]
    made = made or _buffer_for(copy, read.buffer)
    gathered = op.gathered
    if misfit.is_whole:
        # The same walk through the same dimensions, in the copy's host order.
        strides = tuple(
            _moved_step(step, n, read.buffer, copy, made)
            for step, n in zip(read.strides, op.extents, strict=True)
        )
        gathered = _moved_step(op.gathered, op.rows, read.buffer, copy, made)
        moved = Read(made, _moved_offset(read, copy, made), strides)
    else:
        own = _strides(copy, made)
        new = [0] * len(op.extents)
        for dim, loop in enumerate(copy.loops):
            new[loop] = own[dim]
        moved = Read(made, 0, tuple(new))
    if misfit.operand == len(op.tensors) - 1:
        return replace(op, output=moved)
    inputs = list(op.inputs)
    position = [i for i, value in enumerate(inputs) if isinstance(value, Read)][misfit.operand]
    inputs[position] = moved
    return replace(op, inputs=inputs, gathered=gathered)


def _moved_step(step: int, count: int, original: Buffer, copy: Copy, made: Buffer) -> int:
    """A loop's step in the copy of a whole buffer.

    The loop may be one of several that walk a dimension (a table seen as a view), but not walk
    several dimensions: these need not follow each other in the copy.
    """
    if step == 0 or count <= 1:
        return 0
    for i, d in enumerate(copy.loops):
        size, stride = original.size[d], original.stride[d]
        if size > 1 and stride and step % stride == 0 and step // stride * (count - 1) < size:
            return step // stride * made.stride[i]
    raise CannotCopyError


def _moved_offset(read: Read, copy: Copy, made: Buffer) -> int:
    offset, left = 0, read.offset
    for stride, dim in sorted(
        ((read.buffer.stride[d], i) for i, d in enumerate(copy.loops)), reverse=True
    ):
        if stride:
            digit, left = divmod(left, stride)
            offset += digit * made.stride[dim]
    return offset
