"""Everything that `torch_spyre` changes in PyTorch, in one place.

Two functions learn a keyword that only means something for this device, tensors get a method, and
printing reads them from the host. Calls on other devices take the same way as before.

`torch.Tensor.to(..., device_layout=)`
    A layout is chosen where a tensor moves. Unnecessary if backends could add keywords to `to`.
`torch.empty(..., device_layout=)`
    A tensor is created in the layout it will be used in. Unnecessary with the same for factories.
`torch.Tensor.device_tensor_layout()`
    A layout is a property of a tensor to its user. An addition, not a change.
`torch._tensor_str._tensor_str`
    Printing formats on the device, in float64, which the card lacks. Unnecessary if PyTorch's list
    of devices that print from the CPU (XLA, MTIA, ...) were open.

`nn.Module.to` needs no patch: tied parameters stay tied because the runtime answers PyTorch's
`_has_compatible_shallow_copy_type` for its tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import _tensor_str

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device._utils import device_index


def _is_spyre(device: torch.device) -> bool:
    return device.type == DEVICE_NAME


def _place(tensor: torch.Tensor, layout: _C.SpyreTensorLayout) -> torch.Tensor:
    """A tensor with these values in this layout; itself if it has it already."""
    if not _is_spyre(tensor.device):
        raise ValueError(
            f"device_layout describes a tensor on a {DEVICE_NAME} device, but the result would be "
            f"on {tensor.device}; name the device as well: x.to('{DEVICE_NAME}', device_layout=...)"
        )
    if _C.get_spyre_tensor_layout(tensor) == layout:
        return tensor
    placed = _C.empty_with_layout(tuple(tensor.shape), tensor.dtype, tensor.get_device(), layout)
    return placed.copy_(tensor)


def _with_layout_to(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if "device_layout" not in kwargs:
            return original(self, *args, **kwargs)
        layout = kwargs.pop("device_layout")
        moved = original(self, *args, **kwargs) if args or kwargs else self
        if layout is None:
            return moved
        return _place(moved, layout)

    return to


def _with_layout_empty(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def empty(*size: Any, **kwargs: Any) -> torch.Tensor:
        if "device_layout" not in kwargs:
            return original(*size, **kwargs)
        layout = kwargs.pop("device_layout")
        if layout is None:
            return original(*size, **kwargs)
        return _empty_with_layout(original, size, kwargs, layout)

    return empty


def _empty_with_layout(
    original: Callable[..., torch.Tensor],
    size: tuple[Any, ...],
    kwargs: dict[str, Any],
    layout: _C.SpyreTensorLayout,
) -> torch.Tensor:
    """`torch.empty` with a layout: PyTorch checks the arguments, we make the tensor."""
    device = torch.device(kwargs.get("device") or torch.get_default_device())
    if not _is_spyre(device):
        raise ValueError(
            f"device_layout describes a tensor on a {DEVICE_NAME} device, not on {device}; "
            f"pass device='{DEVICE_NAME}' as well"
        )
    like = original(*size, **{**kwargs, "device": "meta"})
    made = _C.empty_with_layout(tuple(like.shape), like.dtype, device_index(device), layout)
    return made.requires_grad_(like.requires_grad)


def _device_tensor_layout(self: torch.Tensor) -> _C.SpyreTensorLayout | None:
    """The `SpyreTensorLayout` of the storage behind a Spyre tensor; None on other devices."""
    return _C.get_spyre_tensor_layout(self) if _is_spyre(self.device) else None


def _printed_from_host(original: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(original)
    def tensor_str(self: torch.Tensor, indent: int) -> str:
        return original(self.cpu() if self.device.type == DEVICE_NAME else self, indent)

    return tensor_str


def apply() -> None:
    """Called once, by `torch_spyre._register`."""
    torch.Tensor.to = _with_layout_to(torch.Tensor.to)  # type: ignore[method-assign]
    torch.empty = _with_layout_empty(torch.empty)
    torch.Tensor.device_tensor_layout = _device_tensor_layout  # type: ignore[attr-defined]
    _tensor_str._tensor_str = _printed_from_host(_tensor_str._tensor_str)
