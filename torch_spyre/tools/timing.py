"""Where the time of a compile goes: a line per stage, with the size of the graph at each.

    TORCH_SPYRE_TIMING=1 python model.py         # a table on stderr after each compile

    with time_compiles() as compiles:
        torch.compile(model)(x)
    print(compiles[0].table())

This is measured time on this machine, other than the modelled time of the card.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch._dynamo.utils import compilation_time_metrics

from torch_spyre._inductor import observe
from torch_spyre._inductor.graph import SpyreGraph


@dataclass(frozen=True)
class Stage:
    """A part of a compile. `before` and `after` count `unit`; None where there is no graph."""

    name: str
    seconds: float
    before: int | None = None
    after: int | None = None
    unit: str = "operations"

    @property
    def size(self) -> str:
        """The graph before and after, in words."""
        if self.after is None:
            return ""
        change = "" if self.before in (None, 0, self.after) else f"{self.before} -> "
        return f"{change}{self.after} {self.unit}"


@dataclass(frozen=True)
class CompileTime:
    """One compile: its stages in order, and how its kernels came to be.

    The back end works on threads of its own, beside the other stages; its stage is the time that
    was waited for it in the end, and `kernel_seconds` the time of all its threads.
    """

    stages: tuple[Stage, ...]
    kernels: int  # distinct ones
    kernels_kept: int  # of these, found in the cache
    kernel_seconds: float

    @property
    def seconds(self) -> float:
        """From Dynamo's first step to the last kernel."""
        return sum(stage.seconds for stage in self.stages)

    def table(self) -> str:
        """For people."""
        width = max(len(stage.name) for stage in self.stages)
        lines = [f"{'compile time, measured':{width}}  {'ms':>9}  {'share':>5}  graph"]
        for stage in self.stages:
            share = stage.seconds / self.seconds if self.seconds else 0.0
            row = f"{stage.name:{width}}  {stage.seconds * 1e3:9,.1f}  {share:5.0%}  {stage.size}"
            lines.append(row.rstrip())
        lines.append(
            f"{'total':{width}}  {self.seconds * 1e3:9,.1f}         {self.kernels} different "
            f"kernels, {self.kernels_kept} from the cache; {self.kernel_seconds * 1e3:,.1f} ms of "
            f"back-end threads"
        )
        return "\n".join(lines)


@contextlib.contextmanager
def time_compiles() -> Iterator[list[CompileTime]]:
    """Measure the compiles for Spyre in this block; the list fills as they end."""
    found: list[CompileTime] = []
    with observe.observing(lambda _, graph: _Clock(graph, found.append)):
        yield found


def compile_times() -> list[CompileTime]:
    """The compiles of this process that `TORCH_SPYRE_TIMING=1` has shown, in order."""
    return list(_shown)


_shown: list[CompileTime] = []


def printed(_: int, graph: torch.fx.GraphModule | None) -> observe.Observer:
    """The clock behind TORCH_SPYRE_TIMING."""
    return _Clock(graph, _show)


def _show(compiled: CompileTime) -> None:
    _shown.append(compiled)
    print(compiled.table(), file=sys.stderr, flush=True)


# ---- The clock ----------------------------------------------------------------------------------

# Keys of PyTorch's own measurements.
_DYNAMO = "bytecode_tracing"
_AOT = ("create_aot_dispatcher_function", "compile_fx.<locals>.bw_compiler")
_INNER = "compile_fx_inner"
_JOINT = "_recursive_joint_graph_passes"
_PRE_GRAD = "_recursive_pre_grad_passes"
_GRAPH_PASSES = (_PRE_GRAD, _JOINT, "_recursive_post_grad_passes")
_SHAPES = "additional_fake_tensor_prop"
_LOWERING = "GraphLowering.run"
_CODEGEN = "GraphLowering.codegen"
_LOADING = "PyCodeCache.load_by_key_path"


class _Clock(observe.Observer):
    def __init__(
        self, graph: torch.fx.GraphModule | None, keep: Callable[[CompileTime], None]
    ) -> None:
        self._keep = keep
        self._start = time.perf_counter()
        self._metrics = {key: len(times) for key, times in compilation_time_metrics.items()}
        traced = compilation_time_metrics.get(_DYNAMO, []) if graph is not None else []
        self._dynamo = traced[-1] if traced else 0.0
        self._nodes = len(graph.graph.nodes) if graph is not None else None
        self._own: dict[str, Stage] = {}
        self._began = 0.0
        self._before: int | None = None
        self._kernels: list[tuple[float, bool]] = []

    def begin_stage(self, stage: str, graph: SpyreGraph | None) -> None:
        del stage
        self._began, self._before = time.perf_counter(), _size(graph)

    def end_stage(self, stage: str, graph: SpyreGraph | None) -> None:
        # A graph may be planned more than once: the time of all, the sizes of the last.
        seconds = time.perf_counter() - self._began
        before = self._own.get(stage)
        seconds += before.seconds if before else 0.0
        self._own[stage] = Stage(stage, seconds, self._before, _size(graph))

    def kernel_done(self, seconds: float, was_kept: bool) -> None:
        self._kernels.append((seconds, was_kept))

    def finish(self, succeeded: bool) -> None:
        if not succeeded:
            return
        from torch_spyre._inductor import runtime

        end = time.perf_counter()
        runtime.settle()
        waited = time.perf_counter() - end
        found = self._stages(end - self._start)
        other = end - self._start + self._dynamo - sum(stage.seconds for stage in found)
        found += [Stage("back end, waited for", waited), Stage("everything else", max(other, 0.0))]
        kept = sum(was_kept for _, was_kept in self._kernels)
        seconds = sum(seconds for seconds, _ in self._kernels)
        self._keep(CompileTime(tuple(found), len(self._kernels), kept, seconds))

    def _stages(self, seconds: float) -> list[Stage]:
        """The stages of so many seconds that the back end of Dynamo took."""
        own = list(self._own.values())
        own_seconds = sum(stage.seconds for stage in own)
        inner, joint = self._spent(_INNER), self._spent(_JOINT)
        aot = sum(map(self._spent, _AOT))
        # The first compile of a process imports most of Inductor before anything else.
        setup = seconds - aot - self._spent(_PRE_GRAD)
        return [
            Stage("Dynamo", self._dynamo, None, self._nodes, "nodes"),
            Stage("imports and set-up", max(setup, 0.0)),
            Stage("AOTAutograd", max(aot - inner - joint, 0.0)),
            Stage("graph passes", sum(map(self._spent, _GRAPH_PASSES))),
            Stage("shapes", self._spent(_SHAPES)),
            Stage("lowering", self._spent(_LOWERING)),
            *own,
            Stage(
                "host program",
                max(self._spent(_CODEGEN) - own_seconds, 0.0) + self._spent(_LOADING),
            ),
        ]

    def _spent(self, key: str) -> float:
        return sum(compilation_time_metrics.get(key, [])[self._metrics.get(key, 0) :])


def _size(graph: SpyreGraph | None) -> int | None:
    return len(graph.ops) if graph is not None else None
