"""First-failure data capture: `TORCH_SPYRE_FFDC=1` writes a report when something goes wrong.

A report is a JSON file in the directory `TORCH_SPYRE_FFDC_DIR` (`spyre_ffdc` in the current one if
that is not set): what failed, at which line of the model, on what machine, in which state. There is
one per category and place, and `torch.spyre.get_diagnostic_report()["failure"]` is the newest.

| category | what failed |
|---|---|
| `compile` | making kernels of a graph, in the front end or the back end |
| `launch` | handing a kernel to the card |
| `runtime` | the card at work: faults, memory, transfers. Often asynchronous: it surfaces later |

The error itself goes on as it would without. A report that can't be written is warned about.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import torch

from torch_spyre import _environment
from torch_spyre.device import diagnostics

if TYPE_CHECKING:
    from torch_spyre.ir.spec import Origin

P = ParamSpec("P")

VERSION = 1
CATEGORIES = ("compile", "launch", "runtime")

_LOCK = threading.Lock()
_seen: set[tuple[str, str]] = set()
_numbers = itertools.count()
_busy = threading.local()  # a failure while reporting one is not reported


def is_on() -> bool:
    """Does somebody want reports?"""
    return _environment.flag("TORCH_SPYRE_FFDC", False)


def directory() -> Path:
    """Where reports are written."""
    return Path(_environment.text("TORCH_SPYRE_FFDC_DIR", "spyre_ffdc"))


@contextlib.contextmanager
def reporting(
    category: str, *, graph: torch.fx.GraphModule | None = None, origin: Origin | None = None
) -> Iterator[None]:
    """Around work whose errors are failures. `origin`: the model's line, where it is known."""
    try:
        yield
    except Exception as error:
        if is_on():
            report_error(category, error, graph=graph, origin=origin)
        raise


def _masks_nothing(report: Callable[P, None]) -> Callable[P, None]:
    """What goes wrong with a report is warned about: the failure itself is on its way."""

    @functools.wraps(report)
    def guarded(*args: P.args, **options: P.kwargs) -> None:
        if getattr(_busy, "is_reporting", False):
            return
        _busy.is_reporting = True
        try:
            report(*args, **options)
        except Exception as error:
            with contextlib.suppress(Exception):  # a warning may be an error, `repr` may fail too
                warnings.warn(f"no report of the failure could be made: {error!r}", stacklevel=2)
        finally:
            _busy.is_reporting = False

    return guarded


@_masks_nothing
def report_error(
    category: str,
    error: BaseException,
    *,
    graph: torch.fx.GraphModule | None = None,
    origin: Origin | None = None,
) -> None:
    """Report an exception of Python code on its way to the caller. Never raises."""
    if isinstance(error, _control_flow()):
        return
    error = getattr(error, "inner_exception", error)  # Inductor wraps
    stack = _stack() + _frames(traceback.extract_tb(error.__traceback__))
    known = getattr(error, "origin", None) or origin
    failure = {
        "category": category,
        "kind": type(error).__name__,
        "exception": f"{type(error).__module__}.{type(error).__qualname__}",
        "message": str(error),
        "model": _frame_of(known) or _users(stack),
        "stack": stack,
    }
    _report(failure, graph)


def _control_flow() -> tuple[type[BaseException], ...]:
    """Dynamo's way of saying that it begins anew, or leaves a frame to Python."""
    from torch._dynamo import exc

    return exc.RestartAnalysis, exc.SkipFrame


@_masks_nothing
def report_card(phase: str, kind: str, message: str) -> None:
    """Report what the runtime is about to raise. Called from C++, with Python's lock. Never raises.

    What runs on the card runs later than the line that asked for it: `model` is the line that the
    card names, where it does, and `stack` is where the failure surfaced.
    """
    stack = _stack()
    failure = {
        "category": phase,
        "kind": kind,
        "exception": _EXCEPTIONS.get(kind, "RuntimeError"),
        "message": message,
        "model": _in_message(message) or _users(stack),
        "stack": stack,
    }
    _report(failure, None)


_FAULT = "torch.AcceleratorError"
_EXCEPTIONS = {
    "OutOfMemory": "torch.OutOfMemoryError",
    "ConversionOverflow": "OverflowError",
    "IndexError": "IndexError",
    **dict.fromkeys(
        ("DmaError", "EccError", "CoreHang", "CardLost", "CheckFailed", "Internal"), _FAULT
    ),
}


# ---- One report ---------------------------------------------------------------------------------


def _report(failure: dict[str, Any], graph: torch.fx.GraphModule | None) -> None:
    if _is_first(failure):
        _write(failure, graph)


def _is_first(failure: dict[str, Any]) -> bool:
    """Of its category at its place. An error may come by here twice on its way, and a fault of the
    card stays: it is the same one wherever it shows."""
    model = failure["model"] or {}
    place = f"{model.get('file')}:{model.get('line')}"
    is_fault = _EXCEPTIONS.get(failure["kind"]) == _FAULT
    keys = {(failure["category"], place), ("" if is_fault else place, failure["message"])}
    with _LOCK:
        is_known = bool(keys & _seen)
        _seen.update(keys)
    return not is_known


def _write(failure: dict[str, Any], graph: torch.fx.GraphModule | None) -> None:
    folder = directory()
    now = time.strftime("%Y%m%d-%H%M%S")
    name = f"{now}_{os.getpid()}_{next(_numbers)}_{failure['category']}"
    artifacts = _artifacts()
    report = {"version": VERSION, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **failure}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if graph is not None:
            artifacts.append(_text_file(folder / f"{name}.graph.txt", _graph_text(graph)))
        report |= {
            "artifacts": artifacts,
            "file": str((folder / f"{name}.json").absolute()),
            "process": {"id": os.getpid(), "command": sys.argv, "directory": str(Path.cwd())},
            **diagnostics.state(),
        }
        _text_file(folder / f"{name}.json", json.dumps(report, indent=2, default=str) + "\n")
    finally:
        diagnostics.newest_failure = report


def _text_file(path: Path, text: str) -> str:
    """Written under another name first, so that nobody reads half a file."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(text)
    unfinished.replace(path)
    return str(path.absolute())


def _graph_text(graph: torch.fx.GraphModule) -> str:
    text: str = graph.print_readable(print_output=False, include_stride=True, include_device=True)
    return text


def _artifacts() -> list[str]:
    """Directories and files of this process that tell more."""
    found = []
    if "torch._inductor.virtualized" in sys.modules:
        from torch._inductor.virtualized import V

        path = getattr(V.debug, "_path", None)
        found += [str(Path(path).absolute())] if path else []
    if log_file := _environment.text("SPYRE_LOG_FILE"):
        found.append(str(Path(log_file).absolute()))
    return [path for path in found if Path(path).exists()]


# ---- Whose line it was --------------------------------------------------------------------------

_OURS = (
    str(Path(torch.__file__).parent) + os.sep,
    str(Path(__file__).parents[1]) + os.sep,
    "<frozen ",
)
_PYTHON = str(Path(os.__file__).parent) + os.sep
_PLACE = re.compile(r"([\w./+-]+\.py):(\d+)(?: {2}(.*))?")

Frame = dict[str, Any]


def _stack() -> list[Frame]:
    return _frames(traceback.extract_stack())


def _frames(summary: Iterable[traceback.FrameSummary]) -> list[Frame]:
    return [
        {"file": f.filename, "line": f.lineno, "function": f.name, "code": f.line or ""}
        for f in summary
        if f.filename != __file__
    ]


def _users(frames: list[Frame]) -> Frame | None:
    """The innermost line that is neither PyTorch's nor ours nor generated."""
    for frame in reversed(frames):
        file = str(frame["file"])
        is_pythons = file.startswith(_PYTHON) and "-packages" not in file
        if not (is_pythons or file.startswith(_OURS) or "torchinductor" in file):
            return frame
    return None


def _frame_of(origin: Origin | None) -> Frame | None:
    if origin is None or not origin.file:
        return None
    return {
        "file": origin.file,
        "line": origin.line,
        "function": origin.function,
        "code": origin.code,
    }


def _in_message(message: str) -> Frame | None:
    """The model's line in a message of the card's, which knows where its steps come from."""
    match = _PLACE.search(message)
    if match is None:
        return None
    return {"file": match[1], "line": int(match[2]), "function": "", "code": match[3] or ""}
