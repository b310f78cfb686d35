"""Storages and views for the tests, with a record of where each element really lies.

The record comes from the definition of a layout by dimensions (row, tile, lane), applied to index
arrays; the code under test works with strides and digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

from torch_spyre.ir import Access, Nest, Storage

SIZES = st.sampled_from([1, 1, 2, 3, 4, 5, 7, 16, 31, 32, 33, 63, 64, 65, 96, 100, 128, 130, 200])
FORMATS = st.sampled_from([64, 64, 32, 128])  # elements per stick
MOST = 3000  # elements: more only takes longer


@dataclass(frozen=True, repr=False)
class Stored:
    storage: Storage
    where: np.ndarray  # device offset of each host offset
    sizes: tuple[int, ...]  # of the host tensor that it was made for

    def __repr__(self) -> str:
        return f"Stored({self.storage}, sizes={self.sizes})"

    def tensor(self) -> torch.Tensor:
        """A host tensor whose elements are their own offsets."""
        return torch.arange(math.prod(self.sizes)).reshape(self.sizes)

    def holders(self) -> np.ndarray:
        """The host offset at each device offset, -1 for padding."""
        result = np.full(math.prod(self.storage.device_size), -1)
        result[self.where] = np.arange(len(self.where))
        return result


@dataclass(frozen=True)
class Dim:
    size: int
    stride: int
    coordinate: np.ndarray


def stored(
    sizes: tuple[int, ...], stick: int, order: tuple[int, ...] | None = None, arrange=None
) -> Stored:
    """A contiguous host tensor in the layout of `order`; -1 at its end: sparse."""
    order = tuple(range(len(sizes))) if order is None else order
    numel = math.prod(sizes)
    offsets = np.arange(numel)
    index = np.unravel_index(offsets, sizes) if sizes else ()
    stride = [math.prod(max(size, 1) for size in sizes[i + 1 :]) for i in range(len(sizes))]

    def host_dim(dim: int) -> Dim:
        return Dim(sizes[dim], stride[dim] if sizes[dim] != 1 else -1, index[dim])

    last = order[-1] if order else -1
    zero = np.zeros(numel, dtype=np.int64)
    along = host_dim(last) if last >= 0 else Dim(1, -1, zero)
    tiles = Dim(
        math.ceil(along.size / stick),
        along.stride * stick if along.stride > 0 else -1,
        along.coordinate // stick,
    )
    dims = [host_dim(dim) for dim in order[1:-1]] + [tiles]
    if len(order) > 1:
        dims.append(host_dim(order[0]))
    if arrange is not None:
        dims = arrange(dims)
    dims.append(Dim(stick, along.stride, along.coordinate % stick))
    where = zero
    for dim in dims:
        where = where * dim.size + dim.coordinate
    layout = tuple(dim.size for dim in dims), tuple(dim.stride for dim in dims)
    return Stored(Storage(*layout, numel), where, sizes)


def contiguous(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))


@st.composite
def host_sizes(draw, most_dims: int = 6, most: int = MOST) -> tuple[int, ...]:
    sizes: list[int] = []
    for _ in range(draw(st.integers(0, most_dims))):
        size = draw(SIZES)
        sizes.append(size if math.prod(sizes) * size <= most else draw(st.sampled_from([1, 2])))
    if math.prod(sizes) > most:
        sizes = sizes[:2]
    return tuple(draw(st.permutations(sizes)))


@st.composite
def orders(draw, rank: int) -> tuple[int, ...]:
    order = tuple(range(rank))
    if draw(st.booleans()):
        order = tuple(draw(st.permutations(order)))
    return (*order, -1) if draw(st.integers(0, 5)) == 0 else order


@st.composite
def storages(draw, sizes: tuple[int, ...] | None = None, stick: int | None = None) -> Stored:
    """Default, permuted, sparse and explicit layouts: other orders, split and unmapped dims."""
    sizes = draw(host_sizes()) if sizes is None else sizes
    stick = draw(FORMATS) if stick is None else stick

    def arrange(dims: list[Dim]) -> list[Dim]:
        result: list[Dim] = []
        for dim in dims:
            if dim.size % 2 == 0 and dim.stride > 0 and draw(st.booleans()):
                result.append(Dim(dim.size // 2, dim.stride * 2, dim.coordinate // 2))
                result.append(Dim(2, dim.stride, dim.coordinate % 2))
            else:
                result.append(dim)
        if draw(st.booleans()):
            result.append(Dim(2, -1, np.zeros(math.prod(sizes), dtype=np.int64)))
        return draw(st.permutations(result))

    explicit = draw(st.integers(0, 3)) == 0
    return stored(sizes, stick, draw(orders(len(sizes))), arrange if explicit else None)


@st.composite
def views(draw, tensor: torch.Tensor, most_steps: int = 4) -> torch.Tensor:
    """A chain of view operations as PyTorch does them."""
    for _ in range(draw(st.integers(0, most_steps))):
        tensor = _VIEWS[draw(st.sampled_from(sorted(_VIEWS)))](draw, tensor)
    return tensor


def _dim(draw, tensor: torch.Tensor) -> int:
    return draw(st.integers(0, tensor.dim() - 1))


def _transpose(draw, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.permute(draw(st.permutations(range(tensor.dim()))))


def _slice(draw, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() == 0:
        return tensor
    dim = _dim(draw, tensor)
    start = draw(st.integers(0, tensor.shape[dim] - 1))
    stop = draw(st.integers(start + 1, tensor.shape[dim]))
    step = draw(st.sampled_from([1, 1, 2, 3, 64]))
    return tensor[(slice(None),) * dim + (slice(start, stop, step),)]


def _select(draw, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() == 0:
        return tensor
    dim = _dim(draw, tensor)
    return tensor.select(dim, draw(st.integers(0, tensor.shape[dim] - 1)))


def _expand(draw, tensor: torch.Tensor) -> torch.Tensor:
    times = draw(st.integers(1, 3))
    return tensor.expand(times, *tensor.shape) if tensor.numel() * times <= MOST else tensor


def _unfold(draw, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() == 0:
        return tensor
    dim = _dim(draw, tensor)
    size = draw(st.integers(1, min(tensor.shape[dim], 5)))
    view = tensor.unfold(dim, size, draw(st.integers(1, 4)))
    return view if view.numel() <= MOST else tensor


def _reshape(draw, tensor: torch.Tensor) -> torch.Tensor:
    divisor = draw(st.sampled_from([d for d in (1, 2, 3, 5, 10, 64) if tensor.numel() % d == 0]))
    for shape in ((-1,), (divisor, -1), (-1, divisor)):
        try:
            tensor = tensor.view(shape)
        except RuntimeError:  # not expressible as strides
            continue
    return tensor


def _squeeze(draw, tensor: torch.Tensor) -> torch.Tensor:
    if draw(st.booleans()):
        return tensor.squeeze()
    return tensor.unsqueeze(draw(st.integers(0, tensor.dim())))


def _diagonal(draw, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.diagonal() if tensor.dim() >= 2 else tensor


_VIEWS = {
    view.__name__: view
    for view in (
        _transpose,
        _slice,
        _select,
        _expand,
        _unfold,
        _reshape,
        _squeeze,
        _diagonal,
    )
}


def access(of: Stored, view: torch.Tensor) -> Access:
    return Access(of.storage, view.storage_offset(), tuple(view.stride()))


def points(nest: Nest) -> list[np.ndarray]:
    """The offsets that each access of a nest forms, in the same order for all."""
    result = []
    for strides, offset in zip(nest.strides, nest.offsets, strict=True):
        total = np.array(offset)
        for extent, stride in zip(nest.extents, strides, strict=True):
            total = np.add.outer(total, stride * np.arange(extent))
        result.append(total.reshape(-1))
    return result


def default(sizes: tuple[int, ...], stick: int = 64, order=None) -> tuple[Stored, torch.Tensor]:
    operand = stored(sizes, stick, order)
    return operand, operand.tensor()


def broadcast(sizes: tuple[int, ...], extents: tuple[int, ...], stick: int = 64):
    operand, view = default(sizes, stick)
    return operand, view.expand(extents)


@st.composite
def operands_of(
    draw, extents: tuple[int, ...], stick: int | None = None
) -> tuple[Stored, torch.Tensor]:
    """A view of exactly these extents: dense, broadcast, sliced, transposed or reshaped."""
    stick = draw(FORMATS) if stick is None else stick
    kind = draw(st.sampled_from(["dense", "broadcast", "slice", "permuted", "flat", "any"]))
    if kind == "broadcast":
        sizes = tuple(draw(st.sampled_from([size, 1])) for size in extents)
        operand = stored(sizes, stick, draw(st.one_of(st.none(), orders(len(sizes)))))
        return operand, operand.tensor().expand(extents)
    if kind == "slice":
        start = [draw(st.sampled_from([0, 0, 1, 64])) for _ in extents]
        step = [draw(st.sampled_from([1, 1, 1, 2])) for _ in extents]
        more = [draw(st.sampled_from([0, 0, 1, 64])) for _ in extents]
        cuts = list(zip(start, extents, step, more, strict=True))
        sizes = tuple(a + (n - 1) * s + 1 + b for a, n, s, b in cuts)
        if math.prod(sizes) <= 40000:
            operand = stored(sizes, stick, draw(st.one_of(st.none(), orders(len(sizes)))))
            window = tuple(slice(a, a + (n - 1) * s + 1, s) for a, n, s, _ in cuts)
            return operand, operand.tensor()[window]
    if kind == "permuted" and extents:
        order = draw(st.permutations(range(len(extents))))
        operand = stored(tuple(extents[i] for i in order), stick)
        return operand, operand.tensor().permute([order.index(i) for i in range(len(order))])
    if kind == "flat":
        operand = stored((math.prod(extents),), stick)
        return operand, operand.tensor().view(extents)
    if kind == "any":
        operand = draw(storages(sizes=extents, stick=stick))
        return operand, operand.tensor()
    return default(extents, stick)
