"""Progress is shown to people who wait at a terminal, and to nobody else."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
import threading
import time

import pytest

from torch_spyre.tools import progress
from torch_spyre.tools.progress import Progress, StatusLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(stream: io.StringIO, **options) -> str:
    with Progress("Loading", 3, "tensors", stream=stream, **options) as bar:
        for _ in range(3):
            bar.advance(1_000_000)
    return stream.getvalue()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)


@pytest.mark.usefixtures("impatient")
def test_a_terminal_shows_what_is_done_and_what_is_left():
    text = written(Terminal(), total_bytes=3_000_000)
    assert "Loading" in text and "3/3 tensors" in text and "3.0/3.0 MB" in text
    assert "3/3 tensors" in written(Terminal())  # items alone


@pytest.mark.usefixtures("impatient")
def test_a_log_shows_nothing():
    assert written(io.StringIO(), total_bytes=3_000_000) == ""
    assert written(Terminal(), is_quiet=True) == ""


def test_what_is_done_at_once_shows_nothing():
    assert written(Terminal(), total_bytes=3_000_000) == ""


@pytest.mark.usefixtures("impatient")
def test_an_error_ends_the_bar():
    terminal = Terminal()

    def fail() -> None:
        with Progress("Loading", 3, "tensors", stream=terminal) as bar:
            bar.advance()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is cleared


@pytest.mark.usefixtures("impatient")
def test_the_variable_switches_it_off(monkeypatch):
    monkeypatch.setenv("TORCH_SPYRE_PROGRESS", "0")
    assert written(Terminal()) == ""


def screen(text: str) -> list[str]:
    """What a terminal shows in the end."""
    lines, column = [""], 0
    for part in re.findall(r"\r|\n|\x1b\[2K|[^\r\n\x1b]+", text):
        if part == "\n":
            lines.append("")
        elif part == "\x1b[2K":
            lines[-1] = ""
        elif part != "\r":
            line = lines[-1].ljust(column)
            lines[-1] = line[:column] + part + line[column + len(part) :]
        column = column + len(part) if part.isprintable() else column * (part == "\x1b[2K")
    return lines


def test_what_others_write_stays_as_it_is(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    line = StatusLine(terminal)
    line.show("first status")
    print("one")
    line.show("a status that is longer")
    print("two", end="")
    line.show("not shown: the line is not free")
    print(" halves")
    line.show("status")
    assert screen(terminal.getvalue()) == ["one", "two halves", "status"]
    line.close()
    print("after")
    assert screen(terminal.getvalue()) == ["one", "two halves", "after", ""]
    assert sys.stdout is terminal


# ---- Compiles -----------------------------------------------------------------------------------

COMPILE = """
import logging, sys, threading, time
import torch
from torch_spyre._inductor import passes, runtime
from torch_spyre.tools import progress

progress.COMPILE_PATIENCE = 0.0


def slow(original):
    def call(*args):
        time.sleep(0.3)
        print("between", flush=True)
        time.sleep(0.3)
        return original(*args)

    call.__name__ = original.__name__
    return call


passes.PASSES = tuple(slow(p) if p.__name__ == "span_reduction" else p for p in passes.PASSES)
runtime.compile_bundle = slow(runtime.compile_bundle)
torch._inductor.config.force_disable_caches = True
x = torch.ones(64, 64, device="spyre")
print("before")
print(int(torch.compile(lambda x: x + 1)(x).cpu().sum()))
"""


def run_on_terminal(script: str, **environment: str) -> str:
    """What a script writes to a terminal, stdout and stderr together."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-P", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", **environment},
    )
    os.close(theirs)
    found = b""
    with contextlib.suppress(OSError):  # the end, once nobody holds the other side
        while part := os.read(ours, 1 << 16):
            found += part
    os.close(ours)
    assert process.wait() == 0, found.decode()
    return found.decode().replace("\r\n", "\n")


PRINTED = ["before", "between", "between", "8192", ""]


def test_a_long_compile_says_what_it_does_and_leaves_the_terminal_clean():
    text = run_on_terminal(COMPILE)
    assert re.search(r"Compiling for Spyre 0:\d\d  pass 12/14  span_reduction", text)
    assert "0/1 kernels compiled" in text
    assert screen(text) == PRINTED


def test_a_compile_shows_nothing_where_logs_are_shown_or_where_it_is_switched_off():
    for environment in ({"TORCH_SPYRE_PROGRESS": "0"}, {"TORCH_LOGS": "recompiles"}):
        assert run_on_terminal(COMPILE, **environment).splitlines() == PRINTED[:-1]


def test_a_compile_shows_nothing_in_a_pipe(check_python):
    done = check_python(COMPILE)
    assert done.stdout.splitlines() == PRINTED[:-1]
    assert "Compiling" not in done.stderr and "\x1b" not in done.stderr


def test_losing_patience_ends_the_line(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "COMPILE_PATIENCE", 0.0)
    is_shown = threading.Event()
    show = StatusLine.show
    monkeypatch.setattr(StatusLine, "show", lambda *args: (show(*args), is_shown.set()))

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    observer = progress.CompileProgress(terminal)
    observer.kernel_started()
    assert is_shown.wait(30) and sys.stdout is not terminal
    monkeypatch.setattr(time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        observer.finish(succeeded=True)
    assert sys.stdout is terminal and sys.stderr is terminal
    assert "spyre-progress" not in [thread.name for thread in threading.enumerate()]
    assert screen(terminal.getvalue()) == [""]


def test_a_compile_that_is_done_soon_shows_nothing(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    observer = progress.of_compile()
    assert observer is not None
    observer.begin_stage("span_reduction", None)
    observer.finish(succeeded=True)
    assert terminal.getvalue() == ""
