"""The guide "Adding an operation", followed to the letter in a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs/adding-an-operation.md"
# Where the guide says that a line of a table goes; everything else goes to the end of its file.
TABLES = {"torch_spyre/ops/table.py": "ARITHMETIC: tuple[Entry, ...] = (\n"}

CALLS = """
import torch, warnings

warnings.simplefilter("ignore")
x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
calls = {
    "fmax": lambda x: torch.fmax(x, x[1]),
    "masked_scatter": lambda x: x.masked_scatter(x > 2, x),
    "flip": lambda x: x.flip(1),
}
for name, call in calls.items():
    torch.spyre.reset_fallback_stats()
    assert torch.equal(call(x.to("spyre")).cpu(), call(x)), name
    print(name, *torch.spyre.fallback_stats())
"""


@dataclass(frozen=True)
class Addition:
    """Code that the guide adds to a file."""

    path: str
    code: str


def additions() -> list[Addition]:
    found = []
    for block in blocks(PAGE):
        caption = re.match(r":caption: (\S+)\n\n", block.text)
        if block.language == "{code-block} python" and caption:
            found.append(Addition(caption[1], block.text[caption.end() :]))
    return found


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, without what is only compiled."""
    shutil.copytree(
        ROOT / "torch_spyre",
        tmp_path / "torch_spyre",
        ignore=shutil.ignore_patterns("csrc", "__pycache__"),
    )
    return tmp_path


def calls_in(package: Path) -> dict[str, list[str]]:
    """What the guide's operations run on the CPU, by their names."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", CALLS],
        env={**os.environ, "PYTHONPATH": str(package)},
        cwd=package,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: rest for name, *rest in map(str.split, done.stdout.splitlines())}


def take_out(package: Path, addition: Addition) -> None:
    path = package / addition.path
    text = path.read_text()
    assert text.count(addition.code) == 1, f"{addition.path} no longer has the code of the guide"
    path.write_text(text.replace(addition.code, ""))


def put_in(package: Path, addition: Addition) -> None:
    path = package / addition.path
    text = path.read_text()
    start = TABLES.get(addition.path)
    if start is None:
        path.write_text(f"{text}\n\n{addition.code}")
    else:
        assert text.count(start) == 1
        path.write_text(text.replace(start, start + addition.code))


def test_the_guide_adds_one_operation_of_each_kind() -> None:
    assert [addition.path.rpartition("/")[2] for addition in additions()] == [
        "table.py",
        "indexing.py",
        "leaves.py",
    ]


def test_what_the_guide_adds_is_what_puts_the_operations_on_the_card(package: Path) -> None:
    for addition in additions():
        take_out(package, addition)
    assert calls_in(package) == {
        "fmax": ["aten::fmax.out"],
        "masked_scatter": ["aten::masked_scatter"],
        "flip": ["aten::flip"],
    }
    for addition in additions():
        put_in(package, addition)
    assert calls_in(package) == {"fmax": [], "masked_scatter": [], "flip": []}
