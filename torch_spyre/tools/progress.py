"""Progress on the terminal, for work that lets people wait; silent everywhere else."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    import rich.progress

# Work that is done sooner shows nothing.
PATIENCE = 1.0  # seconds


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
        self._bar: rich.progress.Progress | None = None
        self._done = self._done_bytes = 0

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, nbytes: int = 0) -> None:
        """One item more is done."""
        self._done += 1
        self._done_bytes += nbytes
        if self._bar is None and self._is_wanted():
            self._bar = self._make_bar()
        if self._bar is not None:
            is_in_bytes = self._total_bytes is not None
            self._bar.update(
                self._bar.task_ids[0],
                completed=self._done_bytes if is_in_bytes else self._done,
                items=self._done,
            )

    def _is_wanted(self) -> bool:
        is_late = time.monotonic() - self._start >= PATIENCE
        return is_late and not self._is_quiet and self._stream.isatty()

    def _make_bar(self) -> rich.progress.Progress:
        from rich import progress
        from rich.console import Console

        columns: list[progress.ProgressColumn] = [
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TextColumn(f"{{task.fields[items]}}/{self._items} {self._unit}"),
        ]
        if self._total_bytes is not None:
            columns += [progress.DownloadColumn(), progress.TransferSpeedColumn()]
        columns.append(progress.TimeRemainingColumn())
        bar = progress.Progress(*columns, console=Console(file=self._stream), transient=True)
        total = self._items if self._total_bytes is None else self._total_bytes
        bar.add_task(self._what, total=total, items=self._done)
        bar.start()
        return bar
