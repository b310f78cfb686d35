"""Progress on the terminal, for work that lets people wait; silent everywhere else.

`TORCH_SPYRE_PROGRESS=0` switches it off.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from types import TracebackType
from typing import Any, Self, TextIO

from torch_spyre import _environment
from torch_spyre._inductor.observe import Observer
from torch_spyre.logging_config import PASSES, get_logger

# Work that is done sooner shows nothing.
PATIENCE = 1.0  # seconds
COMPILE_PATIENCE = 2.0

_REDRAW = 0.1  # seconds between two drawings
_CLEAR = "\r\x1b[2K"


class StatusLine:
    """The last line of a terminal, which others may write to at the same time.

    Python's streams on the same terminal are watched while the line is shown: it makes way for what
    is written to them, and comes back after the end of a line. Nothing that is written changes.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.RLock()
        self._text = ""
        self._is_free = True  # nobody has left the line unfinished
        self._watched: list[tuple[str, _Watched]] = []

    def show(self, text: str) -> None:
        """Draw the line, in place of what it showed before."""
        with self._lock:
            if not self._watched:
                self._watch()
            width = _width(self._stream)
            self._text = text if len(text) < width else text[: width - 2] + "…"
            if self._is_free:
                self._write(f"{_CLEAR}{self._text}\r")

    def close(self) -> None:
        """Take it away; what was written around it stays."""
        with self._lock:
            if self._is_free and self._text:
                self._write(_CLEAR)
            self._text = ""
            for name, watched in self._watched:
                if getattr(sys, name) is watched:  # else somebody has put another in its place
                    setattr(sys, name, watched.stream)
            self._watched = []

    def _watch(self) -> None:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is not None and stream.isatty():
                watched = _Watched(stream, self)
                setattr(sys, name, watched)
                self._watched.append((name, watched))

    def make_way(self, stream: TextIO, text: str) -> int:
        """Somebody writes to the terminal."""
        with self._lock:
            if self._is_free and self._text:
                self._write(_CLEAR)
            count = stream.write(text)
            if text:
                self._is_free = text.endswith("\n")
            return count

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class _Watched:
    """A stream that tells the status line before it writes; else the stream itself."""

    def __init__(self, stream: TextIO, line: StatusLine) -> None:
        self.stream = stream
        self._line = line

    def write(self, text: str) -> int:
        return self._line.make_way(self.stream, text)

    def writelines(self, lines: Any) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def is_shown_on(stream: TextIO | None) -> bool:
    """Is there somebody who looks at this stream and wants to see progress?"""
    return (
        stream is not None
        and stream.isatty()
        and os.environ.get("TERM") != "dumb"
        and _environment.flag("TORCH_SPYRE_PROGRESS", True)
    )


# ---- Things that can be counted -----------------------------------------------------------------


class Progress:
    """A bar that counts items, and bytes if their sum is known; it goes away when the work is done.

    >>> with Progress("Loading", 290, "tensors", total_bytes=nbytes) as progress:
    ...     for tensor in tensors:
    ...         ...
    ...         progress.advance(tensor.nbytes)

    Where the stream is no terminal (a log, a pipe, a test) nothing is written.
    """

    def __init__(
        self,
        what: str,
        items: int,
        unit: str,
        *,
        total_bytes: int | None = None,
        stream: TextIO | None = None,
        is_quiet: bool = False,
    ) -> None:
        self._what, self._items, self._unit, self._total_bytes = what, items, unit, total_bytes
        self._stream = sys.stderr if stream is None else stream
        self._is_quiet = is_quiet
        self._line: StatusLine | None = None
        self._done = self._done_bytes = 0

    def __enter__(self) -> Self:
        self._start = self._drawn = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._line is not None:
            self._line.close()

    def advance(self, nbytes: int = 0) -> None:
        """One item more is done."""
        self._done += 1
        self._done_bytes += nbytes
        now = time.monotonic()
        if self._line is None:
            is_late = now - self._start >= PATIENCE
            if is_late and not self._is_quiet and is_shown_on(self._stream):
                self._line = StatusLine(self._stream)
        elif now - self._drawn < _REDRAW and self._done < self._items:
            return
        if self._line is not None:
            self._drawn = now
            self._line.show(self._text(now - self._start))

    def _text(self, seconds: float) -> str:
        done, total = self._done, self._items
        if self._total_bytes:
            done, total = self._done_bytes, self._total_bytes
        share = min(done / total, 1.0) if total else 1.0
        text = f"{self._what} {_bar(share)} {self._done}/{self._items} {self._unit}"
        if self._total_bytes is not None:
            size = f"{self._done_bytes / 1e6:,.1f}/{self._total_bytes / 1e6:,.1f} MB"
            text += f"  {size}  {self._done_bytes / 1e6 / max(seconds, 1e-3):,.0f} MB/s"
        if share:
            text += f"  {_clock(seconds / share - seconds)} left"
        return text


def _bar(share: float, width: int = 24) -> str:
    full = round(share * width)
    return "━" * full + "╌" * (width - full)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


# ---- Compiles -----------------------------------------------------------------------------------


class CompileProgress(Observer):
    """Says what a compile is doing, once it takes longer than people like to wait.

    A thread draws, since one stage may take most of the time.
    """

    def __init__(self, stream: TextIO) -> None:
        self._line = StatusLine(stream)
        self._start = time.monotonic()
        self._stage = "tracing and lowering"
        self._kernels = ""
        self._started = self._done = 0
        self._is_drawn = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="spyre-progress", daemon=True)
        self._thread.start()

    def begin_stage(self, stage: str, graph: object) -> None:
        del graph
        if stage in PASSES:
            stage = f"pass {PASSES.index(stage) + 1}/{len(PASSES)}  {stage}"
        self._stage, self._kernels = stage, ""

    def end_stage(self, stage: str, graph: object) -> None:
        del graph
        if stage == "code of kernels":  # the last of ours: Inductor goes on
            self._stage = "host program"

    def kernel_planned(self, kernels: int, of: int) -> None:
        self._kernels = f"  {kernels}/{of} kernels planned"

    def kernel_started(self) -> None:
        self._started += 1

    def kernel_done(self, seconds: float, was_kept: bool) -> None:
        del seconds, was_kept
        self._done += 1

    def finish(self, succeeded: bool) -> None:
        # The first launch would wait for the kernels anyway; here people see how far they are.
        try:
            while succeeded and self._is_drawn and self._done < self._started:
                time.sleep(_REDRAW)
        finally:  # they may lose patience
            self._is_over.set()
            self._thread.join()

    def _draw(self) -> None:
        wait = COMPILE_PATIENCE
        try:
            while not self._is_over.wait(wait):
                wait, self._is_drawn = _REDRAW, True
                self._line.show(self._text())
            self._line.close()
        except (OSError, ValueError):  # the terminal is gone
            self._is_drawn = False

    def _text(self) -> str:
        text = f"Compiling for Spyre {_clock(time.monotonic() - self._start)}  {self._stage}"
        if self._started:
            return f"{text}  {self._done}/{self._started} kernels compiled"
        return text + self._kernels


def of_compile(*_: object) -> CompileProgress | None:
    """The observer of a compile; None if nobody looks, or if logs are shown instead."""
    has_logs = "TORCH_LOGS" in os.environ or get_logger().isEnabledFor(logging.INFO)
    if has_logs or not is_shown_on(sys.stderr):
        return None
    return CompileProgress(sys.stderr)
