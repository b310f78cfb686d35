"""Index expressions with floor division and modulo as plain accesses over split variables.

Views that PyTorch can't express as strides reach a compiler as `c · ((v // d) mod m)`. Splitting
`v` at d and d·m turns each into a sum of digits, and the division disappears.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from .storage import Access, Storage


class Term(NamedTuple):
    """coefficient · ((v // floordiv) mod modulo)"""

    variable: int
    coefficient: int
    floordiv: int = 1
    modulo: int | None = None


class Expression(NamedTuple):
    """The host offset of one operand: offset + Σ terms."""

    storage: Storage | None
    offset: int
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Refined:
    """Accesses over variables that are fine enough for all expressions.

    Variable v of the caller is Σ weight · w over the pairs (new variable w, weight) of `digits[v]`.
    """

    extents: tuple[int, ...]
    accesses: tuple[Access, ...]
    digits: tuple[tuple[tuple[int, int], ...], ...]


class UnevenSplitError(ValueError):
    """A variable has no digits that serve all expressions: the division can't be walked."""

    def __init__(self, variable: int, extent: int, points: Sequence[int]) -> None:
        super().__init__(
            f"loop variable {variable} of extent {extent} does not divide evenly at "
            f"{', '.join(map(str, points))}"
        )
        self.variable = variable
        self.points = tuple(points)


def refine(extents: Sequence[int], expressions: Sequence[Expression]) -> Refined:
    """Split each variable where some expression divides it.

    >>> read = Expression(None, 0, (Term(0, 10, floordiv=4), Term(0, 1, modulo=4)))
    >>> refine((12,), [read])
    Refined(extents=(3, 4), accesses=(Access(storage=None, offset=0, strides=(10, 1)),), \
digits=(((0, 4), (1, 1)),))
    """
    sizes: list[int] = []
    digits: list[tuple[tuple[int, int], ...]] = []
    for variable, extent in enumerate(extents):
        weights = [1, *_split_points(variable, extent, expressions)]
        first = len(sizes)
        own = []
        for i, weight in enumerate(reversed(weights)):
            own.append((first + i, weight))
            above = weights[-i] if i else extent
            sizes.append(above // weight)
        digits.append(tuple(own))
    accesses = []
    for expression in expressions:
        strides = [0] * len(sizes)
        for term in expression.terms:
            top = None if term.modulo is None else term.floordiv * term.modulo
            for digit, weight in digits[term.variable]:
                if weight >= term.floordiv and (top is None or weight < top):
                    strides[digit] += term.coefficient * (weight // term.floordiv)
        accesses.append(Access(expression.storage, expression.offset, tuple(strides)))
    return Refined(tuple(sizes), tuple(accesses), tuple(digits))


def _split_points(variable: int, extent: int, expressions: Sequence[Expression]) -> list[int]:
    """Ascending; each divides the next, the last one the extent."""
    found = set()
    for expression in expressions:
        for term in expression.terms:
            if term.variable == variable:
                found.add(term.floordiv)
                if term.modulo is not None:
                    found.add(term.floordiv * term.modulo)
    points = sorted(point for point in found if 1 < point < extent)
    if any(above % point for point, above in pairwise([*points, extent])):
        raise UnevenSplitError(variable, extent, points)
    return points
