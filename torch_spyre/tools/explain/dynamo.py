"""Why Dynamo made the graphs that it made: breaks, and guards that failed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch._dynamo import convert_frame, guards, symbolic_convert
from torch._dynamo.callback import callback_handler
from torch._guards import TracingContext

from torch_spyre import _C

from .document import Break
from .sources import source_of_frames

_RESUMED = re.compile(r"^torch_dynamo_resume_in_(.+)_at_(\d+)$")
_PREAMBLE = "Encountered graph break when attempting to trace"


class Dynamo:
    """What Dynamo says while it traces."""

    def __init__(self) -> None:
        self.breaks: list[Break] = []
        self.compiles: list[tuple[int, int]] = []  # records of the card's work in compiles
        self._failed: list[str] = []  # guards, for the graph to come
        self._graphs = 0
        self._began: list[int] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Listen to Dynamo. It has callbacks for compiles, and none for breaks and guards."""
        breaking = symbolic_convert.InstructionTranslatorBase.log_graph_break
        failing = guards.get_and_maybe_log_recompilation_reasons

        def log_graph_break(translator: Any, code_options: Any, reason: str, exc: Any) -> None:
            if not exc.logged:
                self._break(reason, exc)
            breaking(translator, code_options, reason, exc)

        def recompilation_reasons(*args: Any, **kwargs: Any) -> list[str]:
            self._failed = failing(*args, **kwargs)
            return self._failed

        with (
            mock.patch.object(
                symbolic_convert.InstructionTranslatorBase, "log_graph_break", log_graph_break
            ),
            mock.patch.object(
                convert_frame, "get_and_maybe_log_recompilation_reasons", recompilation_reasons
            ),
            self._compiles_noted(),
        ):
            yield

    @contextlib.contextmanager
    def _compiles_noted(self) -> Iterator[None]:
        """When PyTorch compiles, it tries graph patterns on the device: no work of the model."""

        def started(_: Any) -> None:
            self._began.append(_C.recorded())

        def ended(_: Any) -> None:
            if self._began:
                self.compiles.append((self._began.pop(), _C.recorded()))

        callback_handler.register_start_callback(started)
        callback_handler.register_end_callback(ended)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):  # forgotten by torch.compiler.reset
                callback_handler.remove_start_callback(started)
                callback_handler.remove_end_callback(ended)

    def _break(self, reason: str, error: Any) -> None:
        stack = getattr(error, "real_stack", None) or TracingContext.extract_stack()
        found = Break(plain_reason(reason), source_of_frames(stack))
        if found not in self.breaks:  # Dynamo may trace a frame twice
            self.breaks.append(found)

    def why(self, gm: torch.fx.GraphModule) -> str:
        """Why there is this graph, which Dynamo just handed over."""
        failed, self._failed = self._failed, []
        self._graphs += 1
        if failed:
            return f"a guard failed: {_guard(failed[0])}"
        ended = getattr(gm, "compile_subgraph_reason", None)
        stack = ended.user_stack if ended is not None else []
        resumed = _RESUMED.match(stack[-1].name) if stack else None
        if resumed is not None:
            file = source_of_frames(stack).file
            return f"after the graph break at {file}:{resumed[2]}"
        if self._graphs == 1:
            return "the first"
        function = source_of_frames(stack).function
        return f"another function is called: {function}" if function else "another call"


def plain_reason(reason: str) -> str:
    """What Dynamo says about a break, in a line: what it is, and the first sentence about it.

    >>> plain_reason("Data-dependent branching\\n  Explanation: Detected a branch. Dynamo can't.")
    "Data-dependent branching: Detected a branch. Dynamo can't."
    """
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(_PREAMBLE)]
    explained = [line for line in lines if line.startswith("Explanation:")]
    if not lines:
        return reason.strip()
    if not explained:
        return lines[0]
    return f"{lines[0]}: {explained[0].removeprefix('Explanation:').strip()}"


def _guard(reason: str) -> str:
    """The guard itself, without the number of the compile and the line that made it."""
    first = reason.strip().splitlines()[0]
    return re.sub(r"^\d+/\d+:\s*", "", first).split("  # ")[0].strip()
