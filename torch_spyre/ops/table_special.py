"""The entries of mathematical functions beyond arithmetic: aten's own and `torch.special`'s."""

from __future__ import annotations

import math

from torch_spyre.ops.entries import Entry, Expression, Formula, Pointwise, smooth, smooth_binary

_SQRT_HALF = math.sqrt(0.5)


def _scaled_back(name: str, card: str, exponent: Expression) -> Pointwise:
    """A Bessel function from the card's, which lacks a factor of e^(2 exponent).

    In two halves: where the function itself is still in range, the whole factor may not be.
    """
    factor: Expression = ("exp", exponent)
    return smooth(name, ("mul", ("mul", factor, (card, "self")), factor))


def _log_sum(name: str, exponential: str, unit: float) -> Pointwise:
    """The logarithm of a sum of two powers, without overflow; `unit` is the base's, inverted."""
    distance = ("abs", ("sub", "self", "other"))
    tail = ("mul", ("log1p", (exponential, ("neg", distance))), unit)
    either = ("add", ("maximum", "self", "other"), tail)
    # Of equal infinities the distance is NaN.
    is_equal = ("eq", "self", "other")
    floats = ("where", ("logical_and", is_equal, ("isinf", "self")), "self", either)
    return Pointwise(name, ("self", "other"), Formula(floats))


def _times_log(name: str, logarithm: str) -> Pointwise:
    """A product with a logarithm; 0 where its first factor is, unless the other one is NaN."""
    product = ("where", ("eq", "self", 0.0), 0.0, ("mul", "self", (logarithm, "other")))
    return smooth_binary(name, ("where", ("isnan", "other"), "other", product))


def _polynomial(name: str, card: str, x: Expression = "x") -> Pointwise:
    return smooth_binary(f"special_{name}_polynomial_{card[-1]}", (card, x, "n"), ("x", "n"))


def _quotient_with_sine(x: Expression, argument: str) -> Expression:
    return ("where", ("eq", argument, 0.0), 1.0, ("div", ("sin", x), x))


# (-1)^(n + 1) n! zeta(n + 1, x), and the digamma function for n = 0.
_NEXT: Expression = ("add", "n", 1.0)
_SIGN: Expression = ("sub", ("mul", ("remainder", "n", 2.0), 2.0), 1.0)
_POLYGAMMA: Expression = (
    "where",
    ("eq", "n", 0.0),
    ("digamma", "self"),
    ("mul", ("mul", _SIGN, ("round", ("exp", ("lgamma", _NEXT)))), ("zeta", _NEXT, "self")),
)

_LOG_NDTR: Expression = (
    "where",
    ("lt", "self", -1.0),
    (
        "sub",
        ("log", ("mul", ("erfcx", ("mul", "self", -_SQRT_HALF)), 0.5)),
        ("mul", ("square", "self"), 0.5),
    ),
    ("log1p", ("mul", ("erfc", ("mul", "self", _SQRT_HALF)), -0.5)),
)

_ENTROPY: Expression = (
    "where",
    ("gt", "self", 0.0),
    ("neg", ("mul", "self", ("log", "self"))),
    ("where", ("eq", "self", 0.0), 0.0, ("where", ("isnan", "self"), "self", -math.inf)),
)

# A negative eps is PyTorch's word for none.
_CLAMPED: Expression = (
    "where",
    ("lt", "eps", 0.0),
    "self",
    ("clamp", "self", "eps", ("sub", 1.0, "eps")),
)

_SHIFTED: Expression = ("sub", ("add", "x", "x"), 1.0)


SPECIAL: tuple[Entry, ...] = (
    # Circular and hyperbolic functions.
    *map(smooth, ("tan", "asin", "acos", "sinh", "cosh", "asinh", "acosh", "atanh")),
    smooth("atan", ("atan2", "self", 1.0)),
    smooth("sinc", _quotient_with_sine(("mul", "self", math.pi), "self")),
    smooth(
        "angle",
        ("where", ("isnan", "self"), "self", ("where", ("lt", "self", 0.0), math.pi, 0.0)),
    ),
    # Error and gamma functions.
    *map(smooth, ("erfc", "erfinv", "lgamma", "digamma")),
    smooth("special_erfcx", "erfcx"),
    smooth("special_ndtri", "ndtri"),
    smooth("special_log_ndtr", _LOG_NDTR),
    Pointwise(
        "polygamma",
        ("n", "self"),
        Formula(_POLYGAMMA, promotes_to_float=True),
        common=("self",),
    ),
    smooth_binary("special_zeta", "zeta"),
    Pointwise("igamma", ("self", "other"), Formula("igamma")),
    Pointwise("igammac", ("self", "other"), Formula("igammac")),
    # Bessel functions.
    _scaled_back("i0", "i0e", ("mul", ("abs", "self"), 0.5)),
    _scaled_back("special_i1", "i1e", ("mul", ("abs", "self"), 0.5)),
    smooth("special_i0e", "i0e"),
    smooth("special_i1e", "i1e"),
    _scaled_back("special_modified_bessel_i0", "i0e", ("mul", ("abs", "self"), 0.5)),
    _scaled_back("special_modified_bessel_i1", "i1e", ("mul", ("abs", "self"), 0.5)),
    _scaled_back("special_modified_bessel_k0", "k0e", ("mul", "self", -0.5)),
    _scaled_back("special_modified_bessel_k1", "k1e", ("mul", "self", -0.5)),
    smooth("special_scaled_modified_bessel_k0", "k0e", "x"),
    smooth("special_scaled_modified_bessel_k1", "k1e", "x"),
    *(smooth(f"special_bessel_{name}", f"bessel_{name}") for name in ("j0", "j1", "y0", "y1")),
    smooth("special_airy_ai", "airy_ai", "x"),
    smooth(
        "special_spherical_bessel_j0",
        ("where", ("isinf", "x"), 0.0, _quotient_with_sine("x", "x")),
        "x",
    ),
    # Logarithms.
    _log_sum("logaddexp", "exp", 1.0),
    _log_sum("logaddexp2", "exp2", 1 / math.log(2)),
    _times_log("xlogy", "log"),
    _times_log("special_xlog1py", "log1p"),
    smooth("special_entr", _ENTROPY),
    Pointwise(
        "logit",
        ("self", "eps"),
        Formula(("log", ("div", _CLAMPED, ("sub", 1.0, _CLAMPED))), promotes_to_float=True),
        common=("self",),
        absent={"eps": -1.0},
    ),
    # Orthogonal polynomials.
    *(_polynomial("chebyshev", f"chebyshev_{kind}") for kind in "tuvw"),
    *(_polynomial("shifted_chebyshev", f"chebyshev_{kind}", _SHIFTED) for kind in "tuvw"),
    smooth_binary("special_hermite_polynomial_h", "hermite_h", ("x", "n")),
    smooth_binary("special_hermite_polynomial_he", "hermite_he", ("x", "n")),
    smooth_binary("special_laguerre_polynomial_l", "laguerre", ("x", "n")),
    smooth_binary("special_legendre_polynomial_p", "legendre", ("x", "n")),
)
