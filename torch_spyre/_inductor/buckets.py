"""What generated code calls where sizes are dynamic: tensors of a bucket, and back."""

from __future__ import annotations

import torch

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME

# Nothing is copied where a tensor lies in a bucket already: see `csrc/runtime/bucket.h`.
to_bucket = _C.to_bucket
from_bucket = _C.from_bucket
write_back = _C.write_back


def size_tensor(number: int, device: int) -> torch.Tensor:
    """A size as a tensor with one element, for arithmetic with it."""
    return torch.full((), number, dtype=torch.int32, device=f"{DEVICE_NAME}:{device}")
