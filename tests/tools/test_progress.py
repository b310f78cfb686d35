"""Progress is shown to people who wait at a terminal, and to nobody else."""

from __future__ import annotations

import io

import pytest

from torch_spyre.tools import progress
from torch_spyre.tools.progress import Progress


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
