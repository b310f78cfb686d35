"""Floor division and modulo of loop variables disappear in digits."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import stored

from torch_spyre.ir import Aligned, Expression, Term, UnevenSplitError, align, refine


@st.composite
def divided(draw):
    """An extent and the points at which it divides evenly."""
    factors = draw(st.lists(st.integers(2, 4), min_size=1, max_size=3))
    points = [1]
    for factor in factors:
        points.append(points[-1] * factor)
    return points


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_refined_accesses_give_the_value_of_the_expression_at_every_point(data):
    chains = data.draw(st.lists(divided(), min_size=1, max_size=2))
    extents = tuple(points[-1] for points in chains)
    terms = []
    for variable, points in enumerate(chains):
        for _ in range(data.draw(st.integers(0, 3))):
            low = data.draw(st.integers(0, len(points) - 1))
            high = data.draw(st.integers(low, len(points) - 1))
            modulo = data.draw(st.sampled_from([None, points[high] // points[low]]))
            terms.append(Term(variable, data.draw(st.integers(0, 100)), points[low], modulo))
    result = refine(extents, [Expression(None, 3, tuple(terms))])
    (access,) = result.accesses

    for new in product(*map(range, result.extents)):
        old = [sum(weight * new[i] for i, weight in digits) for digits in result.digits]
        value = 3
        for variable, coefficient, floordiv, modulo in terms:
            digit = old[variable] // floordiv
            value += coefficient * (digit if modulo is None else digit % modulo)
        assert value == access.offset + sum(s * v for s, v in zip(access.strides, new, strict=True))
        assert all(0 <= v < n for v, n in zip(old, extents, strict=True))


def test_variables_that_nobody_divides_stay_as_they_are():
    result = refine((5, 7), [Expression(None, 0, (Term(0, 7), Term(1, 1)))])
    assert result.extents == (5, 7)
    assert result.accesses[0].strides == (7, 1)
    assert result.digits == (((0, 1),), ((1, 1),))


def test_a_view_that_joins_transposed_dimensions_can_be_walked():
    # y = x.transpose(0, 1).reshape(-1, 64) for x of size (4, 6, 64): row r is x[r % 4, r // 4].
    x, y = stored((4, 6, 64), 64).storage, stored((24, 64), 64).storage
    read = Expression(x, 0, (Term(0, 6 * 64, modulo=4), Term(0, 64, floordiv=4), Term(1, 1)))
    write = Expression(y, 0, (Term(0, 64), Term(1, 1)))
    result = refine((24, 64), [write, read])
    assert result.extents == (6, 4, 64)
    plan = align(result.extents, result.accesses)
    assert isinstance(plan, Aligned)


def test_uneven_divisions_name_the_variable():
    uneven = Expression(None, 0, (Term(1, 1, floordiv=4),))
    with pytest.raises(UnevenSplitError, match="loop variable 1 of extent 10") as error:
        refine((3, 10), [uneven])
    assert error.value.points == (4,)
