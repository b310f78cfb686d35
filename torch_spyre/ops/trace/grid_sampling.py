"""Sampling at the points of a grid: all taps of a point in one gather.

A point's taps (2 per dimension, 4 for bicubic, 1 for nearest) are a dimension of their own, so that
their indices and weights are computed together, whatever their number.
"""

from __future__ import annotations

from math import prod

import torch

from torch_spyre.ops.trace.decompositions import decomposition
from torch_spyre.ops.trace.resampling import cubic_weights

Tensor = torch.Tensor

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2  # of at::native::GridSamplerInterpolation
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2  # of at::native::GridSamplerPadding


def _unnormalized(place: Tensor, size: int, align_corners: bool) -> Tensor:
    """From [-1, 1] to elements."""
    if align_corners:
        return (place + 1) / 2 * (size - 1)
    return ((place + 1) * size - 1) / 2


def _reflected(place: Tensor, size: int, align_corners: bool) -> Tensor:
    """Between the first and the last element, or half an element further out on both sides."""
    low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
    if span == 0:
        return torch.zeros_like(place)
    distance = (place - low).abs()
    turns = (distance / span).floor()
    rest = torch.fmod(distance, span)
    is_even = torch.fmod(turns, 2.0) == 0
    return torch.where(is_even, rest + low, span - rest + low)


def _padded(place: Tensor, size: int, padding: int, align_corners: bool) -> Tensor:
    """Places outside of the input brought into it, except where zeros are there."""
    if padding == _ZEROS:
        return place
    if padding == _REFLECTION:
        place = _reflected(place, size, align_corners)
    return place.clamp(0, size - 1)


def _taps(
    place: Tensor, size: int, interpolation: int, padding: int, align_corners: bool
) -> tuple[Tensor, Tensor]:
    """[..., taps]: which elements of a dimension, possibly outside of it, and how much of each."""
    place = _unnormalized(place, size, align_corners)
    if interpolation == _BICUBIC:
        low = place.floor()
        weights = torch.stack(cubic_weights(place - low), -1)
        offsets = torch.arange(4, device=place.device).to(torch.float32) - 1
        taps = low.unsqueeze(-1) + offsets
        return _padded(taps, size, padding, align_corners), weights
    place = _padded(place, size, padding, align_corners)
    if interpolation == _NEAREST:
        taps = place.round().unsqueeze(-1)
        return taps, torch.ones_like(taps)
    low = place.floor()
    part = place - low
    return torch.stack([low, low + 1], -1), torch.stack([1 - part, part], -1)


@decomposition("aten::grid_sampler_2d")
def grid_sampler(
    x: Tensor, grid: Tensor, interpolation: int, padding: int, align_corners: bool
) -> Tensor:
    batch, channels, *sizes = x.shape
    points = grid.shape[1:-1]
    rank = len(sizes)
    if x.numel() == 0 or grid.numel() == 0:
        return torch.zeros((batch, channels, *points), dtype=x.dtype, device=x.device)
    places = grid.to(torch.float32).reshape(batch, -1, rank)
    index = torch.zeros((), dtype=torch.int32, device=x.device)
    weight = torch.ones((), dtype=torch.float32, device=x.device)
    for dim, size in enumerate(sizes):
        # The last coordinate of a point is that of the first dimension.
        own = places.select(-1, rank - 1 - dim)
        taps, shares = _taps(own, size, interpolation, padding, align_corners)
        inside = (taps >= 0) & (taps <= size - 1)
        shape = [*own.shape, *[1] * dim, taps.shape[-1], *[1] * (rank - 1 - dim)]
        index = index * size + taps.clamp(0, size - 1).to(torch.int32).view(shape)
        weight = weight * torch.where(inside, shares, 0).view(shape)
    index, weight = index.reshape(batch, 1, -1), weight.reshape(batch, 1, prod(points), -1)
    flat = x.reshape(batch, channels, -1)
    found = flat.gather(2, index.to(torch.int64).expand(batch, channels, -1))
    found = found.view(batch, channels, prod(points), -1)
    # A tap of no weight counts for nothing, whatever is there.
    terms = torch.where(weight != 0, found * weight, 0)
    return terms.sum(-1).to(x.dtype).view(batch, channels, *points)
