"""Follows a function through the compiler: what it looks like at every level, as text.

levels = follow(lambda x: x / x.sum(-1, keepdim=True), x)
print(levels.fx)
for stage in levels.passes:
    print(stage.name, stage.text)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor.graph import GraphLowering

from torch_spyre._inductor.graph import SpyreGraph
from torch_spyre._inductor.graph_text import buffers_text, loops_text
from torch_spyre._inductor.observe import Observer, observing
from torch_spyre._inductor.plan import Kernels
from torch_spyre.backend.lower import lower
from torch_spyre.backend.program import Program
from torch_spyre.ir.bundle import Bundle
from torch_spyre.ir.spec import KernelSpec
from torch_spyre.logging_config import PASSES


@dataclass(frozen=True)
class Stage:
    """The loop-level graph after a pass."""

    name: str
    text: str


@dataclass(frozen=True)
class Kernel:
    """A kernel at each level below the passes."""

    spec: KernelSpec
    bundle: Bundle
    program: Program


@dataclass(frozen=True)
class Levels:
    """One compiled graph at every level, from the top down."""

    fx: str  # after decomposition
    loops: str  # as translated, before the passes
    passes: tuple[Stage, ...]  # those that changed something
    buffers: str  # where everything ended up, and why not in LX
    kernels: tuple[Kernel, ...]


def follow(function: Callable[..., Any], *inputs: Any) -> Levels:
    """Compile a function for these inputs, and run it; what its first graph went through.

    Compiles afresh: Dynamo forgets what it compiled before, and no cache is read or written.
    """
    torch.compiler.reset()
    recorder = _Recorder()
    with (
        inductor_config.patch(fx_graph_cache=False),
        functorch_config.patch(enable_autograd_cache=False),
        observing(lambda *_: recorder),
    ):
        torch.compile(function)(*inputs)
    if not recorder.found:
        raise ValueError("nothing was compiled for Spyre: are the inputs on the device?")
    return recorder.found[0]


class _Recorder(Observer):
    def __init__(self) -> None:
        self.found: list[Levels] = []

    def end_stage(self, stage: str, graph: SpyreGraph | None) -> None:
        if graph is None:
            return
        if stage == "split_multi_op_bodies":  # the last before the passes
            self._loops = self._text = loops_text(graph)
            self._passes: list[Stage] = []
        elif stage in PASSES:
            before, self._text = self._text, loops_text(graph)
            if self._text != before:
                self._passes.append(Stage(stage, self._text))

    def planned(self, graph: SpyreGraph, lowered: GraphLowering, kernels: Kernels) -> None:
        self.found.append(
            Levels(
                str(lowered.module.graph).strip(),
                self._loops,
                tuple(self._passes),
                buffers_text(graph),
                tuple(Kernel(k.draft.spec, k.bundle, lower(k.bundle)) for k in kernels.kernels),
            )
        )
