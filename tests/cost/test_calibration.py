"""The card prices programs by the laws, at every point of every sweep that is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SWEEPS = {
    "memory_sweeps": 19,
    "row_reduction_sweep": 8,
    "tile_sweep": 20,
    "matmul_sweeps": 17,
    "ring_sweeps": 16,
    "own_rates": 4,
}


@pytest.fixture
def calibration(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import calibration

    return calibration


@pytest.mark.parametrize("name", SWEEPS)
def test_the_card_follows_the_law(calibration, name):
    laws = calibration.Laws(calibration.Report("calibration", "test"))
    getattr(calibration, name)(laws)
    assert not laws.wrong
    assert laws.points == SWEEPS[name]


def test_a_point_off_its_law_is_found(calibration):
    laws = calibration.Laws(calibration.Report("calibration", "test"))
    points = [calibration.Point((time,), 1, time, 100) for time in (99, 100, 102)]
    laws.times("sweep", ["ns"], points)
    assert laws.wrong == ["sweep: [99]", "sweep: [102]"]
