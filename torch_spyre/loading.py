"""Weights from safetensors files straight to the card.

The files are mapped and the card reads from the mapping: a tensor never lies in the host's own
memory. Where its use is known it comes in the layout that the use wants, so no product has to lay
it out later.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdKeyDictionary

from torch_spyre import _C
from torch_spyre.checkpoint import AnyPath, CheckpointError, Stored, open_checkpoint
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device._utils import Device, device_index
from torch_spyre.tools.progress import Progress

DType = torch.dtype | Literal["auto"] | None
Layouts = Mapping[str, _C.SpyreTensorLayout]

# What `dtype=` converts. Floats of 8 bits are halves of a quantised number: without their scales
# they mean nothing in another dtype.
_CONVERTIBLE = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def load_safetensors(
    path: AnyPath,
    *,
    device: Device = DEVICE_NAME,
    dtype: DType = None,
    layouts: Layouts | None = None,
    progress: bool = True,
) -> dict[str, torch.Tensor]:
    """Load a safetensors checkpoint to the card, as a state dict of device tensors.

    `path` is a file, a directory with `model.safetensors` or with shards and their index, or the
    index. `dtype` converts floating-point tensors on their way. `layouts` says, by name, which
    tensors shall have another layout than the default. See `load_model` for a module's weights.
    """
    stored = open_checkpoint(path)
    layouts = layouts or {}
    _check_names(layouts, stored)
    target = _Target(device_index(device), dtype)
    for name, each in stored.items():
        _check_dtype(name, each, target.dtype_for(each.tensor))
    loaded = {}
    with _progress(stored.values(), len(stored), progress) as bar:
        for name in list(stored):
            each = stored.pop(name)  # a file is unmapped with its last tensor
            with _named(name, each):
                dtype_here = target.dtype_for(each.tensor)
                loaded[name] = target.place(each.tensor, dtype_here, layouts.get(name))
            bar.advance(each.tensor.nbytes)
    return loaded


class LoadResult(NamedTuple):
    """What did not match: as `nn.Module.load_state_dict` returns it."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def load_model(
    module: nn.Module,
    path: AnyPath,
    *,
    strict: bool = True,
    device: Device = DEVICE_NAME,
    dtype: DType = None,
    layouts: Layouts | None = None,
    progress: bool = True,
) -> LoadResult:
    """Load a safetensors checkpoint into a module, which is on the card afterwards.

    The module may have been built under `empty_weights`, so that it takes no memory before. Weights
    of linear layers come in the layout that products want. Tied weights stay tied, and one of
    their names in the file is enough. Floating-point tensors take the module's dtypes; with
    `dtype="auto"` they keep the file's, with another `dtype` they are converted to that. What the
    file does not hold, like buffers computed by the module, moves to the card as it is.

    Missing and unexpected keys are an error, as in `nn.Module.load_state_dict`; with
    `strict=False` they are returned.
    """
    stored = open_checkpoint(path)
    slots = _slots(module)
    layouts = layouts or {}
    _check_names(layouts, {name for slot in slots for name in slot.names})
    target = _Target(device_index(device), dtype)
    if strict:
        _check_computed_buffers(module)
    _check_dtypes(slots, stored, target)
    result = _assign(module, _with_tied_names(module, stored), slots, path, strict)
    found = [[stored.pop(name) for name in slot.names if name in stored] for slot in slots]
    with _progress([each for some in found for each in some], len(slots), progress) as bar:
        for slot in slots:
            files = found.pop(0)  # a file is unmapped with its last tensor
            layout = next((layouts[name] for name in slot.names if name in layouts), None)
            with _named(slot.names[0], files[0] if files else None):
                slot.settle(target, layout)
            bar.advance(sum(each.tensor.nbytes for each in files))
    return result


@contextmanager
def empty_weights() -> Iterator[None]:
    """Modules that are built here have parameters without memory, for `load_model` to fill.

    Buffers are real: modules compute some of them when they are built, and no checkpoint holds
    those. Tied parameters stay tied. It holds for all threads while it lasts.

    >>> with torch_spyre.empty_weights():
    ...     model = Model()
    >>> torch_spyre.load_model(model, "model.safetensors")
    """
    emptied: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def empty(_: nn.Module, __: str, parameter: nn.Parameter) -> nn.Parameter:
        if is_lazy(parameter) or parameter.is_meta:
            return parameter
        if parameter not in emptied:
            emptied[parameter] = nn.Parameter(parameter.to("meta"), parameter.requires_grad)
        return emptied[parameter]

    hook = register_module_parameter_registration_hook(empty)  # type: ignore[arg-type]
    try:
        yield
    finally:
        hook.remove()


# ---- One tensor ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Target:
    """Where tensors go, and the dtype that was asked for."""

    device: int
    dtype: DType

    def __post_init__(self) -> None:
        if self.dtype is None or self.dtype == "auto":
            return
        if not isinstance(self.dtype, torch.dtype) or not self.dtype.is_floating_point:
            raise ValueError(
                f"dtype is what floating-point weights are converted to, so it must be a "
                f'floating-point torch.dtype, "auto" or None, not {self.dtype!r}'
            )

    def dtype_for(self, tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.dtype:
        """The dtype on the card of a tensor of a file, for a place that holds `like`."""
        if tensor.dtype not in _CONVERTIBLE or self.dtype == "auto":
            return tensor.dtype
        if isinstance(self.dtype, torch.dtype):
            return self.dtype
        return tensor.dtype if like is None else like.dtype

    def place(
        self, tensor: torch.Tensor, dtype: torch.dtype, layout: _C.SpyreTensorLayout | None
    ) -> torch.Tensor:
        """The values on the card; the host keeps nothing of them. No layout: the default."""
        device = torch.device(DEVICE_NAME, self.device)
        if layout is None:
            return tensor.to(device, dtype)
        placed = _C.empty_with_layout(tuple(tensor.shape), dtype, self.device, layout)
        return placed.copy_(tensor)


@contextmanager
def _named(name: str, stored: Stored | None) -> Iterator[None]:
    """Says in errors of the device (no memory, a number that it can't hold) which tensor it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while '{name}' was loaded" + (f" from {stored.file}" if stored else ""))
        raise


def _progress(stored: Iterable[Stored], items: int, is_wanted: bool) -> Progress:
    nbytes = sum(each.tensor.nbytes for each in stored)
    return Progress("Loading", items, "tensors", total_bytes=nbytes, is_quiet=not is_wanted)


# ---- Places of a module -------------------------------------------------------------------------


@dataclass
class _Slot:
    """A tensor of a module and all the places that hold it: several, where it is tied."""

    tensor: torch.Tensor
    owners: list[tuple[nn.Module, str]]
    names: list[str]

    def fill(self, tensor: torch.Tensor) -> None:
        """Put a tensor into all the places."""
        for owner, name in self.owners:
            _places(owner, name)[name] = tensor

    def settle(self, target: _Target, layout: _C.SpyreTensorLayout | None) -> None:
        """Bring what was assigned to the card, into all places; without a layout, in the best.

        A tensor that was real keeps its identity: an optimiser may know it.
        """
        before = self.tensor
        held = (_places(owner, name)[name] for owner, name in self.owners)
        found = next((tensor for tensor in held if tensor is not before), before)
        if found.is_meta:
            return  # missing, and the caller does not mind
        is_computed = found is before and not isinstance(before, nn.Parameter)
        dtype = found.dtype if is_computed else target.dtype_for(found, like=before)
        layout = layout or self._best_layout(found.shape, dtype)
        placed = target.place(found.detach(), dtype, layout)
        if not before.is_meta:
            before.data = placed
        elif isinstance(before, nn.Parameter):
            placed = nn.Parameter(placed, requires_grad=before.requires_grad)
        self.fill(placed if before.is_meta else before)

    def _best_layout(self, shape: torch.Size, dtype: torch.dtype) -> _C.SpyreTensorLayout | None:
        """That of a product, for the weight of linear layers alone; None is the default.

        A table that is looked up as well has to keep its rows addressable.
        """
        is_linear = all(isinstance(m, nn.Linear) and n == "weight" for m, n in self.owners)
        if not is_linear or len(shape) != 2 or min(shape) < 2:
            return None
        return _C.SpyreTensorLayout(list(shape), [shape[1], 1], dtype, [1, 0])


def _places(owner: nn.Module, name: str) -> dict[str, Any]:
    return owner._parameters if name in owner._parameters else owner._buffers


def _slots(module: nn.Module) -> list[_Slot]:
    """Every tensor of a module once, in the module's order."""
    slots: dict[int, _Slot] = {}
    for prefix, owner in module.named_modules():
        for places in (owner._parameters, owner._buffers):
            for name, tensor in places.items():
                if tensor is None:
                    continue
                slot = slots.setdefault(id(tensor), _Slot(tensor, [], []))
                slot.owners.append((owner, name))
                slot.names.append(f"{prefix}.{name}" if prefix else name)
    return list(slots.values())


def _with_tied_names(module: nn.Module, stored: Mapping[str, Stored]) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint; a tied one under all the names that the module has for it."""
    state = {name: each.tensor for name, each in stored.items()}
    ties: dict[int, list[str]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor):
            ties.setdefault(id(tensor), []).append(name)
    for names in ties.values():
        present = [name for name in names if name in state]
        for other in present[1:]:
            _check_same(present[0], other, stored)
        if present:
            state |= dict.fromkeys(names, state[present[0]])
    return state


def _assign(
    module: nn.Module,
    state: dict[str, torch.Tensor],
    slots: list[_Slot],
    path: AnyPath,
    strict: bool,
) -> LoadResult:
    """Put the mapped tensors into the module, with PyTorch's own rules, hooks and checks."""
    try:
        return LoadResult(*module.load_state_dict(state, strict=strict, assign=True))
    except RuntimeError as error:
        for slot in slots:
            slot.fill(slot.tensor)
        raise CheckpointError(
            f"the checkpoint does not fit {type(module).__name__}",
            path,
            str(error),
            "build the module with the configuration of the checkpoint; strict=False takes what "
            "fits by name",
        ) from None


# ---- Checks before anything is touched ----------------------------------------------------------


def _check_names(layouts: Layouts, known: Container[str]) -> None:
    unknown = [name for name in layouts if name not in known]
    if unknown:
        raise ValueError(f"layouts are given for tensors that there are not: {', '.join(unknown)}")


def _check_dtypes(slots: list[_Slot], stored: Mapping[str, Stored], target: _Target) -> None:
    for slot in slots:
        for name in slot.names:
            if name in stored:
                dtype = target.dtype_for(stored[name].tensor, slot.tensor)
                _check_dtype(name, stored[name], dtype)


def _check_dtype(name: str, stored: Stored, dtype: torch.dtype) -> None:
    try:
        _C.get_device_dtype(dtype)
    except TypeError as error:
        way_out = "dtype=torch.float32" if dtype.is_floating_point else "leave it out of the file"
        raise CheckpointError(
            f"'{name}' would be {dtype} on the card, which has no format for it",
            stored.file,
            str(error),
            way_out,
        ) from None


def _check_same(first: str, second: str, stored: Mapping[str, Stored]) -> None:
    if not torch.equal(stored[first].tensor, stored[second].tensor):
        raise CheckpointError(
            f"'{first}' and '{second}' are one weight of the module and two in the checkpoint",
            stored[second].file,
            "their values differ, so the checkpoint is of a module that does not tie them",
            "build the module without the tie (tie_word_embeddings=False)",
        )


def _check_computed_buffers(module: nn.Module) -> None:
    """Buffers that no checkpoint holds must have been computed."""
    persistent = set(module.state_dict(keep_vars=True))
    lost = [
        name
        for name, buffer in module.named_buffers(remove_duplicate=False)
        if buffer.is_meta and name not in persistent
    ]
    if lost:
        raise CheckpointError(
            f"{len(lost)} buffers have no values: {', '.join(lost[:5])}",
            type(module).__name__,
            "a module computes such buffers when it is built, and on the meta device it computes "
            "nothing; they are not part of a state dict, so no file holds them",
            "torch_spyre.empty_weights() instead of torch.device('meta'): parameters are empty, "
            "buffers are real",
        )
