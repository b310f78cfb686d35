"""Operations of ours that models may name: `spyre::require_layout`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME


@torch.library.custom_op("spyre::require_layout", mutates_args=())
def _require_layout(
    x: torch.Tensor, device_size: Sequence[int], stride_map: Sequence[int]
) -> torch.Tensor:
    """In eager mode: a copy in the layout."""
    if x.device.type != DEVICE_NAME:
        raise ValueError(
            f"require_layout is for tensors on {DEVICE_NAME}, this one is on {x.device}"
        )
    layout = _C.SpyreTensorLayout(list(device_size), list(stride_map), _C.get_device_dtype(x.dtype))
    result = _C.empty_with_layout(tuple(x.shape), x.dtype, x.get_device(), layout)
    return result.copy_(x)


@_require_layout.register_fake
def _(x: torch.Tensor, device_size: Sequence[int], stride_map: Sequence[int]) -> torch.Tensor:
    del device_size, stride_map
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _backward(_: object, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    return grad, None, None


_require_layout.register_autograd(_backward)


def require_layout(
    x: torch.Tensor, device_size: Sequence[int], stride_map: Sequence[int]
) -> torch.Tensor:
    """The tensor in a device layout of your choice, in eager and in compiled code.

    The compiler lays its result out like that instead of choosing for itself; operations that
    want it otherwise copy it.
    """
    return torch.ops.spyre.require_layout(x, list(device_size), list(stride_map))
