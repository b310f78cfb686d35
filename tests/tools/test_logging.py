"""Logs of the compiler: by component, by pass, as artifacts, and as files."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from torch_spyre import logging_config
from torch_spyre._inductor.pass_log import changed_lines
from torch_spyre._inductor.passes import PASSES

COMPILE = """
import torch
torch._inductor.config.force_disable_caches = True
x = torch.rand(64, 100).half().to("spyre")
torch.compile(lambda x: x.softmax(-1) @ x.t())(x)
"""


@pytest.fixture
def logs(monkeypatch):
    """Set logs as `TORCH_LOGS` does; back to nothing afterwards."""
    monkeypatch.delenv("TORCH_LOGS", raising=False)
    yield lambda **modules: torch._logging.set_logs(modules=modules)
    torch._logging.set_logs()


def compiled(size: int) -> None:
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        x = torch.rand(size, 100).half().to("spyre")
        torch.compile(lambda x: x.softmax(-1) @ x.t())(x)


def test_every_pass_has_a_log_of_its_own():
    assert tuple(pass_.__name__ for pass_ in PASSES) == logging_config.PASSES


@pytest.mark.parametrize(
    ("setting", "shown", "hidden"),
    [
        ("torch_spyre.inductor", "kernel 0: ", "before the passes"),
        ("+torch_spyre.inductor.passes", "graph: pool_planning", "[__spyre_plan]"),
        ("+torch_spyre.inductor.passes.insert_restickifies", "+ tmp2", "graph: pool_planning"),
        ("spyre_plan,spyre_opspec", 'OpSpec(op="exp"', "modelled"),
        ("spyre_cost", "modelled", "OpSpec"),
    ],
)
def test_torch_logs_names_components_passes_and_artifacts_before_anything_is_imported(
    check_python, setting, shown, hidden
):
    done = check_python(COMPILE, TORCH_LOGS=setting)
    assert shown in done.stderr and hidden not in done.stderr


def test_a_message_is_written_once_to_the_file_that_is_named(check_python, tmp_path):
    path = tmp_path / "compiler.log"
    asked = {"SPYRE_INDUCTOR_LOG": "1", "SPYRE_INDUCTOR_LOG_LEVEL": "DEBUG"}
    done = check_python(COMPILE, **asked, SPYRE_LOG_FILE=str(path))
    text = path.read_text()
    assert text.count("plan of graph") == text.count("graph: pool_planning") == 1
    assert "plan of graph" not in done.stderr


def test_torch_logs_decides_levels_where_both_are_given(check_python, tmp_path):
    path = tmp_path / "compiler.log"
    check_python(COMPILE, TORCH_LOGS="torch_spyre.inductor", SPYRE_LOG_FILE=str(path))
    assert "kernel 0: " in path.read_text() and "plan of graph" not in path.read_text()


def test_set_logs_takes_our_names(logs, capfd):
    logs(**{"torch_spyre.inductor.passes.group_into_kernels": logging.DEBUG, "spyre_cost": True})
    compiled(65)
    said = capfd.readouterr().err
    assert "graph: group_into_kernels" in said and "modelled" in said
    assert "graph: pool_planning" not in said


def test_helpers_set_levels_and_files_of_one_component(logs, tmp_path):
    logs()
    logging_config.set_level("DEBUG", "passes.insert_restickifies")
    logging_config.log_to(tmp_path / "log")
    compiled(66)
    text = (tmp_path / "log").read_text()
    assert "insert_restickifies" in text and "pool_planning" not in text
    with pytest.raises(ValueError, match=r"no component 'scheduler'; there are lowering, passes"):
        logging_config.get_logger("scheduler")


def test_artifacts_that_nobody_asked_for_are_not_made(check_python):
    uncallable = "from torch_spyre._inductor import debug; debug.kernel_text = None"
    done = check_python(uncallable + COMPILE, TORCH_LOGS="+torch_spyre.inductor")
    assert "plan of graph" in done.stderr and "OpSpec" not in done.stderr


def test_a_file_per_pass_says_what_it_changed(check_python, tmp_path):
    check_python(COMPILE, TORCH_COMPILE_DEBUG="1", TORCH_COMPILE_DEBUG_DIR=str(tmp_path))
    (folder,) = tmp_path.rglob("passes")
    names = sorted(path.name for path in folder.iterdir())
    assert names[0] == "00_before_the_passes.txt"
    place = [pass_.__name__ for pass_ in PASSES].index("insert_restickifies") + 1
    changed = (folder / f"{place:02}_insert_restickifies.txt").read_text().splitlines()
    assert "+ tmp2[64*i0 + i1] = identity(arg0_1[i0 + 100*i1])  over 100 x 64" in changed
    assert not any(Path(name).stem.endswith("eliminate_dead_code") for name in names)


def test_changes_are_lines_that_went_and_lines_that_came():
    before = ["a = add(x)\n    4 sticks", "b = mul(a)\n    4 sticks", "c = exp(b)"]
    after = ["a = add(x)\n    4 sticks", "b = mul(a)\n    2 sticks", "d = log(b)\n    1 stick"]
    assert changed_lines(before, after) == [
        *["- c = exp(b)", "  b = mul(a)", "-     4 sticks", "+     2 sticks"],
        *["+ d = log(b)", "+     1 stick"],
    ]
    assert changed_lines(before, before) == []
