"""First-failure reports: one per category and place, of all that fails, and nothing is masked."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from torch_spyre.device import diagnostics, ffdc

# Fails in every category, each twice; prints what was raised.
SCRIPT = """\
import sys
import torch
import torch_spyre
from torch_spyre._inductor import runtime
from torch_spyre.backend import compile as back_end

torch._inductor.config.force_disable_caches = True
x = torch.ones(64, 64, device="spyre")


def attempt(function):
    for _ in range(2):
        try:
            function()
        except Exception as error:
            print(type(error).__name__, flush=True)


def cond():
    branch = torch.cond
    torch.compile(lambda x: branch(x.sum() > 0, torch.sin, torch.cos, (x,)))(x)


def back_end_fails():
    back_end.compile_afresh = None
    torch.compile(lambda x: x * 3)(x)


def launch():
    (kernel,) = runtime.kernels()
    kernel.launch([x], [])


def synchronize():
    torch.spyre.synchronize()


attempt(cond)
torch.compile(lambda x: x + 2)(x)
attempt(launch)
attempt(lambda: torch.empty(1 << 40, device="spyre"))
attempt(lambda: torch.empty(1 << 40, device="spyre"))
torch_spyre._C.inject_fault(0, "CoreHang", core=0)
y = x + 1  # the fault surfaces later
attempt(synchronize)
torch.spyre.reset()
attempt(back_end_fails)
torch.spyre.synchronize()
torch_spyre._C.inject_fault(0, "EccError", address=torch_spyre._C.card_address(x))
z = x + 1  # nobody waits for it
"""


@contextlib.contextmanager
def recording(folder: Path) -> Iterator[None]:
    """Reports of this process, as if the variables were set; forgotten afterwards."""
    torch.spyre.init()  # the runtime has read its variables by then
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_SPYRE_FFDC", "1")
        patch.setenv("TORCH_SPYRE_FFDC_DIR", str(folder))
        patch.setattr(ffdc, "_seen", set())
        patch.setattr(diagnostics, "newest_failure", None)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("failures")


@pytest.fixture(scope="module")
def printed(folder: Path) -> list[str]:
    script = folder / "fails.py"
    script.write_text(SCRIPT)
    reports = {"TORCH_SPYRE_FFDC": "1", "TORCH_SPYRE_FFDC_DIR": str(folder / "reports")}
    done = subprocess.run(
        [sys.executable, "-P", script],
        env={**os.environ, **reports},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def reports(printed: list[str], folder: Path) -> list[dict]:
    assert printed
    paths = sorted((folder / "reports").glob("*.json"), key=lambda p: int(p.name.split("_")[2]))
    return [json.loads(path.read_text()) for path in paths]


def test_what_was_raised_is_what_is_raised_without_reports(printed):
    assert printed == [
        *["Unsupported"] * 2,
        *["RuntimeError"] * 2,
        *["OutOfMemoryError"] * 4,
        *["AcceleratorError"] * 2,
        *["TypeError"] * 2,
    ]


def test_there_is_one_report_per_category_and_place(reports):
    assert [(report["category"], report["kind"]) for report in reports] == [
        ("compile", "Unsupported"),
        ("launch", "Error"),
        ("runtime", "OutOfMemory"),
        ("runtime", "OutOfMemory"),
        ("runtime", "CoreHang"),
        ("compile", "TypeError"),
        ("runtime", "EccError"),  # found when Python ends
    ]


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (0, "torch.compile(lambda x: branch(x.sum() > 0, torch.sin, torch.cos, (x,)))(x)"),
        (1, "kernel.launch([x], [])"),
        (2, 'attempt(lambda: torch.empty(1 << 40, device="spyre"))'),
        (4, "torch.spyre.synchronize()"),
        (5, "torch.compile(lambda x: x * 3)(x)"),
    ],
)
def test_a_report_names_the_line_of_the_model(reports, number, code):
    model = reports[number]["model"]
    assert model["file"].endswith("fails.py") and model["code"] == code
    assert SCRIPT.splitlines()[model["line"] - 1].strip() == code


def test_a_report_holds_what_a_bug_report_needs(reports):
    for report in reports:
        assert report["version"] == ffdc.VERSION and report["torch"] == torch.__version__
        assert report["environment"]["TORCH_SPYRE_FFDC"] == "1"
        assert report["devices"][0]["properties"]["cores"] == 32
        assert Path(report["file"]).is_file() and report["message"]
    (graph,) = reports[0]["artifacts"]
    assert "torch.ops.higher_order.cond" in Path(graph).read_text()


def test_the_line_that_the_card_names_comes_before_the_one_where_a_fault_shows(tmp_path):
    with recording(tmp_path):
        ffdc.report_card("runtime", "CheckFailed", "a race\n  from  models/mlp.py:41  y = a + b")
        failure = torch.spyre.get_diagnostic_report()["failure"]
    expected = {"file": "models/mlp.py", "line": 41, "function": "", "code": "y = a + b"}
    assert failure["model"] == expected
    assert any(frame["file"] == __file__ for frame in failure["stack"])


def test_the_report_on_demand_has_its_fields_and_no_failure_where_none_was():
    report = torch.spyre.get_diagnostic_report()
    assert {"torch_spyre", "torch", "python", "host", "environment", "devices"} < set(report)
    assert report["failure"] is None


def test_a_report_that_can_not_be_written_is_kept_and_masks_nothing(tmp_path):
    with recording(tmp_path / "file" / "below"):
        (tmp_path / "file").write_text("no directory")
        with (
            pytest.warns(UserWarning, match="no report of the failure could be made"),
            pytest.raises(KeyError, match="theirs"),
            ffdc.reporting("compile"),
        ):
            raise KeyError("theirs")
        assert torch.spyre.get_diagnostic_report()["failure"]["kind"] == "KeyError"


def test_a_warning_that_is_an_error_masks_nothing(tmp_path):
    (tmp_path / "file").write_text("no directory")
    with (
        recording(tmp_path / "file" / "below"),
        warnings.catch_warnings(action="error"),
        pytest.raises(KeyError, match="theirs"),
        ffdc.reporting("compile"),
    ):
        raise KeyError("theirs")


class UnspeakableError(Exception):
    """Has no text, and no more of a name than its class."""

    def __str__(self) -> str:
        raise ZeroDivisionError

    __repr__ = __str__


def test_an_error_without_a_text_is_raised_as_it_is(tmp_path):
    with (
        recording(tmp_path),
        pytest.warns(UserWarning, match="no report of the failure could be made: ZeroDivision"),
        pytest.raises(UnspeakableError),
        ffdc.reporting("compile"),
    ):
        raise UnspeakableError


def test_the_runtime_is_not_told_of_what_goes_wrong_with_a_report(tmp_path, monkeypatch):
    monkeypatch.setattr(ffdc, "_stack", lambda: 1 / 0)
    with recording(tmp_path), pytest.warns(UserWarning, match="no report of the failure"):
        ffdc.report_card("runtime", "CoreHang", "a core hangs")
    with (
        recording(tmp_path),
        warnings.catch_warnings(action="error"),
    ):
        ffdc.report_card("runtime", "CoreHang", "a core hangs")


def test_dynamo_beginning_anew_is_no_failure(tmp_path):
    from torch._dynamo.exc import RestartAnalysis

    with (
        recording(tmp_path),
        pytest.raises(RestartAnalysis),
        ffdc.reporting("compile"),
    ):
        raise RestartAnalysis
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_reported_unless_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyError), ffdc.reporting("compile"):
        raise KeyError("theirs")
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 40, device="spyre")
    assert list(tmp_path.iterdir()) == []
    assert torch.spyre.get_diagnostic_report()["failure"] is None
