"""Scaled dot product attention as an online softmax, for eager operations and compiled graphs.

Queries are taken in sections, and the keys that a section sees in chunks. Of each chunk the scores,
their largest element and their sum update those of the chunks before, so that no row of scores is
ever needed as a whole: the compiler keeps a chunk of them in the scratchpads. A causal section
leaves out the keys behind it.

PyTorch's own decomposition converts everything to float32 for 16-bit inputs, which quarters the
rate of the matrix units. The card multiplies 16-bit operands and accumulates in 32 bits anyway, so
here only scores, sums and the weighted values on their way are float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.nn import functional

from torch_spyre.ops.decompositions import LARGEST_16_BIT

Tensor = torch.Tensor

# Keys whose scores are looked at together; more chunks than the most make a graph too long.
CHUNK = 1024
MOST_CHUNKS = 8
# Queries of a causal section, at least; more sections save more of the products that are masked.
SECTION = 256
MOST_SECTIONS = 8


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
    if not enable_gqa and query.dim() > 2 and key.dim() > 2:
        torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])  # or raises
    factor = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    if query.size(-2) == 0 or key.size(-2) == 0:
        return query.new_zeros(*query.shape[:-1], value.size(-1))
    if dropout_p > 0:
        return _with_dropout(query, key, value, factor, attn_mask, dropout_p, is_causal)
    key = key.transpose(-2, -1)
    sections = list(_sections(query.size(-2), key.size(-1), is_causal))
    if len(sections) > 1:
        key = key.contiguous()  # once, with keys in the sticks, as the products of all want it
    parts = [
        _attend(
            query[..., rows.first : rows.end, :],
            key[..., :seen],
            value[..., :seen, :],
            factor,
            _Mask(attn_mask, rows.first if is_causal else None, rows),
        )
        for rows, seen in sections
    ]
    if query.dim() > 2 and query.stride(-3) < query.stride(-2):
        # In memory as the queries: models go back to [batch, length, heads, width] next, a view.
        return torch.cat([part.transpose(-3, -2) for part in parts], -3).transpose(-3, -2)
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


class _Range(NamedTuple):
    first: int
    end: int


def _is_number(length: int) -> bool:
    """Is a length known? A symbol of a dynamic shape is not."""
    return isinstance(length, int)


def _sections(queries: int, keys: int, is_causal: bool) -> Iterator[tuple[_Range, int]]:
    """Rows of queries, with the number of keys that they see."""
    if not is_causal or not _is_number(queries) or not _is_number(keys):
        yield _Range(0, queries), keys
        return
    rows = max(SECTION, -(-queries // MOST_SECTIONS))
    for first in range(0, queries, rows):
        end = min(first + rows, queries)
        yield _Range(first, end), min(end, keys)


def _chunks(keys: int, causal_from: int | None) -> Iterator[_Range]:
    """Keys in parts of about the same length; those that a causal section hides last."""
    if not _is_number(keys):
        yield _Range(0, keys)
        return
    seen_by_all = keys if causal_from is None else min(causal_from, keys)
    if seen_by_all > 0:
        count = min(-(-seen_by_all // CHUNK), MOST_CHUNKS)
        length = 64 * -(-seen_by_all // (64 * count))  # whole sticks
        for first in range(0, seen_by_all, length):
            yield _Range(first, min(first + length, seen_by_all))
    if seen_by_all < keys:
        yield _Range(seen_by_all, keys)


class _Mask(NamedTuple):
    """What is added to scores, or says which count; of some rows of all queries."""

    given: Tensor | None
    causal_from: int | None  # the first row, if rows see keys up to their own position
    rows: _Range

    @property
    def may_hide_all(self) -> bool:
        return self.given is not None

    @property
    def is_added(self) -> bool:
        return self.given is not None and self.given.dtype != torch.bool

    def apply(self, scores: Tensor, keys: _Range) -> Tensor:
        if self.given is not None:
            part = self.given
            if part.size(-2) != 1:
                part = part[..., self.rows.first : self.rows.end, :]
            if part.size(-1) != 1:
                part = part[..., keys.first : keys.end]
            if part.dtype == torch.bool:
                scores = torch.where(part, scores, -math.inf)
            else:
                scores = scores + part
        if self.causal_from is None or (_is_number(keys.end) and keys.end <= self.causal_from + 1):
            return scores  # every row sees all of these keys
        # Counted from the chunk's first key: sections that begin there have the same mask.
        ahead = self.causal_from - keys.first
        rows = torch.arange(ahead, ahead + scores.size(-2), device=scores.device)
        columns = torch.arange(scores.size(-1), device=scores.device)
        return torch.where(columns <= rows[:, None], scores, -math.inf)


def _attend(query: Tensor, key: Tensor, value: Tensor, factor: float, mask: _Mask) -> Tensor:
    """Attention of queries to all of the keys, which are columns.

    The factor of the scores is that of their differences, so it is left to the exponential.
    """
    top: Tensor | None = None  # the largest score so far, per row
    total = result = query  # both are set with the first chunk
    for keys in _chunks(key.size(-1), mask.causal_from):
        part = slice(keys.first, keys.end)
        scores = _product(query, key[..., part])
        if mask.is_added or factor <= 0:  # what is largest depends on it
            scores, later = scores * factor, 1.0
        else:
            later = factor
        scores = mask.apply(scores, keys)
        here = scores.amax(-1, keepdim=True)
        if mask.may_hide_all:
            here = here.clamp_min(-LARGEST_16_BIT)  # finite, so that nothing is subtracted from it
        now = here if top is None else torch.maximum(top, here)
        weights = _exponential(scores - now, later).to(query.dtype)
        sums = weights.sum(-1, keepdim=True, dtype=torch.float32)
        values = _product(weights, value[..., part, :])
        if top is None:
            total, result = sums, values
        else:
            past = _exponential(top - now, later)
            total, result = total * past + sums, result * past + values
        top = now
    if mask.may_hide_all:
        # Where anything is seen the largest score contributes 1; where nothing is, zeros result.
        total = total.clamp_min(1.0)
    return (result * total.reciprocal()).to(query.dtype)


def _exponential(x: Tensor, factor: float) -> Tensor:
    return torch.exp(x if factor == 1 else x * factor)


def _with_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    factor: float,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
) -> Tensor:
    """The weights as a whole, as they are drawn for the whole."""
    keys = _Range(0, key.size(-2))
    mask = _Mask(attn_mask, 0 if is_causal else None, _Range(0, query.size(-2)))
    # Not the query: scores of some hundreds would feel its rounding to 16 bits.
    scores = mask.apply(_product(query, key.transpose(-2, -1)) * factor, keys)
    weights = torch.ops.aten._safe_softmax(scores, -1).to(query.dtype)
    return _product(functional.dropout(weights, dropout_p), value).to(query.dtype)


def _repeated(x: Tensor, heads: int) -> Tensor:
    """Each head of keys or values for all heads of its group."""
    *batch, own, length, width = x.shape
    grouped = x.unsqueeze(-3).expand(*batch, own, heads // own, length, width)
    return grouped.reshape(*batch, heads, length, width)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in float32; heads of a in groups may share a head of b."""
    if a.dim() > 2 and b.dim() > 2 and a.size(-3) != b.size(-3) and b.size(-3) > 1:
        b = _repeated(b, a.size(-3))
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    count = math.prod(batch)  # not -1: a quotient of dynamic lengths is no number to PyTorch
    left = a.expand(*batch, *a.shape[-2:]).reshape(count, *a.shape[-2:])
    right = b.expand(*batch, *b.shape[-2:]).reshape(count, *b.shape[-2:])
    product = torch.ops.spyre.bmm_to_float(left, right)
    return product.view(*batch, a.size(-2), b.size(-1))
