"""Decompositions into Spyre's vocabulary, for graphs on Spyre only."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import decomposition
from torch._inductor.lowering import lowerings
from torch._prims_common import suggest_memory_format
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from torch_spyre.constants import DEVICE_NAME
from torch_spyre.ops import refusals
from torch_spyre.ops.decompositions import TABLE

from .. import externs
from ..errors import Refused

aten = torch.ops.aten

# Operations that the card has: they reach our lowerings as they are.
_NATIVE = (aten.gelu.default, aten.silu.default)


def register_decompositions() -> None:
    """Put ours in front of PyTorch's; for other devices nothing changes."""
    table = decomposition.decompositions
    for op, ours in TABLE.items():
        table[op] = _for_spyre(op, ours, table.get(op))
    for op in (*_NATIVE, *externs.overloads()):
        if op in table and op not in TABLE:
            table[op] = _for_spyre(op, _keep, table[op])
    for name in sorted(refusals.NAMES):
        for op in externs.overloads_of(getattr(aten, name)):
            table[op] = _checked(op, table.get(op))
    op = aten.index_select.default
    table[op] = _for_spyre(op, _index_select, table[op])
    table[aten.cat.default] = _with_strides_of_eager(table[aten.cat.default])


def _for_spyre(
    op: Any, ours: Callable[..., Any], others: Callable[..., Any] | None
) -> Callable[..., Any]:
    """Ours on Spyre; PyTorch's elsewhere, and where ours has nothing to say nor has a lowering."""

    @functools.wraps(others or ours)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        if args[0].device.type == DEVICE_NAME:
            result = ours(*args, **kwargs)
            if result is not NotImplemented or op in lowerings:
                return result
        return NotImplemented if others is None else others(*args, **kwargs)

    return decompose


def _keep(*_args: Any, **_kwargs: Any) -> Any:
    return NotImplemented


def _index_select(x: torch.Tensor, dim: int, index: torch.Tensor) -> Any:
    """Ours as it is, after what PyTorch's meta kernel does not check."""
    if index.dim() > 1:
        raise Refused("index_select(): Index is supposed to be a vector")
    if x.dim() > 0 and x.shape[dim] == 0 and index.numel() != 0:
        raise Refused("index_select(): self indexing axis dim should be positive")
    return NotImplemented


def _checked(op: Any, others: Callable[..., Any] | None) -> Callable[..., Any]:
    """Refuses operands of wrong dtypes as the CPU does."""

    @functools.wraps(others or op)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        dtypes = [x.dtype if isinstance(x, torch.Tensor) else None for x in args]
        if args[0].device.type == DEVICE_NAME and refusals.looks_wrong(op.name(), dtypes):
            _ask_cpu(op, args, kwargs)
        return NotImplemented if others is None else others(*args, **kwargs)

    return decompose


def _ask_cpu(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Make the call on tensors of one element, which fit together whatever the shapes are."""

    def small(x: Any) -> Any:
        return torch.zeros([1] * x.dim(), dtype=x.dtype) if isinstance(x, torch.Tensor) else x

    with _disable_current_modes(), torch._C._DisableAutocast():
        args, kwargs = pytree.tree_map(small, (args, kwargs))
        try:
            op(*args, **kwargs)
        except RuntimeError as error:
            raise Refused(str(error)) from None


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
