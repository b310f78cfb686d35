"""Random graphs, compiled in checked mode, against float64 and the numpy model of their steps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from random_graphs import random_graph

RUNNER = Path(__file__).with_name("graph_runner.py")
BATCH = 25


def check_batch(first: int, count: int) -> None:
    done = subprocess.run(
        [sys.executable, str(RUNNER), str(first), str(first + count)],
        env={**os.environ, "SPYRE_CARD_CHECK": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize("first", range(0, 50, BATCH))
def test_random_graphs_compile_to_what_they_mean(first: int) -> None:
    check_batch(first, BATCH)


@pytest.mark.parametrize("seed", [199])
def test_random_graphs_that_were_wrong_once(seed: int) -> None:
    check_batch(seed, 1)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(50, 1050, BATCH))
def test_a_thousand_random_graphs_compile_to_what_they_mean(first: int) -> None:
    check_batch(first, BATCH)


def test_a_seed_always_gives_the_same_graph() -> None:
    one, same = random_graph(11), random_graph(11)
    assert one.source == same.source
    assert all(a.equal(b) for a, b in zip(one.inputs, same.inputs, strict=True))


def test_the_reference_tells_a_wrong_result_from_a_right_one() -> None:
    """A graph's own CPU results are within the bounds; the same moved by one element are not."""
    told = 0
    for seed in range(40):
        graph = random_graph(seed)
        for output, actual in zip(graph.outputs, graph(*graph.inputs), strict=True):
            expected = graph.values[output]
            if not expected.is_float or actual.numel() < 8:
                continue
            moved = actual.flatten().roll(1).reshape(actual.shape)
            is_different = not moved.equal(actual)
            told += is_different and not bool(expected.holds(moved).all())
    assert told > 50
