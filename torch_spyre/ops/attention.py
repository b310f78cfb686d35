"""Scaled dot product attention through matmul and softmax, with scores in 32 bits; for eager
operations and compiled graphs alike.

PyTorch's own decomposition converts everything to float32 for 16-bit inputs, which quarters the
rate of the matrix units. The card multiplies 16-bit operands and accumulates in 32 bits anyway, so
here only the scores, and what softmax makes of them before the exponential, are float32.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

Tensor = torch.Tensor


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """What `torch.nn.functional.scaled_dot_product_attention` computes."""
    if is_causal and attn_mask is not None:
        raise RuntimeError("scaled_dot_product_attention: give attn_mask or is_causal, not both")
    if enable_gqa and query.size(-3) != key.size(-3):
        key, value = _repeated(key, query.size(-3)), _repeated(value, query.size(-3))
    factor = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    # Not the query: scores of some hundreds would feel its rounding to 16 bits.
    scores = _scores(query, key.transpose(-2, -1)) * factor
    if is_causal:
        rows = torch.arange(query.size(-2), device=query.device)
        columns = torch.arange(key.size(-2), device=query.device)
        attn_mask = columns <= rows[:, None]
    if attn_mask is None:
        weights = torch.softmax(scores, -1)
    else:
        weights = _masked_softmax(scores, attn_mask)
    weights = weights.to(query.dtype)
    if dropout_p > 0:
        weights = functional.dropout(weights, dropout_p)
    return weights @ value


def _repeated(x: Tensor, heads: int) -> Tensor:
    """Each head of keys or values for all heads of its group."""
    *batch, own, length, width = x.shape
    grouped = x.unsqueeze(-3).expand(*batch, own, heads // own, length, width)
    return grouped.reshape(*batch, heads, length, width)


def _scores(query: Tensor, key: Tensor) -> Tensor:
    """query @ key in float32."""
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    a = query.expand(*batch, *query.shape[-2:]).reshape(-1, *query.shape[-2:])
    b = key.expand(*batch, *key.shape[-2:]).reshape(-1, *key.shape[-2:])
    product = torch.ops.spyre.bmm_to_float(a, b)
    return product.view(*batch, query.size(-2), key.size(-1))


def _masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        scores = torch.where(mask, scores, -math.inf)
    else:
        scores = scores + mask
    return torch.ops.aten._safe_softmax(scores, -1)
