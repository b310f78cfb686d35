"""KernelSpecs for tests: short ways to write them, and random ones."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from math import prod

import numpy as np
from hypothesis import strategies as st

from tests.ops import step_model
from torch_spyre.ir.spec import (
    Allocation,
    ConstantArg,
    Coordinate,
    Dim,
    IotaArg,
    KernelArg,
    KernelSpec,
    LoopSpec,
    OpSpec,
    TensorArg,
)
from torch_spyre.ir.terms import Term

FP16, FP32, INT32 = step_model.SEN169, step_model.FP32, step_model.INT32
LANES = {FP16: 64, FP32: 32, INT32: 32}


def at(*dims: int, offset: int = 0, coefficient: int = 1) -> Coordinate:
    """A coordinate that follows iteration dimensions one to one."""
    return Coordinate(offset, tuple(Term(dim, coefficient) for dim in dims))


def tile(dim: int, fmt: int = FP16) -> Coordinate:
    return Coordinate(0, (Term(dim, 1, LANES[fmt]),))


def lane(dim: int, fmt: int = FP16) -> Coordinate:
    return Coordinate(0, (Term(dim, 1, 1, LANES[fmt]),))


STILL = Coordinate()


def matrix(
    is_input: bool,
    where: Allocation,
    rows: int,
    columns: int,
    fmt: int = FP16,
    dims: tuple[int, int] = (0, 1),
    loop_bytes: tuple[int, ...] = (),
) -> TensorArg:
    """A (rows, columns) tensor in its default layout, iterated along two dimensions."""
    size = (-(-columns // LANES[fmt]), rows, LANES[fmt])
    place = (tile(dims[1], fmt), at(dims[0]), lane(dims[1], fmt))
    return TensorArg(is_input, fmt, size, place, where, loop_bytes=loop_bytes)


def column(
    is_input: bool, where: Allocation, rows: int, fmt: int = FP16, dim: int = 0
) -> TensorArg:
    """A (rows, 1) tensor: one element per stick."""
    size = (1, rows, LANES[fmt])
    return TensorArg(is_input, fmt, size, (STILL, at(dim), STILL), where)


def row(
    is_input: bool, where: Allocation, columns: int, fmt: int = FP16, dim: int = 1
) -> TensorArg:
    """A (columns,) tensor."""
    size = (-(-columns // LANES[fmt]), LANES[fmt])
    return TensorArg(is_input, fmt, size, (tile(dim, fmt), lane(dim, fmt)), where)


def arg(index: int) -> Allocation:
    return Allocation("arg", index)


def lx(address: int) -> Allocation:
    return Allocation("lx", address)


def pool(offset: int) -> Allocation:
    return Allocation("pool", offset)


def nbytes(tensor: TensorArg) -> int:
    return prod(tensor.device_size) * 128 // LANES[tensor.device_dtype]


def whole_args(*tensors: TensorArg) -> tuple[KernelArg, ...]:
    return tuple(KernelArg(t.device_dtype, nbytes(t), not t.is_input) for t in tensors)


def numbers(fmt: int, count: int, seed: int) -> np.ndarray:
    """Bytes of small whole numbers: sums of some hundred are exact in every format."""
    values = np.random.default_rng(seed).integers(-3, 4, count)
    widened = values.astype(np.int32 if fmt == INT32 else np.float32)
    return np.ascontiguousarray(step_model.narrow(widened, fmt)).view(np.uint8).copy()


def filled(kernel: KernelSpec, seed: int = 1) -> list[np.ndarray]:
    """Contents for all arguments; padding holds numbers too, so that it shows if it counts."""
    return [
        numbers(a.device_dtype, a.nbytes * LANES[a.device_dtype] // 128, seed + i)
        for i, a in enumerate(kernel.args)
    ]


# ---- Random kernels ------------------------------------------------------------------------------


@dataclass
class _Draft:
    """A kernel under construction over (batch, rows, columns), all divided in one way."""

    sizes: tuple[int, int, int]
    slices: tuple[int, int, int]
    lanes: int
    args: list[KernelArg] = field(default_factory=list)
    pool_bytes: int = 0
    lx_bytes: int = 0
    body: list[OpSpec] = field(default_factory=list)
    live: list[TensorArg] = field(default_factory=list)

    @property
    def dims(self) -> tuple[Dim, ...]:
        pairs = zip(self.sizes, self.slices, strict=True)
        return tuple(Dim(f"x{i}", size, count) for i, (size, count) in enumerate(pairs))

    def share(self, dim: int) -> int:
        unit = self.lanes if dim == 2 else 1
        iterations = -(-self.sizes[dim] // unit)
        return -(-iterations // self.slices[dim]) * unit

    def place(
        self, where: str, device_size: tuple[int, ...], fmt: int, written: bool
    ) -> Allocation:
        size = prod(device_size) * 128 // LANES[fmt]
        if where == "arg":
            self.args.append(KernelArg(fmt, size, written))
            return arg(len(self.args) - 1)
        if where == "pool":
            self.pool_bytes += size
            return pool(self.pool_bytes - size)
        self.lx_bytes += size
        return lx(self.lx_bytes - size)

    def tensor(
        self, is_input: bool, where: str, fmt: int, order: tuple[int, ...], moving: tuple[bool, ...]
    ) -> TensorArg:
        """`order` arranges the device dimensions (batch, rows, tiles); it is still along those
        not in `moving`."""
        of = self.share if where == "lx" else self.sizes.__getitem__
        counts = [of(dim) if moving[dim] else 1 for dim in range(3)]
        counts[2] = -(-counts[2] // LANES[fmt]) if moving[2] else 1
        places = [at(0), at(1), tile(2, fmt)]
        coordinates = [places[dim] if moving[dim] else STILL for dim in order]
        coordinates.append(lane(2, fmt) if moving[2] else STILL)
        device_size = (*(counts[dim] for dim in order), LANES[fmt])
        place = self.place(where, device_size, fmt, not is_input)
        return TensorArg(is_input, fmt, device_size, tuple(coordinates), place)


_ORDERS = tuple(itertools.permutations(range(3)))
_EVERYWHERE = (True, True, True)


@st.composite
def kernels(draw: st.DrawFn, most_operations: int = 4) -> KernelSpec:
    """Chains of pointwise operations and reductions over tensors of mixed layouts, formats and
    places, divided among the cores evenly or not."""
    formats = draw(st.sampled_from([(FP16,), (FP32,), (FP16, FP32)]))
    lanes = max(LANES[f] for f in formats)
    sizes = (
        draw(st.integers(1, 3)),
        draw(st.integers(1, 5)),
        draw(st.sampled_from([1, 7, 32, 64, 70, 100, 128, 200])),
    )
    iterations = (*sizes[:2], -(-sizes[2] // lanes))
    draft = _Draft(sizes, _slices(draw, iterations), lanes)
    for _ in range(draw(st.integers(1, most_operations))):
        _operation(draw, draft, formats)
        if draw(st.booleans()):  # other cores have other parts from here on
            draft.slices = _slices(draw, iterations)
            draft.live = [t for t in draft.live if t.allocation.component != "lx"]
    return KernelSpec(tuple(draft.args), tuple(draft.body), draft.pool_bytes)


def _slices(draw: st.DrawFn, iterations: tuple[int, ...]) -> tuple[int, ...]:
    slices: tuple[int, ...] = ()
    for count in iterations:
        most = min(count, 5, 32 // prod(slices))
        useful = [n for n in range(1, most + 1) if -(-count // -(-count // n)) == n]
        slices = (*slices, draw(st.sampled_from(useful)))
    return slices


def _operation(draw: st.DrawFn, draft: _Draft, formats: tuple[int, ...]) -> None:
    wide = [fmt for fmt in formats if LANES[fmt] == draft.lanes]
    first = draw(st.sampled_from(formats))
    # Some operand has the lanes that the kernel is divided by.
    result = draw(st.sampled_from(wide))
    other = draw(st.sampled_from(["tensor", "row", "column", "constant", "live"]))
    inputs = [_input(draw, draft, first, _EVERYWHERE)]
    if other == "constant":
        inputs.append(ConstantArg("F", int(np.float32(draw(st.integers(-2, 2))).view(np.uint32))))
    elif other == "live" and draft.live:
        inputs.append(draw(st.sampled_from(draft.live)))
    else:
        moving = {"row": (False, False, True), "column": (True, True, False)}
        inputs.append(_input(draw, draft, first, moving.get(other, _EVERYWHERE)))
    where = draw(st.sampled_from(["arg", "pool", "lx"]))
    output = draft.tensor(False, where, result, draw(st.sampled_from(_ORDERS)), _EVERYWHERE)
    name = draw(st.sampled_from(["add", "sub", "maximum", "mul"]))
    draft.body.append(
        OpSpec(name, "pointwise", draft.dims, (*inputs, output), stick=2, lanes=draft.lanes)
    )
    draft.live.append(
        TensorArg(True, result, output.device_size, output.device_coordinates, output.allocation)
    )


def _input(draw: st.DrawFn, draft: _Draft, fmt: int, moving: tuple[bool, ...]) -> TensorArg:
    if draft.live and moving == _EVERYWHERE and draw(st.booleans()):
        return draft.live[-1]
    return draft.tensor(True, "arg", fmt, draw(st.sampled_from(_ORDERS)), moving)


def in_a_loop(kernel: KernelSpec, count: int) -> KernelSpec:
    """The same operations `count` times, on consecutive parts of larger arguments."""

    def advance(op: OpSpec) -> OpSpec:
        args = tuple(
            TensorArg(
                a.is_input,
                a.device_dtype,
                a.device_size,
                a.device_coordinates,
                a.allocation,
                loop_bytes=(kernel.args[a.allocation.index].nbytes,),
            )
            if isinstance(a, TensorArg) and a.allocation.component == "arg"
            else a
            for a in op.args
        )
        return OpSpec(op.op, op.kind, op.iteration_space, args, op.stick, op.lanes)

    larger = tuple(KernelArg(a.device_dtype, a.nbytes * count, a.is_written) for a in kernel.args)
    body = LoopSpec(count, tuple(advance(op) for op in kernel.body if isinstance(op, OpSpec)))
    return KernelSpec(larger, (body,), kernel.pool_bytes)


__all__ = [
    "FP16",
    "FP32",
    "INT32",
    "IotaArg",
    "arg",
    "at",
    "column",
    "filled",
    "in_a_loop",
    "kernels",
    "lane",
    "lx",
    "matrix",
    "nbytes",
    "pool",
    "row",
    "tile",
    "whole_args",
]
