"""Follows a function through the compiler: what it looks like at every level, as text.

levels = follow(lambda x: x / x.sum(-1, keepdim=True), x)
print(levels.fx)
for stage in levels.passes:
    print(stage.name, stage.text)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor.virtualized import V

from torch_spyre._inductor import passes, plan
from torch_spyre._inductor.codegen.opspec import KernelDraft, kernels_of
from torch_spyre._inductor.codegen.superdsc import bundle_of
from torch_spyre._inductor.graph import SpyreGraph
from torch_spyre._inductor.graph_text import buffers_text, loops_text
from torch_spyre.backend.lower import lower
from torch_spyre.backend.program import Program
from torch_spyre.ir.bundle import Bundle
from torch_spyre.ir.spec import KernelSpec


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
    with (
        inductor_config.patch(fx_graph_cache=False),
        functorch_config.patch(enable_autograd_cache=False),
        _recording() as recorder,
    ):
        torch.compile(function)(*inputs)
    if not recorder.found:
        raise ValueError("nothing was compiled for Spyre: are the inputs on the device?")
    return recorder.found[0]


@dataclass
class _Recorder:
    found: list[Levels] = field(default_factory=list)
    _fx: str = ""
    _loops: str = ""
    _passes: list[Stage] = field(default_factory=list)

    def run_passes(self, graph: SpyreGraph) -> None:
        self._fx = str(V.graph.module.graph).strip()
        self._loops = text = loops_text(graph)
        self._passes = []
        for pass_ in passes.PASSES:
            pass_(graph)
            before, text = text, loops_text(graph)
            if text != before:
                self._passes.append(Stage(pass_.__name__, text))

    def kernels_of(self, graph: SpyreGraph) -> list[KernelDraft]:
        drafts = kernels_of(graph)
        kernels = []
        for draft in drafts:
            bundle = bundle_of(draft.spec)
            kernels.append(Kernel(draft.spec, bundle, lower(bundle)))
        levels = Levels(
            self._fx, self._loops, tuple(self._passes), buffers_text(graph), tuple(kernels)
        )
        self.found.append(levels)
        return drafts


@contextlib.contextmanager
def _recording() -> Iterator[_Recorder]:
    recorder = _Recorder()
    with (
        mock.patch.object(plan, "run_passes", recorder.run_passes),
        mock.patch.object(plan, "kernels_of", recorder.kernels_of),
    ):
        yield recorder
