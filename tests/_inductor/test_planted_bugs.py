"""Checked mode names every kind of bug that is planted in a compiled kernel."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name("planted_bugs.py")
MEMORY_BUGS = ("overlap", "split", "mask", "uninitialised", "same_stick", "none")


def findings(mode: str, *bugs: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", SCRIPT, *bugs],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "SPYRE_CARD_CHECK": mode},
    )
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    return {**findings("1", *MEMORY_BUGS), **findings("nan", "nan")}


@pytest.mark.parametrize(
    ("bug", "what", "operation"),
    [
        ("overlap", "buffers overlap: the stick holds 'buf2'", "mul"),
        ("split", "buffers overlap", "exp"),
        ("mask", "is padding, and is reduced without a mask", "amax"),
        ("uninitialised", "was never written, and is read", "sub"),
        ("same_stick", "a race: core 1 writes a stick that another core writes", "mul"),
        ("nan", "the first NaN: its operands are finite", "log"),
    ],
)
def test_a_planted_bug_is_named_with_its_operation_and_source_line(said, bug, what, operation):
    assert what in said[bug]
    assert f"({operation}," in said[bug]
    assert "in kernel 'spyre_" in said[bug]
    assert "planted_bugs.py:" in said[bug]


def test_a_kernel_without_bugs_passes(said):
    assert said["none"] == "nothing"
