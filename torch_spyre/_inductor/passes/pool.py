"""LPDDR5 pool planning: intermediates that are not in LX share one allocation per kernel."""

from __future__ import annotations

from itertools import groupby

from torch_spyre.ir.spec import Allocation

from ..graph import Buffer, SpyreGraph
from ..scratchpad.solvers import Request, plan_pool
from ..tiling import loop_spans


def pool_planning(graph: SpyreGraph) -> None:
    """Pack the remaining intermediates of each kernel by lifetime.

    Needs: scratchpad addresses.  Leaves: `buffer.place` for every temporary of one kernel, and
    `graph.pool_bytes` per kernel. Temporaries that several kernels touch are tensors of their own.
    """
    kernels: dict[Buffer, set[int]] = {}
    for op in graph.ops:
        for tensor in op.tensors:
            kernels.setdefault(tensor.buffer, set()).add(op.kernel)
    for kernel, stretch in groupby(graph.ops, key=lambda op: op.kernel):
        requests: dict[Buffer, Request] = {}
        ops = list(stretch)
        spans = loop_spans(ops)
        for i, op in enumerate(ops):
            for tensor in op.tensors:
                buffer = tensor.buffer
                is_pooled = buffer.is_temporary and buffer.place is None
                if is_pooled and len(kernels[buffer]) == 1:
                    # A loop touches its tensors in every iteration.
                    start, end = (*spans[op], (i, i))[0]
                    first = requests[buffer].first if buffer in requests else start
                    requests[buffer] = Request(buffer.name, buffer.nbytes, first, end)
        offsets, total = plan_pool(list(requests.values()))
        graph.pool_bytes[kernel] = total
        for buffer in requests:
            buffer.place = Allocation("pool", offsets[buffer.name])
