"""What a KernelSpec means, computed element by element from its coordinates.

Shares nothing with the compiler: no sticks, no steps, no strides. Every element that the
iteration space names is read, computed and written; what else a card touches is padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from tests.ops import step_model
from torch_spyre.ir.spec import (
    ConstantArg,
    Coordinate,
    IotaArg,
    KernelSpec,
    LoopSpec,
    OpSpec,
    TensorArg,
)


@dataclass
class Memory:
    """Bytes of the arguments, the pool and each core's LX, and which of them were computed."""

    args: list[np.ndarray]
    pool: np.ndarray
    lx: list[np.ndarray]
    computed: dict[tuple[str, int], np.ndarray]

    @classmethod
    def of(cls, kernel: KernelSpec, fill: Sequence[np.ndarray], seed: int = 0) -> Memory:
        rng = np.random.default_rng(seed)
        # Patterns that are numbers in every format: padding must not matter, NaN or not.
        pool = rng.integers(0, 256, kernel.pool_bytes, dtype=np.uint8)
        lx = [rng.integers(0, 256, 1 << 16, dtype=np.uint8) for _ in range(32)]
        args = [array.copy() for array in fill]
        computed = {("arg", i): np.zeros(a.size, bool) for i, a in enumerate(args)}
        computed["pool", 0] = np.zeros(pool.size, bool)
        return cls(args, pool, lx, computed)

    def bytes_of(self, arg: TensorArg, core: int) -> tuple[np.ndarray, int, tuple[str, int]]:
        where = arg.allocation
        if where.component == "arg":
            return self.args[where.index], 0, ("arg", where.index)
        if where.component == "pool":
            return self.pool, where.index, ("pool", 0)
        return self.lx[core], where.index, ("lx", core)


def evaluate(kernel: KernelSpec, memory: Memory, extents: Sequence[int] = ()) -> None:
    """Run all operations in order."""

    def run(body: Sequence[OpSpec | LoopSpec], loops: tuple[int, ...]) -> None:
        for node in body:
            if isinstance(node, LoopSpec):
                for i in range(node.count):
                    run(node.body, (*loops, i))
            else:
                for core, (starts, sizes) in enumerate(parts(_without_rings(node))):
                    _run_core(node, memory, core, starts, sizes, loops, extents)

    run(kernel.body, ())


def _without_rings(op: OpSpec) -> OpSpec:
    """Cores that accumulate together make what one would, up to the order of additions."""
    space = tuple(
        dim._replace(slices=1) if i in op.reduced else dim
        for i, dim in enumerate(op.iteration_space)
    )
    return msgspec.structs.replace(op, iteration_space=space)


def parts(op: OpSpec) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Start and size of each core's part, in core order."""
    per_dim = []
    for i, dim in enumerate(op.iteration_space):
        unit = op.lanes if i in (op.stick, op.lane) else 1
        iterations = -(-dim.extent // unit)
        share = -(-iterations // dim.slices) * unit
        starts = range(0, dim.extent, share)
        assert len(starts) == dim.slices
        per_dim.append([(start, min(share, dim.extent - start)) for start in starts])
    return [
        (tuple(start for start, _ in part), tuple(size for _, size in part))
        for part in itertools.product(*per_dim)
    ]


def _run_core(
    op: OpSpec,
    memory: Memory,
    core: int,
    starts: tuple[int, ...],
    sizes: tuple[int, ...],
    loops: tuple[int, ...],
    extents: Sequence[int],
) -> None:
    local = np.indices(sizes)
    whole = [grid + start for grid, start in zip(local, starts, strict=True)]

    def place(arg: TensorArg) -> np.ndarray:
        grids = local if arg.allocation.component == "lx" else whole
        flat = np.zeros(sizes, np.int64)
        for size, coordinate in zip(arg.device_size, arg.device_coordinates, strict=True):
            at = _along(coordinate, grids, sizes)
            if coordinate.indirect is not None:
                at = at + read(op.args[coordinate.indirect])
            assert (at >= 0).all() and (at < size).all()
            flat = flat * size + at
        _, base, _ = memory.bytes_of(arg, core)
        step = sum(i * n for i, n in zip(loops, arg.loop_bytes, strict=False))
        itemsize = np.dtype(step_model.RAW[arg.device_dtype]).itemsize
        return base + step + flat * itemsize

    def read(arg: TensorArg | ConstantArg | IotaArg) -> np.ndarray:
        if isinstance(arg, ConstantArg):
            word = np.array([arg.bits], np.uint32)
            return np.broadcast_to(word.view(np.float32 if arg.domain == "F" else np.int32), sizes)
        if isinstance(arg, IotaArg):
            total = np.full(sizes, arg.offset, np.int64)
            for step, grid in zip(arg.steps, whole, strict=True):
                total += step * grid
            for step, i in zip(arg.loop_steps, loops, strict=True):
                total += step * i
            return total.astype(np.int32)
        data, _, _ = memory.bytes_of(arg, core)
        raw = np.dtype(step_model.RAW[arg.device_dtype])
        at = place(arg)[..., None] + np.arange(raw.itemsize)
        return step_model.widen(data[at].view(raw)[..., 0], arg.device_dtype)

    result, keep = _compute(op, [read(arg) for arg in op.inputs], whole, loops, extents)
    output = op.output
    raw = np.dtype(step_model.RAW[output.device_dtype])
    at = place(output)[keep].reshape(-1)
    encoded = np.ascontiguousarray(step_model.narrow(result.reshape(-1), output.device_dtype))
    data, _, key = memory.bytes_of(output, core)
    spread = at[:, None] + np.arange(raw.itemsize)
    data[spread] = encoded.view(np.uint8).reshape(-1, raw.itemsize)
    if key in memory.computed:
        memory.computed[key][spread] = True


def _compute(
    op: OpSpec,
    inputs: list[np.ndarray],
    whole: list[np.ndarray],
    loops: tuple[int, ...],
    extents: Sequence[int],
) -> tuple[np.ndarray, tuple[slice | int, ...]]:
    """Values, and which iterations they stand for: one for all positions of a reduced dimension."""
    everywhere: tuple[slice | int, ...] = (slice(None),) * len(whole)
    if op.kind == "gather" or op.kind == "restickify":
        return inputs[0], everywhere
    if op.kind == "pointwise":
        return np.broadcast_to(step_model.run(op.op, *inputs), whole[0].shape), everywhere
    counts = np.ones(whole[0].shape, bool)
    for mask in op.masks:
        valid = extents[mask.valid] if mask.is_symbol else mask.valid
        offset = sum(i * n for i, n in zip(loops, mask.loop_positions, strict=False))
        counts &= whole[mask.dim] + offset < valid
    keep = tuple(0 if i in op.reduced else slice(None) for i in range(len(whole)))
    name = op.op.removesuffix("_int")
    values = inputs[0].astype(np.float64)
    if op.kind == "matmul":
        values = values * inputs[1].astype(np.float64)
    if name in ("amax", "amin"):
        function, neutral = (np.max, -np.inf) if name == "amax" else (np.min, np.inf)
        total = function(np.where(counts, values, neutral), axis=op.reduced)
    elif name == "prod":
        total = np.prod(np.where(counts, values, 1.0), axis=op.reduced)
    else:
        total = np.sum(np.where(counts, values, 0.0), axis=op.reduced)
    if name == "mean":
        total = total / inputs[1][keep]
    kind = np.int32 if op.op.endswith("_int") else np.float32
    return total.astype(kind), keep


def _along(
    coordinate: Coordinate, grids: Sequence[np.ndarray], sizes: tuple[int, ...]
) -> np.ndarray:
    total = np.full(sizes, coordinate.offset, np.int64)
    for term in coordinate.terms:
        value = grids[term.variable] // term.floordiv
        if term.modulo is not None:
            value = value % term.modulo
        total += term.coefficient * value
    return total
