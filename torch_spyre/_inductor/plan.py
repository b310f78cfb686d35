"""From Inductor's lowered graph to planned kernels: what happens when the wrapper is created."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch._inductor import ir as inductor_ir
from torch._inductor.graph import GraphLowering

from torch_spyre import _C, ir
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.ir.bundle import Bundle
from torch_spyre.logging_config import get_logger

from . import debug, externs, layouts, observe
from .codegen.opspec import KernelDraft, kernels_of
from .codegen.superdsc import bundle_of
from .dynamic import DynamicSizes, input_shapes, sizes_of
from .errors import Unsupported
from .graph import Buffer, NeedsStaticSizesError, Op, SpyreGraph
from .passes import run_passes
from .passes.hints import wish_for_tiles
from .passes.split import split_multi_op_bodies
from .runtime import ArgView, serialize_kernel
from .translate import Translation, Translator

log = get_logger("lowering")


@dataclass
class PlannedKernel:
    """A kernel as the wrapper sees it."""

    draft: KernelDraft
    bundle: Bundle
    views: tuple[ArgView, ...]
    text: str
    first_node: str
    last_node: str
    arguments: tuple[Buffer, ...]
    allocations: tuple[Buffer, ...] = ()  # temporaries that this kernel is the first to touch
    to_fill: tuple[Buffer, ...] = ()  # buckets that lack what was computed outside of kernels


@dataclass
class Kernels:
    """The kernels of a graph, and which Inductor operation each is complete with."""

    kernels: list[PlannedKernel] = field(default_factory=list)
    tensors: dict[str, Buffer] = field(default_factory=dict)  # real tensors on the card
    order: dict[str, int] = field(default_factory=dict)  # of Inductor's operations
    extents: tuple[Any, ...] = ()  # lengths that a launch takes
    sizes: dict[str, Any] = field(default_factory=dict)  # one-element inputs that hold a size

    def ends(self, ops: Sequence[Op]) -> tuple[str, str]:
        """The first of Inductor's operations that these belong to, and the last one of these and of
        all kernels before: our order is not Inductor's, but kernels are launched in ours."""
        nodes = {op.node for op in ops}
        before = {kernel.last_node for kernel in self.kernels[-1:]}
        return min(nodes, key=self.order.__getitem__), max(
            nodes | before, key=self.order.__getitem__
        )

    def finished_by(self, node: str) -> list[PlannedKernel]:
        """Kernels whose last operation belongs to this node of Inductor's."""
        return [kernel for kernel in self.kernels if kernel.last_node == node]

    def is_open_after(self, node: str) -> bool:
        """Has a kernel begun by then that is not complete?"""
        at = self.order[node]
        return any(
            self.order[kernel.first_node] <= at < self.order[kernel.last_node]
            for kernel in self.kernels
        )


def plan_graph(lowered: GraphLowering) -> Kernels:
    """Translate, run the passes, and write the bundles of a lowered graph."""
    try:
        try:
            sizes = DynamicSizes(lowered.sizevars, sizes_of(lowered), input_shapes(lowered))
            return _plan(lowered, sizes)
        except NeedsStaticSizesError as error:
            log.info("compiling for fixed sizes: %s", error)
            return _plan(lowered, DynamicSizes(lowered.sizevars, is_static=True))
    except Unsupported as error:
        if error.is_loop and error.origin is not None:
            error.node = externs.to_call(lowered.name_to_buffer.get(error.origin.buffer))
        raise


def _plan(lowered: GraphLowering, dynamic: DynamicSizes) -> Kernels:
    with observe.stage("translate"):
        translation = Translator(lowered, dynamic).run()
    graph = SpyreGraph([], dict(translation.buffers), name=lowered.name or "graph")
    _mark_boundaries(lowered, translation, graph)
    for buffer in graph.buffers.values():
        if buffer.is_dynamic and not buffer.is_temporary:
            for size in buffer.shape:
                dynamic.symbol(size)
    _set_input_layouts(lowered, graph, dynamic)
    _set_required_layouts(lowered, graph)
    wish_for_tiles(translation.nests, lowered)
    with observe.stage("split_multi_op_bodies", graph):
        split_multi_op_bodies(translation.nests, graph)
    graph.extents = tuple(dynamic.lengths.values())
    run_passes(graph)
    with observe.stage("code of kernels", graph):
        kernels = _kernels(lowered, translation, graph)
    kernels.extents = tuple(dynamic.lengths)
    kernels.sizes = translation.sizes
    debug.show(kernels, graph)
    for observer in observe.current():
        observer.planned(graph, lowered, kernels)
    return kernels


def is_outside(operation: Any) -> bool:
    """Is it an operation that generated code calls between kernels?"""
    if isinstance(operation, inductor_ir.NopKernel):
        return False
    device = operation.get_device()
    is_ours = device is not None and device.type == DEVICE_NAME
    return not (isinstance(operation, inductor_ir.ComputedBuffer) and is_ours)


def _mark_boundaries(lowered: GraphLowering, translation: Translation, graph: SpyreGraph) -> None:
    """What leaves the graph, and what operations that are not ours touch."""
    seen = set(lowered.get_output_names())
    for operation in lowered.operations:
        if not is_outside(operation):
            continue
        # Not `get_read_names`: of an OperationBuffer that is its own name.
        seen |= {dependency.name for dependency in operation.get_reads()}
        seen |= {buffer.get_name() for buffer in operation.get_outputs()}
    for name in seen:
        buffer = graph.buffers.get(translation.root(name))
        if buffer is not None and not buffer.is_input:
            buffer.is_output = True
    # `empty`, which may be read all the same: where only a part of it was written.
    written = {nest.target for nest in translation.nests if 0 not in nest.extents[: nest.outer]}
    for buffer in graph.buffers.values():
        if not buffer.is_input and buffer not in written:
            buffer.is_output = True


def _set_input_layouts(lowered: GraphLowering, graph: SpyreGraph, dynamic: DynamicSizes) -> None:
    known = layouts.of_graph_inputs(lowered)
    for name, buffer in graph.buffers.items():
        if not buffer.is_input:
            continue
        key = known.get(name)
        if key is None or buffer.is_dynamic:
            # With room for the longest length: what a kernel made comes back as it was.
            room = tuple(map(dynamic.room, buffer.shape)) if buffer.is_dynamic else buffer.size
            buffer.storage = layouts.default(room, buffer.stride, buffer.dtype, buffer.numel)
        else:
            buffer.storage = ir.Storage(*key, max(buffer.numel, 1))


def _set_required_layouts(lowered: GraphLowering, graph: SpyreGraph) -> None:
    for name, (device_size, stride_map) in layouts.required(lowered).items():
        buffer = graph.buffers[name]
        layout = _C.SpyreTensorLayout(
            list(device_size), list(stride_map), _C.get_device_dtype(buffer.dtype)
        )
        reason = layout.why_not_for(buffer.numel)
        if reason is not None:
            raise Unsupported(
                "require_layout",
                reason,
                tensors=(buffer.describe(),),
                way_out="give a layout that holds all of the tensor's elements",
            )
        buffer.storage = ir.Storage(device_size, stride_map, buffer.numel)
        buffer.is_laid_out = True


@dataclass
class _Buckets:
    """Which tensors of dynamic sizes have a bucket that holds their values.

    A kernel fills the buckets of its results itself. What comes from outside (inputs, and what
    other operations made or changed) is copied to its bucket before the next kernel that takes it.
    """

    lowered: GraphLowering
    translation: Translation
    order: dict[str, int]
    _filled: dict[Buffer, int] = field(default_factory=dict)  # since which operation

    def to_fill(self, draft: KernelDraft) -> tuple[Buffer, ...]:
        places = [self.order[op.node] for op in draft.ops]
        first, last = min(places), max(places)
        stale = tuple(
            buffer
            for buffer in draft.arguments
            if buffer.is_dynamic
            and not buffer.is_temporary
            and self._changed_before(first, buffer) > self._filled.get(buffer, _NEVER)
        )
        written = {op.output.buffer for op in draft.ops}
        self._filled |= dict.fromkeys([*stale, *written.intersection(draft.arguments)], last)
        return stale

    def _changed_before(self, place: int, buffer: Buffer) -> int:
        """The last operation before this place, not ours, that wrote the tensor."""
        at = [n for n in self._outside.get(buffer.name, ()) if n < place]
        return max(at, default=_BEFORE if buffer.is_input else _NEVER)

    @functools.cached_property
    def _outside(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for operation in self.lowered.operations:
            if is_outside(operation):
                place = self.order[operation.get_operation_name()]
                names = {buffer.get_name() for buffer in operation.get_outputs()}
                names |= set(getattr(operation, "get_mutation_names", tuple)())
                for name in names:
                    found.setdefault(self.translation.root(name), []).append(place)
        return found


_NEVER, _BEFORE = -2, -1  # places before the first operation


def _kernels(lowered: GraphLowering, translation: Translation, graph: SpyreGraph) -> Kernels:
    names = [operation.get_operation_name() for operation in lowered.operations]
    result = Kernels(order={name: i for i, name in enumerate(names)})
    touched: set[Buffer] = set()
    buckets = _Buckets(lowered, translation, result.order)
    inductor_names = set(lowered.name_to_buffer) | set(lowered.graph_inputs)
    for draft in kernels_of(graph):
        bundle = bundle_of(draft.spec)
        views = tuple(
            ArgView(
                buffer.size,
                buffer.stride,
                str(buffer.dtype).removeprefix("torch."),
                buffer.storage.device_size,
                buffer.storage.stride_map,
            )
            for buffer in draft.arguments
            if buffer.storage is not None
        )
        fresh = tuple(
            buffer
            for buffer in draft.arguments
            if buffer not in touched and buffer.name not in inductor_names and not buffer.is_input
        )
        touched.update(draft.arguments)
        result.kernels.append(
            PlannedKernel(
                draft,
                bundle,
                views,
                serialize_kernel(bundle, views),
                *result.ends(draft.ops),
                draft.arguments,
                fresh,
                buckets.to_fill(draft),
            )
        )
        for buffer in draft.arguments:
            result.tensors[buffer.name] = buffer
    _retire(lowered, result, graph)
    return result


def _retire(lowered: GraphLowering, kernels: Kernels, graph: SpyreGraph) -> None:
    """Tell Inductor which buffers became part of a kernel, and the layouts of the others."""
    from .wrapper import FixedTiledLayout

    outputs = set(lowered.get_output_names())
    outputs |= {name for name, buffer in graph.buffers.items() if buffer.is_output}
    for name, buffer in list(lowered.name_to_buffer.items()):
        layout: Any = getattr(buffer, "layout", None)
        if not isinstance(layout, inductor_ir.Layout) or layout.device.type != DEVICE_NAME:
            continue
        planned = kernels.tensors.get(name)
        if planned is not None and planned.storage is not None:
            if type(layout) is inductor_ir.FixedLayout:
                storage = planned.storage
                buffer.layout = FixedTiledLayout(layout, storage.device_size, storage.stride_map)
        elif name not in outputs and type(layout) is inductor_ir.FixedLayout:
            lowered.removed_buffers.add(name)
    # Parts of a concatenation are views of it. They come before it, and go with it.
    for name, buffer in reversed(list(lowered.name_to_buffer.items())):
        layout = getattr(buffer, "layout", None)
        is_part = isinstance(layout, inductor_ir.NonOwningLayout)
        if is_part and layout.view.get_name() in lowered.removed_buffers:
            lowered.removed_buffers.add(name)
