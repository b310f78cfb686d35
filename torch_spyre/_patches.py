"""Everything that `torch_spyre` changes in PyTorch and other packages, in one place.

Two functions learn a keyword that only means something for this device, tensors get a method, and
printing reads them from the host. Calls on other devices take the same way as before. Where PyTorch
recognises the two functions by identity (device contexts, TorchScript, lazy modules, pickle), the
new ones are named as well; Dynamo doesn't trace the unbound spelling `torch.Tensor.to(x, ...)`.

`torch.Tensor.to(..., device_layout=)`
    A layout is chosen where a tensor moves. Unnecessary if backends could add keywords to `to`.
`torch.empty(..., device_layout=)`
    A tensor is created in the layout it will be used in. Unnecessary with the same for factories.
`torch.Tensor.device_tensor_layout()`
    A layout is a property of a tensor to its user. An addition, not a change.
`torch._tensor_str._tensor_str`
    Printing formats on the device, in float64, which the card lacks. Unnecessary if PyTorch's list
    of devices that print from the CPU (XLA, MTIA, ...) were open.

`torch._TorchCompileInductorWrapper.__call__`
    `torch.compile(model)` on Spyre tensors goes to the function behind `backend="spyre"`, which
    knows device layouts and decompositions. Graphs without Spyre tensors go on as before.
    Unnecessary if a device could name its Dynamo backend.

`torch._dynamo.convert_frame.compute_cache_size` (from the first compile on)
`torch._dynamo.convert_frame.exceeds_recompile_limit` (likewise)
    Dynamo keeps 8 graphs of a function and runs it eagerly when it needs more. Of graphs for Spyre
    that differ in their buckets, of which there are few, one counts; and a second warning says
    which sizes changed, and what to do (`_inductor/recompiles.py`). Functions without graphs for
    Spyre get Dynamo's own answers. Unnecessary if a backend could say which of its graphs count, or
    had several for one set of guards.

`transformers.distributed.utils.DISTRIBUTED_BACKEND_MAP`
    `tp_plan="auto"` starts torch.distributed by this table. It gets an entry, if and when a program
    imports transformers (`_transformers.py`). Unnecessary if transformers asked PyTorch, which
    knows the backend: `torch.distributed.get_default_backend_for_device("spyre")`.

`accelerate.utils.modeling.get_max_memory`
    `device_map="auto"` places a model by what it returns: the memory of devices of a list. Where it
    finds no accelerator and was not told of one, it returns the cards as well; likewise if and when
    accelerate is imported. Unnecessary if accelerate asked `torch.accelerator`.

`nn.Module.to` needs no patch: tied parameters stay tied because the runtime answers PyTorch's
`_has_compatible_shallow_copy_type` for its tensors.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import _tensor_str
from torch.jit._builtins import _register_builtin
from torch.nn import parameter
from torch.utils._device import _device_constructors

from torch_spyre import _C, _transformers
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
    asked = kwargs.get("device")
    device = torch.get_default_device() if asked is None else torch.device(asked)
    if not _is_spyre(device):
        raise ValueError(
            f"device_layout describes a tensor on a {DEVICE_NAME} device, not on {device}; "
            f"pass device='{DEVICE_NAME}' as well"
        )
    for unsupported in ("pin_memory", "layout", "memory_format", "out"):
        if kwargs.get(unsupported):
            raise ValueError(f"torch.empty: device_layout can't be combined with {unsupported}")
    like = original(*size, **{**kwargs, "device": "meta"})
    made = _C.empty_with_layout(tuple(like.shape), like.dtype, device_index(device), layout)
    return made.requires_grad_(like.requires_grad)


def _device_tensor_layout(self: torch.Tensor) -> _C.SpyreTensorLayout | None:
    """The `SpyreTensorLayout` of the storage behind a Spyre tensor; None on other devices."""
    return _C.get_spyre_tensor_layout(self) if _is_spyre(self.device) else None


def _printed_from_host(original: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(original)
    def tensor_str(self: torch.Tensor, indent: int) -> str:
        return original(_to_print(self) if self.device.type == DEVICE_NAME else self, indent)

    return tensor_str


def _to_print(tensor: torch.Tensor) -> torch.Tensor:
    """A host tensor that prints like this one: all of it, or the corners that will be shown."""
    options = _tensor_str.PRINT_OPTS
    if tensor.numel() <= options.threshold:
        return tensor.cpu()
    edge = options.edgeitems
    ends = [
        (slice(None),) if size <= 2 * edge else (slice(edge), slice(size - edge, None))
        for size in tensor.shape
    ]
    host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")  # never touched elsewhere
    for corner in itertools.product(*ends):
        host[corner] = tensor[corner].cpu()
    return host


def _compiled_for_spyre(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, model_: Any, inputs_: Any, *, config_patches: Any = None) -> Any:
        from torch_spyre._inductor import backend

        if not backend.is_spyre_graph(model_, inputs_):
            return original(self, model_, inputs_, config_patches=config_patches)
        patches = {**self.config, **(config_patches or {})}
        return backend.compile_graph(model_, inputs_, config_patches=patches)

    return call


def count_graphs_by_buckets() -> None:
    """Called once, by the first compile: earlier it would import Dynamo with PyTorch."""
    from torch._dynamo import convert_frame

    from torch_spyre._inductor import recompiles

    frames: Any = convert_frame
    frames.compute_cache_size = functools.partial(recompiles.cache_size, frames.compute_cache_size)
    frames.exceeds_recompile_limit = functools.partial(
        recompiles.exceeds_limit, frames.exceeds_recompile_limit
    )


def _tell_pytorch(to: Callable[..., Any], empty: Callable[..., Any]) -> None:
    """PyTorch knows the two functions by identity in a few places: name the new ones there."""
    to.__module__, to.__qualname__ = "torch", "Tensor.to"
    empty.__module__, empty.__qualname__ = "torch", "empty"
    _device_constructors().add(empty.__wrapped__)  # type: ignore[attr-defined]
    _register_builtin(empty, "aten::empty")
    parameter.UninitializedTensorMixin._allowed_methods.append(to)  # type: ignore[attr-defined]


def apply() -> None:
    """Called once, by `torch_spyre._register`."""
    torch.Tensor.to = _with_layout_to(torch.Tensor.to)  # type: ignore[method-assign]
    torch.empty = _with_layout_empty(torch.empty)
    _tell_pytorch(torch.Tensor.to, torch.empty)
    torch.Tensor.device_tensor_layout = _device_tensor_layout  # type: ignore[attr-defined]
    _tensor_str._tensor_str = _printed_from_host(_tensor_str._tensor_str)
    inductor = torch._TorchCompileInductorWrapper
    inductor.__call__ = _compiled_for_spyre(inductor.__call__)  # type: ignore[method-assign]
    _transformers.complete_when_imported()
