"""What an entry of the table of card operations says.

An expression is a number, the name of an argument, or a tuple `(card operation, operand, ...)`.
A bare string as an entry's expression applies that card operation to the entry's operands. Names
that start with "dtype." are numbers that depend on the dtype of the computation: see
`formats.fact`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

Expression: TypeAlias = str | float | tuple["Expression", ...]

_PARAMETERS = frozenset(
    ["value", "min", "max", "min_val", "max_val", "threshold", "alpha", "exponent"]
)


@dataclass(frozen=True)
class Formula:
    """What to compute in each domain; None: the card has no operation for it."""

    floats: Expression | None = None
    ints: Expression | None = None
    bools: Expression | None = None
    promotes_to_float: bool = False  # integers are computed in the default float dtype


@dataclass(frozen=True)
class Pointwise:
    """One aten operation and how the card computes it.

    `operands` are the arguments that become operands, in the order of the card's operation.
    `common` are those that take part in type promotion (default: all of them). With `choice`
    the formula depends on the value of that argument.
    """

    kind: ClassVar[str] = "pointwise"

    name: str
    operands: tuple[str, ...]
    formula: Formula = Formula()
    choice: str | None = None
    formulas: Mapping[str | None, Formula] = field(default_factory=dict)
    common: tuple[str, ...] = ()
    truths: tuple[str, ...] = ()  # operands read as truth values, whatever the domain
    gives_truth: bool = False  # the result is bool; else it has the common dtype
    compares: bool = False  # operands are first rounded to the common dtype, as in PyTorch
    saturates: bool = False  # finite scalars stay finite in a narrow result
    by_value: tuple[str, ...] = ()  # numbers on whose values a call may fail
    absent: Mapping[str, Expression] = field(default_factory=dict)  # what None stands for

    @property
    def arguments(self) -> frozenset[str]:
        """Every argument the planner understands, `out` aside."""
        return frozenset(self.operands) | ({self.choice} if self.choice else frozenset())

    @property
    def promoted(self) -> tuple[str, ...]:
        """The arguments that determine the common dtype."""
        return self.common or tuple(name for name in self.operands if name not in self.truths)

    @property
    def must_fit(self) -> frozenset[str]:
        """Python numbers that PyTorch refuses if the common dtype can't hold them.

        The others it treats like tensors: they wrap around.
        """
        return _PARAMETERS.union(self.operands if self.name == "where" else ())


@dataclass(frozen=True)
class Generated:
    """An operation that makes its numbers from their indices: random numbers and ranges."""

    kind: ClassVar[str] = "generated"

    name: str
    overloads: tuple[str, ...]
    by_value: tuple[str, ...] = ()  # numbers that shape the program, or on which a call may fail


Entry: TypeAlias = Pointwise | Generated


# ---- Entries of a kind --------------------------------------------------------------------------


def same(
    name: str,
    ints: Expression | None = None,
    bools: Expression | None = None,
    floats: Expression | None = None,
) -> Pointwise:
    """A function of one operand that keeps its dtype."""
    return Pointwise(name, ("self",), Formula(floats or name, ints, bools))


def smooth(name: str, floats: Expression | None = None, operand: str = "self") -> Pointwise:
    """A function of floats; integers are promoted."""
    return Pointwise(name, (operand,), Formula(floats or name, promotes_to_float=True))


def truth(name: str, floats: Expression, ints: Expression) -> Pointwise:
    """A question about one operand."""
    return Pointwise(name, ("self",), Formula(floats, ints, floats), gives_truth=True)


def compare(name: str) -> Pointwise:
    """A relation between two operands."""
    formula = Formula(name, f"{name}_int", name)
    return Pointwise(name, ("self", "other"), formula, gives_truth=True, compares=True)


def logical(name: str) -> Pointwise:
    """A connective of two truth values."""
    formula = Formula(name, f"{name}_int", name)
    return Pointwise(name, ("self", "other"), formula, gives_truth=True)


def binary(
    name: str,
    ints: Expression | None = None,
    bools: Expression | None = None,
    floats: Expression | None = None,
) -> Pointwise:
    """A function of two operands in their common dtype."""
    return Pointwise(name, ("self", "other"), Formula(floats or name, ints, bools))


def smooth_binary(
    name: str, floats: Expression, operands: tuple[str, str] = ("self", "other")
) -> Pointwise:
    """A function of two floats; integers are promoted."""
    return Pointwise(name, operands, Formula(floats, promotes_to_float=True))


def integer(name: str, card: Expression, logical: str | None = None) -> Pointwise:
    """An operation on the bits of integers; on bools, if at all, a logical one."""
    return Pointwise(name, ("self", "other"), Formula(None, card, logical))


def scaled(name: str, operands: tuple[str, ...], card: str, bools: Expression | None) -> Pointwise:
    """self ± alpha·other."""
    formula = Formula(f"{card}_scaled", f"{card}_scaled_int", bools)
    return Pointwise(name, operands, formula, common=("self", "other"))


def activation(
    name: str,
    operands: tuple[str, ...],
    floats: Expression,
    ints: Expression | None = None,
    by_value: tuple[str, ...] = (),
) -> Pointwise:
    """A function with parameters that don't take part in type promotion."""
    return Pointwise(name, operands, Formula(floats, ints), common=("self",), by_value=by_value)


def gradient(
    name: str, tensors: tuple[str, str], *parameters: str, floats: Expression
) -> Pointwise:
    """A gradient: of what comes back, and of the input or the output of the forward pass."""
    return Pointwise(name, (*tensors, *parameters), Formula(floats), common=tensors)
