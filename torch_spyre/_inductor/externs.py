"""Operations that stay calls of the eager operation in generated code, between two kernels.

They have no form as loops over whole sticks: they write where data says (scatter), order or
accumulate along a dimension (sort, scans), slide windows (convolution, pooling), or take numbers
from the device's generator. PyTorch's decompositions of them are passed over for Spyre graphs, so
that the generated code calls the one eager operation and not its parts.

Beyond this list, a loop that turns out to have no form makes its graph compile once more, with a
call in its place. The list saves that, and keeps operations whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch._inductor.fx_passes.reinplace import InplaceableOp, inplaceable_ops
from torch._inductor.lowering import fallback_handler, user_lowerings
from torch.utils import _pytree as pytree

from torch_spyre.logging_config import get_logger
from torch_spyre.ops import registry

from .errors import Unsupported
from .lengths import with_own_lengths

aten = torch.ops.aten
log = get_logger("lowering")

EXTERN = (
    # Writing where an index says. Inductor makes `index_put` of `index_copy`, which would count
    # from the end what `index_copy` refuses.
    aten.scatter,
    aten.scatter_add,
    aten.scatter_reduce,
    aten.index_put,
    aten.index_put_,
    aten._unsafe_index_put,
    aten.index_add,
    aten.index_copy,
    aten.index_copy_,
    aten.index_fill,
    aten.index_reduce,
    aten.put,
    aten.masked_scatter,
    aten.embedding_dense_backward,
    aten.unfold_backward,
    # Orders.
    aten.sort,
    aten.topk,
    aten.kthvalue,
    aten.mode,
    aten.median,
    aten.nanmedian,
    aten.searchsorted,
    aten.bucketize,
    # Scans.
    aten.cumsum,
    aten.cumprod,
    aten.logcumsumexp,
    aten.cummax,
    aten.cummin,
    # Windows.
    aten.convolution,
    aten.convolution_backward,
    aten.col2im,
    aten.im2col,
    aten.avg_pool2d_backward,
    aten.avg_pool3d_backward,
    aten.max_pool2d_with_indices,
    aten.max_pool2d_with_indices_backward,
    aten.max_pool3d_with_indices,
    aten._adaptive_avg_pool2d,
    aten.adaptive_max_pool2d,
    aten.fractional_max_pool2d,
    aten.max_unpool2d,
    aten.grid_sampler_2d,
    aten.reflection_pad1d_backward,
    aten.reflection_pad2d_backward,
    aten.reflection_pad3d_backward,
    # Matrices in groups, or of 8-bit floats with scales that we don't know.
    aten._grouped_mm,
    aten._scaled_mm,
    aten._scaled_mm_v2,
    # What the host decides.
    aten._assert_async,
    # Random numbers.
    aten.native_dropout,
    aten.bernoulli,
)

_MARK = "should_fallback"  # Inductor's own: it calls such a node's operation as it is


def to_call(loop: Any) -> torch.fx.Node | None:
    """The node of a loop that has no form on the card which is best called instead.

    Several nodes may be in one loop. Those that the card has an operation for are not to blame.
    """
    nodes = [node for node in sorted(getattr(loop, "origins", ())) if _is_callable(node)]
    known = registry.overloads()
    unknown = [node for node in nodes if node.target.name() not in known]
    return next(iter(unknown or nodes[::-1]), None)


def _is_callable(node: torch.fx.Node) -> bool:
    """Does it make new tensors, from nothing but its arguments?"""
    if not isinstance(node.target, torch._ops.OpOverload) or _MARK in node.meta:
        return False
    schema = node.target._schema
    has_aliases = any(value.alias_info for value in [*schema.arguments, *schema.returns])
    return node.target.namespace == "aten" and not has_aliases


def calling_what_has_no_loop(compile_inner: Callable[..., Any]) -> Callable[..., Any]:
    """Compile again with an eager call where a loop turns out to have no form on the card.

    Passes of Inductor's make some nodes anew each time, so the second node with the same operation
    stands for all of them.
    """

    @functools.wraps(compile_inner)
    def compile_graph(gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        marked: set[Any] = set()
        called: dict[Any, Callable[..., Any]] = {}
        while True:
            try:
                with mock.patch.dict(user_lowerings, called):
                    return compile_inner(gm, *args, **kwargs)
            except Unsupported as error:
                node = error.node
                if node is None or node.graph is not gm.graph or node.target in called:
                    raise
                log.info("%s stays a call of the eager operation: %s", node, error.why)
                if node.target in marked:
                    called[node.target] = extern(node.target)
                node.meta[_MARK] = True
                marked.add(node.target)

    return compile_graph


def register_in_place() -> None:
    """Let Inductor write in place with `index_copy` as it does with `index_put`.

    No other device's graph has the operation after decomposition.
    """
    inplaceable_ops[aten.index_copy.default] = InplaceableOp(aten.index_copy_.default, 0)


def overloads() -> Iterator[Any]:
    """Every overload that a functional graph may hold."""
    for packet in EXTERN:
        yield from overloads_of(packet)


def overloads_of(packet: Any) -> Iterator[Any]:
    """All but those with `out=`."""
    for name in packet.overloads():
        overload = getattr(packet, name)
        if not any(argument.is_out for argument in overload._schema.arguments):
            yield overload


def extern(overload: Any) -> Callable[..., Any]:
    """A lowering that calls the eager operation."""
    call = fallback_handler(overload, add_to_fallback_set=False)
    written = {i for i, argument in enumerate(overload._schema.arguments) if argument.is_write}

    def lower(*args: Any, **kwargs: Any) -> Any:
        seen = (
            arg if i in written else pytree.tree_map(with_own_lengths, arg)
            for i, arg in enumerate(args)
        )
        return call(*seen, **kwargs)

    return lower
