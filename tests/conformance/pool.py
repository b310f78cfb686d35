"""Worker processes: an entry that crashes or hangs is a result, not the end of the run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.conformance.results import Entry, Key, Status

# Imports PyTorch's database once; a new worker is a fork of it, made before a card was opened.
_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOADED = "tests.conformance.check"


_READY = "ready"
_START_SECONDS = 300.0

Work = Callable[[str, str, int], Entry]


def _check(name: str, column: str, cap: int) -> Entry:
    from tests.conformance.check import check  # late: the parent needs no PyTorch database

    return check(name, column, cap)


def _serve(connection: Connection, log: str, cap: int, work: Work) -> None:
    """A worker's life: keys come in, entries go out."""
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 2)  # the last words of a process that dies
    connection.send(_READY)
    while True:
        key = connection.recv()
        if key is None:
            return
        os.ftruncate(said, 0)
        os.lseek(said, 0, os.SEEK_SET)
        try:
            entry = work(*key, cap)
        except Exception as error:
            detail = f"the harness failed: {type(error).__name__}: {error}"[:300]
            entry = Entry(Status.ERROR, detail=detail)
        connection.send(entry)


@dataclass
class _Worker:
    process: ForkServerProcess
    connection: Connection
    log: Path
    key: Key | None = None
    deadline: float = 0.0

    def give(self, key: Key, seconds: float) -> None:
        self.key, self.deadline = key, time.monotonic() + seconds
        self.connection.send(key)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()

    def last_words(self) -> str:
        """How the process ended, and what it said."""
        code = self.process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        lines = self.log.read_text(errors="replace").split("\n") if self.log.exists() else []
        said = [line for line in lines if line.strip() and "Warning" not in line]
        return ": ".join([how, *said[:1]])[:300]


def _start(folder: Path, number: int, cap: int, work: Work) -> _Worker:
    ours, theirs = _CONTEXT.Pipe()
    log = folder / f"{number}.log"
    process = _CONTEXT.Process(target=_serve, args=(theirs, str(log), cap, work), daemon=True)
    process.start()
    theirs.close()
    if not ours.poll(_START_SECONDS) or ours.recv() != _READY:
        process.kill()
        raise RuntimeError(f"a worker did not start: {log.read_text() if log.exists() else ''}")
    return _Worker(process, ours, log)


def run(
    keys: Iterable[Key], *, cap: int, jobs: int = 2, seconds: float = 120.0, work: Work = _check
) -> Iterator[tuple[Key, Entry]]:
    """Check all keys in `jobs` processes; each may take so many seconds."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("SPYRE_CARD_THREADS", "1")
    _CONTEXT.set_forkserver_preload([_PRELOADED])
    waiting = deque(keys)
    workers: list[_Worker] = []
    started = 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            while waiting or workers:
                while waiting and len(workers) < jobs:
                    workers.append(_start(Path(folder), started, cap, work))
                    started += 1
                    workers[-1].give(waiting.popleft(), seconds)
                for worker, entry in _finished(workers):
                    assert worker.key is not None
                    yield worker.key, entry
                    if entry.status is Status.CRASH or not waiting:
                        worker.end()
                        workers.remove(worker)
                    else:
                        worker.give(waiting.popleft(), seconds)
        finally:
            for worker in workers:
                worker.end()


def _finished(workers: list[_Worker]) -> list[tuple[_Worker, Entry]]:
    """The workers that are done with their keys, in one way or another."""
    wait([worker.connection for worker in workers], timeout=0.5)
    done = []
    for worker in workers:
        if worker.connection.poll():
            try:
                done.append((worker, worker.connection.recv()))
            except (EOFError, ConnectionError):
                worker.process.join()
                done.append((worker, Entry(Status.CRASH, detail=worker.last_words())))
        elif time.monotonic() > worker.deadline:
            done.append((worker, Entry(Status.CRASH, detail="no end within the time limit")))
    return done
