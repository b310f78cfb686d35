"""Products of quantised matrices, for eager operations and compiled graphs alike.

The matrix units take columns of 8 bits as they are and add up in 32, so the scales of rows and
columns come after the sum, in fp32, and the result is rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

Tensor = torch.Tensor

_TENSOR_WISE, _ROW_WISE = [0], [1]  # of torch.nn.functional.ScalingType


def scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """(a · scale_a) @ (b · scale_b) with one scale for each matrix, or one per row and column.

    Any strides and sizes will do. As on the CPU, a result of 8 bits is divided by its own scale
    and saturates, and others take no notice of it.
    """
    del use_fast_accum
    if not _are_scales(a, b, scale_a, scale_b):
        return NotImplemented
    result = _product(a, b) * _spread(scale_a) * _spread(scale_b)
    if bias is not None:
        result = result + bias
    dtype = out_dtype or a.dtype
    if dtype.itemsize == 1:
        if scale_result is not None:
            result = result / _spread(scale_result)
        most = torch.finfo(dtype).max
        result = result.clamp(-most, most)
    return result.to(dtype)


def scaled_mm_v2(
    a: Tensor,
    b: Tensor,
    scale_a: Sequence[Tensor],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[Tensor],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Tensor:
    """What `torch.nn.functional.scaled_mm` calls; scales of blocks are not the card's."""
    recipes = [*recipe_a], [*recipe_b]
    is_known = recipes in ((_TENSOR_WISE, _TENSOR_WISE), (_ROW_WISE, _ROW_WISE))
    if not is_known or any(swizzle_a) or any(swizzle_b) or [*contraction_dim] not in ([], [1, 0]):
        return NotImplemented
    return scaled_mm(a, b, scale_a[0], scale_b[0], bias, None, out_dtype, use_fast_accum)


def weight_int8pack_mm(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """x @ weight.t() · scales, for a weight of bytes with a scale for each of its rows."""
    return (_product(x, weight.t()) * scales).to(x.dtype)


def _product(a: Tensor, b: Tensor) -> Tensor:
    from torch_spyre._inductor.fx import custom_ops  # noqa: F401  defines torch.ops.spyre

    product: Tensor = torch.ops.spyre.bmm_to_float(a.unsqueeze(0), b.unsqueeze(0))
    return product.squeeze(0)


def _are_scales(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> bool:
    """If not, the CPU says what is wrong."""
    if scale_a.dtype is not torch.float32 or scale_b.dtype is not torch.float32:
        return False
    if a.dtype.itemsize != 1 or b.dtype.itemsize != 1 or a.dim() != 2 or b.dim() != 2:
        return False
    if scale_a.numel() == 1 and scale_b.numel() == 1:
        return True
    rows, columns = [a.shape[0], 1], [1, b.shape[1]]
    return [*scale_a.shape] == rows and [*scale_b.shape] == columns


def _spread(scale: Tensor) -> Tensor:
    """A single scale has no dimensions that count."""
    return scale.reshape(()) if scale.numel() == 1 else scale
