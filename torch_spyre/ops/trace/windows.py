"""Convolutions and pooling: windows of a padded tensor, as a view with a dimension per offset.

A convolution is a product of matrices over such windows. A transposed one is a convolution of the
input with zeros between its elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.nn import functional

from torch_spyre.ops.trace.decompositions import decomposition

Tensor = torch.Tensor
Sizes = Sequence[int]


def windows(x: Tensor, kernel: Sizes, stride: Sizes, dilation: Sizes) -> Tensor:
    """[..., out..., kernel...] of the last dimensions of a contiguous tensor."""
    rank = len(kernel)
    own = x.stride()[-rank:]
    out = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(x.shape[-rank:], kernel, stride, dilation, strict=True)
    ]
    return x.as_strided(
        [*x.shape[:-rank], *out, *kernel],
        [
            *x.stride()[:-rank],
            *(step * s for step, s in zip(own, stride, strict=True)),
            *(step * d for step, d in zip(own, dilation, strict=True)),
        ],
    )


def padded(x: Tensor, before: Sizes, after: Sizes, value: float = 0) -> Tensor:
    """Around the last dimensions; contiguous."""
    pairs: list[int] = []
    for low, high in reversed(list(zip(before, after, strict=True))):
        pairs += [low, high]
    return (functional.pad(x, pairs, value=value) if any(pairs) else x).contiguous()


def spread(x: Tensor, stride: Sizes) -> Tensor:
    """Zeros between the elements of the last dimensions."""
    for dim, step in zip(range(x.dim() - len(stride), x.dim()), stride, strict=True):
        if step == 1 or x.shape[dim] == 0:
            continue
        gaps = torch.zeros(
            [*x.shape[: dim + 1], step - 1, *x.shape[dim + 1 :]], dtype=x.dtype, device=x.device
        )
        wide = torch.cat([x.unsqueeze(dim + 1), gaps], dim + 1).flatten(dim, dim + 1)
        x = wide.narrow(dim, 0, wide.shape[dim] - step + 1)
    return x


# ---- Convolutions -------------------------------------------------------------------------------


def _columns(x: Tensor, kernel: Sizes, stride: Sizes, dilation: Sizes, groups: int) -> Tensor:
    """[groups, batch * places, channels of a group * offsets] of a padded input."""
    rank = len(kernel)
    seen = windows(x.contiguous(), kernel, stride, dilation)
    batch, channels = x.shape[:2]
    places = seen.shape[2 : 2 + rank]
    grouped = seen.reshape(batch, groups, channels // groups, *places, *kernel)
    order = [1, 0, *range(3, 3 + rank), 2, *range(3 + rank, 3 + 2 * rank)]
    return grouped.permute(order).reshape(
        groups, batch * prod(places), channels // groups * prod(kernel)
    )


def _correlate(x: Tensor, weight: Tensor, stride: Sizes, dilation: Sizes, groups: int) -> Tensor:
    """A convolution of a padded input."""
    kernel = weight.shape[2:]
    out = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True)
    ]
    batch, outputs = x.shape[0], weight.shape[0]
    columns = _columns(x, kernel, stride, dilation, groups)
    filters = weight.reshape(groups, outputs // groups, -1).transpose(1, 2)
    product = torch.bmm(columns, filters)  # [groups, batch * places, outputs of a group]
    grouped = product.view(groups, batch, *out, outputs // groups)
    rank = len(out)
    order = [1, 0, 2 + rank, *range(2, 2 + rank)]
    return grouped.permute(order).reshape(batch, outputs, *out)


def _turned(weight: Tensor, groups: int) -> Tensor:
    """Inputs and outputs exchanged in each group, offsets reversed."""
    inputs, outputs = weight.shape[:2]
    grouped = weight.reshape(groups, inputs // groups, outputs, *weight.shape[2:]).transpose(1, 2)
    flat = grouped.reshape(groups * outputs, inputs // groups, *weight.shape[2:])
    return flat.flip(list(range(2, weight.dim())))


def _transposed(
    x: Tensor,
    weight: Tensor,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    output_padding: Sizes,
    groups: int,
) -> Tensor:
    kernel = weight.shape[2:]
    before = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    after = [b + extra for b, extra in zip(before, output_padding, strict=True)]
    wide = padded(spread(x, stride), before, after)
    return _correlate(wide, _turned(weight, groups), [1] * len(kernel), dilation, groups)


@decomposition("aten::convolution", "aten::convolution_overrideable")
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Tensor:
    rank = weight.dim() - 2
    stride, padding, dilation, output_padding = (
        list(values) * (rank if len(values) == 1 else 1)
        for values in (stride, padding, dilation, output_padding)
    )
    is_single = x.dim() == rank + 1
    if is_single:
        x = x.unsqueeze(0)
    if transposed:
        result = _transposed(x, weight, stride, padding, dilation, output_padding, groups)
    else:
        result = _correlate(padded(x, padding, padding), weight, stride, dilation, groups)
    if bias is not None:
        result = result + bias.view(-1, *[1] * rank)
    result = result.contiguous()
    return result.squeeze(0) if is_single else result


@decomposition("aten::convolution_backward", "aten::convolution_backward_overrideable")
def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    *rest: Any,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    # The overrideable form has no sizes of the bias.
    stride, padding, dilation, transposed, output_padding, groups, wanted = rest[-7:]
    rank = weight.dim() - 2
    stride, padding, dilation, output_padding = (
        list(values) * (rank if len(values) == 1 else 1)
        for values in (stride, padding, dilation, output_padding)
    )
    grad_x = grad_weight = grad_bias = None
    if wanted[0]:
        if transposed:
            grad_x = _correlate(padded(grad, padding, padding), weight, stride, dilation, groups)
            # An output padding as long as the stride makes room for more windows than there were.
            for dim, n in enumerate(x.shape[2:]):
                grad_x = grad_x.narrow(dim + 2, 0, n)
        else:
            reach = [
                (n - 1) * s - 2 * p + d * (k - 1) + 1
                for n, s, p, d, k in zip(
                    grad.shape[2:], stride, padding, dilation, weight.shape[2:], strict=True
                )
            ]
            extra = [n - r for n, r in zip(x.shape[2:], reach, strict=True)]
            grad_x = _transposed(grad, weight, stride, padding, dilation, extra, groups)
        grad_x = grad_x.contiguous()
    if wanted[1]:
        source, result = (grad, x) if transposed else (x, grad)
        grad_weight = _weight_gradient(source, result, weight, stride, padding, dilation, groups)
    if wanted[2]:
        grad_bias = grad.sum([0, *range(2, grad.dim())])
    return grad_x, grad_weight, grad_bias


def _weight_gradient(
    source: Tensor,
    result: Tensor,
    weight: Tensor,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
) -> Tensor:
    """Of a convolution of `source` whose result has the gradient `result`."""
    kernel = weight.shape[2:]
    wide = padded(source, padding, padding)
    # Rows behind the last window take no part.
    for dim, (n, k, s, d) in enumerate(
        zip(result.shape[2:], kernel, stride, dilation, strict=True)
    ):
        wide = wide.narrow(dim + 2, 0, (n - 1) * s + d * (k - 1) + 1)
    columns = _columns(wide, kernel, stride, dilation, groups)
    batch, outputs = result.shape[:2]
    places = prod(result.shape[2:])
    grads = result.reshape(batch, groups, outputs // groups, places).permute(1, 2, 0, 3)
    grads = grads.reshape(groups, outputs // groups, batch * places)
    return torch.bmm(grads, columns).reshape(weight.shape)


# ---- Pooling ------------------------------------------------------------------------------------


def _pool_shape(
    x: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil: bool
) -> tuple[list[int], list[int]]:
    """How many places there are, and how much padding lies behind the tensor for them."""
    out, after = [], []
    for n, k, s, p, d in zip(
        x.shape[-len(kernel) :], kernel, stride, padding, dilation, strict=True
    ):
        reach = d * (k - 1) + 1
        count = -(-(n + 2 * p - reach) // s) + 1 if ceil else (n + 2 * p - reach) // s + 1
        if ceil and (count - 1) * s >= n + p:  # the last window must start inside
            count -= 1
        out.append(count)
        after.append(max((count - 1) * s + reach - n - p, 0))
    return out, after


def _each(values: Sizes, rank: int) -> list[int]:
    return list(values) * (rank if len(values) == 1 else 1)


def _largest(x: Tensor, seen: Tensor, places: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The largest element of each window, and the first place of it in the tensor.

    `places` has [out, kernel] for each dimension: where in it the elements of windows are.
    """
    rank = len(places)
    offsets = list(range(-rank, 0))
    largest = seen.amax(offsets)
    place = torch.zeros((), dtype=torch.int64, device=x.device)
    for dim, own in enumerate(places):
        shape = [1] * (2 * rank)
        shape[dim], shape[rank + dim] = own.shape
        place = place * x.shape[dim - rank] + own.view(shape)
    hits = seen == largest.view(*largest.shape, *[1] * rank)
    if x.dtype.is_floating_point:
        hits = hits | (seen != seen)
    behind = 2**31 - 1
    return largest, torch.where(hits, place, behind).amin(offsets)


def _max_pool(rank: int) -> Any:
    def pool(
        x: Tensor,
        kernel: Sizes,
        stride: Sizes = (),
        padding: Sizes = (0,),
        dilation: Sizes = (1,),
        ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]:
        kernel = _each(kernel, rank)
        stride = _each(stride, rank) or kernel
        padding, dilation = _each(padding, rank), _each(dilation, rank)
        out, after = _pool_shape(x, kernel, stride, padding, dilation, ceil_mode)
        if x.dtype.is_floating_point:
            least = float("-inf")
        else:
            least = torch.iinfo(torch.int32 if x.dtype is torch.int64 else x.dtype).min
        seen = windows(padded(x, padding, after, least), kernel, stride, dilation)
        for dim, n in enumerate(out):
            seen = seen.narrow(dim - 2 * rank, 0, n)
        places = [
            torch.arange(n, device=x.device).unsqueeze(1) * step
            + torch.arange(k, device=x.device) * d
            - p
            for n, step, k, d, p in zip(out, stride, kernel, dilation, padding, strict=True)
        ]
        return _largest(x, seen, places)

    return pool


decomposition("aten::max_pool2d_with_indices")(_max_pool(2))
decomposition("aten::max_pool3d_with_indices")(_max_pool(3))


@decomposition("aten::max_pool2d_with_indices_backward", "aten::max_pool3d_with_indices_backward")
def max_pool_backward(grad: Tensor, x: Tensor, kernel: Sizes, *rest: Any) -> Tensor:
    indices = rest[-1]
    rank = len(rest[0] or kernel) if len(kernel) == 1 else len(kernel)
    rank = max(rank, 2)
    flat = torch.zeros_like(x).flatten(-rank)
    return flat.scatter_add(-1, indices.flatten(-rank), grad.flatten(-rank)).view(x.shape)


def _divisors(
    x: Tensor,
    out: Sizes,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    count_include_pad: bool,
    divisor: int | None,
) -> Tensor | float:
    """By how much each window's sum is divided."""
    if divisor is not None:
        return float(divisor)
    rank = len(kernel)
    if not any(padding) and all(
        (o - 1) * s + k <= n
        for o, s, k, n in zip(out, stride, kernel, x.shape[-rank:], strict=True)
    ):
        return float(prod(kernel))
    total: Tensor | None = None
    for dim in range(rank):
        n, p = x.shape[dim - rank], padding[dim]
        first = torch.arange(out[dim], device=x.device) * stride[dim] - p
        end = (first + kernel[dim]).clamp(max=n + p if count_include_pad else n)
        start = first if count_include_pad else first.clamp(min=0)
        shape = [1] * rank
        shape[dim] = out[dim]
        own = (end - start).to(torch.float32).view(shape)
        total = own if total is None else total * own
    assert total is not None
    return total


def _avg_pool(rank: int) -> Any:
    def pool(
        x: Tensor,
        kernel: Sizes,
        stride: Sizes = (),
        padding: Sizes = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        kernel = _each(kernel, rank)
        stride, padding = _each(stride, rank) or kernel, _each(padding, rank)
        ones = [1] * rank
        out, after = _pool_shape(x, kernel, stride, padding, ones, ceil_mode)
        seen = windows(padded(x, padding, after), kernel, stride, ones)
        for dim, n in enumerate(out):
            seen = seen.narrow(dim - 2 * rank, 0, n)
        total = seen.sum(list(range(-rank, 0)), dtype=torch.float32)
        divisors = _divisors(x, out, kernel, stride, padding, count_include_pad, divisor_override)
        return (total / divisors).to(x.dtype)

    return pool


def _avg_pool_backward(rank: int) -> Any:
    def backward(
        grad: Tensor,
        x: Tensor,
        kernel: Sizes,
        stride: Sizes,
        padding: Sizes,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Tensor:
        kernel = _each(kernel, rank)
        stride, padding = _each(stride, rank) or kernel, _each(padding, rank)
        out = grad.shape[-rank:]
        divisors = _divisors(x, out, kernel, stride, padding, count_include_pad, divisor_override)
        shares = spread((grad / divisors).to(x.dtype), stride)
        before = [k - 1 - p for k, p in zip(kernel, padding, strict=True)]
        after = [
            n - length - b + k - 1
            for n, length, b, k in zip(
                x.shape[-rank:], shares.shape[-rank:], before, kernel, strict=True
            )
        ]
        ones = [1] * rank
        seen = windows(padded(shares, before, after), kernel, ones, ones)
        return seen.sum(list(range(-rank, 0)))

    return backward


for _rank in (2, 3):
    decomposition(f"aten::avg_pool{_rank}d")(_avg_pool(_rank))
    decomposition(f"aten::avg_pool{_rank}d_backward")(_avg_pool_backward(_rank))


# ---- Adaptive pooling: windows of different lengths, which together cover the tensor -------------


def _adaptive(n: int, out: int, device: torch.device) -> tuple[Tensor, Tensor, int]:
    """[out, longest]: which elements the windows have, which of these are theirs; the longest."""
    lengths = [-(-(i + 1) * n // out) - i * n // out for i in range(out)]
    number = torch.arange(out, device=device)
    start = torch.div(number * n, out, rounding_mode="floor")
    end = torch.div((number + 1) * n + (out - 1), out, rounding_mode="floor")
    place = start.unsqueeze(1) + torch.arange(max(lengths), device=device)
    return place, place < end.unsqueeze(1), max(lengths)


def _none(x: Tensor, out: Sizes) -> Tensor:
    """A result without elements, or of zeros if only the windows have none."""
    return torch.zeros([*x.shape[: x.dim() - len(out)], *out], dtype=x.dtype, device=x.device)


def _adaptive_max_pool(rank: int) -> Any:
    def pool(x: Tensor, out: Sizes) -> tuple[Tensor, Tensor]:
        first = x.dim() - rank
        if x.numel() == 0 or 0 in out:
            return _none(x, out), _none(x, out).to(torch.int64)
        seen, places = x, []
        is_inside: Tensor | None = None
        for dim, n in enumerate(out):
            place, is_own, longest = _adaptive(x.shape[first + dim], n, x.device)
            at = first + 2 * dim
            index = place.clamp(max=x.shape[first + dim] - 1).reshape(-1)
            seen = seen.index_select(at, index).unflatten(at, (n, longest))
            places.append(place)
            shape = [1] * (2 * rank)
            shape[dim], shape[rank + dim] = n, longest
            is_own = is_own.view(shape)
            is_inside = is_own if is_inside is None else is_inside & is_own
        assert is_inside is not None
        order = [*range(first), *range(first, seen.dim(), 2), *range(first + 1, seen.dim(), 2)]
        return _largest(x, torch.where(is_inside, seen.permute(order), float("-inf")), places)

    return pool


def _adaptive_avg_pool(rank: int) -> Any:
    def pool(x: Tensor, out: Sizes) -> Tensor:
        if x.numel() == 0 or 0 in out:
            return _none(x, out)
        total = x.to(torch.float32)
        for dim, n in enumerate(out, x.dim() - rank):
            place, is_own, longest = _adaptive(x.shape[dim], n, x.device)
            index = place.clamp(max=x.shape[dim] - 1).reshape(-1)
            seen = total.index_select(dim, index).unflatten(dim, (n, longest))
            shape = [n, longest] + [1] * (x.dim() - dim - 1)
            counts = is_own.to(torch.float32).sum(1).view(n, *shape[2:])
            total = torch.where(is_own.view(shape), seen, 0).sum(dim + 1) / counts
        return total.to(x.dtype)

    return pool


def _adaptive_avg_pool_backward(rank: int) -> Any:
    def backward(grad: Tensor, x: Tensor) -> Tensor:
        if grad.numel() == 0:
            return NotImplemented
        total = grad.to(torch.float32)
        for dim in range(x.dim() - rank, x.dim()):
            n, out = x.shape[dim], grad.shape[dim]
            place, is_own, longest = _adaptive(n, out, x.device)
            shape = [out, longest] + [1] * (x.dim() - dim - 1)
            counts = is_own.to(torch.float32).sum(1).view(out, *shape[2:])
            shares = torch.where(is_own.view(shape), (total / counts).unsqueeze(dim + 1), 0)
            size = [*total.shape[:dim], n, *total.shape[dim + 1 :]]
            index = place.clamp(max=n - 1).reshape(-1)
            spread = torch.zeros(size, dtype=torch.float32, device=x.device)
            total = spread.index_add(dim, index, shares.flatten(dim, dim + 1))
        return total.to(x.dtype)

    return backward


def _adaptive_max_pool_backward(rank: int) -> Any:
    def backward(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
        flat = torch.zeros_like(x).flatten(-rank)
        return flat.scatter_add(-1, indices.flatten(-rank), grad.flatten(-rank)).view(x.shape)

    return backward


for _rank in (2, 3):
    decomposition(f"aten::adaptive_max_pool{_rank}d")(_adaptive_max_pool(_rank))
    decomposition(f"aten::adaptive_max_pool{_rank}d_backward")(_adaptive_max_pool_backward(_rank))
    decomposition(f"aten::_adaptive_avg_pool{_rank}d")(_adaptive_avg_pool(_rank))
    decomposition(f"aten::_adaptive_avg_pool{_rank}d_backward")(_adaptive_avg_pool_backward(_rank))
