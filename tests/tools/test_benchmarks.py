"""A benchmark that misses its target fails. Nothing is measured here."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def path(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _report

    monkeypatch.setattr(_report, "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["benchmark"])


@pytest.fixture
def run_profiling(monkeypatch, path):
    import profiling

    class NoProcess:
        def close(self) -> None:
            pass

    def run(on: float, off: float) -> None:
        burst = profiling.Burst
        found = profiling.Found([burst(1.0)], [burst(off)], [burst(on * off)])
        monkeypatch.setattr(profiling, "Process", NoProcess)
        monkeypatch.setattr(profiling, "measure", lambda *_: found)
        profiling.main()

    return run


@pytest.fixture
def run_monitor(monkeypatch, path):
    import monitor

    def run(published: float, watched: float) -> None:
        seconds = {"off": 1.0, "published": published, "watched": published * watched}
        rounds = {way: [dict.fromkeys(monitor.CLOCKS, seconds[way])] for way in monitor.WAYS}
        monkeypatch.setattr(monitor, "measure_pair", lambda *_: rounds)
        monkeypatch.setattr(monitor, "watcher_cost", lambda _: None)
        monitor.main()

    return run


def test_a_profiler_within_its_targets_passes(run_profiling, capsys):
    run_profiling(on=1.09, off=1.01)
    assert "All targets met." in capsys.readouterr().out


@pytest.mark.parametrize(("on", "off", "what"), [(1.11, 1.0, "on/off"), (1.0, 1.03, "off/never")])
def test_a_profiler_that_costs_more_fails(run_profiling, capsys, on, off, what):
    with pytest.raises(SystemExit, match="costs more"):
        run_profiling(on, off)
    assert f"Granite block, eager: {what} {max(on, off):.3f}" in capsys.readouterr().out


def test_a_monitor_within_its_target_passes(run_monitor, capsys):
    run_monitor(published=1.004, watched=1.004)
    assert "costs: 0.80 %" in capsys.readouterr().out


@pytest.mark.parametrize(("published", "watched"), [(1.02, 0.98), (0.98, 1.02), (1.006, 1.006)])
def test_a_monitor_that_costs_more_fails(run_monitor, published, watched):
    with pytest.raises(SystemExit, match="costs more"):
        run_monitor(published, watched)
