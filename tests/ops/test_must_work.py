"""Everything on the list of operations that must work, in all its forms, without the CPU.

The compiled side of the same list is `tests/_inductor/test_compiled_breadth.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from must_work_table import CASES, CASTS, CREATION, FLOATS, RANDOM, Case
from torch.utils import _pytree as pytree

DEVICE = "spyre"
# A unit in the last place: of fp32, of the card's 16-bit float, and of bfloat16.
UNIT = {torch.float32: 2.0**-23, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-7}

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _nothing_on_the_cpu() -> Iterator[None]:
    torch.manual_seed(0)
    torch.spyre.set_downcast_warning(False)
    torch.spyre.reset_fallback_stats()
    yield
    assert torch.spyre.fallback_stats() == {}


def as_on_card(value: Any) -> Any:
    """Host tensors that hold what the card holds of them: its 16-bit float has fewer digits."""
    return (
        value.to(DEVICE).cpu() if isinstance(value, Tensor) and value.is_floating_point() else value
    )


def to_card(value: Any) -> Any:
    return value.to(DEVICE) if isinstance(value, Tensor) else value


def spread(value: Any) -> Any:
    """The same numbers where every second column belongs to nobody."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    base = torch.ones((*value.shape[:-1], 2 * value.shape[-1]), dtype=value.dtype)
    view = base.to(value.device)[..., ::2]
    return view.copy_(value)


def exact(call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What the CPU gives: computed in float64 where it is about floats, and rounded once."""
    plain = call(*args)
    wide = pytree.tree_map(lambda x: x.double() if is_float(x) else x, args)
    found = attempt(lambda: call(*wide))
    if found is None:  # products of float8 know no float64
        return plain
    return pytree.tree_map(lambda x, like: x.to(like.dtype) if is_float(like) else x, found, plain)


def is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in UNIT


def compare(found: Any, wanted: Any, case: Case) -> None:
    for got, want in zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True):
        if not isinstance(want, Tensor):
            assert got == want
            continue
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if want.dtype not in UNIT:
            assert torch.equal(got.cpu(), want)
            continue
        unit = UNIT[want.dtype]
        largest = want[want.isfinite()].abs().max().item() if want.isfinite().any() else 0.0
        atol = (case.terms * UNIT[torch.float32] + (case.roundings - 2) * unit) * largest
        rtol = case.roundings * unit
        torch.testing.assert_close(got.cpu(), want, rtol=rtol, atol=atol, equal_nan=True)


def in_place_name(case: Case) -> str | None:
    name = f"{case.name.split()[0]}_"
    is_plain = case.call is None and hasattr(torch.Tensor, name)
    return name if is_plain else None


def attempt(call: Callable[[], Any]) -> Any:
    """What a call gives on the CPU; None if there is no such form."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call()
        except (TypeError, ValueError, RuntimeError):
            return None


def outs_like(wanted: Any, device: str, form: str) -> Any:
    def make(like: Tensor) -> Tensor:
        if form == "empty":
            return torch.empty(0, dtype=like.dtype, device=device)
        fresh = torch.ones(like.shape, dtype=like.dtype, device=device)
        return spread(fresh) if form == "spread" else fresh

    made = pytree.tree_map(make, wanted)
    return tuple(made) if isinstance(made, list | tuple) else made


IDS = [(case, dtype) for case in CASES for dtype in case.dtypes]


def test_names_of_cases_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize(("case", "dtype"), IDS, ids=[f"{c.name}-{d}" for c, d in IDS])
def test_an_operation_gives_what_the_cpu_gives(case: Case, dtype: torch.dtype) -> None:
    call = case.find()
    args = pytree.tree_map(as_on_card, case.make(dtype))
    wanted = exact(call, args)
    compare(call(*pytree.tree_map(to_card, args)), wanted, case)
    if attempt(lambda: call(*pytree.tree_map(spread, args))) is not None:  # `view` says no
        compare(call(*pytree.tree_map(spread, pytree.tree_map(to_card, args))), wanted, case)


WRITING = [(case, dtype) for case, dtype in IDS if in_place_name(case)]


@pytest.mark.parametrize(("case", "dtype"), WRITING, ids=[f"{c.name}-{d}" for c, d in WRITING])
def test_an_operation_in_place_writes_its_argument(case: Case, dtype: torch.dtype) -> None:
    name = in_place_name(case)
    args = pytree.tree_map(as_on_card, case.make(dtype))
    if not isinstance(args[0], Tensor):
        args = args[1:]
    first, *others = args
    is_possible = attempt(lambda: getattr(first.clone(), name)(*others)) is not None
    if not is_possible:  # a result of another dtype or size
        return

    def functional(x: Tensor, *rest: Any) -> Tensor:
        return getattr(x.clone(), name)(*rest)

    wanted = exact(functional, args)
    for place in (torch.clone, spread):
        card = place(to_card(first))
        assert getattr(card, name)(*pytree.tree_map(to_card, others)) is card
        compare(card, wanted, case)


def has_out(case: Case) -> bool:
    """Asked on the CPU, once."""
    call = case.find()
    args = case.make(case.dtypes[0])
    wanted = call(*args)
    leaves = pytree.tree_leaves(wanted)
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        return False
    return attempt(lambda: call(*args, out=outs_like(wanted, "cpu", "fresh"))) is not None


OUT = [(case, dtype) for case in CASES if has_out(case) for dtype in case.dtypes]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize(("case", "dtype"), OUT, ids=[f"{c.name}-{d}" for c, d in OUT])
def test_an_operation_writes_to_out(case: Case, dtype: torch.dtype) -> None:
    call = case.find()
    args = pytree.tree_map(as_on_card, case.make(dtype))
    wanted = exact(call, args)
    for form in ("fresh", "empty", "spread"):
        out = outs_like(wanted, DEVICE, form)
        places = [(leaf.stride(), leaf.numel()) for leaf in pytree.tree_leaves(out)]
        call(*pytree.tree_map(to_card, args), out=out)
        compare(out, wanted, case)
        for (stride, numel), leaf in zip(places, pytree.tree_leaves(out), strict=True):
            assert numel != leaf.numel() or leaf.stride() == stride, "written where it is"


@pytest.mark.parametrize("name", CREATION)
def test_new_tensors_are_those_of_the_cpu(name: str) -> None:
    card, host = CREATION[name](DEVICE), CREATION[name]("cpu")
    assert (card.dtype, card.stride()) == (host.dtype, host.stride())
    torch.testing.assert_close(card.cpu(), host)


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_repeatable_and_within_bounds(name: str) -> None:
    make, low, high = RANDOM[name]
    numbers = make(DEVICE)
    other = make(DEVICE)
    torch.manual_seed(0)
    again = make(DEVICE)
    assert torch.equal(numbers, again)
    assert not torch.equal(numbers, other)
    assert numbers.shape == (900,)
    assert low <= numbers.min().item() < numbers.max().item() <= high
    middle = numbers.to(torch.float32).mean().item()
    assert abs(middle - (low + high) / 2) < 0.05 * (high - low)


@pytest.mark.parametrize("source", CASTS, ids=str)
@pytest.mark.parametrize("target", CASTS, ids=str)
def test_casts_are_those_of_the_cpu(source: torch.dtype, target: torch.dtype) -> None:
    host = torch.tensor([[0.0, 1, -3, 5.5], [100, 0.25, -0.5, 8]]).to(source)
    card = host.to(DEVICE).to(target)
    assert card.dtype is target
    assert torch.equal(card.cpu().float(), host.to(target).float())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_questions_about_tensors_are_answered_on_the_card(dtype: torch.dtype) -> None:
    x = torch.tensor([[1.5, -2.0, 0.0]], dtype=dtype, device=DEVICE)
    assert x[0, 0].item() == 1.5
    assert x[0, 1].is_nonzero() and not x[0, 2].is_nonzero()
    assert torch.equal(x, x.clone()) and not torch.equal(x, x + 1)
    assert torch.allclose(x, x * 1.000001) and not torch.allclose(x, x + 1)
