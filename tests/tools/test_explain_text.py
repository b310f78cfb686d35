"""What `spyre explain` prints, and what it does with files that it can't use."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import msgspec
import pytest
import torch

import torch_spyre
from tests.tools.explanations import small
from torch_spyre.tools.cli import main
from torch_spyre.tools.explain.document import Break, Source, decode, encode
from torch_spyre.tools.explain.figures import grouped, pattern, roofline, work_of
from torch_spyre.tools.explain.text import summary

SCRIPT = """\
import sys
import torch

@torch.compile
def double(x):
    return x * 2

@torch.compile
def product(x):
    return torch.softmax(double(x) @ x.t(), -1)

print("given", sys.argv[1:], __name__)
for rows in (64, 128):
    product(torch.rand(rows, 64, dtype=torch.float16).to("spyre"))
double(torch.ones(3))
"""


@pytest.fixture(scope="module")
def explained():
    torch.compiler.reset()  # sizes that changed in other tests would be dynamic
    torch.manual_seed(0)
    layers = (torch.nn.Linear(64, 64) for _ in range(4))
    model = torch.nn.Sequential(*layers).half().to("spyre").requires_grad_(False)
    return torch_spyre.explain(model, torch.rand(16, 64, dtype=torch.float16).to("spyre"))


@pytest.fixture
def script(tmp_path):
    torch.compiler.reset()  # it would remember that the rows of this script change
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


# ---- The summary --------------------------------------------------------------------------------


def test_the_summary_has_a_part_for_every_question(explained):
    text = str(explained)
    for title in ("Graphs", "What ran", "Modelled time per layer", "Operations that take longest"):
        assert f"\n{title}\n" in text
    for title in ("Cores", "Kernels and scratchpads", "Roofline"):
        assert f"\n{title}\n" in text
    assert text.startswith("Sequential  input: float16[16, 64] on spyre\n")
    assert "modelled for one call" in text
    assert "\x1b" not in text


def test_the_times_of_layers_are_those_of_the_kernels(explained):
    work = list(work_of(explained))
    rows = grouped(work, lambda done: done.layer)
    assert {row.key for row in rows} == {"0", "1", "2", "3"}
    assert sum(row.nanoseconds for row in rows) == explained.duration
    assert {pattern(row.example.layer) for row in rows} == {"0", "1", "2", "3"}


def test_shares_of_all_tables_are_of_the_whole_call():
    example = small()
    work = list(work_of(example))
    total = sum(launch.duration for launch in example.launches)
    assert sum(done.nanoseconds for done in work) == total
    assert {done.layer for done in work} >= {"(eager)", "(to card)", "(to host)"}
    whole = msgspec.structs.replace(example, duration=total)
    text = summary(whole, rows=None, width=200)
    (eager,) = [launch for launch in whole.launches if launch.name == "aten::add.Tensor"]
    share = f"{100 * eager.duration / whole.duration:.1f} %"
    for title in ("What ran", "Modelled time per layer", "Operations that take longest"):
        table = text.split(f"\n{title}\n")[1].split("\n\n")[0]
        shares = re.findall(r"([\d.]+) %", table)
        assert sum(map(float, shares)) == pytest.approx(100, abs=0.05 * len(shares))
        assert any(share in line for line in table.splitlines() if "eager" in line), title


def test_nothing_is_faster_than_its_roofline(explained):
    found = roofline(explained, list(work_of(explained)))
    assert found.macs == 4 * 16 * 64 * 64
    assert found.least <= found.nanoseconds == explained.duration
    assert sum(found.bound.values()) == found.nanoseconds


def test_what_a_model_says_is_no_markup(explained):
    strange = Break("[bold]no[/] way [/x]", Source("[red].py", 3))
    text = summary(msgspec.structs.replace(explained, breaks=(strange,)))
    assert "[bold]no[/] way [/x]" in text and "[red].py:3" in text


def test_tables_have_as_many_rows_as_asked_for(explained):
    breaks = tuple(Break(f"reason {i}", Source()) for i in range(5))
    many = msgspec.structs.replace(explained, breaks=breaks)
    assert "reason 1" in summary(many, rows=2) and "reason 2" not in summary(many, rows=2)
    assert "and 3 more" in summary(many, rows=2)
    assert "reason 4" in summary(many, rows=None)


def test_a_call_without_compiled_kernels_has_a_summary(explained):
    empty = msgspec.structs.replace(
        explained, graphs=(), kernels=(), launches=(), fallbacks={"aten::svd": 2}, duration=0
    )
    assert "on the CPU  aten::svd" in str(empty)


# ---- The command --------------------------------------------------------------------------------


def test_a_script_runs_as_it_is_and_its_last_call_is_explained(script, capsys):
    assert main(["explain", str(script), "--steps", "3"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(
        "given ['--steps', '3'] __main__\nscript.py: product  x: float16[128, 64]"
    )
    assert err == ""


def test_options_may_stand_on_both_sides_and_the_rest_is_the_script_s(script, capsys, tmp_path):
    target = tmp_path / "found.json"
    arguments = ["--rows", "2", str(script), "-v", "--json", str(target), "--quiet", "--", "--call"]
    assert main(["explain", *arguments]) == 0
    assert capsys.readouterr().out == "given ['-v', '--call'] __main__\n"
    saved = decode(target.read_bytes())
    assert main(["explain", str(target)]) == 0
    assert capsys.readouterr().out.startswith(saved.title)


def test_a_call_in_which_things_are_compiled_costs_what_others_do(script):
    from torch_spyre.tools.explain.script import explain_script

    first = explain_script(script, [], call=1)
    assert first.inputs == ("x: float16[64, 64] on spyre",)
    assert sum(launch.duration for launch in first.launches) == first.duration
    x = torch.rand(64, 64, dtype=torch.float16).to("spyre")
    again = torch_spyre.explain(lambda x: torch.softmax((x * 2) @ x.t(), -1), x)
    assert first.duration == again.duration


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f():\n    raise KeyError('mine')\nf()\n", "raised KeyError"),
        ("print(1)\n", "nothing was compiled: call torch.compile(model)"),
        (
            "import torch\ntorch.ones(4, device='spyre') + 1\n",
            "nothing was compiled: call torch.compile(model)",
        ),
        ("import torch\ntorch.compile(lambda x: x)\n", "was never called"),
        (
            "import torch\ntorch.compile(lambda x: x + 1)(torch.ones(4))\n",
            "are the model and its inputs on the device",
        ),
        ("import sys\nsys.exit(3)\n", "ended with exit code 3"),
        ("this is no Python\n", "raised SyntaxError"),
    ],
)
def test_a_script_that_can_t_be_explained_is_one_line(text, message, capsys, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(text)
    assert main(["explain", str(path)]) == 2
    err = capsys.readouterr().err
    assert message in err.splitlines()[-1] and err.splitlines()[-1].startswith("spyre explain: ")
    assert err.startswith("Traceback") == ("KeyError" in message)
    assert "runpy" not in err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("page.html", b"\n<!DOCTYPE html>\n<title>x</title>", "page.html is a page (HTML)"),
        ("marked.html", b"\xef\xbb\xbf<html>", "a page (HTML)"),
        ("found.json.gz", b"\x1f\x8b\x08" + bytes(40), "packed (gzip)"),
        ("model.zip", b"PK\x03\x04" + bytes(40), "packed (zip)"),
        ("library.so", b"\x7fELF\x02\x01" + bytes(40), "a binary (ELF)"),
        ("found.txt", b'{"version": 1}', "JSON under another name"),
    ],
    ids=["page", "page with a mark", "gzip", "zip", "ELF", "JSON"],
)
def test_files_that_are_no_scripts_are_not_run(name, content, message, capsys, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    assert main(["explain", str(path)]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert "a Python script, or a .json that was saved with --json" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no.py"], "no.py: No such file"),
        (["foreign.json"], "foreign.json: no explanation"),
        (["half.json"], "half.json: no explanation of torch_spyre: Input data was truncated"),
        (["whole.json", "--lr", "1"], "it takes no --lr 1"),
        (["whole.json", "--json", "no/where.json"], "where.json: No such file"),
        (["whole.json", "--call", "0"], "--call 0: calls are counted from 1"),
        (["--call", "3", "script.py"], "no call 3 of a compiled function: the last is 2"),
        (["."], "Is a directory"),
    ],
)
def test_files_that_are_of_no_use_are_one_line(
    arguments, message, explained, script, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    whole = encode(explained)
    (tmp_path / "whole.json").write_bytes(whole)
    (tmp_path / "half.json").write_bytes(whole[:1000])
    (tmp_path / "foreign.json").write_text('{"traceEvents": []}')
    assert main(["explain", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


@pytest.mark.parametrize("option", ["--html", "--json"])
def test_a_script_does_not_run_if_its_page_can_t_be_written(option, capsys, tmp_path):
    path = tmp_path / "script.py"
    path.write_text("print('it ran')\n")
    target = tmp_path / "no" / "where"
    assert main(["explain", option, str(target), str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err == f"spyre explain: {target}: No such file or directory\n"
    (tmp_path / "no").mkdir()
    assert main(["explain", str(path), option, str(tmp_path / "no")]) == 2
    assert "Is a directory" in capsys.readouterr().err


def test_fallbacks_in_other_parts_of_a_script_are_told(capsys, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        "import torch\n"
        "x = torch.eye(64).to('spyre')\n"
        "torch.linalg.inv(x)\n"
        "torch.compile(lambda x: x + 1)(x)\n"
    )
    assert main(["explain", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("no CPU fallbacks")
    assert lines[2] == "On the CPU elsewhere in the script: aten::linalg_inv_ex.inverse ×1"


def shown_to(output, explained, tmp_path):
    """Runs `spyre explain` of a saved explanation, as a process of its own."""
    saved = tmp_path / "model.json"
    saved.write_bytes(encode(explained))
    command = [sys.executable, "-m", "torch_spyre.tools.cli", "explain", str(saved)]
    return subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True)


def test_output_that_can_t_be_written_is_one_line(explained, tmp_path):
    with open("/dev/full", "w") as full:
        done = shown_to(full, explained, tmp_path)
    assert done.returncode == 2
    assert done.stderr == "spyre explain: can't print: No space left on device\n"


def test_closed_output_is_one_line(explained, tmp_path):
    saved = tmp_path / "model.json"
    saved.write_bytes(encode(explained))
    command = f"{sys.executable} -m torch_spyre.tools.cli explain {saved} >&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    problem = "spyre explain: can't print: standard output is closed\n"
    assert (done.returncode, done.stderr) == (2, problem)


def test_who_reads_may_stop_early(explained, tmp_path):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as closed:
        done = shown_to(closed, explained, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
