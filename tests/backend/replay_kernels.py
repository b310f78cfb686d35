"""Kernels for tests of the way from a KernelSpec to a launch, small enough to be read."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from torch_spyre._C import DataFormats
from torch_spyre._inductor.codegen.superdsc import bundle_of
from torch_spyre.backend.kernel import ArgView
from torch_spyre.ir.bundle import Bundle
from torch_spyre.ir.spec import (
    Allocation,
    ConstantArg,
    Coordinate,
    Dim,
    KernelArg,
    KernelSpec,
    LoopSpec,
    Mask,
    OpSpec,
    Origin,
    TensorArg,
)
from torch_spyre.ir.terms import Term

FP16 = int(DataFormats.SEN169_FP16)
INT32 = int(DataFormats.IEEE_INT32)
STICK = 128


def arg(index: int) -> Allocation:
    return Allocation("arg", index)


def lx(address: int) -> Allocation:
    return Allocation("lx", address)


def tile(dim: int, lanes: int = 64) -> Coordinate:
    return Coordinate(0, (Term(dim, 1, floordiv=lanes),))


def lane(dim: int, lanes: int = 64) -> Coordinate:
    return Coordinate(0, (Term(dim, 1, modulo=lanes),))


def along(dim: int) -> Coordinate:
    return Coordinate(0, (Term(dim, 1),))


def matrix(where: Allocation, rows: int, columns: int, is_input: bool = True) -> TensorArg:
    """A default fp16 layout walked by dimensions 0 (rows) and 1 (columns)."""
    size = (-(-columns // 64), rows, 64)
    return TensorArg(is_input, FP16, size, (tile(1), along(0), lane(1)), where)


def column(where: Allocation, rows: int, is_input: bool = True) -> TensorArg:
    """One element per stick: what a reduction of the columns gives."""
    return TensorArg(is_input, FP16, (rows, 64), (along(0), Coordinate()), where)


def nbytes(rows: int, columns: int) -> int:
    return -(-columns // 64) * rows * STICK


def add_kernel(rows: int = 96, columns: int = 200, line: int = 41) -> KernelSpec:
    """arg2 = arg0 + arg1, on 16 cores."""
    op = OpSpec(
        "add",
        "pointwise",
        (Dim("m", rows, 4), Dim("n", columns, 4)),
        (
            matrix(arg(0), rows, columns),
            matrix(arg(1), rows, columns),
            matrix(arg(2), rows, columns, is_input=False),
        ),
        stick=1,
        lanes=64,
        origin=Origin("model.py", line, "forward", "y = a + b", "add", "buf0"),
    )
    size = nbytes(rows, columns)
    args = (KernelArg(FP16, size, False), KernelArg(FP16, size, False), KernelArg(FP16, size, True))
    return KernelSpec(args, (op,))


def softmax_kernel(rows: int = 64, columns: int = 200, slices: int = 4) -> KernelSpec:
    """arg1 = softmax of the rows of arg0, with everything between in LX."""
    own = rows // slices  # rows of one core
    space = (Dim("m", rows, slices), Dim("n", columns, 1))
    size = nbytes(own, columns)
    shifted, top, total = lx(0), lx(size), lx(size + own * STICK)

    def reduction(op: str, source: TensorArg, target: TensorArg) -> OpSpec:
        mask = (Mask(1, columns),)
        args = (source, target)
        return OpSpec(op, "reduction", space, args, stick=1, lanes=64, reduced=(1,), masks=mask)

    def pointwise(op: str, *args: TensorArg) -> OpSpec:
        return OpSpec(op, "pointwise", space, args, stick=1, lanes=64)

    x = matrix(arg(0), rows, columns)
    y = matrix(arg(1), rows, columns, is_input=False)
    body = (
        reduction("amax", x, column(top, own, is_input=False)),
        pointwise("sub", x, column(top, own), matrix(shifted, own, columns, is_input=False)),
        pointwise("exp", matrix(shifted, own, columns), matrix(shifted, own, columns, False)),
        reduction("sum", matrix(shifted, own, columns), column(total, own, is_input=False)),
        pointwise("div", matrix(shifted, own, columns), column(total, own), y),
    )
    whole = nbytes(rows, columns)
    return KernelSpec((KernelArg(FP16, whole, False), KernelArg(FP16, whole, True)), body)


def matmul_kernel(m: int = 20, k: int = 100, n: int = 130) -> KernelSpec:
    """arg2[m, n] = arg0[m, k] @ arg1[k, n]; dimensions m, n, k."""
    op = OpSpec(
        "batchmatmul",
        "matmul",
        (Dim("m", m, 2), Dim("n", n, 3), Dim("k", k, 1)),
        (
            TensorArg(True, FP16, (-(-k // 64), m, 64), (tile(2), along(0), lane(2)), arg(0)),
            TensorArg(True, FP16, (-(-n // 64), k, 64), (tile(1), along(2), lane(1)), arg(1)),
            TensorArg(False, FP16, (-(-n // 64), m, 64), (tile(1), along(0), lane(1)), arg(2)),
        ),
        stick=1,
        lane=2,
        lanes=64,
        reduced=(2,),
        masks=(Mask(2, k),),
    )
    args = (
        KernelArg(FP16, nbytes(m, k), False),
        KernelArg(FP16, nbytes(k, n), False),
        KernelArg(FP16, nbytes(m, n), True),
    )
    return KernelSpec(args, (op,))


def ring_kernel(k: int = 300) -> KernelSpec:
    """The matmul with k cut over rings of 5 cores."""
    kernel = matmul_kernel(k=k)
    (op,) = kernel.body
    assert isinstance(op, OpSpec)
    m, n, depth = op.iteration_space
    space = (m, n, Dim(depth.name, k, 5))
    return msgspec.structs.replace(
        kernel, body=(msgspec.structs.replace(op, iteration_space=space),)
    )


def ring_mean_kernel(rows: int = 3, columns: int = 400) -> KernelSpec:
    """arg1[i] = mean of row i, each row on 4 cores."""
    count = ConstantArg("F", int(np.float32(columns).view(np.uint32)))
    op = OpSpec(
        "mean",
        "reduction",
        (Dim("m", rows, 3), Dim("n", columns, 4)),
        (matrix(arg(0), rows, columns), count, column(arg(1), rows, is_input=False)),
        stick=1,
        lanes=64,
        reduced=(1,),
        masks=(Mask(1, columns),),
    )
    args = (KernelArg(FP16, nbytes(rows, columns), False), KernelArg(FP16, rows * STICK, True))
    return KernelSpec(args, (op,))


def gather_kernel(rows: int = 50, columns: int = 128, count: int = 7) -> KernelSpec:
    """arg2[i] = arg0[arg1[i]]; the rows of the table are contiguous."""
    table = (
        Coordinate(0, (), indirect=1),
        tile(1),
        lane(1),
    )
    op = OpSpec(
        "gather",
        "gather",
        (Dim("i", count, 1), Dim("n", columns, 1)),
        (
            TensorArg(True, FP16, (rows, columns // 64, 64), table, arg(0)),
            TensorArg(True, INT32, (1, 32), (Coordinate(), along(0)), arg(1)),
            TensorArg(
                False, FP16, (count, columns // 64, 64), (along(0), tile(1), lane(1)), arg(2)
            ),
        ),
        stick=1,
        lanes=64,
        rows=rows,
    )
    args = (
        KernelArg(FP16, rows * columns * 2, False),
        KernelArg(INT32, STICK, False),
        KernelArg(FP16, count * columns * 2, True),
    )
    return KernelSpec(args, (op,))


def pool_kernel(rows: int = 32, columns: int = 100) -> KernelSpec:
    """arg1 = relu(2 · arg0), with the product in the pool."""
    space = (Dim("m", rows, 2), Dim("n", columns, 1))
    pool = Allocation("pool", 0)
    two = ConstantArg("F", 0x40000000)
    size = nbytes(rows, columns)
    body = (
        OpSpec(
            "mul",
            "pointwise",
            space,
            (matrix(arg(0), rows, columns), two, matrix(pool, rows, columns, is_input=False)),
            stick=1,
            lanes=64,
        ),
        OpSpec(
            "relu",
            "pointwise",
            space,
            (matrix(pool, rows, columns), matrix(arg(1), rows, columns, is_input=False)),
            stick=1,
            lanes=64,
        ),
    )
    args = (KernelArg(FP16, size, False), KernelArg(FP16, size, True))
    return KernelSpec(args, body, pool_bytes=size)


def loop_kernel(tiles: int = 3, rows: int = 32) -> KernelSpec:
    """arg1 = -arg0, a tile of 64 columns at a time."""
    step = rows * STICK
    body = OpSpec(
        "neg",
        "pointwise",
        (Dim("m", rows, 2), Dim("n", 64, 1)),
        tuple(
            TensorArg(
                i == 0,
                FP16,
                (1, rows, 64),
                (tile(1), along(0), lane(1)),
                arg(i),
                loop_bytes=(step,),
            )
            for i in range(2)
        ),
        stick=1,
        lanes=64,
    )
    size = tiles * step
    args = (KernelArg(FP16, size, False), KernelArg(FP16, size, True))
    return KernelSpec(args, (LoopSpec(tiles, (body,)),))


def masked_sum_kernel(rows: int = 16, columns: int = 128) -> KernelSpec:
    """arg1[i] = sum of the first n elements of row i; n comes with the launch."""
    op = OpSpec(
        "sum",
        "reduction",
        (Dim("m", rows, 2), Dim("n", columns, 1)),
        (matrix(arg(0), rows, columns), column(arg(1), rows, is_input=False)),
        stick=1,
        lanes=64,
        reduced=(1,),
        masks=(Mask(1, 0, is_symbol=True),),
    )
    args = (KernelArg(FP16, nbytes(rows, columns), False), KernelArg(FP16, rows * STICK, True))
    return KernelSpec(args, (op,), extents=(columns,))


KERNELS = {
    "add": add_kernel,
    "softmax": softmax_kernel,
    "matmul": matmul_kernel,
    "ring": ring_kernel,
    "ring_mean": ring_mean_kernel,
    "gather": gather_kernel,
    "pool": pool_kernel,
    "loop": loop_kernel,
    "masked_sum": masked_sum_kernel,
}


def add_views(rows: int = 96, columns: int = 200) -> tuple[ArgView, ...]:
    """How a model sees the arguments of `add_kernel`."""
    tiles = -(-columns // 64)
    view = ArgView((rows, columns), (columns, 1), "float16", (tiles, rows, 64), (64, columns, 1))
    return (view, view, view)


def write_bundle(spec: KernelSpec, directory: Path) -> Bundle:
    bundle = bundle_of(spec)
    bundle.write(directory)
    return bundle
