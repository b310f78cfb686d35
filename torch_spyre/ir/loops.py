"""Loop nests with several affine functions over them, and how to take a digit out of one.

The functions (columns) are whatever the caller follows: host offsets still to be resolved, device
offsets found so far. Splitting or cutting a loop rewrites all of them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import NamedTuple


class Loops:
    """Extents, outermost first, and per column a coefficient per loop and a constant."""

    __slots__ = ("columns", "extents", "starts", "variables")

    def __init__(
        self,
        extents: list[int],
        columns: list[list[int]],
        starts: list[int],
        variables: list[int],
    ) -> None:
        self.extents = extents
        self.columns = columns
        self.starts = starts
        self.variables = variables  # which loop of the caller each one comes from

    def split(self, loop: int, inner: int) -> None:
        """Turn v into v1·inner + v0; `inner` divides the extent."""
        self.extents[loop : loop + 1] = [self.extents[loop] // inner, inner]
        self.variables.insert(loop, self.variables[loop])
        for column in self.columns:
            column.insert(loop, column[loop] * inner)

    def cut(self, loop: int, at: int) -> Loops:
        """Keep the iterations below `at`; return those from there on."""
        rest = Loops(
            self.extents.copy(),
            [column.copy() for column in self.columns],
            [
                start + column[loop] * at
                for start, column in zip(self.starts, self.columns, strict=True)
            ],
            self.variables.copy(),
        )
        rest.extents[loop] -= at
        self.extents[loop] = at
        return rest


def join(
    extents: Sequence[int],
    columns: Sequence[Sequence[int]],
    kinds: Sequence[bool] | None = None,
) -> list[list[int]]:
    """Group loops that every column walks as one, outermost first; those of one iteration drop out.

    A loop joins the one that runs just inside it for all columns, wherever it stands. Loops of
    different kinds stay apart.
    """
    order = [i for i, extent in enumerate(extents) if extent != 1]
    # Innermost first, so that a chain of loops collapses in one pass.
    order.sort(key=lambda i: [abs(column[i]) for column in columns])
    groups: list[list[int]] = []
    sizes: list[int] = []
    for i in order:
        for number, group in enumerate(groups):
            inner = group[-1]
            if kinds is not None and kinds[i] != kinds[inner]:
                continue
            if all(column[i] == column[inner] * sizes[number] for column in columns):
                sizes[number] *= extents[i]
                group.insert(0, i)
                break
        else:
            groups.append([i])
            sizes.append(extents[i])
    groups.sort(key=lambda group: group[-1])
    return groups


def merge(
    extents: Sequence[int],
    columns: Sequence[Sequence[int]],
    variables: Sequence[int],
    kinds: Sequence[bool] | None = None,
) -> tuple[list[int], list[list[int]], list[int]]:
    """Drop loops of one iteration and join loops that every column walks as one.

    (5, 200) with strides (200, 1) everywhere becomes (1000,) with stride 1. What is joined bears
    the name of its outermost loop.
    """
    groups = join(extents, columns, kinds)
    return (
        [prod(extents[i] for i in group) for group in groups],
        [[column[group[-1]] for group in groups] for column in columns],
        [variables[group[0]] for group in groups],
    )


class Digit(NamedTuple):
    """floor(f / s) and f mod s as affine functions over the loops."""

    quotient: list[int]
    quotient_start: int
    remainder: list[int]
    remainder_start: int


class Carry(NamedTuple):
    """Why there is no such affine digit: the remainder leaves [0, s) along these loops."""

    loop: int  # the one with the largest step
    step: int  # of the remainder along it
    low: int  # of the remainder at its iteration 0, over all other loops
    high: int
    period: int  # iterations after which the step is a multiple of s


def take_digit(
    extents: Sequence[int], column: Sequence[int], start: int, place: int
) -> Digit | Carry:
    """Divide an affine function by a place, if the result is affine over the whole nest."""
    quotient_start, remainder_start = divmod(start, place)
    quotient: list[int] = []
    remainder: list[int] = []
    low = high = remainder_start
    for extent, coefficient in zip(extents, column, strict=True):
        if -place < coefficient < place:
            steps, step = 0, coefficient
        else:
            steps, step = divmod(coefficient, place)
        reach = step * (extent - 1)
        # A step of place - 1 is better seen as a step back, which does not carry each time.
        if reach >= place and (place - step) * (extent - 1) < place:
            steps, step = steps + 1, step - place
            reach = step * (extent - 1)
        quotient.append(steps)
        remainder.append(step)
        if reach > 0:
            high += reach
        else:
            low += reach
    if low >= 0 and high < place:
        return Digit(quotient, quotient_start, remainder, remainder_start)

    loop = max(
        (i for i, extent in enumerate(extents) if extent > 1), key=lambda i: abs(remainder[i])
    )
    step = remainder[loop]
    reach = step * (extents[loop] - 1)
    if step > 0:
        high -= reach
    else:
        low -= reach
    return Carry(loop, step, low, high, place // gcd(place, step))
