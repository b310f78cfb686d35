"""Walks as device coordinates: from offsets and strides back to dimensions.

A device offset is a number in mixed radix whose digits are the device coordinates. A walk that
stays within the dimensions has coordinates that are affine in its loops, and only one such form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from .spec import Coordinate
from .storage import Storage
from .terms import Term

Box: TypeAlias = tuple[tuple[int, int], ...]  # lowest and highest coordinate per device dimension


class Affine(NamedTuple):
    """offset + Σ coefficients[i] · v_i"""

    offset: int
    coefficients: tuple[int, ...]


def coordinates(
    storage: Storage, offset: int, strides: Sequence[int], extents: Sequence[int]
) -> tuple[Affine, ...]:
    """The coordinate along each device dimension, outermost first.

    Offset and strides are in device elements. Raises ValueError if a coordinate is not affine in
    the loops, or leaves its dimension.

    >>> matrix = Storage(device_size=(4, 5, 64), stride_map=(64, 200, 1), numel=1000)
    >>> coordinates(matrix, 64, (128, 320), (2, 4))  # rows 1 and 3, all tiles
    (Affine(offset=0, coefficients=(0, 1)), Affine(offset=1, coefficients=(2, 0)), \
Affine(offset=0, coefficients=(0, 0)))
    """
    result = []
    start, steps = offset, list(strides)
    for dim, (size, place) in enumerate(
        zip(storage.device_size, storage.device_strides, strict=True)
    ):
        first, rest = divmod(start, place)
        digits = []
        low = high = first
        rest_low = rest_high = rest
        for i, (step, extent) in enumerate(zip(steps, extents, strict=True)):
            # If the digit is affine at all, the first two iterations show its coefficient. A loop
            # of one iteration shows none, and any will do.
            digit = (start + step) // place - first if extent > 1 else step // place
            digits.append(digit)
            steps[i] = step - digit * place
            low, high = _widen(low, high, digit * (extent - 1))
            rest_low, rest_high = _widen(rest_low, rest_high, steps[i] * (extent - 1))
        if low < 0 or high >= size or rest_low < 0 or rest_high >= place:
            raise ValueError(
                f"offset {offset} and strides {tuple(strides)} over extents {tuple(extents)} are "
                f"no walk along device dimension {dim} of {storage.device_size}: "
                + (
                    f"it would go from {low} to {high}"
                    if low < 0 or high >= size
                    else "its coordinate is not affine"
                )
            )
        result.append(Affine(first, tuple(digits)))
        start = rest
    return tuple(result)


def core_boxes(
    where: Sequence[Coordinate],
    starts: Sequence[Sequence[int]],
    extents: Sequence[Sequence[int]],
) -> list[Box]:
    """Which coordinates each core touches, given the part of the iteration space that is its own.

    Parts are counted as coordinates are: the stick dimension in elements (see `core_shares`).

    >>> column = Coordinate(0, (Term(1, 1, floordiv=64),)), Coordinate(3, (Term(0, -1),))
    >>> core_boxes(column, [(0, 0), (2, 0)], [(2, 200), (2, 200)])
    [((0, 3), (2, 3)), ((0, 3), (0, 1))]
    """
    if any(coordinate.indirect is not None for coordinate in where):
        raise ValueError("a coordinate that an index decides has no box: any row may be touched")
    # Many cores share their part of a dimension: each is looked at once.
    known: dict[tuple[Term, int, int], tuple[int, int]] = {}
    boxes = []
    for start, extent in zip(starts, extents, strict=True):
        box = []
        for coordinate in where:
            low = high = coordinate.offset
            for term in coordinate.terms:
                key = term, start[term.variable], extent[term.variable]
                reach = known.get(key)
                if reach is None:
                    reach = known[key] = _reach(*key)
                low += reach[0]
                high += reach[1]
            box.append((low, high))
        boxes.append(tuple(box))
    return boxes


def _reach(term: Term, start: int, extent: int) -> tuple[int, int]:
    """The smallest and the largest value of a term over part of its variable."""
    low, high = start // term.floordiv, (start + extent - 1) // term.floordiv
    if term.modulo is not None:
        is_within_one_period = low // term.modulo == high // term.modulo
        low, high = (
            (low % term.modulo, high % term.modulo)
            if is_within_one_period
            else (0, term.modulo - 1)
        )
    ends = term.coefficient * low, term.coefficient * high
    return min(ends), max(ends)


def _widen(low: int, high: int, reach: int) -> tuple[int, int]:
    return (low, high + reach) if reach > 0 else (low + reach, high)
