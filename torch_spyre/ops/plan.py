"""What the runtime tells the planner, and what it gets back.

The runtime makes these metas on a cache miss and turns the plan into a launch; it reads the
fields by name. Nothing here refers to data, so one plan serves every call with the same metas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

Sizes: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class TensorMeta:
    """A tensor on the card: a strided view of a tiled storage.

    `offset` counts host elements from the address that the launch binds. `alias` is the first
    argument with the same storage (-1 or `index`: no other one) and `distance` how many host
    elements later in the storage than that one this view starts.
    """

    size: Sizes
    stride: Sizes
    offset: int
    dtype: torch.dtype
    device_size: Sizes
    stride_map: Sizes
    storage_numel: int
    index: int
    alias: int = -1
    distance: int = 0


@dataclass(frozen=True)
class ScalarMeta:
    """A number: a Python one (`is_wrapped`) or a 0-dim CPU tensor, read anew at each launch."""

    dtype: torch.dtype
    index: int
    is_wrapped: bool
    value: bool | int | float


# Everything else stands for itself.
Argument: TypeAlias = TensorMeta | ScalarMeta | bool | int | float | str | torch.dtype | None

BindKind: TypeAlias = Literal[
    "arg",
    "out",
    "temp",
    "scalar_float",
    "scalar_int",
    "seed_low",
    "seed_high",
    "rng_counter",
    "buffer",  # of a graph under construction: never in a finished plan
]


@dataclass(frozen=True)
class Bind:
    """Where a symbol of the program gets its value from at each launch.

    `index` is the argument (arg, scalar_*; tensors of lists are numbered on after the arguments),
    the new output (out), the byte offset into the pool of `Plan.temp_bytes` (temp), or which of
    the `Plan.rng_offset` counters (rng_counter). A finite scalar_float beyond the `limit` becomes
    the limit. A scalar_int that `fits` can't hold is refused, in PyTorch's words.
    """

    kind: BindKind
    index: int = 0
    limit: float = math.inf
    fits: torch.dtype | None = None


@dataclass(frozen=True)
class OutputSpec:
    """A tensor that the launch makes: host shape, and the layout of its storage."""

    size: Sizes
    stride: Sizes
    dtype: torch.dtype
    device_size: Sizes
    stride_map: Sizes
    format: int


@dataclass(frozen=True)
class Launch:
    """A card program; `symbols` is parallel to the program's symbols."""

    program: bytes
    symbols: tuple[Bind, ...]


@dataclass(frozen=True)
class Plan:
    """Programs in order, and how to launch them.

    An int among `outputs` returns that argument, None an undefined tensor. With `resize`
    (argument, size) there is nothing else: resize, then plan again.
    """

    launches: tuple[Launch, ...]
    outputs: tuple[OutputSpec | int | None, ...]
    temp_bytes: int = 0
    resize: tuple[tuple[int, Sizes], ...] = ()
    rng_offset: int = 0


class UnsupportedError(NotImplementedError):
    """The card has no way to do this; the CPU fallback takes over."""
