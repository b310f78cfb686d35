"""A second process finds what the first one compiled, and nothing that was compiled otherwise.

One process fills the caches; every test gives another process a copy of them, with one thing
changed, and looks at what it found.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import json
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch.spyre import SpyreTensorLayout
from torch_spyre.backend import cache

{before}

def graph(x, weight):
    heads = (x @ weight).view(96, 2, 64).transpose(0, 1)
    return torch.softmax(F.scaled_dot_product_attention(heads, heads, heads), -1)

torch.manual_seed(0)
x, weight = torch.randn(96, 200).half(), torch.randn(200, 128).div(200**0.5).half()
x = x.to("spyre", device_layout={layout})
with torch.no_grad():
    result = torch.compile(graph)(x, weight.to("spyre")).cpu()
wanted = graph(x.cpu().float(), weight.float())
spyrecode = cache.default_cache().statistics
print(json.dumps({{
    "bits": result.view(torch.int16).tolist(),
    "error": float((result.float() - wanted).abs().max() / wanted.max()),
    "FX graph": counters["inductor"]["fxgraph_cache_hit"],
    "FX graph missed": counters["inductor"]["fxgraph_cache_miss"],
    "AOTAutograd": counters["aot_autograd"]["autograd_cache_hit"],
    "SpyreCode": spyrecode.hits,
    "SpyreCode missed": spyrecode.misses,
}}))
"""
LAYOUT = "SpyreTensorLayout([96, 200], torch.float16)"
OTHER_LAYOUT = "SpyreTensorLayout([96, 200], [200, 1], torch.float16, [1, 0])"


@dataclass(frozen=True)
class Process:
    """What a process computed, and how often it found something in each cache."""

    bits: list[list[int]]
    error: float  # the largest, relative to the largest value
    found: Mapping[str, int]

    def has_compiled(self) -> bool:
        return self.found["FX graph"] == 0 and self.found["AOTAutograd"] == 0


def run(caches: Path, layout: str = LAYOUT, before: str = "", **settings: str) -> Process:
    """Compile and run the graph in a new process."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT.format(layout=layout, before=before)],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(caches), **settings},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Process(found.pop("bits"), found.pop("error"), found)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Process]:
    """A process that found its caches empty, and what it left there."""
    caches = tmp_path_factory.mktemp("caches")
    return caches, run(caches)


@pytest.fixture
def caches(first: tuple[Path, Process], tmp_path: Path) -> Path:
    """A copy of what the first process left."""
    return Path(shutil.copytree(first[0], tmp_path / "caches"))


def test_the_first_process_finds_nothing(first):
    _, process = first
    assert process.has_compiled()
    assert process.found["SpyreCode"] == 0 and process.found["SpyreCode missed"] == 1
    assert process.error < 1e-2


def test_a_second_process_finds_graph_and_kernels(first, caches):
    process = run(caches)
    assert process.found == {
        "FX graph": 1,
        "FX graph missed": 0,
        "AOTAutograd": 1,
        "SpyreCode": 1,
        "SpyreCode missed": 0,
    }
    assert process.bits == first[1].bits


def test_a_graph_that_is_found_runs_with_its_spyrecode_deleted(first, caches):
    shutil.rmtree(caches / "spyrecode")
    process = run(caches)
    assert process.found["FX graph"] == process.found["AOTAutograd"] == 1
    assert process.found["SpyreCode"] == 0 and process.found["SpyreCode missed"] == 1
    assert process.bits == first[1].bits
    assert list((caches / "spyrecode").rglob("*.spyrecode")), "it is not kept for the next process"


OTHER_SOURCES = """
from torch_spyre._inductor import registration
registration.source_hash = lambda: b"another compiler"
"""


REBUILT_EXTENSION = """
import os, shutil
from torch_spyre import _C
_C.__file__ = shutil.copy(_C.__file__, os.environ["TORCHINDUCTOR_CACHE_DIR"])
with open(_C.__file__, "ab") as file:
    file.write(b"another build")
"""


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"layout": OTHER_LAYOUT}, id="another layout of an input"),
        pytest.param({"SENCORES": "4"}, id="SENCORES"),
        pytest.param({"LX_PLANNING": "0"}, id="LX_PLANNING"),
        pytest.param({"before": OTHER_SOURCES}, id="another version of the compiler"),
    ],
)
def test_what_was_compiled_otherwise_is_not_found(caches, change):
    process = run(caches, **change)
    assert process.has_compiled() and process.found["FX graph missed"] == 1
    assert process.error < 1e-2


def test_another_build_of_the_extension_finds_neither_graph_nor_kernels(caches):
    process = run(caches, before=REBUILT_EXTENSION)
    assert process.has_compiled() and process.found["FX graph missed"] == 1
    assert process.found["SpyreCode"] == 0 and process.found["SpyreCode missed"] == 1


def test_a_setting_that_changes_no_program_finds_the_spyrecode_of_the_others(caches):
    """Kernels are kept by what they are, not by how they came about."""
    process = run(caches, LAYOUT_SOLVER="firstfit")
    assert process.has_compiled()
    assert process.found["SpyreCode"] == 1 and process.found["SpyreCode missed"] == 0
