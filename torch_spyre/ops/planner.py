"""From an operation and the metas of its arguments to a plan for the card.

Called by the runtime on a cache miss only. What the operation returns or raises is PyTorch's
business (`inference`); the rest is deciding in which domain to compute, converting operands to it
and the result back (`compute`), and writing the steps (`emitter`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from torch_spyre import ir
from torch_spyre.ops import generated
from torch_spyre.ops.compute import Computation
from torch_spyre.ops.emitter import Emitter
from torch_spyre.ops.formats import card_format
from torch_spyre.ops.inference import Result, broadcast, has_repeats, infer
from torch_spyre.ops.plan import (
    Argument,
    Bind,
    Launch,
    OutputSpec,
    Plan,
    Sizes,
    TensorMeta,
    UnsupportedError,
)
from torch_spyre.ops.refusals import looks_wrong
from torch_spyre.ops.registry import Pointwise, overloads
from torch_spyre.ops.row_writes import plan_row_writes
from torch_spyre.ops.views import View, layout, order_with_stick, view_of

COPY = "spyre::copy"


@dataclass(frozen=True)
class _Target:
    """Where the result goes, and what the caller gets for it."""

    view: View
    output: OutputSpec | int


def plan(name: str, args: Sequence[Argument]) -> Plan:
    """Plan an operation ("aten::add.Tensor") on arguments in the order of its schema."""
    if name == COPY:
        to, source = args
        assert isinstance(to, TensorMeta)
        assert isinstance(source, TensorMeta)
        return plan_copy(to, source)
    overload = overloads().get(name)
    if overload is None:
        _check_dtypes(name, args)
        return plan_row_writes(name, args) or _traced(name, args)
    arguments = dict(zip(overload.arguments, args, strict=True))
    result = infer(overload, arguments)
    tensors = [arg for arg in arguments.values() if isinstance(arg, TensorMeta)]
    written = arguments[overload.written] if overload.written else None
    if isinstance(written, TensorMeta) and written.size != result.size:
        return Plan((), (written.index,), resize=((written.index, result.size),))
    if isinstance(written, TensorMeta) and has_repeats(written):
        arguments = _without_repeats(arguments, written)
        tensors = [arg for arg in arguments.values() if isinstance(arg, TensorMeta)]
        written = arguments[overload.written] if overload.written else None
    target = _target(written, result, tensors)
    if prod(target.view.size) == 0:
        return Plan((), (target.output,))

    emitter = Emitter(_sharers(written, tensors))
    computation = Computation(
        emitter, arguments, target.view, _moved_away(emitter, written, tensors)
    )
    random_numbers = 0
    if isinstance(overload.entry, Pointwise):
        computation.pointwise(overload.entry)
    else:
        random_numbers = generated.lower(overload.entry.name, computation)
    return _finished(emitter, target.output, random_numbers)


# A trace that fails is a mistake of ours. The CPU still knows the answer, or says in PyTorch's own
# words what is wrong with the call; tests want to see the mistake.
RAISES_TRACE_ERRORS = False


def _traced(name: str, args: Sequence[Argument]) -> Plan:
    from torch_spyre.ops.trace import plan_traced  # brings the compiler's passes

    try:
        return plan_traced(name, args)
    except (UnsupportedError, OverflowError):
        raise
    except Exception as error:
        if RAISES_TRACE_ERRORS:
            raise
        raise UnsupportedError(f"tracing {name} failed: {type(error).__name__}: {error}") from error


_CONVOLUTION = "aten::convolution_overrideable"


def _check_dtypes(name: str, args: Sequence[Argument]) -> None:
    if name == _CONVOLUTION:
        _check_convolution(args)
    elif looks_wrong(name, [x.dtype if isinstance(x, TensorMeta) else None for x in args]):
        raise UnsupportedError("operands of these dtypes")  # the CPU says so


def _check_convolution(args: Sequence[Argument]) -> None:
    """PyTorch's own checks; the CPU has no operation of that name to make them."""
    _check_output_padding(*args[3:8])
    dtypes = [operand.dtype for operand in args if isinstance(operand, TensorMeta)]
    if len(set(dtypes)) < 2:
        return
    what = "bias" if dtypes[0] is dtypes[1] else "weight"
    raise RuntimeError(
        f"Input type ({dtypes[0]}) and {what} type ({dtypes[-1 if what == 'bias' else 1]}) "
        "should be the same"
    )


def _check_output_padding(
    stride: Any, _padding: Any, dilation: Any, transposed: Any, output_padding: Any
) -> None:
    given = (output_padding, stride, dilation)
    rank = max(map(len, given))
    each = zip(*(x * rank if len(x) == 1 else x for x in given), strict=True)
    if transposed and any(extra >= max(step, apart) for extra, step, apart in each):
        raise RuntimeError(
            "output padding must be smaller than either stride or dilation, but got "
            f"output_padding {output_padding}, stride {stride}, dilation {dilation}"
        )


def plan_copy(to: TensorMeta, source: TensorMeta) -> Plan:
    """Plan `to.copy_(source)` between any two views and dtypes on one card."""
    if broadcast([to.size, source.size]) != to.size:
        raise RuntimeError(
            f"output with shape {list(to.size)} doesn't match the broadcast shape "
            f"{list(broadcast([to.size, source.size]))}"
        )
    if prod(to.size) == 0:
        return Plan((), (to.index,))
    tensors = [to, source]
    emitter = Emitter(_sharers(to, tensors))
    moved = _moved_away(emitter, to, tensors)
    computation = Computation(emitter, {}, view_of(to), moved)
    computation.convert(moved.get(source.index) or view_of(source), computation.out)
    return _finished(emitter, to.index, 0)


def _finished(emitter: Emitter, output: OutputSpec | int, random_numbers: int) -> Plan:
    program, symbols = emitter.finish()
    launch = Launch(program, symbols)
    return Plan((launch,), (output,), emitter.temp_bytes, rng_offset=random_numbers)


# ---- The result ---------------------------------------------------------------------------------


def _target(written: Argument, result: Result, tensors: Sequence[TensorMeta]) -> _Target:
    if isinstance(written, TensorMeta):
        return _Target(view_of(written), written.index)
    size, stride, dtype = result.size, result.stride, result.dtype
    device_size, stride_map = _output_layout(size, stride, dtype, [view_of(t) for t in tensors])
    view = View(
        Bind("out", 0), ir.Storage(device_size, stride_map, prod(size)), size, stride, 0, dtype
    )
    spec = OutputSpec(size, stride, dtype, device_size, stride_map, card_format(dtype).value)
    return _Target(view, spec)


def _without_repeats(arguments: Mapping[str, Argument], written: TensorMeta) -> dict[str, Argument]:
    """The arguments for writing each place of an expanded tensor once."""
    repeated = [
        dim - len(written.size)
        for dim, (n, step) in enumerate(zip(written.size, written.stride, strict=True))
        if n > 1 and step == 0
    ]

    def once(argument: Argument) -> Argument:
        if not isinstance(argument, TensorMeta):
            return argument
        size = list(argument.size)
        for dim in repeated:
            if -dim > len(size) or size[dim] == 1:
                continue
            if argument.stride[dim] != 0:
                raise UnsupportedError("different values for one place of an expanded tensor")
            size[dim] = 1
        return replace(argument, size=tuple(size))

    return {name: once(argument) for name, argument in arguments.items()}


def _output_layout(
    size: Sizes, stride: Sizes, dtype: torch.dtype, views: Sequence[View]
) -> tuple[Sizes, Sizes]:
    """The layout that all operands of the result's shape share; else the default one."""
    alike = [view for view in views if view.size == size]
    if alike:
        storages = {view.storage for view in alike}
        storage = alike[0].storage
        is_same = (
            len(storages) == 1
            and storage.numel == prod(size)
            and all(view.stride == stride and view.offset == 0 for view in alike)
            and storage.elems_per_stick * card_format(dtype).nbytes == 128
        )
        # A sparse storage stays a matter of its maker: results are dense.
        if is_same and (storage.stride_map[-1] > 0 or size[-1:] in ((), (1,))):
            return storage.device_size, storage.stride_map
        stick_dims = {view.stick_dim for view in alike}
        if len(stick_dims) == 1:
            order = order_with_stick(len(size), stick_dims.pop())
            return layout(size, stride, dtype, order)
    return layout(size, stride, dtype, tuple(range(len(size))))


# ---- Arguments that share storage ---------------------------------------------------------------


def _share(a: TensorMeta, b: TensorMeta) -> bool:
    root_a = a.alias if a.alias >= 0 else a.index
    root_b = b.alias if b.alias >= 0 else b.index
    return root_a == root_b


def _sharers(written: Argument, tensors: Sequence[TensorMeta]) -> frozenset[Bind]:
    """The arguments whose memory the result may be in, the written one included."""
    if not isinstance(written, TensorMeta):
        return frozenset()
    return frozenset(Bind("arg", t.index) for t in tensors if _share(t, written))


def _last_element(meta: TensorMeta) -> int:
    steps = zip(meta.size, meta.stride, strict=True)
    return meta.distance + sum((n - 1) * step for n, step in steps)


def _must_move(tensor: TensorMeta, written: TensorMeta) -> bool:
    """Would writing the one change elements of the other that are still to be read?"""
    if tensor.index == written.index or not _share(tensor, written):
        return False
    is_same_view = (tensor.size, tensor.stride, tensor.distance) == (
        written.size,
        written.stride,
        written.distance,
    )
    is_apart = _last_element(tensor) < written.distance or _last_element(written) < tensor.distance
    return not is_same_view and not is_apart


def _moved_away(
    emitter: Emitter, written: Argument, tensors: Sequence[TensorMeta]
) -> dict[int, View]:
    """Copies of the arguments that the result would overwrite while they are read, by index."""
    moved: dict[int, View] = {}
    if not isinstance(written, TensorMeta):
        return moved
    for tensor in tensors:
        if prod(tensor.size) and _must_move(tensor, written):
            view = view_of(tensor).without_repeats()
            copy = emitter.temp(
                view.size, view.dtype, order_with_stick(len(view.size), view.stick_dim)
            )
            emitter.apply("identity_int" if view.format.domain == "I" else "identity", [view], copy)
            moved[tensor.index] = copy.broadcast(tensor.size)
    return moved
