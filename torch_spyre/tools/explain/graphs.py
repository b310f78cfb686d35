"""What the compiler says about graphs while it works, as far as an explanation needs it."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.graph import GraphLowering

from torch_spyre import _C
from torch_spyre._inductor import runtime
from torch_spyre._inductor.graph import SpyreGraph
from torch_spyre._inductor.graph_text import loops_text
from torch_spyre._inductor.observe import Observer
from torch_spyre._inductor.plan import Kernels, PlannedKernel, is_outside
from torch_spyre.constants import DEVICE_NAME

from .document import Call, Graph, Kernel, Source
from .kernels import kernel_of
from .sources import layer_of, operation_of, source_of_node, source_of_operation

_NO_OPERATIONS = (operator.getitem, getattr)


@dataclass(frozen=True)
class Captured:
    """A graph as Dynamo handed it over."""

    why: str
    source: Source
    operations: dict[str, int]


@dataclass
class _Compile:
    """A graph while it is compiled: what was said last counts."""

    captured: int
    is_backward: bool
    fx: str = ""
    decomposed: dict[str, int] = field(default_factory=dict)
    loops: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Window:
    """A call of a graph: which of the records of the card's work were made in it."""

    graph: int
    first: int
    last: int


@dataclass
class KnownKernel:
    """A distinct kernel, and the layers of its steps where it was met first."""

    planned: PlannedKernel
    layers: tuple[str, ...]
    _launched: runtime.SpyreKernel | None = None

    def keep(self) -> None:
        """Hold on to the kernel that was just compiled, whatever is forgotten later."""
        if self._launched is None:
            self._launched = runtime.spyre_kernel(self.planned.text, "spyre_kernel")

    def compiled(self) -> _C.Kernel:
        """The kernel as it is launched."""
        self.keep()
        assert self._launched is not None
        return self._launched.wait()

    def document(self, name: str) -> Kernel:
        return kernel_of(self.planned, name, self.compiled().program, self.layers)


class Graphs(Observer):
    """Observes all compiles. Equal kernels, those of equal layers say, are kept once."""

    def __init__(self, why: Callable[[torch.fx.GraphModule], str]) -> None:
        self.captures: dict[int, Captured] = {}  # by the numbers of Dynamo's graphs
        self.kernels: dict[Any, KnownKernel] = {}
        self.windows: list[Window] = []
        self._why = why
        self._compiles: list[_Compile] = []

    # ---- Told by the compiler ------------------------------------------------------------------

    def of_compile(self, number: int, gm: torch.fx.GraphModule | None) -> Graphs | None:
        """The observer of a compile; None for gradients of a graph from before the explanation."""
        if gm is not None:
            nodes = [node for node in gm.graph.nodes if node.op.startswith("call")]
            source = source_of_node(nodes[0]) if nodes else Source()
            self.captures[number] = Captured(self._why(gm), source, _counted(nodes))
        return self if number in self.captures else None

    def begin_graph(self, number: int, is_backward: bool) -> None:
        self._current = _Compile(number, is_backward)

    def end_stage(self, stage: str, graph: SpyreGraph | None) -> None:
        if stage == "split_multi_op_bodies" and graph is not None:  # the last before the passes
            self._current.loops = loops_text(graph)

    def planned(self, graph: SpyreGraph, lowered: GraphLowering, kernels: Kernels) -> None:
        del graph
        fx: Any = lowered.module.graph
        self._current.fx = str(fx).strip()
        self._current.decomposed = _counted(list(fx.nodes))
        self._current.calls = tuple(self._calls(lowered, kernels))

    def end_graph(self, code: Any) -> None:
        self._compiles.append(self._current)
        for kernel in self.kernels.values():
            kernel.keep()
        call = getattr(code, "current_callable", None)
        if call is not None:  # else there was nothing to compile
            code.current_callable = self._marked(call, len(self._compiles) - 1)

    def _marked(self, call: Callable[..., Any], graph: int) -> Callable[..., Any]:
        """The generated code; who looks at the records later knows which ones it made."""

        def marked(inputs: Any) -> Any:
            first = _C.recorded()
            try:
                return call(inputs)
            finally:
                self.windows.append(Window(graph, first, _C.recorded()))

        return marked

    # ---- Calls ---------------------------------------------------------------------------------

    def _calls(self, lowered: GraphLowering, kernels: Kernels) -> Iterator[Call]:
        """What generated code calls, in its order."""
        for operation in lowered.operations:
            if is_outside(operation):
                what = _called(operation)
                if what:
                    yield Call(None, what, (layer_of(operation),), source_of_operation(operation))
            for kernel in kernels.finished_by(operation.get_operation_name()):
                yield self._kernel_call(kernel, lowered)

    def _kernel_call(self, kernel: PlannedKernel, lowered: GraphLowering) -> Call:
        of_node = {
            name: layer_of(lowered.name_to_op[name])
            for name in dict.fromkeys(op.node for op in kernel.draft.steps)
        }
        layers = tuple(of_node[op.node] for op in kernel.draft.steps)
        key = kernel.bundle.content_hash, kernel.views
        self.kernels.setdefault(key, KnownKernel(kernel, layers))
        return Call(list(self.kernels).index(key), "", layers)

    # ---- The document --------------------------------------------------------------------------

    def document(self) -> tuple[Graph, ...]:
        """The graphs in the order in which they were compiled."""
        first = {compiled.captured: i for i, compiled in reversed([*enumerate(self._compiles)])}
        return tuple(
            Graph(
                name=f"graph {i}",
                why=f"the gradients of graph {first[compiled.captured]}"
                if compiled.is_backward
                else self.captures[compiled.captured].why,
                source=self.captures[compiled.captured].source,
                fx=compiled.fx,
                captured=self.captures[compiled.captured].operations,
                decomposed=compiled.decomposed,
                loops=compiled.loops,
                calls=compiled.calls,
            )
            for i, compiled in enumerate(self._compiles)
        )


def _counted(nodes: list[torch.fx.Node]) -> dict[str, int]:
    """Operations and how often they are called, the most frequent first."""
    called = (
        node for node in nodes if node.op.startswith("call") and node.target not in _NO_OPERATIONS
    )
    return dict(Counter(map(operation_of, called)).most_common())


def _called(operation: Any) -> str:
    """What an operation that is no kernel calls; "" if it only names what another made."""
    device = operation.get_device()
    where = "" if device is None or device.type == DEVICE_NAME else "CPU: "
    if isinstance(operation, ir.ComputedBuffer):
        node = operation.origin_node
        return f"{where}{node.target if node is not None else 'a loop'}"
    if not isinstance(operation, ir.ExternKernel) or isinstance(operation, ir.MultiOutput):
        return ""
    overload = getattr(operation, "op_overload", None)
    return f"{where}{overload or operation.python_kernel_name or type(operation).__name__}"
