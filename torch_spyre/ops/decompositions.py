"""Decompositions into the card's vocabulary, for eager operations and compiled graphs alike.

PyTorch's own compute 16-bit softmax and norms in float32 buffers throughout. The card widens its
operands by itself, so only sums and statistics are held in 32 bits here; what has the size of the
input stays in its 16 bits, and in half the scratchpad.

A decomposition that has nothing to say (for a tensor without elements) returns NotImplemented.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_spyre.ops import quantised

aten = torch.ops.aten
Tensor = torch.Tensor

# Of the card's 16-bit float. A finite stand-in for the largest element of a row without any.
LARGEST_16_BIT = 8573157376.0


def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    if x.numel() == 0:
        return NotImplemented
    shifted = torch.exp(x - torch.amax(x, dim, keepdim=True))
    total = torch.sum(shifted, dim, keepdim=True, dtype=torch.float32)
    return _shares(shifted, total).to(torch.float32 if half_to_float else x.dtype)


def _shares(parts: Tensor, total: Tensor) -> Tensor:
    """parts / total; in 16 bits with one division per row.

    The factor is off by 2^-24 at the most, which 16 bits do not show.
    """
    return parts / total if parts.dtype == torch.float32 else parts * total.reciprocal()


def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """As softmax, but a row that is masked out entirely (all -inf) gives zeros."""
    if x.numel() == 0:
        return NotImplemented
    # Where anything is finite the largest element contributes 1 to the total.
    largest = torch.amax(x, dim, keepdim=True).clamp_min(-LARGEST_16_BIT)
    shifted = torch.exp(x - largest)
    total = torch.sum(shifted, dim, keepdim=True, dtype=torch.float32).clamp_min(1.0)
    return _shares(shifted, total).to(dtype or x.dtype)


def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    if x.numel() == 0:
        return NotImplemented
    shifted = x - torch.amax(x, dim, keepdim=True)
    total = torch.sum(torch.exp(shifted), dim, keepdim=True, dtype=torch.float32)
    return (shifted - torch.log(total)).to(torch.float32 if half_to_float else x.dtype)


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    if x.numel() == 0:
        return NotImplemented
    dims = list(range(x.dim() - len(normalized_shape), x.dim()))
    mean = torch.mean(x, dims, keepdim=True, dtype=torch.float32)
    centred = (x - mean).to(x.dtype)
    variance = torch.mean(centred * centred, dims, keepdim=True, dtype=torch.float32)
    rstd = torch.rsqrt(variance + eps)
    result = (centred * rstd).to(x.dtype)
    if weight is not None:
        result = result * weight
    if bias is not None:
        result = result + bias
    return result.to(x.dtype), mean, rstd  # whatever the weight's is


def rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    if x.numel() == 0:
        return NotImplemented
    dims = list(range(x.dim() - len(normalized_shape), x.dim()))
    if eps is None:
        eps = torch.finfo(x.dtype).eps
    mean = torch.mean(x * x, dims, keepdim=True, dtype=torch.float32)
    rstd = torch.rsqrt(mean + eps)
    result = (x * rstd).to(x.dtype)
    return (result if weight is None else (result * weight).to(x.dtype)), rstd


# The card gathers whole sticks, so one element of each row is found by comparing: a sum in which
# one summand counts.


def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    if x.numel() == 0:
        return NotImplemented
    is_target, counts = _targets(x, target, weight, ignore_index)
    picked = torch.sum(torch.where(is_target, x, 0), _classes(x), dtype=torch.float32)
    losses = -picked * counts
    total = counts.sum()
    if reduction == _NONE and x.dim() > 1:
        return losses.to(x.dtype), torch.zeros((), dtype=x.dtype, device=x.device)
    loss = losses.sum() / total if reduction == _MEAN else losses.sum()
    return loss.to(x.dtype), total.to(x.dtype)


def nll_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total: Tensor,
) -> Tensor:
    if x.numel() == 0:
        return NotImplemented
    is_target, counts = _targets(x, target, weight, ignore_index, is_known=True)
    each = -(grad / total if reduction == _MEAN else grad) * counts
    return torch.where(is_target, each.unsqueeze(_classes(x)), 0).to(x.dtype)


_NONE, _MEAN = 0, 1  # of at::Reduction


def _targets(
    x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, is_known: bool = False
) -> tuple[Tensor, Tensor]:
    """Where each row's target is, and how much each row counts.

    What a row counts is looked up, so a target outside of the classes is a fault. Without weights
    a gradient need not look: it is that of a loss that has.
    """
    dim = _classes(x)
    target = target.to(torch.int64)
    is_target = _numbers(x, dim) == target.unsqueeze(dim)
    is_counted = target != ignore_index
    if weight is None and is_known:
        return is_target, is_counted.to(torch.float32)
    place = torch.where(is_counted, target, 0).reshape(-1)
    if weight is None:
        weight, place = _one_for_each(place, x.shape[dim])
    own = torch.index_select(weight, 0, place).view(target.shape).to(torch.float32)
    return is_target, torch.where(is_counted, own, 0)


def _one_for_each(place: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """A table, and the places in it of ones for these classes; for what is none, a place outside.

    A row of it is a stick, so a row for each class would be as much as many rows of logits: all
    classes share the first one. It has two rows, because Inductor looks nothing up in a single one.
    """
    rows = 2
    is_class = (place >= 0) & (place < classes)
    outside = torch.where(place < rows, -1, place)  # the fault names it, if it can
    table = torch.ones(rows, dtype=torch.float32, device=place.device)
    return table, torch.where(is_class, 0, outside)


def _classes(x: Tensor) -> int:
    """The dimension of the classes: after the batch, if there is one."""
    return min(1, x.dim() - 1)


# An index is found by comparing as well: the first place where the extremum is. A NaN is one.


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _first_extremum(torch.amax, x, dim, keepdim)


def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _first_extremum(torch.amin, x, dim, keepdim)


def _first_extremum(
    extremum: Callable[..., Tensor], x: Tensor, dim: int | None, keepdim: bool
) -> Tensor:
    if x.numel() == 0:
        return NotImplemented
    if x.dim() == 0:
        return torch.zeros((), dtype=torch.int64, device=x.device)
    if dim is None:
        place = _first_extremum(extremum, x.reshape(-1), 0, False)
        return place.view([1] * x.dim()) if keepdim else place
    is_float = x.is_floating_point()
    # In 32 bits: the card's 16-bit float stores an infinite result as NaN.
    best = extremum(x.to(torch.float32) if is_float else x, dim, keepdim=True)
    is_found = x == best
    if is_float:
        is_found = is_found | torch.isnan(x)
    length = x.shape[dim]
    return torch.where(is_found, _numbers(x, dim), length).amin(dim, keepdim=keepdim)


def max_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _with_index(torch.amax, x, dim, keepdim)


def min_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _with_index(torch.amin, x, dim, keepdim)


def _with_index(
    extremum: Callable[..., Tensor], x: Tensor, dim: int, keepdim: bool
) -> tuple[Tensor, Tensor]:
    if x.numel() == 0:
        return NotImplemented
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    return extremum(x, dim, keepdim=keepdim), _first_extremum(extremum, x, dim, keepdim)


def _numbers(x: Tensor, dim: int) -> Tensor:
    """0, 1, 2, ... along a dimension."""
    dim = dim % x.dim()
    shape = [1 if i != dim else -1 for i in range(x.dim())]
    return torch.arange(x.shape[dim], device=x.device).view(shape)


def scatter(x: Tensor, dim: int, index: Tensor, source: Tensor | float) -> Tensor:
    """One element per row (a gradient of `max`, one_hot): chosen by comparing.

    More are the eager operation's to write.
    """
    if x.dim() == 0 or x.numel() == 0 or not _is_one_per_row(x, dim % x.dim(), index):
        return NotImplemented
    if isinstance(source, Tensor):
        source = source[tuple(slice(n) for n in index.shape)]
    return torch.where(_numbers(x, dim) == index, source, x).to(x.dtype)


def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """One value where a mask is set: a choice. Everything else is the eager operation's."""
    (mask, *others) = indices
    if others or mask is None or mask.dtype is not torch.bool or values.numel() != 1:
        return NotImplemented
    mask = mask.view([*mask.shape, *[1] * (x.dim() - mask.dim())])
    values = values.to(x.device).view([1] * x.dim())
    return torch.where(mask, x + values if accumulate else values, x)


def _is_one_per_row(x: Tensor, dim: int, index: Tensor) -> bool:
    wanted = [1 if i == dim else n for i, n in enumerate(x.shape)]
    return list(index.shape) == wanted


TABLE: dict[Any, Callable[..., Any]] = {
    aten.argmax.default: argmax,
    aten.argmin.default: argmin,
    aten.max.dim: max_dim,
    aten.min.dim: min_dim,
    aten.scatter.src: scatter,
    aten.scatter.value: scatter,
    aten.index_put.default: index_put,
    aten.nll_loss_forward.default: nll_loss,
    aten.nll_loss_backward.default: nll_loss_backward,
    aten.nll_loss2d_forward.default: nll_loss,
    aten.nll_loss2d_backward.default: nll_loss_backward,
    aten._softmax.default: softmax,
    aten._safe_softmax.default: safe_softmax,
    aten._log_softmax.default: log_softmax,
    aten.native_layer_norm.default: layer_norm,
    aten._fused_rms_norm.default: rms_norm,
    aten._scaled_mm.default: quantised.scaled_mm,
    aten._scaled_mm_v2.default: quantised.scaled_mm_v2,
    aten._weight_int8pack_mm.default: quantised.weight_int8pack_mm,
}
