"""One function at every level: Python, FX graph, loops, passes, OpSpec, SuperDSC, card program.

docs/one-example.md explains what is printed here. Two cores, so that it stays short.
"""

from __future__ import annotations

import inspect
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from torch_spyre._inductor import config
from torch_spyre.backend.disassemble import disassemble
from torch_spyre.ir.spec_text import kernel_text
from torch_spyre.tools.follow import follow


def normalise(x: torch.Tensor) -> torch.Tensor:
    return x / x.sum(-1, keepdim=True)


def headline(text: str) -> None:
    print(f"\n== {text}\n")


def compact(value: Any, indent: str = "") -> str:
    """JSON with whatever fits into a line on one line."""
    line = json.dumps(value)
    if len(indent) + len(line) <= 96 or not isinstance(value, dict | list):
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {compact(part, inner)}" for key, part in value.items()]
    else:
        parts = [compact(part, inner) for part in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return opening + ",".join(f"\n{inner}{part}" for part in parts) + f"\n{indent}{closing}"


torch.manual_seed(0)
x = torch.rand(8, 100, dtype=torch.float16).to("spyre")
with config.patch(sencores=2):
    levels = follow(normalise, x)

headline("1 Python")
print(inspect.getsource(normalise).strip())

headline("2 FX graph")
print(levels.fx)

headline("3 Loops before the passes")
print(levels.loops)

headline("4 Passes that change something")
print("\n\n".join(f"{stage.name}:\n{stage.text}" for stage in levels.passes))

headline("5 Buffers after the passes")
print(levels.buffers)

(kernel,) = levels.kernels
headline("6 OpSpec")
print(kernel_text(kernel.spec))

with tempfile.TemporaryDirectory() as folder:
    kernel.bundle.write(folder)
    headline("7 SuperDSC of the sum: sdsc_1.json")
    print(compact(json.loads((Path(folder) / "sdsc_1.json").read_text())))
    headline("8 Loop program: bundle.mlir")
    print((Path(folder) / "bundle.mlir").read_text().strip())

headline("9 Card program")
print(disassemble(kernel.program).strip())

headline("10 Result")
got = torch.compile(normalise)(x).cpu().float()
wanted = normalise(x.cpu().float())
print(f"largest error against float32: {(got - wanted).abs().max().item():.1e}")
