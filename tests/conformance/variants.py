"""The calls of an entry: functional, in place, and with `out=` tensors of several shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_utils import noncontiguous_like
from torch.testing._internal.opinfo.core import OpInfo

from tests.conformance.samples import Inputs

Made = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Variant:
    """One way to call an entry.

    `call` takes the inputs, and the functional result on the CPU, whose shapes `out=` needs.
    """

    name: str
    call: Callable[[Inputs, Any], Any]
    prepare: Callable[[Inputs], Inputs] = lambda inputs: inputs


def _larger(like: torch.Tensor) -> torch.Tensor:
    return like.new_full([n + 1 for n in like.shape], 1)


def _transposed(like: torch.Tensor) -> torch.Tensor:
    return like.new_full(tuple(reversed(like.shape)), 1).permute(*reversed(range(like.dim())))


def _nothing(like: torch.Tensor) -> torch.Tensor:
    return like.new_empty([0])


def _same(like: torch.Tensor) -> torch.Tensor:
    return torch.full_like(like, 1)


_OUTS: dict[str, Made] = {
    "out": _same,
    "out of size 0": _nothing,
    "out too large": _larger,
    "out transposed": _transposed,
}


def _into(op: OpInfo, make: Made) -> Callable[[Inputs, Any], Any]:
    def call(inputs: Inputs, like: Any) -> Any:
        device = next((t.device for t in inputs.tensors()), inputs.kwargs.get("device", "cpu"))
        if isinstance(like, torch.Tensor):
            out: Any = make(like).to(device)
        else:
            out = tuple(make(each).to(device) for each in like)
        result = op.op(*inputs.args, **inputs.kwargs, out=out)
        given = [out] if isinstance(like, torch.Tensor) else list(out)
        returned = [result] if isinstance(like, torch.Tensor) else list(result)
        if not all(a is b or shares_storage(a, b) for a, b in zip(given, returned, strict=True)):
            raise AssertionError("the result is not the tensor given as out=")
        return tuple(given) if len(given) > 1 else given[0]

    return call


def shares_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Is one a view of the other?"""
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def _has_outs(like: Any) -> bool:
    results = like if isinstance(like, tuple) else (like,)
    return bool(results) and all(
        isinstance(each, torch.Tensor) and each.layout is torch.strided for each in results
    )


def _noncontiguous(inputs: Inputs) -> Inputs:
    return inputs.map(
        lambda x: (
            noncontiguous_like(x)
            if isinstance(x, torch.Tensor) and x.numel() > 1 and x.layout is torch.strided
            else x
        )
    )


def functional(op: OpInfo) -> Callable[[Inputs, Any], Any]:
    """Call it as it stands."""
    return lambda inputs, _: op.op(*inputs.args, **inputs.kwargs)


def inplace_of(op: OpInfo) -> Callable[[Inputs, Any], Any]:
    """Call its in-place form."""
    inplace = op.get_inplace()
    return lambda inputs, _: inplace(*inputs.args, **inputs.kwargs)


def variants(op: OpInfo, like: Any, is_first: bool) -> Iterator[Variant]:
    """The variants of one sample, whose functional result is `like`.

    What `out=` does with shapes is the same for all samples: only the first one tries them all.
    """
    yield Variant("functional", functional(op))
    yield Variant("noncontiguous", functional(op), _noncontiguous)
    if op.get_inplace() is not None:
        yield Variant("in place", inplace_of(op))
    if op.supports_out and _has_outs(like):
        for name, make in _OUTS.items():
            if is_first or name == "out":
                yield Variant(name, _into(op, make))
