"""A benchmark that misses its target fails. Nothing is measured here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

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


@pytest.fixture
def run_models(monkeypatch, path):
    pytest.importorskip("transformers", reason="an extra: pip install torch-spyre[models]")
    for name in ("SPYRE_CARD_THREADS", "OMP_NUM_THREADS", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "1")  # as it was afterwards: the benchmark sets them
    import models

    def run(card: float) -> None:
        seconds = {"fp16": 1.0, "bf16": 0.1, "fp32": 2.0}

        def row(case: models.Case, target: float, *others: float) -> list[object]:
            return [case.name, 1e3 * card, *models.verdict(card, seconds, target), *others]

        def forward_row(case: models.Case, _: int) -> list[object]:
            return row(case, models.FORWARD_TARGET, 0.1, 1.0)

        def token_rows(case: models.Case, _: int) -> list[list[object]]:
            return [row(case, models.TOKEN_TARGET, 0.1)]

        monkeypatch.setattr(models, "forward_row", forward_row)
        monkeypatch.setattr(models, "token_rows", token_rows)
        for name in ("set_num_threads", "set_grad_enabled"):
            monkeypatch.setattr(torch, name, lambda _: None)
        models.main()

    return run


def test_models_within_their_targets_pass(run_models, capsys):
    run_models(card=1.0)
    assert "All targets met." in capsys.readouterr().out


@pytest.mark.parametrize(("card", "missed"), [(1.1, ("BERT",)), (1.6, ("BERT", "Llama"))])
def test_models_that_are_slower_fail(run_models, capsys, card, missed):
    with pytest.raises(SystemExit, match="slower than they may be"):
        run_models(card)
    (remark,) = [line for line in capsys.readouterr().out.splitlines() if "Missed:" in line]
    assert [name for name in ("BERT", "Llama") if name in remark] == list(missed)


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
