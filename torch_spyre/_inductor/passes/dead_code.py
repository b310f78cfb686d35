"""Dead-code elimination."""

from __future__ import annotations

from ..graph import SpyreGraph


def eliminate_dead_code(graph: SpyreGraph) -> None:
    """Drop operations whose result nobody reads.

    Leaves: every operation is used, by another one or outside the graph.
    """
    needed = {buffer for buffer in graph.buffers.values() if buffer.is_output or buffer.is_mutated}
    kept = []
    for op in reversed(graph.ops):
        if op.output.buffer in needed:
            kept.append(op)
            needed.update(read.buffer for read in op.reads)
    graph.ops = kept[::-1]
    graph.drop_unused_buffers()
