"""What each pass leaves behind, as assertions: `config.patch(check_guarantees=True)`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import prod

from torch_spyre.ir import STICK_BYTES

from .. import config
from ..division import are_partners_neighbours
from ..graph import Buffer, Op, SpyreGraph
from ..scratchpad.solvers import lx_capacity


def every_operation_is_used(graph: SpyreGraph) -> None:
    read = {tensor.buffer for op in graph.ops for tensor in op.reads}
    for op in graph.ops:
        buffer = op.output.buffer
        assert buffer in read or buffer.is_output or buffer.is_mutated, op.describe()


def every_buffer_has_a_layout(graph: SpyreGraph) -> None:
    for op in graph.ops:
        for tensor in op.tensors:
            assert tensor.buffer.storage is not None, f"{tensor.buffer.name} in {op.describe()}"


def every_operation_walks_sticks(graph: SpyreGraph) -> None:
    for op in graph.ops:
        assert op.fit is not None or op.kind == "restickify", op.describe()


def no_operation_takes_more_cores_than_there_are(graph: SpyreGraph) -> None:
    for op in graph.ops:
        assert prod(op.slices) <= config.sencores, op.describe()
        if op.fit is not None:
            is_ring = are_partners_neighbours(op.slices, op.core_order, op.fit.reduced)
            assert is_ring, op.describe()


def live_scratchpad_buffers_lie_apart(graph: SpyreGraph) -> None:
    """Two buffers share bytes only if one ends where the other, its in-place result, begins."""
    capacity = lx_capacity(config.dxp_lx_frac_avail)
    for kernel in {op.kernel for op in graph.ops}:
        ops = [op for op in graph.ops if op.kernel == kernel]
        live = {buffer: _lifetime(buffer, ops) for op in ops for buffer in [op.output.buffer]}
        placed = [buffer for buffer in live if buffer.local is not None]
        for buffer in placed:
            assert _bytes(buffer).stop <= capacity, buffer.name
        for a, b in combinations(placed, 2):
            (first_a, last_a), (first_b, last_b) = live[a], live[b]
            is_apart = last_a <= first_b or last_b <= first_a
            meets = max(_bytes(a).start, _bytes(b).start) < min(_bytes(a).stop, _bytes(b).stop)
            assert is_apart or not meets, f"{a.name} and {b.name} overlap in kernel {kernel}"


def _lifetime(buffer: Buffer, ops: list[Op]) -> tuple[int, int]:
    uses = [i for i, op in enumerate(ops) if any(t.buffer is buffer for t in op.tensors)]
    return uses[0], uses[-1]


def _bytes(buffer: Buffer) -> range:
    assert buffer.place is not None
    assert buffer.local is not None
    start = buffer.place.index
    return range(start, start + prod(buffer.local.size) * STICK_BYTES)


def every_temporary_has_a_place(graph: SpyreGraph) -> None:
    kernels: dict[Buffer, set[int]] = {}
    for op in graph.ops:
        for tensor in op.tensors:
            kernels.setdefault(tensor.buffer, set()).add(op.kernel)
    for buffer, seen in kernels.items():
        if buffer.is_temporary and len(seen) == 1:
            assert buffer.place is not None, buffer.name


GUARANTEES: dict[str, Callable[[SpyreGraph], None]] = {
    "eliminate_dead_code": every_operation_is_used,
    "propagate_spyre_tensor_layouts": every_buffer_has_a_layout,
    "insert_restickifies": every_operation_walks_sticks,
    "work_distribution": no_operation_takes_more_cores_than_there_are,
    "scratchpad_planning": live_scratchpad_buffers_lie_apart,
    "pool_planning": every_temporary_has_a_place,
}


def check(graph: SpyreGraph, pass_name: str) -> None:
    """Assert what a pass promises, if it promises something that can be checked."""
    guarantee = GUARANTEES.get(pass_name)
    if guarantee is not None:
        guarantee(graph)
