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
from torch_spyre._inductor.graph import Buffer, Constant, Index, Op, Operand, Read, SpyreGraph
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


# ---- Loops as text ------------------------------------------------------------------------------


def loops_text(graph: SpyreGraph) -> str:
    """One line per operation; then, as far as decided, its dimensions in sticks and core slices."""
    lines = []
    for number, op in enumerate(graph.ops):
        if number and op.kernel != graph.ops[number - 1].kernel:
            lines.append("-- next kernel")
        lines.append(_op_text(op))
    return "\n".join(lines)


def _op_text(op: Op) -> str:
    operands = ", ".join(_operand_text(operand) for operand in op.inputs)
    text = f"{_operand_text(op.output)} = {op.opcode}({operands})  over {_times(op.extents)}"
    if op.reduced:
        text += f", reduced {', '.join(f'i{d}' for d in op.reduced)}"
    if op.kind == "restickify":
        return f"{text}\n    element by element"
    if op.fit is not None:
        dims = _times(op.fit.extents)
        text += f"\n    {dims} of {op.fit.lanes} lanes"
        text += "".join(f", position {mask.valid} and on masked" for mask in op.masks)
        if op.slices:
            text += f", core slices {_times(op.slices)}"
    return text


def _operand_text(operand: Operand) -> str:
    if isinstance(operand, Constant):
        return f"{operand.value:g}" if operand.domain == "F" else str(operand.value)
    index = _index_text(operand)
    if isinstance(operand, Index):
        return f"index({index})"
    return f"{_buffer_name(operand.buffer)}[{index}]"


def _buffer_name(buffer: Buffer) -> str:
    if buffer.place is None:
        return buffer.name
    return f"{buffer.name}@{buffer.place.component}:{buffer.place.index}"


def _index_text(operand: Read | Index) -> str:
    terms = [
        f"i{d}" if step == 1 else f"{step}*i{d}" for d, step in enumerate(operand.strides) if step
    ]
    if operand.offset or not terms:
        terms.append(str(operand.offset))
    return " + ".join(terms)


def _times(numbers: tuple[int, ...]) -> str:
    return " x ".join(map(str, numbers)) or "1"


def buffers_text(graph: SpyreGraph) -> str:
    """Every buffer: host shape, device layout, place, and why it is not in the scratchpads."""
    lines = []
    for buffer in graph.buffers.values():
        dtype = str(buffer.dtype).removeprefix("torch.")
        lines.append(f"{buffer.name}  {dtype}{list(buffer.size)}")
        if buffer.storage is not None:
            size, strides = list(buffer.storage.device_size), list(buffer.storage.stride_map)
            lines.append(f"    device_size {size}, stride_map {strides}")
        if buffer.place is not None:
            lines.append(f"    {buffer.place.component} at byte {buffer.place.index}")
        if buffer.why_not_lx:
            lines.append(f"    not in LX: {buffer.why_not_lx}")
    return "\n".join(lines)
