"""Loop bodies as small expression graphs, and the places that they read.

An index expression arrives as sympy and leaves as integers: an offset and terms
`coefficient · ((v // floordiv) mod modulo)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Identity, ModularIndexing

from torch_spyre.ir import Term

Affine: TypeAlias = tuple[int, tuple[tuple[int, int], ...]]  # offset, (variable, coefficient)


class Position(NamedTuple):
    """offset + Σ terms, and indirect parts: coefficient · value of an index expression."""

    offset: int
    terms: tuple[Term, ...] = ()
    indirect: tuple[tuple[Value, int, int], ...] = ()  # index, coefficient, rows

    @property
    def variables(self) -> frozenset[int]:
        found = frozenset(term.variable for term in self.terms)
        return found.union(*(index.variables for index, _, _ in self.indirect))


@dataclass(frozen=True)
class Value:
    """A node of a body. `variables` are the loops that its value depends on."""

    op: str
    dtype: torch.dtype
    args: tuple[Value, ...] = ()
    name: str = ""  # load: of the buffer
    position: Position = field(default_factory=lambda: Position(0))  # load, index
    number: float | int | bool = 0  # constant
    variables: frozenset[int] = frozenset()

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class UnevenIndexError(Exception):
    """A division or modulo of several loop variables together that does not come apart."""

    def __init__(self, base: sympy.Expr) -> None:
        super().__init__(f"{base} is divided as a whole")
        self.base = base


class BitcastError(Exception):
    """Numbers taken for others with the same bits: on the card those bits are others."""


@dataclass
class IndexReader:
    """Turns sympy index expressions over known variables into positions."""

    variables: Mapping[sympy.Symbol, int]
    extents: Sequence[int]
    indirect: dict[sympy.Symbol, tuple[Value, int]] = field(default_factory=dict)
    sizes: Callable[[sympy.Expr], int] = int
    offsets: Callable[[sympy.Expr], int] = int  # for numbers that no bucket can stand for

    def position(self, expr: sympy.Expr) -> Position:
        offset = 0
        terms: dict[tuple[int, int, int | None], int] = {}
        indirect: list[tuple[Value, int, int]] = []
        for coefficient, factor in self.summands(expr, 1):
            if factor is None:
                offset += coefficient
            elif isinstance(factor, Term):
                key = (factor.variable, factor.floordiv, factor.modulo)
                terms[key] = terms.get(key, 0) + coefficient * factor.coefficient
            else:
                value, rows = self.indirect[factor]
                indirect.append((value, coefficient, rows))
        kept = tuple(
            Term(variable, coefficient, floordiv, modulo)
            for (variable, floordiv, modulo), coefficient in terms.items()
            if coefficient
        )
        return Position(offset, kept, tuple(indirect))

    def last(self, position: Position) -> int:
        """The largest offset of a position, without its indirect parts."""
        return position.offset + sum(max(self._largest(term), 0) for term in position.terms)

    def check_even(self, position: Position) -> None:
        """Refuse a division that ends inside its last period: 58 elements, taken modulo 32."""
        symbols = {number: symbol for symbol, number in self.variables.items()}
        for term in position.terms:
            extent = self.extents[term.variable]
            for period in (term.floordiv, term.floordiv * (term.modulo or 1)):
                if period < extent and extent % period:
                    raise UnevenIndexError(symbols[term.variable])

    def summands(self, expr: Any, coefficient: int) -> list[tuple[int, Any]]:
        """(coefficient, None | Term | indirect symbol) whose sum the expression is."""
        if isinstance(expr, int | sympy.Integer):
            return [(coefficient * int(expr), None)]
        if isinstance(expr, sympy.Symbol):
            if expr in self.variables:
                return [(coefficient, Term(self.variables[expr], 1))]
            if expr in self.indirect:
                return [(coefficient, expr)]
            return [(coefficient * self.offsets(expr), None)]
        if isinstance(expr, Identity):
            return self.summands(expr.args[0], coefficient)
        if isinstance(expr, FloorDiv | ModularIndexing) and not self._moves(expr):
            return [(coefficient * self.offsets(expr), None)]
        if isinstance(expr, sympy.Add):
            return [part for arg in expr.args for part in self.summands(arg, coefficient)]
        if isinstance(expr, sympy.Mul):
            return self._product(expr, coefficient)
        if isinstance(expr, FloorDiv):
            return self._divided(expr.args[0], self._number(expr.args[1]), None, coefficient)
        if isinstance(expr, ModularIndexing):
            base, divisor, modulus = expr.args
            return self._divided(base, self._number(divisor), self._number(modulus), coefficient)
        raise UnevenIndexError(expr)

    def _moves(self, expr: sympy.Expr) -> bool:
        return bool(expr.free_symbols & (self.variables.keys() | self.indirect.keys()))

    def _number(self, expr: Any) -> int:
        return int(expr) if isinstance(expr, int | sympy.Integer) else self.sizes(expr)

    def _product(self, expr: sympy.Mul, coefficient: int) -> list[tuple[int, Any]]:
        rest = []
        if not self._moves(expr):
            return [(coefficient * self.offsets(expr), None)]
        for arg in expr.args:
            if isinstance(arg, sympy.Integer):
                coefficient *= int(arg)
            elif not self._moves(arg):
                coefficient *= self.sizes(arg)
            else:
                rest.append(arg)
        if len(rest) != 1:
            raise UnevenIndexError(expr)
        return self.summands(rest[0], coefficient)

    def _divided(
        self, base: sympy.Expr, divisor: int, modulus: int | None, coefficient: int
    ) -> list[tuple[int, Any]]:
        """coefficient · ((base // divisor) mod modulus), taken apart where it divides evenly."""
        top = None if modulus is None else divisor * modulus
        exact: list[tuple[int, Any]] = []
        left: list[tuple[int, Any]] = []
        for step, factor in self._joined(self.summands(base, 1)):
            if factor is not None and not isinstance(factor, Term):
                raise UnevenIndexError(base)
            if top is not None and step % top == 0:
                continue
            if top is None and step % divisor == 0:
                exact.append((coefficient * (step // divisor), factor))
            else:
                left.append((step, factor))
        low, high = self._range(left)
        if low < 0:
            raise UnevenIndexError(base)
        if high < divisor:
            return exact
        if top is not None and high < top:
            # The modulo does nothing to what is left.
            return exact + self._divided_rest(base, left, divisor, None, coefficient)
        return exact + self._divided_rest(base, left, divisor, modulus, coefficient)

    def _joined(self, parts: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
        """Neighbouring digits of a variable as one: v mod 2 + 2 ((v // 2) mod 320) is v mod 640."""
        digits = [part for part in parts if isinstance(part[1], Term) and part[1].coefficient == 1]
        result = [part for part in parts if part not in digits]
        digits.sort(key=lambda part: (part[1].variable, part[1].floordiv))
        while digits:
            step, low = digits.pop(0)
            while low.modulo is not None:
                above = (step * low.modulo, low.variable, low.floordiv * low.modulo)
                places = [(s, t.variable, t.floordiv) for s, t in digits]
                if above not in places:
                    break
                high = digits.pop(places.index(above))[1].modulo
                low = low._replace(modulo=None if high is None else low.modulo * high)
            if low.modulo and low.floordiv * low.modulo >= self.extents[low.variable]:
                low = low._replace(modulo=None)
            result.append((step, low))
        return result

    def _divided_rest(
        self,
        base: sympy.Expr,
        left: list[tuple[int, Any]],
        divisor: int,
        modulus: int | None,
        coefficient: int,
    ) -> list[tuple[int, Any]]:
        if all(step % divisor == 0 for step, _ in left) and modulus is None:
            return [(coefficient * (step // divisor), factor) for step, factor in left]
        if len(left) != 1 or left[0][1] is None:
            return self._without_carry(base, left, divisor, modulus, coefficient)
        step, term = left[0]
        if term.coefficient != 1:
            raise UnevenIndexError(base)
        if term.floordiv != 1 or term.modulo is not None:
            # ((v // f) mod m) // d mod n
            top = divisor if modulus is None else divisor * modulus
            if step != 1 or (term.modulo is not None and term.modulo % top):
                raise UnevenIndexError(base)
            if modulus is None and term.modulo is not None:
                modulus = term.modulo // divisor
            return [(coefficient, Term(term.variable, 1, term.floordiv * divisor, modulus))]
        if divisor % step == 0:
            return [(coefficient, Term(term.variable, 1, divisor // step, modulus))]
        if divisor == 1 and modulus is not None and modulus % step == 0:
            return [(coefficient * step, Term(term.variable, 1, 1, modulus // step))]
        raise UnevenIndexError(base)

    def _without_carry(
        self,
        base: sympy.Expr,
        parts: list[tuple[int, Any]],
        divisor: int,
        modulus: int | None,
        coefficient: int,
    ) -> list[tuple[int, Any]]:
        """A division of a sum whose lower digits never add up to the divisor.

        (j + 16i) // 64 is i // 4 where j < 16: j + 16 (i mod 4) is less than 64.
        """
        high = [(step // divisor, factor) for step, factor in self._halves(base, parts, divisor)[1]]
        if modulus is not None and self._range(high)[1] >= modulus:
            high = self._halves(base, high, modulus)[0]
        return [(coefficient * step, factor) for step, factor in high]

    def _halves(
        self, base: sympy.Expr, parts: list[tuple[int, Any]], divisor: int
    ) -> tuple[list[tuple[int, Any]], list[tuple[int, Any]]]:
        """A sum as one that stays below the divisor and one of multiples of it."""
        low: list[tuple[int, Any]] = []
        high: list[tuple[int, Any]] = []
        for step, factor in parts:
            below, above = _cut(step, factor, divisor)
            low += below
            high += [part for part in above if self._range([part]) != (0, 0)]
        least, most = self._range(low)
        if least < 0 or most >= divisor:
            raise UnevenIndexError(base)
        return low, high

    def bounds(self, expr: sympy.Expr) -> tuple[int, int]:
        """What an expression is at least and at most, over all loops."""
        return self._range(self.summands(expr, 1))

    def _range(self, parts: list[tuple[int, Any]]) -> tuple[int, int]:
        low = high = 0
        for step, factor in parts:
            last = 1 if factor is None else self._largest(factor)
            low += min(step * last, 0 if factor is not None else step)
            high += max(step * last, 0 if factor is not None else step)
        return low, high

    def _largest(self, term: Term) -> int:
        last = (self.extents[term.variable] - 1) // term.floordiv
        if term.modulo is not None:
            last = min(last, term.modulo - 1)
        return last * term.coefficient


def _cut(
    step: int, factor: Any, divisor: int
) -> tuple[list[tuple[int, Any]], list[tuple[int, Any]]]:
    """A summand as one below the divisor and one that is a multiple of it."""
    if step % divisor == 0:
        return [], [(step, factor)]
    if factor is None:
        return [(step % divisor, None)], [(step - step % divisor, None)]
    if divisor % step or factor.coefficient != 1:
        return [(step, factor)], []
    digits = divisor // step
    if factor.modulo is not None and factor.modulo % digits:
        return [(step, factor)], []
    above = factor._replace(
        floordiv=factor.floordiv * digits,
        modulo=None if factor.modulo is None else factor.modulo // digits,
    )
    return [(step, factor._replace(modulo=digits))], [(divisor, above)]
