"""`spyre run`: a kernel alone, against a reference that reads the bundle by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import replay_kernels
import torch
from replay_kernels import KERNELS, write_bundle

from torch_spyre._inductor.codegen.superdsc import bundle_of
from torch_spyre.backend import compile as compiling
from torch_spyre.backend import replay as replays
from torch_spyre.backend.program import Program
from torch_spyre.backend.reference_ops import RAW, narrow, widen
from torch_spyre.ir.bundle import Bundle
from torch_spyre.ir.superdsc import DataFormat
from torch_spyre.tools.cli import main


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_bundle(replay_kernels.add_kernel(), tmp_path / "bundle")
    return tmp_path / "bundle"


def edit(path: Path, *keys: str | int, value: object) -> None:
    document = json.loads(path.read_text())
    at = document
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    path.write_text(json.dumps(document))


# ---- Checks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
def test_every_kind_of_operation_agrees_with_the_reference(name, tmp_path, capsys):
    write_bundle(KERNELS[name](), tmp_path)
    assert main(["run", str(tmp_path), "--check"]) == 0
    assert "elements agree with the reference" in capsys.readouterr().out


def matrices(replay: replays.Replay, images: list[np.ndarray], *shapes: tuple[int, int]):
    """Arguments with default layouts as float64 matrices."""
    for image, (rows, columns) in zip(images, shapes, strict=False):
        tiles = -(-columns // 64)
        values = widen(image.view(np.uint16), DataFormat.SEN169_FP16).reshape(tiles, rows, 64)
        yield values.transpose(1, 0, 2).reshape(rows, tiles * 64)[:, :columns]


def reference_of(name: str) -> tuple[replays.Replay, list[np.ndarray], list[np.ndarray]]:
    bundle = bundle_of(KERNELS[name]())
    replay = replays.Replay(bundle, compiling.compile_afresh(bundle))
    before = replays.random_images(replay, 1)
    reference = replays.run_reference(replay, before, bundle.extents)
    return replay, before, [memory.data for memory in reference.arguments]


def test_the_reference_knows_what_a_softmax_is():
    replay, before, after = reference_of("softmax")
    (x,) = matrices(replay, before, (64, 200))
    _, y = matrices(replay, after, (64, 200), (64, 200))
    assert np.allclose(y, torch.softmax(torch.from_numpy(x), -1).numpy(), rtol=1e-2)


def test_the_reference_knows_what_a_matmul_is():
    replay, before, after = reference_of("matmul")
    a, b = matrices(replay, before, (20, 100), (100, 130))
    *_, c = matrices(replay, after, (20, 100), (100, 130), (20, 130))
    assert np.allclose(c, a @ b, rtol=2e-3, atol=2e-2)


def test_the_reference_adds_up_what_the_cores_of_a_ring_have():
    replay, before, after = reference_of("ring")
    a, b = matrices(replay, before, (20, 300), (300, 130))
    *_, c = matrices(replay, after, (20, 300), (300, 130), (20, 130))
    assert np.allclose(c, a @ b, rtol=2e-3, atol=2e-2)


def test_the_reference_rounds_to_the_cards_formats():
    values = np.array([0.0, 1.0, -1.0, 1 / 3, 1 + 2**-10, 1e30, -1e30, np.nan, 2.0**-31, 1e-12])
    raw = narrow(values, DataFormat.SEN169_FP16)
    assert raw.dtype == RAW[DataFormat.SEN169_FP16]
    back = widen(raw, DataFormat.SEN169_FP16)
    assert back[:3].tolist() == [0, 1, -1] and abs(back[3] * 3 - 1) < 2**-9
    assert back[4] == 1 + 2**-9  # a tie goes away from zero
    assert np.isnan(back[5]) and back[6] == -np.inf and np.isnan(back[7])
    assert 2.0**-31 < back[8] < 1.01 * 2.0**-31 and back[9] == 0


def test_a_kernel_that_computes_something_else_does_not_pass(directory, capsys, monkeypatch):
    """The card runs `sub` where the bundle says `add`."""
    lower = compiling.lower

    def wrong(bundle: Bundle) -> Program:
        program = lower(bundle)
        return replace(program, body=tuple(replace(s, opcode="sub") for s in program.body))

    monkeypatch.setattr(compiling, "lower", wrong)
    assert main(["run", str(directory), "--check"]) == 1
    assert "elements differ from the reference; the first is arg2, stick 0" in (
        capsys.readouterr().out
    )


def test_a_reduction_that_lets_padding_in_does_not_pass(tmp_path, capsys, monkeypatch):
    lower = compiling.lower

    def unmasked(bundle: Bundle) -> Program:
        program = lower(bundle)
        return replace(program, body=tuple(replace(step, masks=()) for step in program.body))

    write_bundle(replay_kernels.softmax_kernel(), tmp_path)
    monkeypatch.setattr(compiling, "lower", unmasked)
    assert main(["run", str(tmp_path), "--check"]) == 1


# ---- Inputs -------------------------------------------------------------------------------------


def test_given_tensors_take_the_place_of_random_ones(directory, tmp_path):
    replays.write_views(directory, replay_kernels.add_views())
    a, b = torch.randn(96, 200), torch.randn(96, 200)
    torch.save({"arg0": a, "arg1": b}, tmp_path / "inputs.pt")
    np.savez(tmp_path / "inputs.npz", arg0=a.numpy(), arg1=b.numpy())
    replay = replays.Replay.read(directory)
    for file in ("inputs.pt", "inputs.npz"):
        images = replays.random_images(replay, 0)
        replays.put_inputs(replay, images, replays.read_inputs(tmp_path / file))
        run = replays.run_on_card(replay, images, ())
        at = torch.from_numpy(replays.device_offsets(replay.views[2]))
        got = run.tensors[2].cpu().double()[at]
        assert torch.allclose(got, (a + b).double(), atol=2e-2)


def test_a_mismatch_is_named_by_its_index_in_the_tensor(directory):
    replays.write_views(directory, replay_kernels.add_views())
    replay = replays.Replay.read(directory)
    images = replays.random_images(replay, 0)
    run = replays.run_on_card(replay, images, ())
    reference = replays.run_reference(replay, images, ())
    at = replays.device_offsets(replay.views[2])[7, 130]
    run.tensors[2][int(at)] += 1
    (found,) = replays.compare(replay, run, reference, 4)
    assert found.mismatches == 1 and found.first.startswith("arg2[7, 130]: ")


def test_the_same_seed_gives_the_same_inputs(directory):
    replay = replays.Replay.read(directory)
    one, same, other = (replays.random_images(replay, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not np.array_equal(one[0], other[0])


@pytest.mark.parametrize("length", [0, 1, 65, 128])
def test_extents_may_be_given(tmp_path, length):
    write_bundle(replay_kernels.masked_sum_kernel(), tmp_path)
    assert main(["run", str(tmp_path), "--check", "--extents", str(length)]) == 0


def test_repeated_launches_start_from_the_same_inputs(directory):
    assert main(["run", str(directory), "--check", "--repeat", "3"]) == 0


# ---- Edited bundles and errors ------------------------------------------------------------------


def test_an_edited_bundle_runs_as_edited(directory, capsys):
    """Another operation of the same form, put in by hand."""
    path = directory / "sdsc_0.json"
    path.write_text(path.read_text().replace('"add"', '"mul"'))
    assert main(["run", str(directory), "--check"]) == 0
    assert "mul" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "sdsc_0.json").write_text("{"), "sdsc_0.json: not JSON"),
        (lambda d: (d / "sdsc_0.json").unlink(), "sdsc_0.json: can't be read"),
        (lambda d: (d / "bundle.mlir").unlink(), "bundle.mlir: can't be read"),
        (lambda d: (d / "bundle.mlir").write_text("module {"), "bundle.mlir: "),
        (
            lambda d: edit(d / "sdsc_0.json", "add", "dscs_", 0, "add", "N_", "c0_", value=95),
            ".add.dscs_[0].add.dataStageParam_.0.el_.c0_",
        ),
        (
            lambda d: edit(
                d / "sdsc_0.json", "add", "dscs_", 0, "add", "numCoresUsed_", value="many"
            ),
            "numCoresUsed_",
        ),
        (lambda d: (d / "views.json").write_text("[]"), "views.json: 0 views for the 3 arguments"),
        (
            lambda d: (
                replays.write_views(d, replay_kernels.add_views()),
                edit(d / "views.json", 1, "dtype", value="half_baked"),
            ),
            "views.json: [1].dtype: 'half_baked' is no dtype",
        ),
    ],
)
def test_what_is_wrong_with_a_bundle_is_said_with_its_place(directory, capsys, damage, message):
    damage(directory)
    assert main(["run", str(directory)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"spyre run: {directory}/") and message in printed
    assert "Traceback" not in printed  # several lines at most: MLIR shows its place with an arrow


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--inputs", "nowhere.pt"], "nowhere.pt can't be read"),
        (["--extents", "3"], "the kernel takes 0"),
        (["--repeat", "0"], "--repeat 0: at least 1"),
        (["--seed", "-1"], "--seed -1: at least 0"),
    ],
)
def test_what_is_wrong_with_the_options_is_said_in_one_line(directory, capsys, options, message):
    assert main(["run", str(directory), *options]) == 2
    check_is_one_line(capsys.readouterr().err, message)


@pytest.mark.parametrize(
    ("target", "problem"),
    [("/dev/full", "No space left on device"), ("&-", "standard output is closed")],
)
def test_output_that_can_t_be_written_is_one_line(directory, target, problem):
    command = f"{sys.executable} -m torch_spyre.tools.cli run {directory} >{target}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, f"spyre run: can't print: {problem}\n")


def check_is_one_line(printed: str, message: str) -> None:
    assert printed.startswith("spyre run: ") and message in printed and printed.count("\n") == 1


class Foreign:
    """Nothing that torch.load takes from a file that nobody trusts."""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"arg0": 3}, "holds 'arg0', of type int; expected tensors"),
        ({0: torch.ones(3)}, "holds 0, of type Tensor; expected tensors by the names arg0"),
        ([torch.ones(3), None], "holds 'arg1', of type NoneType; expected tensors"),
        (3, "one object of type int; expected tensors"),
        (torch.ones(3), "one object of type Tensor; expected tensors"),
        ({"arg0": Foreign()}, "torch.load raises UnpicklingError; expected tensors"),
        ({"arg0": torch.ones(3).to_sparse()}, "input 'arg0' is no plain tensor: "),
        ({"arg0": torch.ones(3, device="meta")}, "input 'arg0' is no plain tensor: "),
        ({"arg9": torch.ones(3)}, "input 'arg9': the kernel has arguments arg0 to arg2"),
        ({"arg0": torch.ones(3)}, "input 'arg0' has 3 elements"),
    ],
)
def test_what_is_wrong_with_a_pt_file_is_said_in_one_line(
    directory, tmp_path, capsys, content, message
):
    torch.save(content, tmp_path / "inputs.pt")
    assert main(["run", str(directory), "--inputs", str(tmp_path / "inputs.pt")]) == 2
    check_is_one_line(capsys.readouterr().err, message)


@pytest.mark.parametrize("name", ["inputs.pt", "inputs.npz"])
@pytest.mark.parametrize("content", [b"", b"hello\nworld\n"], ids=["empty", "text"])
def test_a_file_of_something_else_is_refused_in_one_line(
    directory, tmp_path, capsys, name, content
):
    (tmp_path / name).write_bytes(content)
    assert main(["run", str(directory), "--inputs", str(tmp_path / name)]) == 2
    check_is_one_line(capsys.readouterr().err, f"{name} holds no inputs: ")


def test_parameters_are_tensors_too(directory, tmp_path):
    replays.write_views(directory, replay_kernels.add_views())
    torch.save([torch.nn.Parameter(torch.ones(96, 200))], tmp_path / "inputs.pt")
    assert main(["run", str(directory), "--inputs", str(tmp_path / "inputs.pt")]) == 0


def test_a_setting_that_is_none_is_said_in_one_line(directory, check_python):
    """Read when the card is opened, so it takes a process of its own."""
    script = f"from torch_spyre.tools.cli import main; print(main(['run', {str(directory)!r}]))"
    done = check_python(script, SENCORES="33")
    assert done.stdout == "2\n"
    check_is_one_line(done.stderr, "SENCORES='33' is not valid")


def test_a_file_that_nobody_may_read_is_said_in_one_line(directory, capsys, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "views.json")

    monkeypatch.setattr(replays, "read_views", refuse)
    assert main(["run", str(directory)]) == 2
    check_is_one_line(capsys.readouterr().err, "Permission denied: 'views.json'")


def test_a_directory_that_is_none_is_said_to_be_none(tmp_path, capsys):
    assert main(["run", str(tmp_path / "nowhere")]) == 2
    check_is_one_line(capsys.readouterr().err, "nowhere is no directory")


def test_the_module_is_the_command(directory):
    done = subprocess.run(
        [sys.executable, "-m", "torch_spyre.backend", str(directory), "--check"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "on the card" in done.stdout and "model.py:41" in done.stdout
