"""What a storage looks like on the card, and how a loop nest goes through it.

A host offset is a number in mixed radix: the positive entries of a stride map are the *places* at
which its digits change, and the digits are the device coordinates. For a default fp16 layout of
host size (5, 200), device size (4, 5, 64) and stride map (64, 200, 1), host offset 330 is
1·200 + 2·64 + 2: row 1, tile 2, lane 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

STICK_BYTES = 128  # the unit of transfer


class Layout(Protocol):
    """The part of `torch_spyre._C.SpyreTensorLayout` that matters here."""

    @property
    def device_size(self) -> Sequence[int]: ...
    @property
    def stride_map(self) -> Sequence[int]: ...


class Place(NamedTuple):
    """One digit of a host offset: it counts steps of `stride` and moves by `device_stride`."""

    stride: int
    size: int
    device_stride: int


@dataclass(frozen=True)
class Storage:
    """A device layout together with the number of host elements that it holds."""

    device_size: tuple[int, ...]
    stride_map: tuple[int, ...]
    numel: int

    @classmethod
    def of(cls, layout: Layout, numel: int) -> Storage:
        return cls(tuple(layout.device_size), tuple(layout.stride_map), numel)

    @property
    def elems_per_stick(self) -> int:
        return self.device_size[-1]

    @cached_property
    def device_strides(self) -> tuple[int, ...]:
        """Row-major strides of `device_size`, in elements."""
        strides = []
        stride = 1
        for size in reversed(self.device_size):
            strides.append(stride)
            stride *= max(size, 1)
        return tuple(reversed(strides))

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Largest stride first.

        A device dimension of size 1 has no digit: its stride may be smaller than what the
        dimensions within it cover (the single tile of rows that are shorter than a stick).
        """
        dims = zip(self.stride_map, self.device_size, self.device_strides, strict=True)
        places = [Place(*dim) for dim in dims if dim[0] > 0 and dim[1] > 1]
        return tuple(sorted(places, key=lambda place: -place.stride))

    @cached_property
    def tile(self) -> Place | None:
        """The place that counts sticks along the stick dimension, if there is one.

        It follows the stick's own place without a gap, so that both together are one digit: the
        position along the stick dimension.
        """
        if self.stride_map[-1] <= 0:
            return None
        whole_stick = self.stride_map[-1] * self.elems_per_stick
        below = [place for place in self.places if place.stride > self.stride_map[-1]]
        return below[-1] if below and below[-1].stride == whole_stick else None

    def device_offset(self, host_offset: int) -> int:
        """Elements from the start of the storage on the card to the one at a host offset."""
        result = 0
        for place in self.places:
            digit, host_offset = divmod(host_offset, place.stride)
            result += digit * place.device_stride
        return result


@dataclass(frozen=True)
class Access:
    """A walk through a storage: host offset = offset + Σ strides[i] · v_i.

    Without a storage it is a walk through plain linear memory, such as a host tensor's.
    """

    storage: Storage | None
    offset: int
    strides: tuple[int, ...]

    def bounds(self, extents: Sequence[int]) -> tuple[int, int]:
        """The smallest and the largest host offset over a non-empty iteration space."""
        low = high = self.offset
        for extent, stride in zip(extents, self.strides, strict=True):
            if stride > 0:
                high += stride * (extent - 1)
            else:
                low += stride * (extent - 1)
        return low, high

    def check(self, extents: Sequence[int]) -> None:
        """Raise ValueError if the walk leaves its storage."""
        if len(self.strides) != len(extents):
            raise ValueError(f"strides {self.strides} do not match the loop extents {extents}")
        if self.storage is None or 0 in extents:
            return
        low, high = self.bounds(extents)
        if low < 0 or high >= self.storage.numel:
            raise ValueError(
                f"host offsets {low}..{high} of loop extents {tuple(extents)}, strides "
                f"{self.strides}, offset {self.offset} leave a storage of "
                f"{self.storage.numel} elements"
            )
