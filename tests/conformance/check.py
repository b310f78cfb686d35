"""One entry and dtype: all its samples, in all variants, on the card against the CPU."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree

from tests.conformance.compare import Reference, mismatch, name_equals
from tests.conformance.device_tests import calls, clear_faults
from tests.conformance.expected import expectation
from tests.conformance.results import Entry, Status
from tests.conformance.samples import ALL_DTYPES, CARD_DTYPES, DEVICE, Inputs, inputs_of, operations
from tests.conformance.variants import Variant, functional, shares_storage, variants

_WIDER = {torch.float16: torch.float32, torch.float32: torch.float64}


class NoReferenceError(Exception):
    """The CPU itself refuses the call: there is nothing to compare with."""


@dataclass(frozen=True)
class Outcome:
    """What came of one call."""

    status: Status
    fallbacks: frozenset[str] = frozenset()
    detail: str = ""


def check(name: str, column: str, cap: int) -> Entry:
    """Check one entry of `op_db` for a dtype ("float16") with at most `cap` samples.

    Or for one of the device-generic tests ("gradients float32").
    """
    count = 0
    worst = Outcome(Status.SKIPPED)
    fallbacks: set[str] = set()
    dtype = column.split()[-1]
    with _quiet():
        made = _of_samples(name, dtype, cap) if column == dtype else _of_test(name, column)
        for variant, inputs, like in made:
            with contextlib.suppress(NoReferenceError):
                outcome = _outcome(name, dtype, variant, inputs, like)
                count += 1
                fallbacks |= outcome.fallbacks
                if outcome.status > worst.status:
                    where = f"{variant.name} of ({inputs.text()})"[:200]
                    detail = outcome.detail and f"{where}: {outcome.detail}"
                    worst = Outcome(outcome.status, detail=detail)
    return Entry(worst.status, count, tuple(sorted(fallbacks)), worst.detail)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


_Call = tuple[Variant, Inputs, Any]  # with the functional result on the CPU


def _of_samples(name: str, dtype: str, cap: int) -> Iterator[_Call]:
    op = operations()[name]
    for index, inputs in enumerate(inputs_of(name, dtype, cap)):
        with contextlib.suppress(NoReferenceError):
            like = _on_cpu(functional(op), inputs)
            for variant in variants(op, like, is_first=index == 0):
                yield variant, inputs, like


def _of_test(name: str, column: str) -> Iterator[_Call]:
    op = operations()[name]
    for variant, inputs in calls(name, column):
        like = None
        with contextlib.suppress(NoReferenceError):
            like = _on_cpu(functional(op), inputs)
        if not (variant.name == "gradient" and _foreign_dtypes(inputs, like)):
            yield variant, inputs, like


def _on_cpu(call: Callable[[Inputs, Any], Any], inputs: Inputs) -> Any:
    try:
        return call(inputs.clone(), None)
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


def _outcome(name: str, dtype: str, variant: Variant, inputs: Inputs, like: Any) -> Outcome:
    expected = expectation(name, dtype)
    if variant.name in expected.skip:
        return Outcome(Status.SKIPPED)
    inputs = variant.prepare(inputs)
    after, reference = _reference(variant, inputs, like, ALL_DTYPES[dtype])
    needs = _foreign_dtypes(inputs, (reference.narrow, like))
    torch.spyre.reset_fallback_stats()
    try:
        on_card = inputs.on_card(expected.host)
        torch.spyre.reset_fallback_stats()
        result = variant.call(on_card, like)
        fallbacks = frozenset(torch.spyre.fallback_stats())
        views = _views_lost(result, on_card, reference.narrow, after)
        result = _pytree.tree_map(_to_host, result)
    except Exception as error:
        clear_faults()
        if expected.check == "refused" and isinstance(error, NotImplementedError):
            return Outcome(Status.REFUSED)
        return _judge_error(error, needs)
    if any(inputs.get(place) for place in expected.chance):
        expected = replace(expected, check="shapes")
    if expected.ties is not None:
        reference = Reference(_settled(inputs, expected.ties, result, reference.narrow))
    found = views or mismatch(operations()[name], result, reference, expected)
    if found:
        return Outcome(Status.WRONG, fallbacks, found)
    return Outcome(Status.FALLBACK if fallbacks else Status.CARD, fallbacks)


def _settled(inputs: Inputs, position: int, result: Any, reference: Any) -> Any:
    given = inputs.kwargs.get("dim", inputs.args[position] if len(inputs.args) > position else -1)
    return name_equals(inputs.args[0], given, result, reference)


def _to_host(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value


def _foreign_dtypes(inputs: Inputs, result: Any) -> set[torch.dtype]:
    """The dtypes of inputs and results, and those asked for, that the card doesn't have."""
    leaves = _pytree.tree_leaves((inputs.args, inputs.kwargs, result))
    dtypes = {leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor)}
    return (dtypes | {leaf for leaf in leaves if isinstance(leaf, torch.dtype)}) - CARD_DTYPES


def _judge_error(error: Exception, needs: set[torch.dtype]) -> Outcome:
    text = str(error).strip().splitlines()
    detail = f"{type(error).__name__}: {text[0] if text else ''}"[:300]
    # Any dtype that the card lacks will do: one may need float64 on the way to complex128.
    names_dtype = any(str(dtype) in str(error) for dtype in _ALL_FOREIGN)
    if needs and isinstance(error, TypeError) and names_dtype:
        return Outcome(Status.DTYPE, detail=detail)
    return Outcome(Status.ERROR, detail=detail)


_ALL_FOREIGN = {x for x in vars(torch).values() if isinstance(x, torch.dtype)} - CARD_DTYPES


def _views_lost(result: Any, on_card: Inputs, narrow: Any, on_cpu: Inputs) -> str | None:
    """Says so if the CPU returns a view of an argument and the card a copy."""
    pairs = zip(_pytree.tree_leaves(result), _pytree.tree_leaves(narrow), strict=False)
    for ours, theirs in pairs:
        if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
            continue
        if ours.device.type != _where(on_card, theirs):
            return f"the result is on {ours.device}"
        if theirs.layout is not torch.strided:
            continue
        for card, cpu in zip(on_card.tensors(), on_cpu.tensors(), strict=True):
            if cpu.layout is not torch.strided or theirs.numel() == 0:
                continue
            if shares_storage(theirs, cpu) and not shares_storage(ours, card):
                return "a copy instead of a view of the argument"
    return None


def _where(inputs: Inputs, theirs: torch.Tensor) -> str:
    """The kind of device that a result belongs to: its arguments', or the one it was asked for."""
    leaves = _pytree.tree_leaves((inputs.args, inputs.kwargs))
    devices = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
    devices += [tensor.device for tensor in inputs.tensors()]
    return DEVICE if any(device.type == DEVICE for device in devices) else theirs.device.type
