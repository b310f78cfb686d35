"""The parts of `nn.SyncBatchNorm`, between which ranks exchange statistics.

PyTorch has them for devices of its own only. Statistics and sums are float32, in as many bits as
the exchange has. Channels are dimension 1.
"""

from __future__ import annotations

import torch

from torch_spyre.ops.trace.decompositions import decomposition

Tensor = torch.Tensor


def _others(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _per_channel(statistic: Tensor, x: Tensor) -> Tensor:
    return statistic.view([-1 if dim == 1 else 1 for dim in range(x.dim())])


@decomposition("aten::batch_norm_stats")
def statistics(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1/deviation of this rank's part."""
    dims = _others(x)
    wide = x.to(torch.float32)
    mean = torch.mean(wide, dims)
    centred = wide - _per_channel(mean, x)
    return mean, torch.rsqrt(torch.mean(centred * centred, dims) + eps)


@decomposition("aten::batch_norm_gather_stats_with_counts")
def of_all(
    _: Tensor,
    means: Tensor,
    invstds: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Mean and 1/deviation of the whole, of those of [rank, channel]; running ones are updated."""
    each = counts.to(torch.float32).view(-1, 1)
    total = each.sum()
    mean = (means * each).sum(0) / total
    variances = 1 / (invstds * invstds) - eps
    apart = means - mean
    variance = ((variances + apart * apart) * each).sum(0) / total
    if running_mean is not None:
        running_mean.copy_(running_mean * (1 - momentum) + mean * momentum)
    if running_var is not None:
        unbiased = variance * (total / (total - 1))
        running_var.copy_(running_var * (1 - momentum) + unbiased * momentum)
    return mean, torch.rsqrt(variance + eps)


@decomposition("aten::batch_norm_elemt")
def normalised(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, _: float
) -> Tensor:
    factor = invstd if weight is None else invstd * weight
    result = (x - _per_channel(mean, x)) * _per_channel(factor, x)
    if bias is not None:
        result = result + _per_channel(bias, x)
    return result.to(x.dtype)


@decomposition("aten::batch_norm_backward_reduce")
def gradient_sums(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, *_: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums of the gradient, and of its products with the distance from the mean; then the
    gradients of weight and bias."""
    dims = _others(x)
    wide = grad.to(torch.float32)
    total = wide.sum(dims)
    product = (wide * (x - _per_channel(mean, x))).sum(dims)
    dtype = torch.float32 if weight is None else weight.dtype
    return total, product, (product * invstd).to(dtype), total.to(dtype)


@decomposition("aten::batch_norm_backward_elemt")
def gradient(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    total: Tensor,
    product: Tensor,
    counts: Tensor,
) -> Tensor:
    """The gradient of the input, with sums of all ranks."""
    count = counts.to(torch.float32).sum()
    factor = invstd if weight is None else invstd * weight
    slope = product / count * invstd * invstd
    centred = x - _per_channel(mean, x)
    lessened = grad - _per_channel(total / count, x) - centred * _per_channel(slope, x)
    return (lessened * _per_channel(factor, x)).to(x.dtype)
