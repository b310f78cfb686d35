"""The entries of gradients that are functions of one element."""

from __future__ import annotations

import math

from torch_spyre.ops.entries import Entry, Expression, Formula, Pointwise, gradient

_GRAD, _SELF = "grad_output", "self"


def _silu(x: Expression) -> Expression:
    gate: Expression = ("sigmoid", x)
    return ("mul", gate, ("add", 1.0, ("mul", x, ("sub", 1.0, gate))))


def _gelu(x: Expression) -> Expression:
    """The normal distribution up to x, and x times its density."""
    below = ("mul", 0.5, ("erfc", ("mul", x, -math.sqrt(0.5))))
    density = ("mul", ("exp", ("mul", ("square", x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return ("add", below, ("mul", x, density))


def _gelu_tanh(x: Expression) -> Expression:
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    squared = ("square", x)
    inner = ("mul", ("mul", scale, x), ("add", 1.0, ("mul", cubic, squared)))
    slope = ("mul", scale, ("add", 1.0, ("mul", 3 * cubic, squared)))
    # (1 + tanh)/2 as a sigmoid, which doesn't cancel; its derivative is twice y (1 - y).
    gate = ("sigmoid", ("add", inner, inner))
    gate_slope = ("mul", ("mul", ("mul", 2.0, gate), ("sub", 1.0, gate)), slope)
    return ("add", gate, ("mul", x, gate_slope))


def _elu(inside: Expression) -> Expression:
    """`inside` is the derivative of alpha (e^x - 1) where the input is negative."""
    slope = ("where", ("le", "self_or_result", 0.0), inside, "scale")
    return ("mul", _GRAD, slope)


_ELU_COEFFICIENT: Expression = ("mul", "alpha", "scale")
_LEAKY: Expression = (
    "where",
    ("gt", _SELF, 0.0),
    _GRAD,
    ("mul", _GRAD, "negative_slope"),
)


def _shrunk(name: str, grad: str) -> Pointwise:
    within = ("logical_and", ("ge", _SELF, ("neg", "lambd")), ("le", _SELF, "lambd"))
    return gradient(name, (grad, _SELF), "lambd", floats=("where", within, 0.0, grad))


_OUTSIDE: Expression = (
    "logical_or",
    ("lt", _SELF, ("relu", "eps")),
    ("gt", _SELF, ("sub", 1.0, ("relu", "eps"))),
)

GRADIENTS: tuple[Entry, ...] = (
    gradient(
        "threshold_backward",
        (_GRAD, _SELF),
        "threshold",
        floats=("where", ("le", _SELF, "threshold"), 0.0, _GRAD),
    ),
    gradient(
        "sigmoid_backward",
        (_GRAD, "output"),
        floats=("mul", _GRAD, ("mul", ("sub", 1.0, "output"), "output")),
    ),
    gradient(
        "tanh_backward",
        (_GRAD, "output"),
        floats=("mul", _GRAD, ("sub", 1.0, ("square", "output"))),
    ),
    gradient("silu_backward", (_GRAD, _SELF), floats=("mul", _GRAD, _silu(_SELF))),
    Pointwise(
        "gelu_backward",
        (_GRAD, _SELF),
        choice="approximate",
        formulas={
            "none": Formula(("mul", _GRAD, _gelu(_SELF))),
            "tanh": Formula(("mul", _GRAD, _gelu_tanh(_SELF))),
        },
    ),
    Pointwise(
        "elu_backward",
        (_GRAD, "alpha", "scale", "input_scale", "self_or_result"),
        choice="is_result",
        formulas={
            "False": Formula(
                _elu(
                    (
                        "mul",
                        ("mul", "input_scale", _ELU_COEFFICIENT),
                        ("exp", ("mul", "self_or_result", "input_scale")),
                    )
                )
            ),
            "True": Formula(
                _elu(("mul", "input_scale", ("add", "self_or_result", _ELU_COEFFICIENT)))
            ),
        },
        common=(_GRAD, "self_or_result"),
    ),
    Pointwise(
        "leaky_relu_backward",
        (_GRAD, _SELF, "negative_slope"),
        choice="self_is_result",  # whose sign is that of the input
        formulas={"False": Formula(_LEAKY), "True": Formula(_LEAKY)},
        common=(_GRAD, _SELF),
    ),
    gradient(
        "hardtanh_backward",
        (_GRAD, _SELF),
        "min_val",
        "max_val",
        floats=(
            "where",
            ("logical_or", ("le", _SELF, "min_val"), ("ge", _SELF, "max_val")),
            0.0,
            _GRAD,
        ),
    ),
    gradient(
        "hardsigmoid_backward",
        (_GRAD, _SELF),
        floats=("where", ("lt", ("abs", _SELF), 3.0), ("div", _GRAD, 6.0), 0.0),
    ),
    gradient(
        "hardswish_backward",
        (_GRAD, _SELF),
        floats=(
            "where",
            ("le", _SELF, -3.0),
            0.0,
            (
                "where",
                ("lt", _SELF, 3.0),
                ("mul", _GRAD, ("add", ("div", _SELF, 3.0), 0.5)),
                _GRAD,
            ),
        ),
    ),
    gradient(
        "softplus_backward",
        (_GRAD, _SELF),
        "beta",
        "threshold",
        floats=(
            "where",
            ("gt", ("mul", _SELF, "beta"), "threshold"),
            _GRAD,
            ("mul", _GRAD, ("sigmoid", ("mul", _SELF, "beta"))),
        ),
    ),
    _shrunk("hardshrink_backward", "grad_out"),
    _shrunk("softshrink_backward", _GRAD),
    Pointwise(
        "logit_backward",
        (_GRAD, _SELF, "eps"),
        Formula(
            (
                "where",
                _OUTSIDE,
                ("where", ("lt", "eps", 0.0), math.nan, 0.0),
                ("div", _GRAD, ("mul", _SELF, ("sub", 1.0, _SELF))),
            )
        ),
        common=(_GRAD, _SELF),
        absent={"eps": -1.0},
    ),
)
