"""Device layouts of a graph's inputs, as the tensors that arrived had them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch._inductor.graph import GraphLowering

from torch_spyre import _C, ir
from torch_spyre.ops.views import layout

from . import config
from .graph import Buffer, Sizes

_NAME = re.compile(r"arg(\d+)_1|primals_(\d+)")


def of_graph_inputs(lowered: GraphLowering) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Device size and stride map per input name, where they are known.

    AOTAutograd names the inputs after their positions. Where it merges inputs that share memory
    the positions say nothing; then, and for what a backward graph gets from its forward graph, the
    default is assumed, and a launch copies what is laid out otherwise.
    """
    keys = config.input_layouts
    numbers = {name: _number(name) for name in lowered.graph_input_names}
    is_forward = all(number is not None for number in numbers.values())
    if is_forward and len(numbers) != len(keys):
        return {}
    found = {}
    for name, number in numbers.items():
        key = keys[number] if number is not None and number < len(keys) else None
        if key is not None:
            found[name] = key
    return found  # type: ignore[return-value]


_REQUIRED = "spyre_required_layouts"  # an attribute of the graph that is being lowered


def require(graph: GraphLowering, name: str, device_size: Sizes, stride_map: Sizes) -> None:
    """Note the layout that the model demands for a buffer."""
    if not hasattr(graph, _REQUIRED):
        setattr(graph, _REQUIRED, {})
    getattr(graph, _REQUIRED)[name] = (device_size, stride_map)


def required(graph: GraphLowering) -> dict[str, tuple[Sizes, Sizes]]:
    return getattr(graph, _REQUIRED, {})


def _number(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return int(match[1]) if match[1] is not None else int(match[2]) - 1


def default(
    size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, numel: int
) -> ir.Storage:
    """The layout that a new tensor of this shape gets."""
    numel = max(numel, 1)
    device_size, stride_map = layout(size, stride, dtype, tuple(range(len(size))))
    made = _C.SpyreTensorLayout(list(device_size), list(stride_map), _C.get_device_dtype(dtype))
    if made.why_not_for(numel) is not None:
        # A view with gaps between its rows: the storage behind it, as one row.
        device_size, stride_map = layout((numel,), (1,), dtype, (0,))
    return ir.Storage(device_size, stride_map, numel)


def own_map(buffer: Buffer, strides: Sequence[Any]) -> tuple[Any, ...] | None:
    """The stride map of a tensor with these strides (symbols of dynamic sizes may be in them) that
    lies in a bucket; None if it can't be seen as one.

    Along sticks there is no such tensor: where rows are shorter than a bucket's, the digits of an
    offset would come in another order.

    >>> bucket = Buffer("keys", (2, 128, 32), (4096, 32, 1), torch.float16, 8192)
    >>> bucket.shape = (2, "s", 32)
    >>> bucket.storage = ir.Storage((128, 1, 2, 64), (32, 64, 4096, 1), 8192)
    >>> own_map(bucket, (32 * 13, 32, 1))
    (32, 64, 416, 1)
    """
    storage = buffer.storage
    assert storage is not None
    is_dynamic_stick = not isinstance(buffer.shape[-1], int | sympy.Integer)
    if is_dynamic_stick and len(buffer.shape) > 1:
        return None
    lanes = storage.elems_per_stick
    if len(storage.stride_map) != max(len(strides) + 1, 2):
        return None
    known, own = (_in_device_order(steps, lanes) for steps in (buffer.stride, strides))
    pairs = list(zip(storage.stride_map, known, strict=True))
    if any(step not in (-1, expected) for step, expected in pairs):
        return None
    return tuple(-1 if step == -1 else n for step, n in zip(storage.stride_map, own, strict=True))


def _in_device_order(strides: Sequence[Any], lanes: int) -> list[Any]:
    """Strides of the device dimensions that a default layout has."""
    *outer, last = strides
    return [*outer[1:], last * lanes, *outer[:1], last]
