"""Core division: which part of one aligned operation each core works on.

Dimensions are those of `align`, the stick dimension counted in whole sticks, so any division falls
between sticks. A dimension of extent n in k slices gives each core ceil(n / k), the last one what
is left; a k that would leave a core without work is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from math import prod
from typing import NamedTuple

CORES = 32
SPAN_LIMIT = 256 * 1024 * 1024 - 4096  # bytes of one operand that a core can address


class Span(NamedTuple):
    """How far an operand reaches: bytes per step along each dimension, and of one iteration."""

    strides: tuple[int, ...]
    size: int = 128

    def of(self, extents: Sequence[int]) -> int:
        """Bytes from the first to the last one that a box of iterations touches."""
        steps = zip(self.strides, extents, strict=True)
        return sum(abs(stride) * (extent - 1) for stride, extent in steps) + self.size


class Chunk(NamedTuple):
    """A part of the iteration space that runs as one step, and how cores divide it."""

    starts: tuple[int, ...]
    extents: tuple[int, ...]
    slices: tuple[int, ...]


def divide(
    extents: Sequence[int], cores: int, least: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Slices per dimension that leave the busiest core the least work; large dimensions first.

    `least` asks for at least so many slices of a dimension; their product must not exceed `cores`.

    >>> divide((4, 1024), 32)
    (1, 32)
    >>> divide((8, 5), 32)
    (4, 5)
    """
    if cores < 1:
        raise ValueError(f"{cores} cores can't do anything")
    least = least or [1] * len(extents)
    order = sorted(range(len(extents)), key=lambda i: -extents[i])

    @cache
    def best(level: int, available: int) -> tuple[int, int, tuple[int, ...]]:
        """(work of the busiest core, cores used, slices) of the dimensions from `level` on."""
        if level == len(order):
            return 1, 1, ()
        dim = order[level]
        options = []
        reserved = prod(least[other] for other in order[level + 1 :])
        for slices in useful_slices(extents[dim], available // reserved, least[dim]):
            work, used, rest = best(level + 1, available // slices)
            share = -(-extents[dim] // slices)
            options.append((share * work, used * slices, slices, rest))
        # Among equals: few cores, and those on the larger dimension.
        work, used, slices, rest = min(options, key=lambda option: (*option[:2], -option[2]))
        return work, used, (slices, *rest)

    chosen = dict(zip(order, best(0, cores)[2], strict=True))
    return tuple(chosen[i] for i in range(len(extents)))


def core_slices(
    extents: Sequence[int], slices: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Per core, in core order: where its part starts and how large it is.

    >>> core_slices((5, 2), (2, 1))
    [((0, 0), (3, 2)), ((3, 0), (2, 2))]
    """
    per_dim = []
    for extent, count in zip(extents, slices, strict=True):
        share = max(-(-extent // count), 1)
        per_dim.append([(start, min(share, extent - start)) for start in range(0, extent, share)])
        if len(per_dim[-1]) != count:
            raise ValueError(f"{count} slices of an extent of {extent} would leave a core idle")
    return [
        (tuple(start for start, _ in part), tuple(size for _, size in part))
        for part in product(*per_dim)
    ]


def chunks(
    extents: Sequence[int], cores: int, operands: Sequence[Span] = (), limit: int = SPAN_LIMIT
) -> list[Chunk]:
    """Divide an operation so that no core spans more than `limit` bytes of any operand.

    First as many slices as the spans need, the fewest that do; the cores that are left as `divide`
    does. If all cores do not suffice the operation is cut into steps that run one after the other.
    """
    if 0 in extents:
        return []
    pending = [(tuple([0] * len(extents)), tuple(extents))]
    done = []
    while pending:
        starts, box = pending.pop()
        least = fewest_slices(box, cores, operands, limit)
        if least is not None:
            done.append(Chunk(starts, box, divide(box, cores, least)))
            continue
        widest = max(operands, key=lambda operand: operand.of(box))
        reach = [
            abs(stride) * (extent - 1) for stride, extent in zip(widest.strides, box, strict=True)
        ]
        dim = max(range(len(box)), key=reach.__getitem__, default=0)
        if not box or reach[dim] == 0:
            raise ValueError(f"one iteration spans {widest.size} bytes, more than {limit}")
        half = box[dim] // 2
        for start, size in ((half, box[dim] - half), (0, half)):
            pending.append(
                (
                    (*starts[:dim], starts[dim] + start, *starts[dim + 1 :]),
                    (*box[:dim], size, *box[dim + 1 :]),
                )
            )
    return done


def useful_slices(extent: int, most: int, least: int = 1) -> Iterator[int]:
    """Numbers of slices, none of them empty; more than `most` only if that is the least.

    >>> list(useful_slices(5, 32))
    [1, 2, 3, 5]
    """
    last = 0
    for count in range(least, max(min(most, extent), least) + 1):
        # The count that this share really takes: 5 in shares of 2 are 3 slices, not 4.
        useful = -(-extent // -(-extent // count)) if extent else 1
        if useful != last:
            last = useful
            yield useful


def fewest_slices(
    extents: Sequence[int], cores: int, operands: Sequence[Span], limit: int = SPAN_LIMIT
) -> tuple[int, ...] | None:
    """The smallest division that keeps all operands within the limit; None if there is none.

    >>> fewest_slices((4, 1000), 32, [Span((200 << 20, 128))])
    (2, 1)
    """

    def fits(slices: Sequence[int]) -> bool:
        shares = [-(-extent // count) for extent, count in zip(extents, slices, strict=True)]
        return all(operand.of(shares) <= limit for operand in operands)

    one = (1,) * len(extents)
    if fits(one):
        return one
    # Slices of a dimension along which no operand moves would make no span shorter.
    moving = [any(operand.strides[dim] for operand in operands) for dim in range(len(extents))]

    def divisions(dim: int, available: int) -> Iterator[tuple[int, ...]]:
        if dim == len(extents):
            yield ()
            return
        for count in useful_slices(extents[dim], available if moving[dim] else 1):
            for rest in divisions(dim + 1, available // count):
                yield (count, *rest)

    return min(filter(fits, divisions(0, cores)), key=prod, default=None)
