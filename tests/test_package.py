"""The package as others get it: a wheel, installed apart from the source tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_a_wheel_works_outside_the_source_tree(tmp_path):
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".venv", ".git", "build", "dist", "*.egg-info", "_build")
    shutil.copytree(ROOT, source, ignore=ignored)
    pip = [sys.executable, "-m", "pip"]
    subprocess.run(
        [*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", tmp_path, source],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("torch_spyre-*.whl")
    site = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    script = "; ".join(
        (
            "import torch, torch_spyre",
            "print(torch_spyre.__file__)",
            "print((torch.ones(3, device='spyre') + 1).tolist())",
        )
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    where, values = done.stdout.splitlines()
    assert Path(where).is_relative_to(site) and values == "[2.0, 2.0, 2.0]"
    assert not list(site.rglob("*.cpp")) and (site / "torch_spyre" / "py.typed").exists()
    assert (site / "bin" / "spyre-smi").exists() and (site / "spyre_smi" / "py.typed").exists()
