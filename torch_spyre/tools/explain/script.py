"""`spyre explain script.py`: runs a script as it is, and explains one call of what it compiles."""

from __future__ import annotations

import contextlib
import functools
import runpy
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
from torch._dynamo.eval_frame import OptimizeContext, _TorchDynamoContext

from torch_spyre.device.diagnostics import fallback_stats

from .collect import Collector, inputs_of, title_of
from .document import Explanation
from .launches import Recording


class ScriptError(Exception):
    """A script that can't be explained; the message says why."""


@dataclass(frozen=True)
class _Call:
    """A call of a compiled function from outside of others."""

    title: str
    inputs: tuple[str, ...]
    recording: Recording


class _Calls:
    """Numbers the calls, and keeps the one that was asked for, or the last."""

    def __init__(self, collector: Collector, wanted: int | None) -> None:
        self.compiled = 0  # functions
        self.called = 0  # times, calls that leave the card alone and all
        self.count = 0
        self.kept: _Call | None = None
        self._collector, self._wanted = collector, wanted
        self._is_inside = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Whatever `torch.compile` returns meanwhile is watched."""
        original = _TorchDynamoContext.__call__

        def compile_function(context: _TorchDynamoContext, function: Any) -> Any:
            compiled = original(context, function)
            is_function = isinstance(context, OptimizeContext) and hasattr(
                compiled, "_torchdynamo_wrapper_id"
            )
            return self._watched_function(compiled) if is_function else compiled

        with mock.patch.object(_TorchDynamoContext, "__call__", compile_function):
            yield

    def _watched_function(self, compiled: Any) -> Callable[..., Any]:
        self.compiled += 1
        model = getattr(compiled._torchdynamo_orig_callable, "__self__", None)
        model = compiled._torchdynamo_orig_callable if model is None else model

        @functools.wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside:
                return compiled(*args, **kwargs)
            self._is_inside = True
            try:
                return self._call(model, lambda: compiled(*args, **kwargs), args, kwargs)
            finally:
                self._is_inside = False

        call._torchdynamo_wrapper_id = id(call)  # type: ignore[attr-defined]
        return call

    def _call(
        self, model: Any, call: Callable[[], Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        self.called += 1
        if self._wanted is not None and self.count >= self._wanted:
            return call()
        inputs = inputs_of(model, args, kwargs)
        result, recording = self._collector.record(call)
        if recording.records:  # others have nothing to do with the card
            self.count += 1
            self.kept = _Call(title_of(model), inputs, recording)
        return result


def explain_script(path: Path, arguments: Sequence[str], call: int | None = None) -> Explanation:
    """Run a script and explain its last call of a compiled function, or the call of this number.

    Calls are counted from 1; those that leave the card alone do not count. What the script raises
    is raised here.
    """
    collector = Collector()
    calls = _Calls(collector, call)
    before = fallback_stats()
    with collector.listening(), calls.watched():
        _run(path, arguments)
    if calls.kept is None:
        raise ScriptError(f"{path}: {_why_nothing(calls)}")
    if call is not None and calls.count < call:
        problem = f"no call {call} of a compiled function: the last is {calls.count}"
        raise ScriptError(f"{path}: {problem}")
    kept = calls.kept
    found = collector.explanation(kept.recording, f"{path.name}: {kept.title}", kept.inputs)
    elsewhere = Counter(fallback_stats()) - Counter(before)
    for name in found.fallbacks:
        del elsewhere[name]
    return msgspec.structs.replace(found, fallbacks_elsewhere=dict(elsewhere))


def _why_nothing(calls: _Calls) -> str:
    if calls.compiled == 0:
        return (
            "nothing was compiled: call torch.compile(model) in it, and what that returns instead "
            "of the model"
        )
    if calls.called == 0:
        return "what torch.compile made was never called"
    return (
        "nothing that torch.compile made ran on Spyre: are the model and its inputs on the device?"
    )


def _run(path: Path, arguments: Sequence[str]) -> None:
    """As `python script.py arguments` does it."""
    saved_arguments, saved_path = sys.argv, sys.path[:]
    sys.argv = [str(path), *arguments]
    sys.path[0] = str(path.resolve().parent)
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as exit_:
        if exit_.code not in (None, 0):
            raise ScriptError(f"{path} ended with exit code {exit_.code}") from None
    finally:
        sys.argv, sys.path[:] = saved_arguments, saved_path
