"""Scratchpad planning: which buffers live in LX, and where."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod

from torch_spyre.ir import STICK_BYTES
from torch_spyre.ir.spec import Allocation

from .. import config
from ..graph import Buffer, Op, SpyreGraph
from ..price import traffic
from ..scratchpad.solvers import Request, lx_capacity, solver
from ..sharing import LocalSlice
from ..tiling import loop_spans
from .clones import Clones
from .ownership import owners_of, why_not_lx, writers_of


def scratchpad_planning(graph: SpyreGraph) -> None:
    """Give buffers addresses in the cores' scratchpads.

    Needs: a core split for every operation.  Leaves: `buffer.place` and `buffer.local` of buffers
    in LX; `buffer.why_not_lx` of those that are not. Inputs that are read more than once are
    cloned into LX, outputs that are read again are produced there and cloned out.
    """
    if not config.lx_planning:
        for buffer in graph.buffers.values():
            buffer.why_not_lx = "scratchpad planning is off (LX_PLANNING=0)"
        return
    planned: list[Op] = []
    for _, stretch in groupby(graph.ops, key=lambda op: op.kernel):
        planned += place_kernel(graph, list(stretch))
    graph.ops = planned


def place_kernel(graph: SpyreGraph, ops: list[Op]) -> list[Op]:
    """`scratchpad_planning` of one kernel; returns its operations with the clones among them."""
    return _Kernel(graph, ops).plan()


class _Kernel:
    def __init__(self, graph: SpyreGraph, ops: list[Op]) -> None:
        self.graph = graph
        self.ops = ops
        self.clones = Clones(graph, ops)

    def plan(self) -> list[Op]:
        known = -1
        refused = self.clones.refused
        while len(refused) > known:  # what is refused may be cloned, or leave room to others
            known = len(refused)
            self.clones.undo()
            self._plan_once()
        return self.ops

    def _plan_once(self) -> None:
        if config.boundary_clones:
            self.clones.make()
        self._place()
        if self.clones.drop_useless():
            self._place()  # others may have the room now

    def _place(self) -> None:
        first, last = _lifetimes(self.ops)
        requests = []
        for buffer, start in first.items():
            buffer.place = buffer.local = None
            buffer.why_not_lx = why_not_lx(buffer, self.ops)
            if buffer.why_not_lx:
                continue
            owner = self.ops[start]
            made = owners_of(writers_of(self.ops, buffer))
            assert made is not None
            buffer.local = LocalSlice(made)
            requests.append(
                Request(
                    buffer.name,
                    _local_bytes(buffer),
                    start,
                    last[buffer],
                    over=self._overwritable(owner, start, last),
                    benefit=self._benefit(buffer),
                )
            )
        capacity = lx_capacity(config.dxp_lx_frac_avail)
        requests = [
            Request(r.name, r.nbytes, r.first, r.last, self._alike(r), r.benefit) for r in requests
        ]
        addresses = solver(config.layout_solver).solve(requests, capacity)
        for request in requests:
            buffer = self.graph.buffers[request.name]
            address = addresses.get(request.name)
            if address is None:
                buffer.local = None
                buffer.why_not_lx = f"{request.nbytes} bytes per core did not fit beside others"
            else:
                buffer.place = Allocation("lx", address)
        self.clones.drop_unplaced()

    def _alike(self, request: Request) -> tuple[str, ...]:
        """Which of those that it may overwrite are in LX, and have every core hold the same part.

        Where a result covers less than its storage (every third row), cores hold just that much.
        """
        local = self.graph.buffers[request.name].local
        return tuple(name for name in request.over if self.graph.buffers[name].local == local)

    def _benefit(self, buffer: Buffer) -> int:
        """Bytes that do not go through LPDDR5."""
        return sum(
            traffic(op, operand)
            for op in self.ops
            for operand, tensor in enumerate(op.tensors)
            if tensor.buffer is buffer
        )

    def _overwritable(self, op: Op, at: int, last: dict[Buffer, int]) -> tuple[str, ...]:
        """Operands that die here and lie just as the result will."""
        if op.kind != "pointwise" or op.fit is None:
            return ()
        output = len(op.tensors) - 1
        target = op.output.buffer
        names = []
        for buffer in dict.fromkeys(read.buffer for read in op.reads):
            if last.get(buffer) != at or not buffer.is_temporary:
                continue
            walks = {op.fit.walks[i] for i, read in enumerate(op.reads) if read.buffer is buffer}
            is_same = (
                walks == {op.fit.walks[output]}
                and buffer.storage == target.storage
                and buffer.format.nbytes == target.format.nbytes
            )
            if is_same:
                names.append(buffer.name)
        return tuple(names)


def _lifetimes(ops: Sequence[Op]) -> tuple[dict[Buffer, int], dict[Buffer, int]]:
    """First write and last use of everything that is written here, by position."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    spans = loop_spans(ops)
    for i, op in enumerate(ops):
        first.setdefault(op.output.buffer, i)
        for tensor in op.tensors:
            # The next iteration wants again what was made before the loop.
            made = first.get(tensor.buffer, i)
            end = next((end for start, end in spans[op] if made < start), i)
            last[tensor.buffer] = max(last.get(tensor.buffer, i), end)
    return first, last


def _local_bytes(buffer: Buffer) -> int:
    assert buffer.local is not None
    return prod(buffer.local.size) * STICK_BYTES
