"""What a step can read and write: views of tiled storages, and words that have no storage."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from torch_spyre import ir
from torch_spyre.ops.formats import FP32, INT32, CardFormat, card_format
from torch_spyre.ops.plan import Bind, Sizes, TensorMeta


@dataclass(frozen=True)
class View:
    """A strided view of a storage; `source` is what the launch binds its address to."""

    source: Bind
    storage: ir.Storage
    size: Sizes
    stride: Sizes
    offset: int
    dtype: torch.dtype

    @property
    def format(self) -> CardFormat:
        return card_format(self.dtype)

    def access(self) -> ir.Access:
        return ir.Access(self.storage, self.offset, self.stride)

    def broadcast(self, size: Sizes) -> View:
        """The view repeated to a larger shape, by PyTorch's rules."""
        if size == self.size:
            return self
        stride = [0] * (len(size) - len(self.size))
        for own, wanted, step in zip(
            self.size, size[len(size) - len(self.size) :], self.stride, strict=True
        ):
            stride.append(step if own == wanted else 0)
        return replace(self, size=size, stride=tuple(stride))

    def without_repeats(self) -> View:
        """The view with every repeated dimension cut down to one."""
        size = tuple(
            n if step else min(n, 1) for n, step in zip(self.size, self.stride, strict=True)
        )
        return replace(self, size=size)

    @property
    def stick_dim(self) -> int | None:
        """The dimension that walks along the sticks, element by element."""
        lane_step = self.storage.stride_map[-1]
        for dim in reversed(range(len(self.size))):
            if self.size[dim] > 1 and self.stride[dim] == lane_step:
                return dim
        return None


@dataclass(frozen=True)
class Word:
    """One value for all lanes: a launch argument (`source`) or a constant (`bits`)."""

    format: CardFormat
    source: Bind | None = None
    bits: int = 0


@dataclass(frozen=True)
class Index:
    """The position of an element in its storage, counted in host order, as an int32."""


Value: TypeAlias = View | Word
Input: TypeAlias = View | Word | Index


def float_constant(value: float) -> Word:
    return Word(FP32, bits=struct.unpack("<I", struct.pack("<f", value))[0])


def int_constant(value: int) -> Word:
    return Word(INT32, bits=value & 0xFFFFFFFF)


def constant(value: float, domain: str) -> Word:
    """A number of the table as an operand of the given domain."""
    return int_constant(int(value)) if domain == "I" else float_constant(value)


def view_of(meta: TensorMeta) -> View:
    storage = ir.Storage(meta.device_size, meta.stride_map, meta.storage_numel)
    return View(Bind("arg", meta.index), storage, meta.size, meta.stride, meta.offset, meta.dtype)


def contiguous_strides(size: Sizes, order: Sequence[int] | None = None) -> Sizes:
    """Strides of a dense tensor; the dimensions from outer to inner are those of `order`."""
    stride = [0] * len(size)
    step = 1
    for dim in reversed(order if order is not None else range(len(size))):
        stride[dim] = step
        step *= max(size[dim], 1)
    return tuple(stride)


def order_with_stick(rank: int, stick_dim: int | None) -> Sizes:
    """The dimensions in their own order, except that `stick_dim` comes last."""
    if stick_dim is None:
        return tuple(range(rank))
    return (*(dim for dim in range(rank) if dim != stick_dim), stick_dim)


@functools.lru_cache(maxsize=4096)
def layout(size: Sizes, stride: Sizes, dtype: torch.dtype, order: Sizes) -> tuple[Sizes, Sizes]:
    """Device size and stride map of a new tensor with this order of dimensions."""
    from torch_spyre._C import SpyreTensorLayout

    made = SpyreTensorLayout(list(size), list(stride), dtype, list(order))
    return tuple(made.device_size), tuple(made.stride_map)


def broadcast_size(values: Sequence[Input]) -> Sizes:
    """The shape that the operands have together."""
    sizes = {value.size for value in values if isinstance(value, View)}
    if len(sizes) <= 1:
        return sizes.pop() if sizes else ()
    return tuple(torch.broadcast_shapes(*sizes))
