"""Kernels: which consecutive operations form one bundle."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from .. import config
from ..graph import Buffer, Op, Read, Sizes, SpyreGraph


def group_into_kernels(graph: SpyreGraph) -> None:
    """Cut the operations where their sequence repeats: equal layers become equal kernels.

    Needs: `op.kernel` grows where operations that are not ours lie between.  Leaves: consecutive
    kernel numbers, and `buffer.kernels`. Within a repeated stretch the cut lies where the fewest
    bytes cross it.
    """
    number = 0
    for _, stretch in groupby(graph.ops, key=lambda op: op.kernel):
        ops = list(stretch)
        cuts = set(_cuts(ops))
        for i, op in enumerate(ops):
            number += i in cuts
            op.kernel = number
            for tensor in op.tensors:
                tensor.buffer.kernels.add(number)
        number += 1


def _cuts(ops: Sequence[Op]) -> list[int]:
    """Positions before which a new kernel begins."""
    period, start, end = _longest_repeat(_words(ops), config.repeat_threshold)
    if period == 0:
        return []
    crossing = _crossing_bytes(ops)
    # Any phase of the period cuts equal pieces; take the narrowest place.
    phase = min(range(start, start + period), key=lambda i: (crossing[i], i))
    cuts = range(phase, end + 1, period)
    return [cut for cut in cuts if 0 < cut < len(ops)]


class _Word(NamedTuple):
    """What an operation does, and how far back the results lie that it reads."""

    kind: int
    distances: Sizes

    def is_like(self, other: _Word, period: int) -> bool:
        """Do both read alike: from the same places of their own or the previous piece, or from
        before the repetition began?"""
        return self.kind == other.kind and all(
            a == b or (a > period and b > period)
            for a, b in zip(self.distances, other.distances, strict=True)
        )


def _words(ops: Sequence[Op]) -> list[_Word]:
    known: dict[tuple[object, ...], int] = {}
    made: dict[Buffer, int] = {}
    words = []
    for i, op in enumerate(ops):
        sources = tuple(
            (value.buffer.storage, value.offset, value.strides, value.buffer.dtype)
            if isinstance(value, Read)
            else value
            for value in op.inputs
        )
        target = op.output.buffer
        key = (op.opcode, op.extents, op.reduced, sources, target.storage, target.dtype)
        distances = tuple(i - made.get(read.buffer, -_OUTSIDE) for read in op.reads)
        words.append(_Word(known.setdefault(key, len(known)), distances))
        made[target] = i
    return words


_OUTSIDE = 1 << 30


def _longest_repeat(words: Sequence[_Word], least: int) -> tuple[int, int, int]:
    """(period, start, end): the longest stretch of equal pieces, of the smallest period."""
    best = (0, 0, 0)
    covered = 0
    for period in _periods(words, least):
        run = 0
        for i in range(len(words) - period):
            run = run + 1 if words[i].is_like(words[i + period], period) else 0
            if run >= period and run + period > covered:
                covered = run + period
                best = (period, i - run + 1, i + 1 + period)
    return best


def _periods(words: Sequence[_Word], least: int) -> list[int]:
    """Distances at which operations come again, at least so long."""
    last: dict[int, int] = {}
    gaps = set()
    for i, word in enumerate(words):
        gaps.add(i - last.get(word.kind, i))
        last[word.kind] = i
    return sorted(gap for gap in gaps if gap >= least)


def _crossing_bytes(ops: Sequence[Op]) -> list[int]:
    """Per position, bytes of results that are made before it and read at or after it."""
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
