"""One entry and dtype: all its samples, in all variants, on the card against the CPU."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from tests.conformance.compare import Reference, mismatch
from tests.conformance.expected import Expectation, expectation
from tests.conformance.results import Entry, Status
from tests.conformance.samples import CARD_DTYPES, DTYPES, Inputs, inputs_of, operations
from tests.conformance.variants import Variant, shares_storage, variants

_WIDER = {torch.float16: torch.float32, torch.float32: torch.float64}


class NoReferenceError(Exception):
    """The CPU itself refuses the call: there is nothing to compare with."""


@dataclass(frozen=True)
class Outcome:
    """What came of one call."""

    status: Status
    fallbacks: frozenset[str] = frozenset()
    detail: str = ""


def check(name: str, dtype: str, cap: int) -> Entry:
    """Check one entry of `op_db` for a dtype with at most `cap` samples."""
    calls = 0
    worst = Outcome(Status.SKIPPED)
    fallbacks: set[str] = set()
    with _quiet():
        for variant, inputs, outcome in _outcomes(name, dtype, cap):
            calls += 1
            fallbacks |= outcome.fallbacks
            if outcome.status > worst.status:
                detail = outcome.detail and f"{variant} of ({inputs}): {outcome.detail}"
                worst = Outcome(outcome.status, detail=detail)
    return Entry(worst.status, calls, tuple(sorted(fallbacks)), worst.detail)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


def _outcomes(name: str, dtype: str, cap: int) -> Iterator[tuple[str, str, Outcome]]:
    op, expected = operations()[name], expectation(name, dtype)
    if expected.check == "skip":
        return
    for index, inputs in enumerate(inputs_of(name, dtype, cap)):
        try:
            like = _call_on_cpu(op.op, inputs)
        except NoReferenceError:
            continue
        for variant in variants(op, like, is_first=index == 0):
            with contextlib.suppress(NoReferenceError):
                outcome = _outcome(name, DTYPES[dtype], variant, inputs, like, expected)
                yield variant.name, inputs.text(), outcome


def _call_on_cpu(call: Any, inputs: Inputs, *more: Any) -> Any:
    copies = inputs.clone()
    try:
        return call(copies, *more) if more else call(*copies.args, **copies.kwargs)
    except Exception as error:
        raise NoReferenceError from error


def _reference(
    variant: Variant, inputs: Inputs, like: Any, dtype: torch.dtype
) -> tuple[Inputs, Reference]:
    """The CPU's results, and the arguments as the call in the narrow dtype left them."""
    copies = inputs.clone()
    try:
        narrow = variant.call(copies, like)
    except Exception as error:
        raise NoReferenceError from error
    wide = None
    if dtype in _WIDER:
        to = _WIDER[dtype]
        like = _pytree.tree_map(
            lambda x: x.to(to) if isinstance(x, torch.Tensor) and x.dtype is dtype else x, like
        )
        with contextlib.suppress(Exception):
            wide = variant.call(inputs.widened(dtype, to), like)
    return copies, Reference(narrow, wide)


def _outcome(
    name: str,
    dtype: torch.dtype,
    variant: Variant,
    inputs: Inputs,
    like: Any,
    expected: Expectation,
) -> Outcome:
    inputs = variant.prepare(inputs)
    after, reference = _reference(variant, inputs, like, dtype)
    needs = _foreign_dtypes(inputs, reference.narrow)
    torch.spyre.reset_fallback_stats()
    try:
        on_card = inputs.on_card()
        torch.spyre.reset_fallback_stats()
        result = variant.call(on_card, like)
        fallbacks = frozenset(torch.spyre.fallback_stats())
        views = _views_lost(result, on_card, reference.narrow, after)
        result = _pytree.tree_map(_to_host, result)
    except Exception as error:
        return _judge_error(error, needs)
    if needs:
        names = ", ".join(sorted(map(str, needs)))
        return Outcome(Status.ERROR, fallbacks, f"no TypeError, though the call needs {names}")
    found = views or mismatch(operations()[name], result, reference, expected.check == "values")
    if found:
        return Outcome(Status.WRONG, fallbacks, found)
    return Outcome(Status.FALLBACK if fallbacks else Status.CARD, fallbacks)


def _to_host(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value


def _foreign_dtypes(inputs: Inputs, result: Any) -> set[torch.dtype]:
    """The dtypes of inputs and results that the card doesn't have."""
    tensors = inputs.tensors() + [
        leaf for leaf in _pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)
    ]
    return {tensor.dtype for tensor in tensors} - CARD_DTYPES


def _judge_error(error: Exception, needs: set[torch.dtype]) -> Outcome:
    text = str(error).strip().splitlines()
    detail = f"{type(error).__name__}: {text[0] if text else ''}"[:300]
    if needs and isinstance(error, TypeError):
        # Any dtype that the card lacks will do: one may need float64 on the way to complex128.
        if any(str(dtype) in str(error) for dtype in _ALL_FOREIGN):
            return Outcome(Status.DTYPE, detail=detail)
    return Outcome(Status.ERROR, detail=detail)


_ALL_FOREIGN = {x for x in vars(torch).values() if isinstance(x, torch.dtype)} - CARD_DTYPES


def _views_lost(result: Any, on_card: Inputs, narrow: Any, on_cpu: Inputs) -> str | None:
    """Says so if the CPU returns a view of an argument and the card a copy."""
    pairs = zip(_pytree.tree_leaves(result), _pytree.tree_leaves(narrow), strict=False)
    for ours, theirs in pairs:
        if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
            continue
        if ours.device.type != on_card_device(on_card, theirs):
            return f"the result is on {ours.device}"
        if theirs.layout is not torch.strided:
            continue
        for card, cpu in zip(on_card.tensors(), on_cpu.tensors(), strict=True):
            if cpu.layout is not torch.strided or theirs.numel() == 0:
                continue
            if shares_storage(theirs, cpu) and not shares_storage(ours, card):
                return "a copy instead of a view of the argument"
    return None


def on_card_device(inputs: Inputs, theirs: torch.Tensor) -> str:
    """Where a result belongs: with the arguments; without any, where it was asked for."""
    if any(tensor.device.type == "spyre" for tensor in inputs.tensors()):
        return "spyre"
    device = inputs.kwargs.get("device")
    return torch.device(device).type if device is not None else theirs.device.type
