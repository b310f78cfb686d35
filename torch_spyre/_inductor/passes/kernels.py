"""Kernels: which consecutive operations form one bundle."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from .. import config
from ..graph import Op, Read, SpyreGraph


def group_into_kernels(graph: SpyreGraph) -> None:
    """Cut the operations where their sequence repeats: equal layers become equal kernels.

    Needs: `op.kernel` grows where operations that are not ours lie between.  Leaves: consecutive
    kernel numbers. Within a repeated stretch the cut lies where the fewest bytes cross it.
    """
    number = 0
    for _, stretch in groupby(graph.ops, key=lambda op: op.kernel):
        ops = list(stretch)
        cuts = set(_cuts(graph, ops))
        for i, op in enumerate(ops):
            number += i in cuts
            op.kernel = number
        number += 1


def _cuts(graph: SpyreGraph, ops: Sequence[Op]) -> list[int]:
    """Positions before which a new kernel begins."""
    words = _words(ops)
    period, start, end = _longest_repeat(words, config.repeat_threshold)
    if period == 0:
        return []
    crossing = _crossing_bytes(graph, ops)
    # Any phase of the period cuts equal pieces; take the narrowest place.
    last = min(start + period, len(ops))
    phase = min(range(start, last), key=lambda i: (crossing[i], i))
    cuts = list(range(phase, end + 1, period))
    return [cut for cut in cuts if 0 < cut < len(ops)]


def _words(ops: Sequence[Op]) -> list[int]:
    """A number per operation; equal for operations that do the same to tensors alike."""
    known: dict[tuple[object, ...], int] = {}
    position = {op.output.buffer: i for i, op in enumerate(ops)}
    words = []
    for i, op in enumerate(ops):
        sources = tuple(
            (
                operand.buffer.storage,
                operand.offset,
                operand.strides,
                operand.buffer.dtype,
                min(i - position.get(operand.buffer, -1 << 30), 1 << 20),
            )
            if isinstance(operand, Read)
            else operand
            for operand in op.inputs
        )
        key = (
            op.opcode,
            op.extents,
            op.reduced,
            sources,
            op.output.buffer.storage,
            op.output.buffer.dtype,
        )
        words.append(known.setdefault(key, len(known)))
    return words


def _longest_repeat(words: Sequence[int], least: int) -> tuple[int, int, int]:
    """(period, start, end): the stretch that is covered by equal pieces of the smallest period."""
    best = (0, 0, 0)
    covered = 0
    count = len(words)
    for period in range(least, count // 2 + 1):
        run = 0
        for i in range(count - period):
            run = run + 1 if words[i] == words[i + period] else 0
            if run >= period and run + period > covered:
                covered = run + period
                best = (period, i - run + 1, i + 1 + period)
        if covered >= count - period:
            break
    return best


def _crossing_bytes(graph: SpyreGraph, ops: Sequence[Op]) -> list[int]:
    """Per position, bytes of results that are made before it and read at or after it."""
    del graph
    made = {op.output.buffer: i for i, op in reversed(list(enumerate(ops)))}
    last: dict[object, int] = {}
    for i, op in enumerate(ops):
        for read in op.reads:
            last[read.buffer] = i
    crossing = [0] * (len(ops) + 1)
    for buffer, first in made.items():
        for i in range(first + 1, last.get(buffer, first) + 1):
            crossing[i] += buffer.nbytes
    return crossing
