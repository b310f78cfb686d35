"""A planned kernel as the document has it: steps by the clock, buffers with places and lives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import msgspec

from torch_spyre._inductor import config
from torch_spyre._inductor import graph as loops
from torch_spyre._inductor.graph_text import op_text
from torch_spyre._inductor.plan import PlannedKernel
from torch_spyre._inductor.scratchpad.solvers import lx_capacity
from torch_spyre._inductor.tiling import loop_spans
from torch_spyre.backend.compile import step_infos
from torch_spyre.backend.cost import KernelCost, StepCost, program_cost
from torch_spyre.ir import STICK_BYTES
from torch_spyre.ir.bundle_mlir import print_bundle
from torch_spyre.ir.spec import LoopSpec, OpSpec
from torch_spyre.ir.spec_text import spec_text

from .document import Buffer, Kernel, Step, Units
from .sources import source_of


def kernel_of(planned: PlannedKernel, name: str, program: bytes, layers: Sequence[str]) -> Kernel:
    """A kernel under the name that it has in profiles; `layers` are those of its steps."""
    bundle, draft = planned.bundle, planned.draft
    cost = program_cost(name, program, step_infos(bundle), bundle.pool_bytes)
    buffers = {buffer: i for i, buffer in enumerate(_buffers(draft.steps))}
    return Kernel(
        name=name,
        hash=bundle.content_hash,
        duration=sum(map(_nanoseconds, cost.steps)),
        cores=cost.cores,
        lx_bytes=cost.lx_bytes,
        lx_capacity=lx_capacity(config.dxp_lx_frac_avail),
        pool_bytes=bundle.pool_bytes,
        arguments=len(bundle.args),
        buffers=tuple(_placed(planned, buffers)),
        steps=tuple(_steps(planned, cost, buffers, layers)),
        mlir=print_bundle(bundle),
    )


def _nanoseconds(step: StepCost) -> int:
    return round(step.microseconds * 1000)


def _buffers(ops: Sequence[loops.Op]) -> dict[loops.Buffer, None]:
    return dict.fromkeys(tensor.buffer for op in ops for tensor in op.tensors)


# ---- Steps --------------------------------------------------------------------------------------


def _steps(
    planned: PlannedKernel,
    cost: KernelCost,
    buffers: dict[loops.Buffer, int],
    layers: Sequence[str],
) -> Iterator[Step]:
    specs = _specs(planned.draft.spec.body, ())
    sdscs = planned.bundle.sdscs
    start = 0
    for (spec, counts), op, sdsc, spent, layer in zip(
        specs, planned.draft.steps, sdscs, cost.steps, layers, strict=True
    ):
        duration = _nanoseconds(spent)
        yield Step(
            op=spent.operation,
            kind=spec.kind,
            start=start,
            duration=duration,
            visits=spent.visits,
            loops=counts,
            cores=spent.cores,
            slices={dim.name: dim.slices for dim in spec.iteration_space},
            bound=spent.bound,
            units=_units(spent),
            macs=_macs(spec, planned.draft.spec.extents) * prod(counts),
            bytes_read=spent.bytes_read,
            bytes_written=spent.bytes_written,
            reads=tuple(dict.fromkeys(buffers[read.buffer] for read in op.reads)),
            writes=buffers[op.output.buffer],
            source=source_of(op.origin, layer),
            why=op.why,
            loop_ir=op_text(op),
            spec=spec_text(spec),
            sdsc=msgspec.json.encode({sdsc.name: sdsc}).decode(),
        )
        start += duration


def _units(step: StepCost) -> Units:
    busy = step.units
    return Units(*(1000 * t for t in (busy.pt, busy.sfp, busy.memory, busy.lx, busy.ring)))


def _specs(
    body: Sequence[OpSpec | LoopSpec], counts: tuple[int, ...]
) -> Iterator[tuple[OpSpec, tuple[int, ...]]]:
    """Every operation, with the counts of the loops around it."""
    for node in body:
        if isinstance(node, LoopSpec):
            yield from _specs(node.body, (*counts, node.count))
        else:
            yield node, counts


def _macs(spec: OpSpec, extents: Sequence[int]) -> int:
    """Multiply-adds of one visit, those of masked positions left out."""
    if spec.kind != "matmul":
        return 0
    sizes = [dim.extent for dim in spec.iteration_space]
    for mask in spec.masks:
        valid = extents[mask.valid] if mask.is_symbol else mask.valid
        if not any(mask.loop_positions):
            sizes[mask.dim] = min(sizes[mask.dim], valid)
    return prod(sizes)


# ---- Buffers ------------------------------------------------------------------------------------


def _placed(planned: PlannedKernel, buffers: dict[loops.Buffer, int]) -> Iterator[Buffer]:
    draft = planned.draft
    numbers = {buffer: i for i, buffer in enumerate(draft.arguments)}
    written = {op.output.buffer for op in draft.ops}
    lives = _lives(draft.steps)
    for buffer in buffers:
        storage, place = buffer.storage, buffer.place
        assert storage is not None
        component = "argument" if place is None else place.component
        nbytes = buffer.nbytes
        if component == "lx" and buffer.local is not None:
            nbytes = prod(buffer.local.size) * STICK_BYTES
        first, last = lives[buffer]
        yield Buffer(
            name=buffer.name,
            dtype=str(buffer.dtype).removeprefix("torch."),
            shape=buffer.size,
            device_size=storage.device_size,
            stride_map=storage.stride_map,
            component=component,
            address=numbers[buffer] if place is None else place.index,
            nbytes=nbytes,
            first=first,
            last=last,
            why_not_lx="" if component == "lx" else _why_not_lx(buffer, buffer in written),
        )


def _why_not_lx(buffer: loops.Buffer, is_written: bool) -> str:
    """The compiler's reason; it gives none for what a kernel only reads."""
    if buffer.why_not_lx or is_written:
        return buffer.why_not_lx
    if buffer.is_input:
        return "it enters or leaves the graph"
    return "another kernel writes it, and nothing in LX survives a kernel"


def _lives(ops: Sequence[loops.Op]) -> dict[loops.Buffer, tuple[int, int]]:
    """The first and the last step that touch each buffer.

    What is made before a loop and used in it is wanted again by the next iteration.
    """
    spans = loop_spans(ops)
    found: dict[loops.Buffer, tuple[int, int]] = {}
    for i, op in enumerate(ops):
        for tensor in op.tensors:
            first, last = found.get(tensor.buffer, (i, i))
            end = next((end for start, end in spans[op] if first < start), i)
            found[tensor.buffer] = first, max(last, end)
    return found
