"""One OpSpec per planned operation, and one KernelSpec per kernel."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

import msgspec

from torch_spyre import ir
from torch_spyre.ir import STICK_BYTES, Term
from torch_spyre.ir.arguments import element_coordinates, space_extents
from torch_spyre.ir.spec import (
    Allocation,
    Arg,
    ConstantArg,
    Dim,
    IotaArg,
    KernelArg,
    KernelSpec,
    LoopSpec,
    Mask,
    OpSpec,
    Origin,
    TensorArg,
)
from torch_spyre.ir.splits import SPAN_LIMIT

from .. import config
from ..division import work_division
from ..fitting import move_splittable
from ..graph import Buffer, Constant, Fit, Index, Op, Read, Sizes, SpyreGraph
from ..sharing import boxes


@dataclass
class KernelDraft:
    """A kernel: its specification, and the buffers that its arguments stand for."""

    number: int
    spec: KernelSpec
    arguments: tuple[Buffer, ...]
    lengths: tuple[int, ...]  # which of the graph's dynamic lengths a launch takes
    ops: tuple[Op, ...]
    steps: tuple[Op, ...]  # for each OpSpec, in order: the operation that it is, or is a part of


def kernels_of(graph: SpyreGraph) -> list[KernelDraft]:
    """All kernels of a planned graph, in order."""
    return [
        _Writer(graph, number).write(list(ops))
        for number, ops in groupby(graph.ops, key=lambda op: op.kernel)
    ]


@dataclass
class _Writer:
    graph: SpyreGraph
    number: int
    _arguments: dict[Buffer, int] = field(default_factory=dict)
    _reach: dict[Buffer, int] = field(default_factory=dict)
    _written: set[Buffer] = field(default_factory=set)
    _lengths: dict[int, int] = field(default_factory=dict)
    _steps: list[Op] = field(default_factory=list)

    def write(self, ops: Sequence[Op]) -> KernelDraft:
        body = self._body(ops, 0)
        args = tuple(
            KernelArg(buffer.format.value, self._reach[buffer], buffer in self._written)
            for buffer in self._arguments
        )
        extents = tuple(self.graph.extents[number] for number in self._lengths)
        spec = KernelSpec(args, body, self.graph.pool_bytes.get(self.number, 0), extents)
        return KernelDraft(
            self.number,
            spec,
            tuple(self._arguments),
            tuple(self._lengths),
            tuple(ops),
            tuple(self._steps),
        )

    def _body(self, ops: Sequence[Op], depth: int) -> tuple[OpSpec | LoopSpec, ...]:
        """Operations in order, those of one loop together in it."""
        body: list[OpSpec | LoopSpec] = []
        for loop, run in groupby(ops, key=lambda op: op.loops[depth : depth + 1]):
            if loop:
                inside = list(run)
                body.append(LoopSpec(inside[0].tiles[depth].parts, self._body(inside, depth + 1)))
            else:
                for op in run:
                    specs = self._op(op)
                    body += specs
                    self._steps += [op] * len(specs)
        return tuple(body)

    def _op(self, op: Op) -> list[OpSpec]:
        fit = op.fit
        if fit is None:
            return [self._move(op, nest) for nest in _nests(op)]
        space = tuple(
            Dim(f"c{i}", extent, count)
            for i, (extent, count) in enumerate(
                zip(space_extents(fit.plan), op.slices, strict=True)
            )
        )
        tensors = iter(range(len(op.tensors)))
        args: list[Arg] = []
        for value in op.inputs:
            if isinstance(value, Constant):
                args.append(ConstantArg(_domain(value), _bits(value)))
            elif isinstance(value, Index):
                args.append(_iota(value, op, fit))
            else:
                args.append(self._tensor(op, next(tensors), is_input=True))
        args.append(self._tensor(op, next(tensors), is_input=False))
        return [
            OpSpec(
                op.opcode,
                op.kind,
                space,
                tuple(args),
                stick=fit.stick,
                lanes=fit.lanes,
                lane=fit.lane,
                reduced=fit.reduced,
                masks=tuple(self._mask(op, mask) for mask in op.masks),
                rows=op.rows,
                core_order=op.core_order,
                owners=() if op.collection is None else op.collection.owners,
                parts=() if op.collection is None else op.collection.parts,
                origin=_named(op),
            )
        ]

    def _mask(self, op: Op, mask: Mask) -> Mask:
        valid = mask.valid
        if mask.is_symbol:  # a kernel has its own, so that those of equal layers are equal
            valid = self._lengths.setdefault(valid, len(self._lengths))
        positions = _loop_positions(op, mask.dim)
        return msgspec.structs.replace(mask, valid=valid, loop_positions=positions)

    # ---- Tensors -------------------------------------------------------------------------------

    def _tensor(self, op: Op, operand: int, is_input: bool) -> TensorArg:
        tensor = op.tensors[operand]
        buffer = tensor.buffer
        storage, fit = buffer.storage, op.fit
        assert storage is not None
        assert fit is not None
        coordinates = fit.where[operand]
        device_size = storage.device_size
        if op.collection is not None and is_input:
            assert buffer.local is not None
            coordinates = op.collection.inside
            device_size = (*buffer.local.size, storage.elems_per_stick)
        elif buffer.local is not None:
            shift = buffer.local.shift(boxes(op, operand))
            *sticks, lane = coordinates
            local = (
                coordinate._replace(offset=start)
                for coordinate, start in zip(sticks, shift, strict=True)
            )
            coordinates = (*local, lane)
            device_size = (*buffer.local.size, storage.elems_per_stick)
        return TensorArg(
            is_input,
            buffer.format.value,
            device_size,
            coordinates,
            self._allocation(buffer, is_input, _reach(op, operand)),
            loop_bytes=() if buffer.local is not None else _loop_bytes(op, operand),
        )

    def _allocation(self, buffer: Buffer, is_input: bool, reach: int) -> Allocation:
        if buffer.place is not None:
            return buffer.place
        index = self._arguments.setdefault(buffer, len(self._arguments))
        nbytes = reach if buffer.is_input else buffer.nbytes
        self._reach[buffer] = max(self._reach.get(buffer, 0), nbytes)
        if not is_input:
            self._written.add(buffer)
        return Allocation("arg", index)

    # ---- Restickify ----------------------------------------------------------------------------

    def _move(self, op: Op, nest: ir.Nest) -> OpSpec:
        """One nest of an element-wise copy: the output's walk first, then the input's."""
        extents = nest.extents or (1,)
        into, source = (
            _Walk(offset, strides or (0,))
            for offset, strides in zip(nest.offsets, nest.strides, strict=True)
        )
        slices = _move_slices(op, extents, into, source)
        space = tuple(
            Dim(f"c{i}", n, s) for i, (n, s) in enumerate(zip(extents, slices, strict=True))
        )
        args = (
            self._element(op.reads[0], source, extents, is_input=True),
            self._element(op.output, into, extents, is_input=False),
        )
        return OpSpec(op.opcode, "restickify", space, args, origin=_named(op))

    def _element(self, tensor: Read, walk: _Walk, extents: Sizes, is_input: bool) -> TensorArg:
        buffer = tensor.buffer
        assert buffer.storage is not None
        last = walk.offset + sum(
            max(step, 0) * (n - 1) for step, n in zip(walk.strides, extents, strict=True)
        )
        reach = -(-(last + 1) * buffer.format.nbytes // STICK_BYTES) * STICK_BYTES
        where = element_coordinates(buffer.storage, walk.offset, walk.strides, extents)
        return TensorArg(
            is_input,
            buffer.format.value,
            buffer.storage.device_size,
            where,
            self._allocation(buffer, is_input, reach),
        )


def _named(op: Op) -> Origin:
    """The origin with the names of the buffers that the operation touches."""
    names = tuple(tensor.buffer.name for tensor in op.tensors)
    return msgspec.structs.replace(op.origin, operands=names)


@dataclass(frozen=True)
class _Walk:
    offset: int
    strides: Sizes


def _nests(op: Op) -> list[ir.Nest]:
    accesses = [op.output.access(), op.reads[0].access()]
    nests = ir.pieces(op.extents, accesses, merged=False)
    return [part for nest in nests for part in _within_span(nest, op.output.buffer.format.nbytes)]


def _within_span(nest: ir.Nest, nbytes: int) -> list[ir.Nest]:
    """A nest in halves, until one core can address what each of them touches."""
    reaches = [
        [abs(step) * (n - 1) * nbytes for n, step in zip(nest.extents, strides, strict=True)]
        for strides in nest.strides
    ]
    over = [reach for reach in reaches if sum(reach) + STICK_BYTES > SPAN_LIMIT]
    if not over:
        return [nest]
    dim = over[0].index(max(over[0]))
    half = nest.extents[dim] // 2
    parts = []
    for start, n in ((0, half), (half, nest.extents[dim] - half)):
        extents = (*nest.extents[:dim], n, *nest.extents[dim + 1 :])
        moved = zip(nest.offsets, nest.strides, strict=True)
        offsets = tuple(offset + start * strides[dim] for offset, strides in moved)
        parts += _within_span(nest._replace(extents=extents, offsets=offsets), nbytes)
    return parts


def _move_slices(op: Op, extents: Sizes, into: _Walk, source: _Walk) -> Sizes:
    may = move_splittable(op, source.strides, into.strides, extents)
    return work_division(extents, may, config.sencores)


def _loop_bytes(op: Op, operand: int) -> Sizes:
    nbytes = op.tensors[operand].buffer.format.nbytes
    return tuple(step * nbytes for step in op.loop_steps(operand))


def _loop_positions(op: Op, dim: int) -> Sizes:
    """Positions along a dimension by which each loop goes on; none if no loop takes it in parts."""
    assert op.fit is not None
    unit = op.fit.lanes if dim in (op.fit.stick, op.fit.lane) else 1
    steps = tuple(tile.share * unit if tile.dim == dim else 0 for tile in op.tiles)
    return steps if any(steps) else ()


def _reach(op: Op, operand: int) -> int:
    """Bytes from the start of the tensor to the end of the last stick that is touched."""
    fit, buffer = op.fit, op.tensors[operand].buffer
    assert fit is not None
    assert buffer.storage is not None
    extents = space_extents(fit.plan)
    last = 0
    for coordinate, stride in zip(fit.where[operand], buffer.storage.device_strides, strict=True):
        top = coordinate.offset + sum(
            max(_largest(term, extents[term.variable]), 0) for term in coordinate.terms
        )
        if coordinate.indirect is not None:
            top += op.rows - 1
        last += top * stride
    counts = [tile.parts for tile in op.tiles]
    steps = zip(op.loop_steps(operand), counts, strict=True)
    last += sum(max(step, 0) * (count - 1) for step, count in steps)
    return -(-(last + 1) * buffer.format.nbytes // STICK_BYTES) * STICK_BYTES


def _largest(term: Term, extent: int) -> int:
    top = (extent - 1) // term.floordiv
    return term.coefficient * (top if term.modulo is None else min(top, term.modulo - 1))


# ---- Scalars ------------------------------------------------------------------------------------


def _domain(value: Constant) -> Literal["F", "I"]:
    return "I" if value.domain == "I" else "F"


def _bits(value: Constant) -> int:
    if value.domain == "I":
        return int(value.value) & 0xFFFFFFFF
    number = float(value.value)
    try:
        return int(struct.unpack("<I", struct.pack("<f", number))[0])
    except OverflowError:  # beyond fp32: infinite there
        return 0x7F800000 if number > 0 else 0xFF800000


def _iota(value: Index, op: Op, fit: Fit) -> IotaArg | ConstantArg:
    """The count along the one loop of its operation, which its one dimension stems from."""
    (step,) = value.strides
    in_loops = tuple(step * n for n in _loop_positions(op, 0))
    if not fit.extents and not any(in_loops):  # a count of one number
        return ConstantArg("I", value.offset & 0xFFFFFFFF)
    return IotaArg(value.offset, tuple(step for _ in fit.extents), in_loops)
