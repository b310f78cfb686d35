"""Shared by all tests: the device is a fresh PyTorch's own, nothing is set up by hand."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def trace_errors_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in a trace must not hide behind the CPU fallback."""
    from torch_spyre.ops import planner

    monkeypatch.setattr(planner, "RAISES_TRACE_ERRORS", True)


@pytest.fixture
def check_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script in a new process: for the environment, forks, start-up and exits."""

    def run(script: str, *, check: bool = True, **environment: str) -> subprocess.CompletedProcess:
        done = subprocess.run(
            [sys.executable, "-P", "-c", textwrap.dedent(script)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


@pytest.fixture(autouse=True)
def grad_mode_is_left_as_it_was() -> Iterator[None]:
    """A test that turns gradients off for all that come after it fails itself, not them."""
    yield
    is_enabled = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    assert is_enabled, "gradients are off after this test"
