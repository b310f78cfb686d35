"""The entries of arithmetic, comparison, selection and activations."""

from __future__ import annotations

import math

from torch_spyre.ops.entries import (
    Entry,
    Expression,
    Formula,
    Pointwise,
    activation,
    binary,
    compare,
    integer,
    logical,
    same,
    scaled,
    smooth,
    smooth_binary,
    truth,
)

MINIMUM = Formula("minimum", "minimum_int", "logical_and")
MAXIMUM = Formula("maximum", "maximum_int", "logical_or")
_DIVISION: dict[str | None, Formula] = {
    None: Formula("div", promotes_to_float=True),
    "floor": Formula("div_floor", "div_floor_int"),
    "trunc": Formula("div_trunc", "div_trunc_int"),
}


# What hard activations multiply with, times six.
_HARD_GATE: Expression = ("clamp", ("add", "self", 3.0), 0.0, 6.0)


# Rounding to a number of decimals scales by a power of ten, there and back.
_POWER_OF_TEN: Expression = ("pow", 10.0, ("abs", "decimals"))
_ROUND_DECIMALS: Expression = (
    "where",
    ("lt", "decimals", 0.0),
    ("mul", ("round", ("div", "self", _POWER_OF_TEN)), _POWER_OF_TEN),
    ("div", ("round", ("mul", "self", _POWER_OF_TEN)), _POWER_OF_TEN),
)


# Where the shrinking activations have their zeros.
_WITHIN_LAMBDA: Expression = (
    "logical_and",
    ("ge", "self", ("neg", "lambd")),
    ("le", "self", "lambd"),
)


def _prefer_number(extremum: str) -> Expression:
    """The extremum of two operands in which a number wins over NaN."""
    of_numbers = ("where", ("isnan", "other"), "self", (extremum, "self", "other"))
    return ("where", ("isnan", "self"), "other", of_numbers)


ARITHMETIC: tuple[Entry, ...] = (
    # Functions that keep the dtype. Rounding an integer leaves it as it is.
    same("abs", "abs_int"),
    same("neg", "neg_int"),
    same("sign", "sign_int", "identity"),
    same("sgn", "sign_int", "identity", floats="sign"),
    same("relu", "relu_int"),
    same("conj_physical", "identity_int", "identity", floats="identity"),
    same("floor", "identity_int"),
    same("ceil", "identity_int"),
    same("round", "identity_int"),
    same("trunc", "identity_int"),
    Pointwise("round", ("self", "decimals"), Formula(_ROUND_DECIMALS), common=("self",)),
    same("frac", floats=("sub", "self", ("trunc", "self"))),
    same("silu"),
    same("mish", floats=("mul", "self", ("tanh", ("softplus", "self", 1.0, 20.0)))),
    same("hardsigmoid", floats=("div", _HARD_GATE, 6.0)),
    same("hardswish", floats=("div", ("mul", "self", _HARD_GATE), 6.0)),
    Pointwise("bitwise_not", ("self",), Formula(None, "bitwise_not", "logical_not")),
    # Functions of floats.
    *map(smooth, ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt")),
    *map(smooth, ("reciprocal", "tanh", "sigmoid", "sin", "cos", "erf")),
    # Questions.
    truth("logical_not", "logical_not", "logical_not_int"),
    truth("isnan", "isnan", ("ne_int", "self", "self")),
    truth("isinf", "isinf", ("ne_int", "self", "self")),
    truth("isneginf", ("eq", "self", -math.inf), ("ne_int", "self", "self")),
    truth("isposinf", ("eq", "self", math.inf), ("ne_int", "self", "self")),
    truth("signbit", ("lt", ("copysign", 1.0, "self"), 0.0), ("lt_int", "self", 0.0)),
    *map(compare, ("eq", "ne", "lt", "le", "gt", "ge")),
    *map(logical, ("logical_and", "logical_or", "logical_xor")),
    # Arithmetic. On bools a sum is a disjunction and a product a conjunction.
    scaled(
        "add",
        ("self", "other", "alpha"),
        "add",
        ("logical_or", "self", ("logical_and", "other", "alpha")),
    ),
    scaled("sub", ("self", "other", "alpha"), "sub", None),
    scaled("rsub", ("other", "self", "alpha"), "sub", None),
    binary("mul", "mul_int", "logical_and"),
    binary("remainder", "remainder_int"),
    binary("fmod", "fmod_int"),
    binary("floor_divide", "div_floor_int", floats="div_floor"),
    binary("maximum", "maximum_int", "logical_or"),
    binary("minimum", "minimum_int", "logical_and"),
    binary("fmax", "maximum_int", "logical_or", floats=_prefer_number("maximum")),
    binary("fmin", "minimum_int", "logical_and", floats=_prefer_number("minimum")),
    Pointwise(
        "div",
        ("self", "other"),
        choice="rounding_mode",
        formulas=_DIVISION,
    ),
    Pointwise("pow", ("self", "exponent"), Formula("pow", "pow_int"), by_value=("exponent",)),
    smooth_binary("atan2", "atan2"),
    smooth_binary("copysign", "copysign"),
    Pointwise("hypot", ("self", "other"), Formula("hypot")),
    # The next number that the format holds, which may have fewer bits than fp32.
    Pointwise(
        "nextafter",
        ("self", "other"),
        Formula(("nextafter", "self", "other", "dtype.step", "dtype.smallest")),
    ),
    Pointwise(
        "heaviside",
        ("self", "values"),
        Formula(
            ("where", ("eq", "self", 0.0), "values", ("gt", "self", 0.0)),
            (
                "where_int",
                ("eq_int", "self", 0.0),
                "values",
                ("float_to_int", ("gt_int", "self", 0.0)),
            ),
            ("logical_or", "self", "values"),
        ),
    ),
    integer("gcd", "gcd"),
    integer(
        "lcm",
        ("abs_int", ("mul_int", ("div_trunc_int", "self", ("gcd", "self", "other")), "other")),
    ),
    # Integers bit by bit.
    integer("bitwise_and", "bitwise_and", "logical_and"),
    integer("bitwise_or", "bitwise_or", "logical_or"),
    integer("bitwise_xor", "bitwise_xor", "logical_xor"),
    integer("bitwise_left_shift", "shift_left"),
    integer("bitwise_right_shift", "shift_right"),
    integer("__lshift__", "shift_left"),
    integer("__rshift__", "shift_right"),
    integer("__ilshift__", "shift_left"),
    integer("__irshift__", "shift_right"),
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
    Pointwise(
        "nan_to_num",
        ("self", "nan", "posinf", "neginf"),
        Formula(
            (
                "where",
                ("isnan", "self"),
                "nan",
                (
                    "where",
                    ("eq", "self", math.inf),
                    "posinf",
                    ("where", ("eq", "self", -math.inf), "neginf", "self"),
                ),
            ),
            ("identity_int", "self"),
            ("identity", "self"),
        ),
        common=("self",),
        absent={"nan": 0.0, "posinf": "dtype.max", "neginf": "dtype.min"},
    ),
    # A missing bound of clamp makes it a maximum or a minimum: see `formula_for`.
    Pointwise("clamp", ("self", "min", "max"), Formula("clamp", "clamp_int")),
    Pointwise("clamp_min", ("self", "min"), MAXIMUM),
    Pointwise("clamp_max", ("self", "max"), MINIMUM),
    # Activations.
    Pointwise(
        "gelu",
        ("self",),
        choice="approximate",
        formulas={"none": Formula("gelu"), "tanh": Formula("gelu_tanh")},
    ),
    activation("hardtanh", ("self", "min_val", "max_val"), "clamp", "clamp_int"),
    activation("softplus", ("self", "beta", "threshold"), "softplus"),
    activation("leaky_relu", ("self", "negative_slope"), "leaky_relu"),
    activation("elu", ("self", "alpha", "scale", "input_scale"), "elu"),
    activation(
        "threshold",
        ("self", "threshold", "value"),
        ("where", ("le", "self", "threshold"), "value", "self"),
        ("where_int", ("le_int", "self", "threshold"), "value", "self"),
    ),
    activation("hardshrink", ("self", "lambd"), ("where", _WITHIN_LAMBDA, 0.0, "self")),
    activation(
        "softshrink",
        ("self", "lambd"),
        (
            "where",
            ("gt", "self", "lambd"),
            ("sub", "self", "lambd"),
            (
                "where",
                ("lt", "self", ("neg", "lambd")),
                ("add", "self", "lambd"),
                ("mul", "self", 0.0),  # NaN stays
            ),
        ),
        by_value=("lambd",),  # a negative one is refused
    ),
    Pointwise("_prelu_kernel", ("self", "weight"), Formula("leaky_relu")),
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
)
