"""Decompositions into Spyre's vocabulary, for graphs on Spyre only."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import decomposition
from torch._prims_common import suggest_memory_format

from torch_spyre.constants import DEVICE_NAME
from torch_spyre.ops.decompositions import TABLE

from .. import externs

aten = torch.ops.aten

# Operations that the card has: they reach our lowerings as they are.
_NATIVE = (aten.gelu.default, aten.silu.default, aten.index_select.default)


def register_decompositions() -> None:
    """Put ours in front of PyTorch's; for other devices nothing changes."""
    table = decomposition.decompositions
    for op, ours in TABLE.items():
        table[op] = _for_spyre(ours, table.get(op))
    for op in (*_NATIVE, *externs.overloads()):
        if op in table and op not in TABLE:
            table[op] = _for_spyre(_keep, table[op])
    table[aten.cat.default] = _with_strides_of_eager(table[aten.cat.default])


def _for_spyre(ours: Callable[..., Any], others: Callable[..., Any] | None) -> Callable[..., Any]:
    @functools.wraps(others or ours)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        if args[0].device.type == DEVICE_NAME:
            return ours(*args, **kwargs)
        return NotImplemented if others is None else others(*args, **kwargs)

    return decompose


def _keep(*_args: Any, **_kwargs: Any) -> Any:
    return NotImplemented


def _with_strides_of_eager(cat: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's drops empty parts, and what is left alone keeps its strides: a cache that starts
    with an empty tensor would have others after its first step than after all the following."""

    @functools.wraps(cat)
    def decompose(tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
        result = cat(tensors, dim)
        if result is NotImplemented or result.device.type != DEVICE_NAME:
            return result
        return result.contiguous(memory_format=suggest_memory_format(result))

    return decompose
