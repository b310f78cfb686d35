"""Operations of ours: `spyre::require_layout` and `spyre::name_dims` for models,
`spyre::bmm_to_float` for ourselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


@torch.library.custom_op("spyre::bmm_to_float", mutates_args=())
def _bmm_to_float(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A batched matmul whose result keeps the 32 bits of its accumulators.

    Operands may have 8 bits: floats, or bytes as the second.
    """
    return torch.bmm(a.float(), b.float())


@_bmm_to_float.register_fake
def _(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_empty((a.size(0), a.size(1), b.size(2)), dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs)


def _bmm_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = ctx.saved_tensors
    grad = grad.to(a.dtype)
    return grad @ b.transpose(1, 2), a.transpose(1, 2) @ grad


_bmm_to_float.register_autograd(_bmm_backward, setup_context=_save)


def require_layout(
    x: torch.Tensor, device_size: Sequence[int], stride_map: Sequence[int]
) -> torch.Tensor:
    """The tensor in a device layout of your choice, in eager and in compiled code.

    The compiler lays its result out like that instead of choosing for itself; operations that
    want it otherwise copy it.
    """
    return torch.ops.spyre.require_layout(x, list(device_size), list(stride_map))


@torch.library.custom_op(
    "spyre::name_dims", mutates_args=(), schema="(Tensor x, str[] names) -> ()"
)
def _name_dims(x: torch.Tensor, names: Sequence[str]) -> None:
    """Names of a tensor's dimensions, in a graph; see `torch_spyre.name_tensor_dims`."""


@_name_dims.register_fake
def _(x: torch.Tensor, names: Sequence[str]) -> None:
    del x, names


# Nothing reads its result, and it must stay until the compiler has read the names.
torch.fx.node.has_side_effect(torch.ops.spyre.name_dims.default)
