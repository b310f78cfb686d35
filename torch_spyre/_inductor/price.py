"""What a planned operation costs by the card's clock, before there is a program.

The same laws as the card's (`_C._cost`), on a description that follows from the plan: which part of
each tensor the cores touch, and where it lies. The card counts sticks one by one; here a part is
as large as the box around it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from torch_spyre import _C, ir
from torch_spyre.ir import STICK_BYTES

from .graph import Op
from .sharing import boxes, volume


def nanoseconds(ops: Iterable[Op]) -> float:
    """Of operations one after the other, every iteration of the loops around them counted."""
    return sum(op_nanoseconds(op) for op in ops)


def op_nanoseconds(op: Op) -> float:
    return float(_visits(op) * _C._cost.nanoseconds(_step(op)))


def copy_nanoseconds(nbytes: int) -> float:
    """Of writing that much to LPDDR5 and reading it again."""
    read, written = _C._cost.Step(bytes_read=nbytes), _C._cost.Step(bytes_written=nbytes)
    return float(_C._cost.nanoseconds(read) + _C._cost.nanoseconds(written))


def traffic(op: Op, operand: int) -> int:
    """Bytes of a tensor operand that go through LPDDR5 if that is where it is."""
    if op.fit is None or (op.kind == "gather" and operand == 0):
        return op.tensors[operand].buffer.nbytes
    return _visits(op) * volume(boxes(op, operand)).together * STICK_BYTES


def _visits(op: Op) -> int:
    return prod(tile.parts for tile in op.tiles)


def _step(op: Op) -> Any:
    if op.fit is None:
        source, target = op.reads[0].buffer, op.output.buffer
        return _C._cost.Step(bytes_read=source.nbytes, bytes_written=target.nbytes)
    step = _C._cost.Step(cores=prod(op.slices))
    for operand, tensor in enumerate(op.tensors):
        if op.kind == "gather" and operand == 0:
            # Of its table as much as it writes: which rows, and how often, only the card knows.
            step.bytes_read += min(tensor.buffer.nbytes, op.output.buffer.nbytes)
            continue
        found = boxes(op, operand)
        is_output = operand == len(op.tensors) - 1
        if tensor.buffer.local is not None:
            nbytes = volume(found).largest * STICK_BYTES
            if is_output:
                step.lx_written += nbytes
            else:
                step.lx_read += nbytes
        else:
            nbytes = volume(found).together * STICK_BYTES
            if is_output:
                step.bytes_written += nbytes
            else:
                step.bytes_read += nbytes
        if op.kind == "matmul" and not is_output:
            sharers = max(found.count(box) for box in set(found))
            in_memory = 0 if tensor.buffer.local is not None else nbytes
            if operand == 0:
                step.a_bytes, step.a_broadcast = in_memory, sharers
            else:
                step.b_bytes, step.b_broadcast = in_memory, sharers
    if op.collection is not None:
        _describe_relayout(op, op.collection.owners, step)
    shares = [-(-n // s) for n, s in zip(op.fit.extents, op.slices, strict=True)]
    describe_work(op, shares, step)
    if op.tiles and op.kind != "matmul" and step.bytes_read + step.bytes_written:
        columns = 1 if op.fit.stick is None else shares[op.fit.stick]
        step.tile_rows_per_core = prod(shares) // columns
        step.tile_columns = columns * op.fit.lanes
    return step


def describe_work(op: Op, shares: Sequence[int], step: Any) -> None:
    """What the clock wants to know of an operation of which the busiest core has these shares."""
    fit = op.fit
    assert fit is not None
    if op.kind == "matmul":
        _describe_matmul(op, shares, step)
        results = step.batch * step.m * step.n
    else:
        if op.kind not in ("restickify", "relayout"):
            step.sfp_elements = prod(shares) * fit.lanes
        results = prod(s for i, s in enumerate(shares) if i not in fit.reduced) * fit.lanes
    step.k_split = partners(op, op.slices)
    if step.k_split > 1:
        step.output_elements = results


def _describe_relayout(op: Op, owners: Sequence[Sequence[int]], step: Any) -> None:
    """What leaves each owner, and how many other cores take it as it passes."""
    split = step.relayout_split = len(owners[0])
    takers = Counter(
        (owner, part, box)
        for core, (box, row) in enumerate(zip(boxes(op, 0), owners, strict=True))
        for part, owner in enumerate(row)
        if owner != core
    )
    step.relayout_bytes = sum(
        _C._cost.relayed_bytes(box.volume * STICK_BYTES // split, count)
        for (_, _, box), count in takers.items()
    )


def _describe_matmul(op: Op, shares: Sequence[int], step: Any) -> None:
    fit = op.fit
    assert fit is not None
    plan = fit.plan
    assert isinstance(plan, ir.MatmulAligned)
    step.traffic = _C._cost.Traffic.Matmul
    step.bits = 8 * max(read.buffer.format.nbytes for read in op.reads)
    strides = fit.walks[1].strides
    rest = [i for i in range(len(shares)) if i != fit.stick and i not in fit.reduced]
    step.batch = prod(shares[i] for i in rest if strides[i] != 0)
    step.m = prod(shares[i] for i in rest if strides[i] == 0)
    step.n = shares[plan.stick] * fit.lanes
    step.k = prod(shares[i] for i in fit.reduced if i != plan.lane)
    step.k *= min(shares[plan.lane] * plan.lanes, plan.k_length)


def partners(op: Op, slices: Sequence[int]) -> int:
    """Cores that make a result together, if an operation is cut so."""
    assert op.fit is not None
    return prod(slices[i] for i in op.fit.reduced)
