"""Special functions of the card over all of their branches, against PyTorch's in float64.

`test_steps` has the special values; here are the ranges between which the card changes its method,
and far arguments, for which the reference is mpmath.
"""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import step_model
import torch
from op_cases import distance
from test_steps import COUNT, run_on_card

from torch_spyre.backend import opcodes

RANGES = [
    ("erfcx", -9.0, 30.0),
    ("erfinv", -1.0, 1.0),
    ("ndtri", 0.0, 1.0),
    ("lgamma", -20.0, 20.0),
    ("digamma", -20.0, 20.0),
    ("i0e", -40.0, 40.0),
    ("i1e", -40.0, 40.0),
    ("k0e", 0.0, 40.0),
    ("k1e", 0.0, 40.0),
    ("bessel_j0", -60.0, 60.0),
    ("bessel_j1", -60.0, 60.0),
    ("bessel_y0", 0.0, 60.0),
    ("bessel_y1", 0.0, 60.0),
    ("airy_ai", -30.0, 30.0),
]


def on_card(name: str, *values: np.ndarray) -> np.ndarray:
    return run_on_card(opcodes.by_name()[name], [np.asarray(v, np.float32) for v in values])


def ulps(name: str, *values: np.ndarray) -> int:
    values = tuple(np.asarray(v, np.float32) for v in values)
    return distance(on_card(name, *values), step_model.run(name, *values), torch.float32)


@pytest.mark.parametrize(("name", "low", "high"), RANGES, ids=[r[0] for r in RANGES])
def test_a_function_is_as_good_in_all_of_its_branches(name: str, low: float, high: float) -> None:
    assert ulps(name, np.linspace(low, high, COUNT)) <= 1


@pytest.mark.parametrize("name", ["igamma", "igammac"])
@pytest.mark.parametrize("scale", [1e-3, 0.3, 5.0, 300.0, 1e5, 1e7])
def test_incomplete_gamma_functions_around_their_middle(name: str, scale: float) -> None:
    rng = np.random.default_rng(7)
    a = scale * rng.uniform(0.5, 1.5, COUNT)
    x = a + rng.normal(0, 1, COUNT) * np.sqrt(a)
    assert ulps(name, a, np.abs(x)) <= 2


def test_zeta_of_negative_numbers_sums_up_to_zero_and_on() -> None:
    rng = np.random.default_rng(7)
    powers = rng.integers(2, 9, COUNT)
    assert ulps("zeta", powers, rng.uniform(-30, 30, COUNT)) <= 1


POLYNOMIALS = [*(f"chebyshev_{k}" for k in "tuvw"), "hermite_h", "hermite_he", "laguerre"]


@pytest.mark.parametrize("name", [*POLYNOMIALS, "legendre"])
def test_polynomials_of_high_degree(name: str) -> None:
    rng = np.random.default_rng(7)
    assert ulps(name, rng.uniform(-1.25, 1.25, COUNT), rng.integers(0, 40, COUNT)) <= 1


@pytest.mark.parametrize("kind", "tuvw")
def test_chebyshev_polynomials_of_very_high_degree(kind: str) -> None:
    rng = np.random.default_rng(7)
    x = rng.uniform(-1.05, 1.05, COUNT)
    assert ulps(f"chebyshev_{kind}", x, rng.integers(0, 300, COUNT)) <= 2


FAR = [
    ("tan", 1e22, mpmath.tan),
    ("bessel_j0", 1e20, lambda x: mpmath.besselj(0, x)),
    ("bessel_j1", -1e9, lambda x: mpmath.besselj(1, x)),
    ("bessel_y0", 3e7, lambda x: mpmath.bessely(0, x)),
    ("bessel_y1", 1e-30, lambda x: mpmath.bessely(1, x)),
    ("airy_ai", -5000.25, mpmath.airyai),
    ("lgamma", 1e30, mpmath.loggamma),
    ("ndtri", 1e-37, lambda p: mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1)),
    ("erfcx", 1e10, lambda x: 1 / (x * mpmath.sqrt(mpmath.pi))),
]


@pytest.mark.parametrize(("name", "x", "exact"), FAR, ids=[f[0] for f in FAR])
def test_far_arguments(name: str, x: float, exact) -> None:
    argument = np.full(COUNT, x, np.float32)
    with mpmath.workdps(80):
        expected = np.float32(float(exact(mpmath.mpf(float(argument[0])))))
    assert distance(on_card(name, argument)[:1], np.array([expected]), torch.float32) <= 1
