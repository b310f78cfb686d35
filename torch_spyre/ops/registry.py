"""The table of pointwise operations that run on the card.

An entry says how an aten operation is written in the card's own operations, once per compute
domain: floats (fp32 once widened), ints (int32), bools (floats 1.0 and 0.0). It names arguments
as aten's schemas do, and covers every overload whose arguments it knows: functional, in place,
`out=`, Tensor and Scalar. An overload with another argument (`round.decimals`) or one that
PyTorch itself composes of others (`square`) is left alone.

The runtime registers its boxed kernel for `overload_names()`, so importing this module has to
stay cheap: nothing but torch is needed.

An expression is a number, the name of an argument, or a tuple `(card operation, operand, ...)`.
A bare string as an entry's expression applies that card operation to the entry's operands.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

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

    name: str
    overloads: tuple[str, ...]
    by_value: tuple[str, ...] = ()  # numbers that shape the program, or on which a call may fail


Entry: TypeAlias = Pointwise | Generated


def _same(
    name: str,
    ints: Expression | None = None,
    bools: Expression | None = None,
    floats: Expression | None = None,
) -> Pointwise:
    """A function of one operand that keeps its dtype."""
    return Pointwise(name, ("self",), Formula(floats or name, ints, bools))


def _smooth(name: str) -> Pointwise:
    """A function of floats; integers are promoted."""
    return Pointwise(name, ("self",), Formula(name, promotes_to_float=True))


def _truth(name: str, floats: Expression, ints: Expression) -> Pointwise:
    """A question about one operand."""
    return Pointwise(name, ("self",), Formula(floats, ints, floats), gives_truth=True)


def _compare(name: str) -> Pointwise:
    formula = Formula(name, f"{name}_int", name)
    return Pointwise(name, ("self", "other"), formula, gives_truth=True, compares=True)


def _logical(name: str) -> Pointwise:
    formula = Formula(name, f"{name}_int", name)
    return Pointwise(name, ("self", "other"), formula, gives_truth=True)


def _binary(
    name: str,
    ints: Expression | None = None,
    bools: Expression | None = None,
    floats: Expression | None = None,
) -> Pointwise:
    return Pointwise(name, ("self", "other"), Formula(floats or name, ints, bools))


def _integer(name: str, card: str, logical: str | None = None) -> Pointwise:
    """An operation on the bits of integers; on bools, if at all, a logical one."""
    return Pointwise(name, ("self", "other"), Formula(None, card, logical))


def _scaled(name: str, operands: tuple[str, ...], card: str, bools: Expression | None) -> Pointwise:
    """self ± alpha·other."""
    formula = Formula(f"{card}_scaled", f"{card}_scaled_int", bools)
    return Pointwise(name, operands, formula, common=("self", "other"))


def _activation(
    name: str, operands: tuple[str, ...], floats: Expression, ints: Expression | None = None
) -> Pointwise:
    """A function with parameters that don't take part in type promotion."""
    return Pointwise(name, operands, Formula(floats, ints), common=("self",))


def _gradient(
    name: str, tensors: tuple[str, str], *parameters: str, floats: Expression
) -> Pointwise:
    return Pointwise(name, (*tensors, *parameters), Formula(floats), common=tensors)


_MINIMUM = Formula("minimum", "minimum_int")
_MAXIMUM = Formula("maximum", "maximum_int")
_DIVISION: dict[str | None, Formula] = {
    None: Formula("div", promotes_to_float=True),
    "floor": Formula("div_floor", "div_floor_int"),
    "trunc": Formula("div_trunc", "div_trunc_int"),
}


# What hard activations multiply with, times six.
_HARD_GATE: Expression = ("clamp", ("add", "self", 3.0), 0.0, 6.0)


def _prefer_number(extremum: str) -> Expression:
    """The extremum of two operands in which a number wins over NaN."""
    of_numbers = ("where", ("isnan", "other"), "self", (extremum, "self", "other"))
    return ("where", ("isnan", "self"), "other", of_numbers)


TABLE: tuple[Entry, ...] = (
    # Functions that keep the dtype. Rounding an integer leaves it as it is.
    _same("abs", "abs_int"),
    _same("neg", "neg_int"),
    _same("sign", "sign_int", "identity"),
    _same("sgn", "sign_int", "identity", floats="sign"),
    _same("relu", "relu_int"),
    _same("floor", "identity_int"),
    _same("ceil", "identity_int"),
    _same("round", "identity_int"),
    _same("trunc", "identity_int"),
    _same("frac", floats=("sub", "self", ("trunc", "self"))),
    _same("silu"),
    _same("mish", floats=("mul", "self", ("tanh", ("softplus", "self", 1.0, 20.0)))),
    _same("hardsigmoid", floats=("div", _HARD_GATE, 6.0)),
    _same("hardswish", floats=("div", ("mul", "self", _HARD_GATE), 6.0)),
    Pointwise("bitwise_not", ("self",), Formula(None, "bitwise_not", "logical_not")),
    # Functions of floats.
    *map(_smooth, ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt")),
    *map(_smooth, ("reciprocal", "tanh", "sigmoid", "sin", "cos", "erf")),
    # Questions.
    _truth("logical_not", "logical_not", "logical_not_int"),
    _truth("isnan", "isnan", ("ne_int", "self", "self")),
    _truth("isinf", "isinf", ("ne_int", "self", "self")),
    _truth("isneginf", ("eq", "self", -math.inf), ("ne_int", "self", "self")),
    _truth("isposinf", ("eq", "self", math.inf), ("ne_int", "self", "self")),
    *map(_compare, ("eq", "ne", "lt", "le", "gt", "ge")),
    *map(_logical, ("logical_and", "logical_or", "logical_xor")),
    # Arithmetic. On bools a sum is a disjunction and a product a conjunction.
    _scaled(
        "add",
        ("self", "other", "alpha"),
        "add",
        ("logical_or", "self", ("logical_and", "other", "alpha")),
    ),
    _scaled("sub", ("self", "other", "alpha"), "sub", None),
    _scaled("rsub", ("other", "self", "alpha"), "sub", None),
    _binary("mul", "mul_int", "logical_and"),
    _binary("remainder", "remainder_int"),
    _binary("fmod", "fmod_int"),
    _binary("floor_divide", "div_floor_int", floats="div_floor"),
    _binary("maximum", "maximum_int", "logical_or"),
    _binary("minimum", "minimum_int", "logical_and"),
    _binary("fmax", "maximum_int", "logical_or", floats=_prefer_number("maximum")),
    _binary("fmin", "minimum_int", "logical_and", floats=_prefer_number("minimum")),
    Pointwise(
        "div",
        ("self", "other"),
        choice="rounding_mode",
        formulas=_DIVISION,
    ),
    Pointwise("pow", ("self", "exponent"), Formula("pow", "pow_int"), by_value=("exponent",)),
    Pointwise("atan2", ("self", "other"), Formula("atan2", promotes_to_float=True)),
    # Integers bit by bit.
    _integer("bitwise_and", "bitwise_and", "logical_and"),
    _integer("bitwise_or", "bitwise_or", "logical_or"),
    _integer("bitwise_xor", "bitwise_xor", "logical_xor"),
    _integer("bitwise_left_shift", "shift_left"),
    _integer("bitwise_right_shift", "shift_right"),
    _integer("__lshift__", "shift_left"),
    _integer("__rshift__", "shift_right"),
    _integer("__ilshift__", "shift_left"),
    _integer("__irshift__", "shift_right"),
    # Selection.
    Pointwise(
        "where",
        ("condition", "self", "other"),
        Formula("where", "where_int", "where"),
        truths=("condition",),
        saturates=True,
    ),
    Pointwise(
        "masked_fill",
        ("mask", "value", "self"),
        Formula("where", "where_int", "where"),
        common=("self",),
        truths=("mask",),
        saturates=True,
    ),
    Pointwise(
        "fill",
        ("value",),
        Formula("identity", "identity_int", "identity"),
        common=("self",),
        saturates=True,
    ),
    Pointwise("zero", (), Formula(("identity", 0.0), ("identity_int", 0.0), ("identity", 0.0))),
    # A missing bound of clamp makes it a maximum or a minimum: see `formula_for`.
    Pointwise("clamp", ("self", "min", "max"), Formula("clamp", "clamp_int")),
    Pointwise("clamp_min", ("self", "min"), _MAXIMUM),
    Pointwise("clamp_max", ("self", "max"), _MINIMUM),
    # Activations.
    Pointwise(
        "gelu",
        ("self",),
        choice="approximate",
        formulas={"none": Formula("gelu"), "tanh": Formula("gelu_tanh")},
    ),
    _activation("hardtanh", ("self", "min_val", "max_val"), "clamp", "clamp_int"),
    _activation("softplus", ("self", "beta", "threshold"), "softplus"),
    _activation("leaky_relu", ("self", "negative_slope"), "leaky_relu"),
    _activation("elu", ("self", "alpha", "scale", "input_scale"), "elu"),
    _activation(
        "threshold",
        ("self", "threshold", "value"),
        ("where", ("le", "self", "threshold"), "value", "self"),
        ("where_int", ("le_int", "self", "threshold"), "value", "self"),
    ),
    # Three operands.
    Pointwise("lerp", ("self", "end", "weight"), Formula("lerp"), common=("self", "end")),
    Pointwise(
        "addcmul",
        ("self", "tensor1", "tensor2", "value"),
        Formula("addcmul", "addcmul_int"),
        common=("self", "tensor1", "tensor2"),
    ),
    Pointwise(
        "addcdiv",
        ("self", "tensor1", "tensor2", "value"),
        Formula("addcdiv"),
        common=("self", "tensor1", "tensor2"),
    ),
    # Gradients of the commonest activations.
    _gradient(
        "threshold_backward",
        ("grad_output", "self"),
        "threshold",
        floats=("where", ("le", "self", "threshold"), 0.0, "grad_output"),
    ),
    _gradient(
        "sigmoid_backward",
        ("grad_output", "output"),
        floats=("mul", "grad_output", ("mul", ("sub", 1.0, "output"), "output")),
    ),
    _gradient(
        "tanh_backward",
        ("grad_output", "output"),
        floats=("mul", "grad_output", ("sub", 1.0, ("square", "output"))),
    ),
    # Numbers from nothing.
    Generated("uniform_", ("uniform_",), by_value=("from", "to")),
    Generated("normal_", ("normal_",), by_value=("mean", "std")),
    Generated("random_", ("random_", "random_.to", "random_.from"), by_value=("from", "to")),
    Generated("bernoulli_", ("bernoulli_.float", "bernoulli_.Tensor"), by_value=("p",)),
    Generated("bernoulli", ("bernoulli.out",)),
    Generated("arange", ("arange.start_out",), by_value=("start", "end", "step")),
)


@dataclass(frozen=True)
class Overload:
    """One overload of an entry, with what the planner has to know of its schema."""

    name: str  # "aten::add.Tensor"
    entry: Entry
    arguments: tuple[str, ...]
    keyword_only: frozenset[str]
    tensors: frozenset[str]  # arguments that are tensors by schema
    written: str | None  # the argument that the overload writes; None: it returns a new tensor
    value_keys: tuple[int, ...]  # arguments whose value, not only type, shapes the plan


def formula_for(
    entry: Pointwise, constants: Mapping[str, object]
) -> tuple[Formula, tuple[str, ...]]:
    """The formula for these constant arguments, and the operands that are present."""
    if entry.name == "clamp":
        bounds = [name for name in ("min", "max") if name not in constants]
        if bounds == ["min"]:
            return _MAXIMUM, ("self", "min")
        if bounds == ["max"]:
            return _MINIMUM, ("self", "max")
    if entry.choice is None:
        return entry.formula, entry.operands
    chosen = constants.get(entry.choice, None)
    return entry.formulas[chosen if chosen is None else str(chosen)], entry.operands


def _schemas(name: str) -> Iterable[torch.FunctionSchema]:
    return torch._C._jit_get_schemas_for_operator(f"aten::{name}")


def _full_name(schema: torch.FunctionSchema) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def _is_composed(name: str) -> bool:
    """PyTorch builds it of other operations; a kernel of ours would cut off its gradient."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


def _exists(schema: torch.FunctionSchema, name: str) -> bool:
    # TorchScript adds overloads for Python numbers that no dispatcher knows.
    try:
        found = torch._C._get_schema(schema.name, schema.overload_name)
        torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
    except RuntimeError:
        return False
    return found is not None


def _overload(entry: Entry, schema: torch.FunctionSchema) -> Overload:
    arguments = schema.arguments
    written = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    tensors = [a.name for a in arguments if str(a.type) in ("Tensor", "Optional[Tensor]")]
    by_value = [name for name in entry.by_value if name not in tensors]
    return Overload(
        name=_full_name(schema),
        entry=entry,
        arguments=tuple(argument.name for argument in arguments),
        keyword_only=frozenset(argument.name for argument in arguments if argument.kwarg_only),
        tensors=frozenset(tensors),
        written=written[0] if written else None,
        value_keys=tuple(i for i, argument in enumerate(arguments) if argument.name in by_value),
    )


def _covers(entry: Pointwise, schema: torch.FunctionSchema) -> bool:
    names = {argument.name for argument in schema.arguments} - {"out"}
    written = {
        a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
    }
    return names - written - {"self"} <= entry.arguments and len(schema.returns) == 1


def _overloads_of(entry: Entry) -> Iterator[Overload]:
    names: tuple[str, ...] = (entry.name,)
    if isinstance(entry, Pointwise) and not entry.name.endswith("__"):
        names = (entry.name, f"{entry.name}_")
    for name in names:
        for schema in _schemas(name):
            full = _full_name(schema)
            if isinstance(entry, Pointwise):
                wanted = _covers(entry, schema)
            else:
                wanted = full.removeprefix("aten::") in entry.overloads
            if wanted and _exists(schema, full) and not _is_composed(full):
                yield _overload(entry, schema)


@functools.cache
def overloads() -> dict[str, Overload]:
    """Every overload that the card runs, by its full name."""
    return {overload.name: overload for entry in TABLE for overload in _overloads_of(entry)}


def overload_names() -> tuple[str, ...]:
    """The names ("aten::add.Tensor") for which the runtime registers its boxed kernel."""
    return tuple(overloads())


def value_keys(name: str) -> tuple[int, ...]:
    """Positions of the scalar arguments whose values belong into the key of a cached plan."""
    return overloads()[name].value_keys
