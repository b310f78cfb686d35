"""Interpolation: one dimension after the other.

A resampled dimension is a sum of a few taps: rows of the input that a 1-D index names, times 1-D
weights. PyTorch's own decompositions index with all dimensions' taps at once, which is hundreds of
operations for three dimensions; here it is a handful for each. Sums are held in 32 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from torch_spyre.ops.plan import UnsupportedError
from torch_spyre.ops.trace.decompositions import decomposition

Tensor = torch.Tensor
Tap = tuple[Tensor, Tensor | None]  # an index per place of the result, and a weight unless it is 1
# The taps of a dimension: from its size in the input and in the result, the scale, the device.
Taps = Callable[[int, int, float | None, torch.device], list[Tap]]

_CUBIC = -0.75  # PyTorch's coefficient of the cubic convolution


# ---- Where the taps are -------------------------------------------------------------------------


def _single(number: float) -> float:
    """Scales are numbers of 32 bits in PyTorch."""
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def _scale(size: int, result: int, scale: float | None) -> float:
    return _single(1.0 / scale if scale is not None and scale > 0 else size / result)


def _numbers(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device).to(torch.float32)


def _nearest(
    size: int, result: int, scale: float | None, device: torch.device, *, is_exact: bool
) -> list[Tap]:
    numbers = _numbers(result, device)
    step = _scale(size, result, scale)
    place = (numbers + 0.5) * step if is_exact else numbers * step
    return [(place.floor().to(torch.int32).clamp(max=size - 1), None)]


def _source(
    size: int, result: int, scale: float | None, device: torch.device, align_corners: bool
) -> Tensor:
    """The place in the input, as a fraction."""
    numbers = _numbers(result, device)
    if align_corners:
        return numbers * (_single((size - 1) / (result - 1)) if result > 1 else 0.0)
    return (numbers + 0.5) * _scale(size, result, scale) - 0.5


def _linear(
    size: int, result: int, scale: float | None, device: torch.device, *, align_corners: bool
) -> list[Tap]:
    place = _source(size, result, scale, device, align_corners).clamp(min=0)
    low = place.floor().clamp(max=size - 1)
    part = (place - low).clamp(min=0, max=1)
    first = low.to(torch.int32)
    return [(first, 1 - part), ((first + 1).clamp(max=size - 1), part)]


def _cubic(
    size: int, result: int, scale: float | None, device: torch.device, *, align_corners: bool
) -> list[Tap]:
    place = _source(size, result, scale, device, align_corners)
    low = place.floor()
    part = (place - low).clamp(min=0, max=1)
    first = low.to(torch.int32)
    return [
        ((first + (tap - 1)).clamp(min=0, max=size - 1), weight)
        for tap, weight in enumerate(cubic_weights(part))
    ]


def cubic_weights(part: Tensor) -> list[Tensor]:
    """Of the four taps around a place, `part` behind the second of them."""
    return [_far(part + 1), _near(part), _near(1 - part), _far(2 - part)]


def _near(x: Tensor) -> Tensor:
    """The weight of a tap at most one element away."""
    return ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1


def _far(x: Tensor) -> Tensor:
    """The weight of a tap one to two elements away."""
    return ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC


# ---- One dimension after the other --------------------------------------------------------------


def _weighted(x: Tensor, dim: int, weight: Tensor | None) -> Tensor:
    if weight is None:
        return x
    shape = [-1 if d == dim else 1 for d in range(x.dim())]
    return x * weight.view(shape)


def _resampled(x: Tensor, sizes: Sequence[int], scales: Sequence[Any], taps: Taps) -> Tensor:
    if x.numel() == 0:
        return NotImplemented
    first = x.dim() - len(sizes)
    total = x
    for dim, (result, scale) in enumerate(zip(sizes, scales, strict=True), first):
        # Weights of 0 and 1 are what is left where a dimension keeps its size.
        if x.shape[dim] == result and (scale is None or scale == 1):
            continue
        found = taps(x.shape[dim], result, scale, x.device)
        weights = [weight for _, weight in found if weight is not None]
        # All taps in one gather.
        total = total.index_select(dim, torch.cat([index for index, _ in found]))
        if weights:
            total = _weighted(total.to(torch.float32), dim, torch.cat(weights))
            total = total.unflatten(dim, (len(found), result)).sum(dim)
    return total.to(x.dtype) if total is not x else x.clone()


def _spread_back(
    grad: Tensor, shape: Sequence[int], sizes: Sequence[int], scales: Sequence[Any], taps: Taps
) -> Tensor:
    """The gradient of `_resampled`: each tap gets its share."""
    if grad.numel() == 0:
        return NotImplemented
    first = len(shape) - len(sizes)
    total = grad.to(torch.float32)
    for dim, (result, scale) in enumerate(zip(sizes, scales, strict=True), first):
        if shape[dim] == result and (scale is None or scale == 1):
            continue
        size = [*total.shape[:dim], shape[dim], *total.shape[dim + 1 :]]
        spread = torch.zeros(size, dtype=torch.float32, device=grad.device)
        for index, weight in taps(shape[dim], result, scale, grad.device):
            spread = spread.index_add(dim, index, _weighted(total, dim, weight))
        total = spread
    return total.to(grad.dtype) if total.dtype is not grad.dtype else total


def _register_nearest(name: str, is_exact: bool) -> None:
    taps = partial(_nearest, is_exact=is_exact)

    @decomposition(f"aten::{name}")
    def resample(x: Tensor, sizes: Sequence[int], *scales: Any) -> Tensor:
        return _resampled(x, sizes, scales or [None] * len(sizes), taps)

    @decomposition(f"aten::{name}_backward")
    def backward(grad: Tensor, sizes: Sequence[int], shape: Sequence[int], *scales: Any) -> Tensor:
        return _spread_back(grad, shape, sizes, scales or [None] * len(sizes), taps)


def _register_weighted(name: str, taps_of: Callable[..., list[Tap]]) -> None:
    @decomposition(f"aten::{name}")
    def resample(x: Tensor, sizes: Sequence[int], align_corners: bool, *scales: Any) -> Tensor:
        if not x.dtype.is_floating_point:
            raise UnsupportedError("an interpolation of bytes rounds in its own way")
        taps = partial(taps_of, align_corners=align_corners)
        return _resampled(x, sizes, scales or [None] * len(sizes), taps)

    @decomposition(f"aten::{name}_backward")
    def backward(
        grad: Tensor, sizes: Sequence[int], shape: Sequence[int], align_corners: bool, *scales: Any
    ) -> Tensor:
        taps = partial(taps_of, align_corners=align_corners)
        return _spread_back(grad, shape, sizes, scales or [None] * len(sizes), taps)


for _rank in (1, 2, 3):
    _register_nearest(f"upsample_nearest{_rank}d", is_exact=False)
    _register_nearest(f"_upsample_nearest_exact{_rank}d", is_exact=True)
_register_weighted("upsample_linear1d", _linear)
_register_weighted("upsample_bilinear2d", _linear)
_register_weighted("upsample_trilinear3d", _linear)
_register_weighted("upsample_bicubic2d", _cubic)
