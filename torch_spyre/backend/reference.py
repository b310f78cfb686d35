"""Runs a bundle in numpy, element by element as its SuperDSCs say: slow, short, independent.

Shares nothing with the back end or the card: no card program, no sticks per iteration, no barriers.
Every operation reads the positions of `N_` and nothing behind them, so padding can't matter, and
finds elements through the folds of its allocate nodes. What it checks is therefore both the
lowering (`lower.py`) and the card; what it can't see is whether the SuperDSC says what the model
meant.

Memory that nobody has written is noise, so that reading it shows.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from torch_spyre.backend.reference_ops import POINTWISE, RAW, REDUCTIONS, Array, narrow, widen
from torch_spyre.ir import STICK_BYTES
from torch_spyre.ir.bundle import Address, Bundle, Execute, Node, sdsc_file
from torch_spyre.ir.superdsc import (
    MATMULS,
    RELAYOUT,
    RESTICKIFY,
    STICKWISE,
    Allocate,
    BundleError,
    DataFormat,
    Dsc,
    FoldProp,
    SuperDSC,
)

LX_BYTES = 2 << 20


class UncheckableError(Exception):
    """The reference has no meaning for an operation."""


@dataclass
class Memory:
    """Bytes, and which of them an operation has written."""

    data: Array
    is_written: Array

    @classmethod
    def noise(cls, nbytes: int) -> Memory:
        data = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
        return cls(data, np.zeros(nbytes, np.bool_))

    @classmethod
    def of(cls, data: Array) -> Memory:
        return cls(data.copy(), np.zeros(data.size, np.bool_))


@dataclass
class Reference:
    """A bundle and the memory that its arguments stand for."""

    bundle: Bundle
    arguments: list[Memory]
    extents: Sequence[int] = ()
    pool: Memory = field(init=False)
    lx: dict[int, Memory] = field(default_factory=dict)  # by core

    def __post_init__(self) -> None:
        self.pool = Memory.noise(self.bundle.pool_bytes)

    def run(self) -> None:
        with np.errstate(all="ignore"):
            self._body(self.bundle.body, ())

    def _body(self, body: tuple[Node, ...], loops: tuple[int, ...]) -> None:
        for node in body:
            if isinstance(node, Execute):
                self._execute(node, loops)
            else:
                for i in range(node.count):
                    self._body(node.body, (*loops, i))

    def _execute(self, node: Execute, loops: tuple[int, ...]) -> None:
        """All cores read before any writes: between cores there is no order within an operation."""
        sdsc = self.bundle.sdscs[node.sdsc]
        parts = [
            _Part(self, sdsc, node, loops, core, slices) for core, slices in _slices(sdsc).items()
        ]
        rings: dict[tuple[int, ...], Array] = {}  # by what the cores of a ring have in common
        for part in parts:
            own = part.compute()
            rings[part.ring] = part.combine(rings[part.ring], own) if part.ring in rings else own
        for part in parts:
            part.store(part.finish(rings[part.ring]))

    def memory(self, address: Address, core: int) -> Memory:
        if address.base == "arg":
            return self.arguments[address.index]
        if address.base == "pool":
            return self.pool
        return self.lx.setdefault(core, Memory.noise(LX_BYTES))


def _slices(sdsc: SuperDSC) -> dict[int, dict[str, int]]:
    return {int(core): slices for core, slices in sdsc.coreIdToWkSlice_.items()}


@dataclass
class _Part:
    """One core's part of an operation."""

    reference: Reference
    sdsc: SuperDSC
    node: Execute
    loops: tuple[int, ...]
    core: int
    slices: Mapping[str, int]

    def __post_init__(self) -> None:
        stage = self.dsc.dataStageParam_["0"]
        self.names = tuple(self.sdsc.numWkSlicesPerDim_)
        self.first: list[int] = []  # of this core, per dimension
        self.counts: list[int] = []
        for name, count in self.sdsc.numWkSlicesPerDim_.items():
            place = self.slices.get(name, 0)
            share = int(stage.ss_[f"{name}_"])
            self.first.append(place * share)
            self.counts.append(int(stage.el_[f"{name}_"]) if place == count - 1 else share)

    @property
    def dsc(self) -> Dsc:
        return self.sdsc.dsc

    @property
    def op(self) -> str:
        return self.dsc.computeOp_[0].opFuncName

    def positions(self, dim: int) -> Array:
        """Positions within the part along a dimension, lying along its axis."""
        shape = [1] * len(self.names)
        shape[dim] = self.counts[dim]
        return np.arange(self.counts[dim]).reshape(shape)

    # ---- Tensors ---------------------------------------------------------------------------------

    def number(self, label: str) -> int:
        return int(label.removeprefix("Tensor").partition("-")[0])

    def node_of(self, tensor: int) -> Allocate:
        return next(node for node in self.dsc.scheduleTree_ if node.ldsIdx_ == tensor)

    def format(self, tensor: int) -> DataFormat:
        return self.dsc.labeledDs_[tensor].dataFormat_

    def addresses(self, tensor: int) -> Array:
        """Byte addresses, one per position; axes along which it stands still have length 1."""
        node, fmt = self.node_of(tensor), self.format(tensor)
        given = self.node.addresses[tensor]
        start = node.startAddressCoreCorelet_.data_[f"[{self.core}, 0, 0]"]
        start += sum(i * step for i, step in zip(self.loops, given.loop_bytes, strict=False))
        total: Array = np.full([1] * len(self.names), start)
        for name, stride in _byte_strides(node, fmt).items():
            info = node.coordinates_.coordInfo[name]
            lanes = fmt.lanes if info.elemArr == STICKWISE else 1
            folds = list(zip(info.folds.dim_prop_func, info.folds.dim_prop_attr, strict=True))
            for function, attr in folds:
                if function.Indirect is not None:
                    total = total + self.load(function.Indirect.ldsIdx_) * stride
                elif function.Affine is not None and attr.label_.startswith("elem_arr_"):
                    if not function.Affine.alpha_:
                        continue
                    index = self.digit(name, attr, [prop for _, prop in folds])
                    if lanes > 1 and attr.label_ == "elem_arr_0":
                        total = total + index * fmt.nbytes
                    else:
                        total = total + index * (function.Affine.alpha_ // lanes * stride)
        return total

    def digit(self, entry: str, attr: FoldProp, folds: Sequence[FoldProp]) -> Array:
        """The index of a fold: a position is a number whose digits are its dimension's folds."""
        dim = attr.dim_ or entry
        at = self.positions(self.names.index(dim))
        own = sorted(
            (int(fold.label_.removeprefix("elem_arr_")), fold.factor_)
            for fold in folds
            if fold.label_.startswith("elem_arr_") and (fold.dim_ or entry) == dim
        )
        for number, factor in own[:-1]:
            if f"elem_arr_{number}" == attr.label_:
                return at % factor
            at = at // factor
        return at

    def load(self, tensor: int) -> Array:
        fmt = self.format(tensor)
        memory = self.reference.memory(self.node.addresses[tensor], self.core)
        at = self.addresses(tensor)
        self.check(tensor, at, memory)
        return widen(memory.data.view(RAW[fmt])[at // fmt.nbytes], fmt)

    def collect(self, tensor: int) -> Array:
        """The parts of a relayout, each from the scratchpad of its owner."""
        fmt, at = self.format(tensor), self.addresses(tensor)
        owners = self.node_of(tensor).coreIdToOwners_
        assert isinstance(owners, dict)
        slices = self.sdsc.numWkSlicesPerDim_.values()
        is_part = [n == s == 1 for n, s in zip(at.shape, slices, strict=True)]
        parts = [n if part else 1 for n, part in zip(self.counts, is_part, strict=True)]
        result = np.empty(
            np.broadcast_shapes(at.shape, parts), np.float64 if fmt.domain == "F" else np.int64
        )
        for place, owner in zip(np.ndindex(*parts), owners[str(self.core)], strict=True):
            memory = self.reference.memory(self.node.addresses[tensor], owner)
            self.check(tensor, at, memory)
            here = tuple(
                slice(i, i + 1) if part else slice(None)
                for i, part in zip(place, is_part, strict=True)
            )
            result[here] = widen(memory.data.view(RAW[fmt])[at // fmt.nbytes], fmt)
        return result

    def store(self, result: Array) -> None:
        tensor = self.number(self.dsc.computeOp_[0].outputLabeledDs[0])
        fmt = self.format(tensor)
        memory = self.reference.memory(self.node.addresses[tensor], self.core)
        at = self.addresses(tensor)
        self.check(tensor, at, memory)
        at, values = np.broadcast_arrays(at, result)
        # A kernel of one element has no dimensions: its value must not gain one.
        memory.data.view(RAW[fmt])[at // fmt.nbytes] = narrow(values, fmt).reshape(at.shape)
        memory.is_written.reshape(-1, fmt.nbytes)[at // fmt.nbytes] = True

    def check(self, tensor: int, at: Array, memory: Memory) -> None:
        if at.size and not 0 <= at.min() <= at.max() < memory.data.size:
            raise BundleError(
                sdsc_file(self.node.sdsc),
                f".{self.sdsc.name}",
                f"core {self.core} addresses bytes {at.min()}..{at.max()} of tensor {tensor}, "
                f"which has {memory.data.size}",
            )

    # ---- Operations ------------------------------------------------------------------------------

    @property
    def ring(self) -> tuple[int, ...]:
        """The slice of the results: cores that have it in common make them together."""
        gone = self.reduced_axes() if self.op in (*REDUCTIONS, *MATMULS) else ()
        names = (name for i, name in enumerate(self.names) if i not in gone)
        return tuple(self.slices.get(name, 0) for name in names)

    def combine(self, first: Array, second: Array) -> Array:
        """Partial results of two cores."""
        combine = REDUCTIONS[self.op][0] if self.op in REDUCTIONS else np.add
        return np.asarray(combine(first, second))

    def finish(self, result: Array) -> Array:
        if self.op != "mean":
            return result
        return result / self.operand(self.dsc.computeOp_[0].inputLabeledDs[1])

    def compute(self) -> Array:
        """What this core computes: the result, or its part of an accumulation."""
        inputs = self.dsc.computeOp_[0].inputLabeledDs
        if self.op in ("gather", "gather_int"):
            self.check_index()
            return self.load(self.number(inputs[0]))
        if self.op == RELAYOUT:
            return self.collect(self.number(inputs[0]))
        operands = [self.operand(label) for label in inputs]
        if self.op == RESTICKIFY:
            return operands[0]
        if self.op in MATMULS:
            return self.matmul(*operands)
        if self.op in REDUCTIONS:
            return self.reduce(operands[0])
        if self.op not in POINTWISE:
            raise UncheckableError(f"the reference does not know '{self.op}'")
        return POINTWISE[self.op](*np.broadcast_arrays(*operands))

    def operand(self, label: str) -> Array:
        if not label.startswith("Constant"):
            return self.load(self.number(label))
        number = label.removeprefix("Constant").partition("-")[0]
        constant = self.dsc.constantInfo_[number]
        folds = zip(constant.data_.dim_prop_func, constant.data_.dim_prop_attr, strict=True)
        if constant.data_.dim_prop_func[0].Affine is None:
            is_float = constant.dataFormat_.domain == "F"
            word = struct.pack("<I", constant.data_.data_["[0, 0, 0]"])
            return np.array(struct.unpack("<f" if is_float else "<i", word)[0])
        total: Array = np.zeros([1] * len(self.names), np.int64)
        for function, attr in folds:
            assert function.Affine is not None
            if attr.label_ in self.names:
                dim = self.names.index(attr.label_)
                index: Array | int = self.first[dim] + self.positions(dim)
            else:
                index = self.loops[int(attr.label_.removeprefix("loop_"))]
            total = total + index * function.Affine.alpha_ + function.Affine.beta_
        return total

    def counting(self) -> Array:
        """Which positions count, along the dimensions that have masks."""
        result: Array = np.ones([1] * len(self.names), np.bool_)
        for name, ranges in self.dsc.coordinateMasking_.items():
            dim = self.names.index(name)
            for span in ranges:
                limit = span.start_
                if isinstance(limit, str):
                    limit = self.reference.extents[int(limit.removeprefix("extent_"))]
                at = self.first[dim] + self.positions(dim)
                at = at + sum(map(int.__mul__, span.loopOffsets_, self.loops))
                result = result & (at < limit)
        return result

    def reduced_axes(self) -> tuple[int, ...]:
        output = self.dsc.labeledDs_[self.number(self.dsc.computeOp_[0].outputLabeledDs[0])]
        return tuple(i for i, name in enumerate(self.names) if output.scale_[name] < 0)

    def reduce(self, values: Array) -> Array:
        combine, neutral = REDUCTIONS[self.op]
        if self.op == "sum_squares":
            values = np.square(values)
        whole = np.broadcast_to(values, self.counts)
        counting = np.broadcast_to(self.counting(), self.counts)
        whole = np.where(counting, whole, np.asarray(neutral).astype(whole.dtype))
        return np.asarray(combine.reduce(whole, axis=self.reduced_axes(), keepdims=True))

    def matmul(self, a: Array, b: Array) -> Array:
        """Σ over k, along the axes that the result stands still along."""
        counting = self.counting()
        a, b = (np.where(counting, operand, 0.0) for operand in (a, b))
        gone = self.reduced_axes()
        axes = range(len(self.names))
        # An operand that stands still along an axis takes no part in it, unless k repeats it.
        for axis in gone:
            shape = [1] * len(self.names)
            shape[axis] = self.counts[axis]
            a = np.broadcast_to(a, np.broadcast_shapes(a.shape, shape))
            b = np.broadcast_to(b, np.broadcast_shapes(b.shape, shape))
        own = [[i for i in axes if o.shape[i] > 1 or i in gone] for o in (a, b)]
        kept = [i for i in axes if i not in gone and (i in own[0] or i in own[1])]
        squeezed = [
            o.reshape([o.shape[i] for i in used]) for o, used in zip((a, b), own, strict=True)
        ]
        product = np.einsum(squeezed[0], own[0], squeezed[1], own[1], kept, optimize=True)
        return np.asarray(product).reshape([self.counts[i] if i in kept else 1 for i in axes])

    def check_index(self) -> None:
        inputs = self.dsc.computeOp_[0].inputLabeledDs
        index = self.load(self.number(inputs[1]))
        (ranges,) = self.dsc.coordinateMasking_.values()
        rows = ranges[0].start_
        if isinstance(rows, str):
            rows = self.reference.extents[int(rows.removeprefix("extent_"))]
        if index.size and not 0 <= index.min() <= index.max() < rows:
            raise IndexError(f"{self.op}: index {index.min()}..{index.max()} of {rows} rows")


def _byte_strides(node: Allocate, fmt: DataFormat) -> dict[str, int]:
    """Bytes per position of each device dimension; per stick for the stick dimension."""
    infos = node.coordinates_.coordInfo
    has_sticks = any(info.elemArr == STICKWISE for info in infos.values())
    stride = STICK_BYTES if has_sticks else fmt.nbytes
    strides = {}
    for name, size in zip(reversed(node.layoutDimOrder_), reversed(node.maxDimSizes_), strict=True):
        strides[name] = stride
        stride *= size // fmt.lanes if infos[name].elemArr == STICKWISE else size
    return strides
