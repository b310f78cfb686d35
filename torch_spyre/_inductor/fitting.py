"""How one operation walks whole sticks, given the layouts of its tensors; or what is in the way.

Three outcomes, three values: a `Fit`, a `Misfit` that a copy of one operand to another layout
cures, or `Unsupported`, raised where no layout would.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch_spyre import ir
from torch_spyre.ir.align_gather import align_gather
from torch_spyre.ir.arguments import (
    device_coordinates,
    element_coordinates,
    gather_coordinates,
)
from torch_spyre.ir.walks import MAX_RANK
from torch_spyre.ops.views import layout, order_with_stick

from .graph import Buffer, Fit, Op, Read, Sizes, dense

SPARSE = -1
MOST_NESTS = 4  # of the flat copy of an index


@dataclass(frozen=True)
class Misfit:
    """Operand `operand` (of the tensors, the output last) must be copied first (or last).

    The copy's sticks run along loop `stick`; SPARSE: one element per stick; None: the last loop.
    A loop along which it does not move makes it sparse too, as one lane then serves all. A flat
    copy holds its elements one after the other (an index); a whole copy is one of the entire
    buffer (a table).
    """

    operand: int
    reason: str
    stick: int | None = None
    is_flat: bool = False
    is_whole: bool = False


def fit(op: Op) -> Fit | Misfit:
    """Align an operation whose tensors all have layouts."""
    if op.kind == "matmul":
        return _fit_matmul(op)
    if op.kind == "gather":
        return _fit_gather(op)
    accesses = [tensor.access() for tensor in op.tensors]
    last = len(accesses) - 1
    plan = ir.align(
        op.extents,
        accesses,
        outputs=(last,),
        lead=0 if op.kind == "reduction" else last,
        reduced=op.reduced,
        merged=False,
    )
    if isinstance(plan, ir.NeedsCopy):
        return Misfit(plan.access, plan.reason, plan.stick)
    return Fit(plan, device_coordinates(plan, _storages(op)))


def fit_move(op: Op) -> Fit | None:
    """A copy element by element, if it is one loop nest; None if it is several."""
    nests = ir.pieces(op.extents, [op.reads[0].access(), op.output.access()], merged=False)
    if len(nests) != 1 or len(nests[0].extents) > MAX_RANK:
        return None
    nest = nests[0]
    extents = nest.extents or (1,)
    walks = tuple(
        ir.Walk(offset, strides or (0,), "element", 1, 0, 0)
        for offset, strides in zip(nest.offsets, nest.strides, strict=True)
    )
    where = tuple(
        element_coordinates(storage, walk.offset, walk.strides, extents)
        for storage, walk in zip(_storages(op), walks, strict=True)
    )
    plan = ir.Aligned(extents, None, 1, walks, (), None, (None,) * len(extents))
    return Fit(plan, where)


def move_splittable(op: Op, source: Sizes, into: Sizes, extents: Sizes) -> list[bool]:
    """Along which loops cores may divide a copy element by element, given its strides.

    They must not write the same sticks; nor read them, if that leaves anything to divide.
    """

    def by_sticks(tensor: Read, strides: Sizes) -> list[bool]:
        nbytes = tensor.buffer.format.nbytes
        return [step * nbytes % ir.STICK_BYTES == 0 for step in strides]

    write, read = by_sticks(op.output, into), by_sticks(op.reads[0], source)
    both = [a and b for a, b in zip(write, read, strict=True)]
    may = both if any(ok and n > 1 for ok, n in zip(both, extents, strict=True)) else write
    return [ok and step != 0 for ok, step in zip(may, into, strict=True)]


def _storages(op: Op) -> list[ir.Storage]:
    return [tensor.buffer.storage for tensor in op.tensors if tensor.buffer.storage is not None]


def _fit_matmul(op: Op) -> Fit | Misfit:
    a, b, c = (tensor.access() for tensor in op.tensors)
    plan = ir.align_matmul(op.extents, a, b, c, op.reduced, merged=False)
    if isinstance(plan, ir.NeedsCopy):
        return Misfit(plan.access, plan.reason, plan.stick)
    return Fit(plan, device_coordinates(plan, _storages(op)))


def _fit_gather(op: Op) -> Fit | Misfit:
    """Table and result walk sticks together; the index is read element by element."""
    table, index, output = op.tensors
    plan = align_gather(
        op.extents,
        table.access(),
        index.access(),
        output.access(),
        rows=op.rows,
        row_stride=op.gathered,
    )
    if not isinstance(plan, ir.NeedsCopy):
        return Fit(plan, gather_coordinates(plan, _storages(op)))
    if plan.access == 0:
        return Misfit(0, plan.reason, _stick_of(op, table, index), is_whole=True)
    if plan.access == 1:
        assert index.buffer.storage is not None
        if not _is_sparse(index.buffer.storage):
            # One after the other, or where that runs unevenly through sticks, one per stick.
            flat = Misfit(1, plan.reason, is_flat=True)
            if not _is_flat(index.buffer.storage) and _is_even(op, index, flat):
                return flat
            return Misfit(1, plan.reason, SPARSE)
        # The index changes from lane to lane: the result is taken element by element.
        return Misfit(2, plan.reason, SPARSE)
    return Misfit(2, plan.reason, plan.stick)


def _stick_of(op: Op, table: Read, index: Read) -> int:
    """The last loop along which rows of a table are walked; SPARSE if there is none.

    Where the index moves too each element has an index of its own, and needs a stick of its own.
    """
    moving = [
        i
        for i, step in enumerate(table.strides)
        if step != 0 and op.extents[i] > 1 and index.strides[i] == 0
    ]
    return moving[-1] if moving else SPARSE


def _is_even(op: Op, index: Read, flat: Misfit) -> bool:
    """Does a flat copy of the index take few loop nests? Rows that end inside of sticks, and begin
    inside of those of the copy, would take some for each row."""
    copy = copy_for(op, flat)
    buffer = Buffer("copy", copy.size, (1,), index.buffer.dtype, prod(copy.size))
    into = ir.Access(storage_for(buffer, copy.order), 0, dense(copy.extents))
    source = ir.Access(
        index.buffer.storage, index.offset, tuple(index.strides[i] for i in copy.loops)
    )
    return len(ir.pieces(copy.extents, [into, source])) <= MOST_NESTS


def _is_flat(storage: ir.Storage) -> bool:
    """Does every element lie on the card where it lies on the host?"""
    return storage.stride_map[-1] == 1 and all(
        place.stride == place.device_stride for place in storage.places
    )


def _is_sparse(storage: ir.Storage) -> bool:
    """Is every element alone in its stick?"""
    return storage.stride_map[-1] == SPARSE


# ---- Layouts ------------------------------------------------------------------------------------


def storage_for(buffer: Buffer, order: Sizes) -> ir.Storage:
    """The layout of a buffer with this order of its dimensions (a trailing -1: sparse)."""
    device_size, stride_map = layout(buffer.size, buffer.stride, buffer.dtype, order)
    return ir.Storage(device_size, stride_map, buffer.numel)


def default_storage(buffer: Buffer) -> ir.Storage:
    return storage_for(buffer, tuple(range(len(buffer.size))))


def candidates(buffer: Buffer) -> list[ir.Storage]:
    """Layouts worth considering: the default, each dimension as the stick, sparse."""
    rank = len(buffer.size)
    dims = [dim for dim in reversed(range(rank)) if buffer.size[dim] > 1]
    orders = [tuple(range(rank)), *(order_with_stick(rank, dim) for dim in dims)]
    if not buffer.is_output:
        orders.append((*range(rank), SPARSE))
    return list(dict.fromkeys(storage_for(buffer, order) for order in dict.fromkeys(orders)))


# ---- Copies -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Copy:
    """A copy of an operand over some loops (or dimensions, of a whole buffer), stick last."""

    loops: Sizes
    extents: Sizes
    is_sparse: bool
    is_flat: bool = False

    @property
    def order(self) -> Sizes:
        rank = 1 if self.is_flat else len(self.loops)
        return (*range(rank), SPARSE) if self.is_sparse else tuple(range(rank))

    @property
    def size(self) -> Sizes:
        return (prod(self.extents),) if self.is_flat else self.extents


def copy_for(op: Op, misfit: Misfit) -> Copy:
    """The copy that cures a misfit: each element once, repeated ones not repeated."""
    read = op.tensors[misfit.operand]
    if misfit.is_whole:
        return _whole_copy(read, misfit)
    moving = tuple(i for i, step in enumerate(read.strides) if step != 0 and op.extents[i] > 1)
    stick = misfit.stick
    if stick is None:
        stick = max((i for i, extent in enumerate(op.extents) if extent > 1), default=SPARSE)
    is_sparse = stick not in moving
    loops = moving if is_sparse else (*(i for i in moving if i != stick), stick)
    extents = tuple(op.extents[i] for i in loops)
    return Copy(loops, extents, is_sparse and not misfit.is_flat, misfit.is_flat)


def _whole_copy(read: Read, misfit: Misfit) -> Copy:
    """All of a buffer, with the dimension of the wanted loop as the stick."""
    buffer = read.buffer
    dims = tuple(range(len(buffer.size)))
    wanted = None
    if misfit.stick is not None and misfit.stick >= 0:
        step = read.strides[misfit.stick]
        wanted = next(
            (d for d in reversed(dims) if buffer.stride[d] == step and buffer.size[d] > 1), None
        )
    if wanted is None:
        return Copy(dims, buffer.size, is_sparse=True)
    dims = (*(d for d in dims if d != wanted), wanted)
    return Copy(dims, tuple(buffer.size[d] for d in dims), is_sparse=False)


def copy_bytes(copy: Copy, read: Read) -> int:
    """Traffic of making the copy: its sticks, and what is moved of the original."""
    nbytes = read.buffer.format.nbytes
    elements = prod(copy.extents)
    length = copy.size[-1] if copy.size and not copy.is_sparse else 1
    sticks = elements // max(length, 1) * -(-length * nbytes // ir.STICK_BYTES)
    return elements * nbytes + sticks * ir.STICK_BYTES + _sparse_bytes(read, elements)


def sparse_bytes(op: Op) -> int:
    """What a matmul moves in vain because some of its tensors have one element per stick.

    Elsewhere such tensors are small, results of reductions and what is computed with them.
    """
    if op.kind != "matmul":
        return 0
    total = 0
    for tensor in op.tensors:
        moving = (n for n, step in zip(op.extents, tensor.strides, strict=True) if step)
        total += _sparse_bytes(tensor, prod(moving))
    return total


def _sparse_bytes(tensor: Read, elements: int) -> int:
    """Beyond the bytes of these elements themselves."""
    storage, nbytes = tensor.buffer.storage, tensor.buffer.format.nbytes
    is_sparse = storage is not None and _is_sparse(storage)
    return elements * (ir.STICK_BYTES - nbytes) if is_sparse else 0
