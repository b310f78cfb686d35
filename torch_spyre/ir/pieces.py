"""Any walk through tiled storages as a few affine loop nests over device elements.

This is the exact, element-granular form: copies between host and card, and restickify steps. A
digit of a device coordinate is affine only while it does not carry, so the iteration space is
split where carries come at regular distances and cut where they do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .loops import Carry, Loops, merge, take_digit
from .storage import Access, Storage

MAX_RANK = 8


class Nest(NamedTuple):
    """A loop nest, outermost first; strides and offsets per access, in device elements."""

    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]


def pieces(
    extents: Sequence[int], accesses: Sequence[Access], *, merged: bool = True
) -> list[Nest]:
    """Cover every point of the iteration space exactly once with nests affine for all accesses.

    An access without storage is linear already and maps to itself. With `merged` False each loop
    stays within one device dimension of every access, and there may be more than 8 of them.

    >>> rows = Storage(device_size=(4, 1024, 64), stride_map=(64, 256, 1), numel=1024 * 256)
    >>> pieces((1024, 256), [Access(rows, 0, (256, 1)), Access(None, 0, (256, 1))])
    [Nest(extents=(4, 1024, 64), strides=((65536, 64, 1), (64, 256, 1)), offsets=(0, 0))]
    """
    for access in accesses:
        access.check(extents)
    if 0 in extents:
        return []
    sizes, columns, variables = merge(
        extents, [access.strides for access in accesses], range(len(extents))
    )
    done = [Loops(sizes, columns, [access.offset for access in accesses], variables)]
    for index, access in enumerate(accesses):
        if access.storage is not None:
            done = [
                resolved for loops in done for resolved in _resolve(loops, index, access.storage)
            ]
    if not merged:
        return [_ordered(*_without_ones(loops), loops.starts) for loops in done]
    return [nest for loops in done for nest in _finish(loops)]


def _resolve(loops: Loops, index: int, storage: Storage) -> list[Loops]:
    """Replace the host offsets in a column by device offsets, in as many parts as that takes."""
    places = storage.places
    # A last column takes the device offsets; the first one keeps what is left of the host's.
    loops.columns.append([0] * len(loops.extents))
    loops.starts.append(0)
    pending = [(loops, 0)]
    done: list[Loops] = []
    while pending:
        loops, level = pending.pop()
        while level < len(places):
            place = places[level]
            digit = take_digit(
                loops.extents, loops.columns[index], loops.starts[index], place.stride
            )
            if isinstance(digit, Carry):
                rest = _divide_at_carry(loops, digit, place.stride)
                if rest is not None:
                    pending.append((rest, level))
                continue
            loops.columns[index] = digit.remainder
            loops.starts[index] = digit.remainder_start
            loops.starts[-1] += digit.quotient_start * place.device_stride
            device = loops.columns[-1]
            for i, steps in enumerate(digit.quotient):
                if steps:
                    device[i] += steps * place.device_stride
            level += 1
        left = zip(loops.extents, loops.columns[index], strict=True)
        if loops.starts[index] or any(step for extent, step in left if extent > 1):
            raise ValueError(f"host offsets of {storage} have no place on the card")
        loops.columns[index] = loops.columns.pop()
        loops.starts[index] = loops.starts.pop()
        done.append(loops)
    return done


def _divide_at_carry(loops: Loops, carry: Carry, place: int) -> Loops | None:
    """Take one step towards nests without carries; returns the part that was cut off, if any."""
    loop, step, low, high, period = carry
    extent = loops.extents[loop]
    if extent >= 2 * period:
        # Carries repeat: a loop over whole periods, and inside it one period to look at. Where
        # nothing else moves, the periods begin at the first carry, so that they are whole sticks.
        if low == high and low >= step > 0:
            head = -((low - place) // step)
            if extent - head >= period:
                return loops.cut(loop, head)
        if extent % period:
            return loops.cut(loop, extent - extent % period)
        loops.split(loop, period)
        return None
    first, last = low // place, high // place
    if first != last:  # already the other loops carry: on their own for this iteration
        return loops.cut(loop, 1)
    if step > 0:
        return loops.cut(loop, -((high - (first + 1) * place) // step))
    return loops.cut(loop, (low - first * place) // -step + 1)


def _finish(loops: Loops) -> list[Nest]:
    extents, columns, _ = merge(loops.extents, loops.columns, loops.variables)
    if len(extents) > MAX_RANK:
        shortest = min(range(len(extents)), key=extents.__getitem__)
        rest = Loops(extents, columns, loops.starts, [0] * len(extents))
        nests = []
        while rest.extents[shortest] > 1:
            one = rest
            rest = one.cut(shortest, 1)
            nests += _finish(one)
        return nests + _finish(rest)
    return [_ordered(extents, columns, loops.starts)]


def _without_ones(loops: Loops) -> tuple[list[int], list[list[int]]]:
    kept = [i for i, extent in enumerate(loops.extents) if extent > 1]
    columns = [[column[i] for i in kept] for column in loops.columns]
    return [loops.extents[i] for i in kept], columns


def _ordered(
    extents: Sequence[int], columns: Sequence[Sequence[int]], starts: Sequence[int]
) -> Nest:
    """Largest strides outermost."""
    order = sorted(
        range(len(extents)), key=lambda i: [abs(column[i]) for column in columns], reverse=True
    )
    return Nest(
        tuple([extents[i] for i in order]),
        tuple([tuple([column[i] for i in order]) for column in columns]),
        tuple(starts),
    )


def padding(storage: Storage) -> list[Nest]:
    """Cover exactly the device positions that hold no host element.

    >>> padding(Storage(device_size=(4, 5, 64), stride_map=(64, 200, 1), numel=1000))
    [Nest(extents=(5, 56), strides=((64, 1),), offsets=(968,))]
    """
    if 0 in storage.device_size:
        return []
    places = storage.places
    full = [(size, stride) for _, size, stride in places]
    nests: list[Nest] = []

    def add(box: list[tuple[int, int]], start: int) -> None:
        extents, strides, _ = merge(
            [size for size, _ in box], [[stride for _, stride in box]], range(len(box))
        )
        nests.extend(_finish(Loops(extents, strides, [start], [0] * len(extents))))

    # Dimensions without a host counterpart: everything beyond their coordinate 0.
    unmapped = [
        (size, stride)
        for size, stride, host in zip(
            storage.device_size, storage.device_strides, storage.stride_map, strict=True
        )
        if host <= 0 and size > 1
    ]
    for i, (size, stride) in enumerate(unmapped):
        add([*full, (size - 1, stride), *unmapped[i + 1 :]], stride)

    # Of the offsets [0, limit) that reach a place, the digits 0..limit // stride - 1 are followed
    # by everything that fits below, the next by what is left over, the others by nothing.
    pending: list[tuple[int, int, list[tuple[int, int]], int]] = [(0, storage.numel, [], 0)]
    while pending:
        level, limit, outer, start = pending.pop()
        if level == len(places):
            if limit == 0:
                add(outer, start)
            continue
        host_stride, size, stride = places[level]
        whole, left = divmod(limit, host_stride)
        used = whole + (left > 0)
        if used > size:
            raise ValueError(f"{storage} has no place for all of its elements")
        if whole:
            pending.append((level + 1, host_stride, [*outer, (whole, stride)], start))
        if left:
            pending.append((level + 1, left, outer, start + whole * stride))
        if used < size:
            add([*outer, (size - used, stride), *full[level + 1 :]], start + used * stride)
    return nests


_LONG_RUN = 16  # sticks: below it, cores would have too little to share


def in_sticks(nests: Sequence[Nest], lanes: int, most_rank: int = 8) -> Iterator[Nest]:
    """Cut long contiguous runs of the first access at its sticks, so that cores can share them."""
    for nest in nests:
        run = nest.extents[-1] if nest.extents else 1
        is_long = run >= _LONG_RUN * lanes and nest.strides[0][-1] == 1
        if not is_long or len(nest.extents) == most_rank:
            yield nest
            continue
        head = -nest.offsets[0] % lanes
        sticks, tail = divmod(run - head, lanes)
        yield from _part_of_run(nest, 0, 1, head)
        yield from _part_of_run(nest, head, sticks, lanes)
        yield from _part_of_run(nest, run - tail, 1, tail)


def _part_of_run(nest: Nest, start: int, count: int, length: int) -> Iterator[Nest]:
    """`count` pieces of `length` iterations of the innermost loop, from `start` on."""
    if length:
        yield Nest(
            (*nest.extents[:-1], count, length),
            tuple((*strides[:-1], strides[-1] * length, strides[-1]) for strides in nest.strides),
            tuple(
                offset + start * strides[-1]
                for offset, strides in zip(nest.offsets, nest.strides, strict=True)
            ),
        )
