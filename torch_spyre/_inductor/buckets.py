"""What generated code calls where sizes are dynamic: tensors of a bucket, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._C._dynamo.guards import (  # type: ignore[attr-defined]
    _reinterpret_tensor as reinterpret_tensor,
)

from torch_spyre.constants import DEVICE_NAME


def to_bucket(tensor: torch.Tensor, bucket: torch.Tensor) -> torch.Tensor:
    """A tensor's values at the start of every dimension of its bucket.

    Zeros follow: as an index they do no harm, and no step reads what nobody wrote.
    """
    bucket.zero_()
    valid_part(bucket, tensor.shape).copy_(tensor)
    return bucket


def valid_part(bucket: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """The part of a bucket that holds values."""
    return bucket[tuple(slice(n) for n in size)]


def from_bucket(bucket: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """A tensor of the size that was computed, in the bucket's memory where its strides allow that.

    No view by PyTorch's count: Dynamo would compile anew for an input that is one.
    """
    part = valid_part(bucket, size)
    if part.stride() == tuple(stride):
        return reinterpret_tensor(bucket, tuple(size), tuple(stride), 0)
    result = torch.empty_strided(size, stride, dtype=part.dtype, device=part.device)
    return result.copy_(part)


def size_tensor(number: int, device: int) -> torch.Tensor:
    """A size as a tensor with one element, for arithmetic with it."""
    return torch.full((), number, dtype=torch.int32, device=f"{DEVICE_NAME}:{device}")
