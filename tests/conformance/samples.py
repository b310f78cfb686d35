"""Entries of `op_db`, and their inputs: on the host as the card will hold them, and on the card."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree

DEVICE = "spyre"
DTYPES = {
    "float16": torch.float16,
    "float32": torch.float32,
    "int32": torch.int32,
    "bool": torch.bool,
}
# For entries that have none of these.
OTHER_DTYPES = {
    "int64": torch.int64,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "complex64": torch.complex64,
}
ALL_DTYPES = DTYPES | OTHER_DTYPES
# card.md: everything else raises TypeError.
CARD_DTYPES = frozenset(
    [
        *(torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8),
    ]
)


@functools.cache
def operations() -> dict[str, OpInfo]:
    """Every entry by its full name, such as "add" or "div.floor_rounding"."""
    return {op.full_name: op for op in op_db}


def matching(patterns: str) -> list[str]:
    """The entries that match one of the comma-separated patterns ("sort,*pool2d")."""
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    return [name for name in operations() if any(fnmatchcase(name, each) for each in wanted)]


def dtypes_of(name: str) -> list[str]:
    """The names of the dtypes that are checked for an entry: those it supports on the CPU."""
    supported = operations()[name].supported_dtypes("cpu")
    found = [text for text, dtype in DTYPES.items() if dtype in supported]
    return found or [text for text, dtype in OTHER_DTYPES.items() if dtype in supported][:1]


@dataclass(frozen=True)
class Inputs:
    """The arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    finish: Callable[[Any], Any] = lambda result: result  # makes a result differentiable

    def map(self, function: Callable[[Any], Any]) -> Inputs:
        """The same arguments with the function applied to tensors, dtypes and devices."""
        args, kwargs = _pytree.tree_map(function, (self.args, self.kwargs))
        return replace(self, args=args, kwargs=kwargs)

    def tensors(self) -> list[torch.Tensor]:
        """All tensors among the arguments, those in lists too."""
        leaves = _pytree.tree_leaves((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def held(self) -> Inputs:
        """With the values that the card holds for 16-bit floats: they lose a bit there."""
        return self.map(_as_the_card_holds)

    def clone(self) -> Inputs:
        """The same arguments with tensors of their own, strides included."""
        return self.map(lambda x: _moved(x, "cpu") if isinstance(x, torch.Tensor) else x)

    def on_card(self, host: tuple[int, ...] = ()) -> Inputs:
        """The same arguments on the card; where they name the CPU as a device, they name the card.

        Arguments at the positions `host` stay where they are.
        """

        def put(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return _moved(value, DEVICE)
            is_device = isinstance(value, torch.device) or value == "cpu"
            return torch.device(DEVICE) if is_device else value

        moved = self.map(put)
        args = tuple(self.args[i] if i in host else moved.args[i] for i in range(len(self.args)))
        return replace(moved, args=args)

    def widened(self, narrow: torch.dtype, wide: torch.dtype) -> Inputs:
        """The same call in a wider dtype: its tensors, and dtypes that are asked for."""

        def widen(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                made = value.detach().to(wide if value.dtype is narrow else value.dtype, copy=True)
                return made.requires_grad_(value.requires_grad)
            return wide if value is narrow else value

        return self.map(widen)

    def get(self, place: int | str) -> Any:
        """The argument with this position or name; None if there is none."""
        if isinstance(place, str):
            return self.kwargs.get(place)
        return self.args[place] if place < len(self.args) else None

    def text(self) -> str:
        """For reports: shapes and values, not the tensors."""

        def short(value: Any) -> str:
            if isinstance(value, torch.Tensor):
                dtype = str(value.dtype).removeprefix("torch.")
                is_plain = value.layout is not torch.strided or value.is_contiguous()
                strides = "" if is_plain else f" strides {list(value.stride())}"
                return f"{dtype}{list(value.shape)}{strides}"
            if isinstance(value, list | tuple):
                return "[" + ", ".join(map(short, value)) + "]"
            return repr(value)

        named = [f"{key}={short(value)}" for key, value in self.kwargs.items()]
        return ", ".join([*map(short, self.args), *named])


def _moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A copy on the device with the same strides and offset, also where they skip or repeat."""
    source = tensor.detach()
    is_plain = source.layout is torch.strided and not (source.is_conj() or source.is_neg())
    if not is_plain or source.is_contiguous():
        moved = source.to(device, copy=True)
    else:
        size = source.untyped_storage().nbytes() // source.itemsize
        storage = torch.as_strided(source, (size,), (1,), 0).to(device, copy=True)
        moved = storage.as_strided(source.size(), source.stride(), source.storage_offset())
    return moved.requires_grad_(tensor.requires_grad)


def _as_the_card_holds(value: Any) -> Any:
    is_plain = isinstance(value, torch.Tensor) and value.layout is torch.strided
    if is_plain and value.dtype in (torch.float16, torch.bfloat16):
        value.copy_(value.to(DEVICE).cpu())  # in place: it keeps its strides
    return value


def spread(samples: list[Any], most: int) -> list[Any]:
    """At most so many of them, from first to last: neighbours are alike."""
    if len(samples) <= most:
        return samples
    return [samples[i * len(samples) // most] for i in range(most)]


def inputs_of(name: str, dtype: str, most: int, requires_grad: bool = False) -> Iterator[Inputs]:
    """The inputs of an entry, on the CPU; the same ones in every run."""
    torch.manual_seed(zlib.crc32(f"{name} {dtype}".encode()))
    made = operations()[name].sample_inputs("cpu", ALL_DTYPES[dtype], requires_grad=requires_grad)
    for sample in spread(list(made), most):
        args = (sample.input, *sample.args)
        yield Inputs(args, dict(sample.kwargs), sample.output_process_fn_grad).held()
