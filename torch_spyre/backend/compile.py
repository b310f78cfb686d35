"""From a bundle to SpyreCode: looked up, or lowered, encoded and kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from torch_spyre._C import DataFormats
from torch_spyre.backend import cache, spyrecode
from torch_spyre.backend.lower import lower
from torch_spyre.backend.spyrecode import Argument, SpyreCode, StepInfo
from torch_spyre.ir.bundle import Bundle, Execute, Node, sdsc_file
from torch_spyre.ir.spec import Origin
from torch_spyre.ir.superdsc import RELAYOUT, RESTICKIFY


def compile_bundle(bundle: Bundle, kept: cache.SpyreCodeCache | None = None) -> SpyreCode:
    """The SpyreCode of a bundle, from the cache if one is given and has it.

    Equal kernels of different models share a file, so where the steps come from is always taken
    from the bundle at hand.
    """
    key = cache.key_of(bundle.content_hash)
    code = kept.load(key) if kept else None
    if code is None or code.manifest.bundle != bundle.content_hash:
        code = compile_afresh(bundle)
        if kept:
            kept.store(key, code)
        return code
    manifest = msgspec.structs.replace(code.manifest, steps=step_infos(bundle))
    return SpyreCode(manifest, code.program)


def compile_afresh(bundle: Bundle) -> SpyreCode:
    """Lower and encode."""
    return spyrecode.make(
        lower(bundle),
        bundle=bundle.content_hash,
        arguments=tuple(
            Argument(DataFormats(arg.device_dtype).name, arg.nbytes, arg.is_written)
            for arg in bundle.args
        ),
        pool_bytes=bundle.pool_bytes,
        extents=bundle.extents,
        steps=step_infos(bundle),
    )


def step_infos(bundle: Bundle) -> tuple[StepInfo, ...]:
    """What people are told about each step: the operations of the loop tree in order."""
    nodes = list(_executes(bundle.body))
    arguments = [f"arg{i}" for i in range(len(bundle.args))]
    for node in reversed(nodes):  # the first to write an argument gives it its name
        sdsc, origin = bundle.sdscs[node.sdsc], bundle.origin(node.sdsc)
        written = set(sdsc.dsc.computeOp_[0].outputLabeledDs)
        for ds, address in zip(sdsc.dsc.labeledDs_, node.addresses, strict=False):
            is_written = f"{ds.dsName_}-idx{ds.ldsIdx_}" in written
            if is_written and address.base == "arg" and origin.buffer:
                arguments[address.index] = origin.buffer
    return tuple(_step_info(bundle, node, arguments) for node in nodes)


def _step_info(bundle: Bundle, node: Execute, arguments: Sequence[str]) -> StepInfo:
    sdsc, origin = bundle.sdscs[node.sdsc], bundle.origin(node.sdsc)
    compute = sdsc.dsc.computeOp_[0]
    names = {
        f"{ds.dsName_}-idx{ds.ldsIdx_}": arguments[address.index] if address.base == "arg" else ""
        for ds, address in zip(sdsc.dsc.labeledDs_, node.addresses, strict=False)
    }
    buffers = [names.get(operand, "") for operand in compute.inputLabeledDs]
    buffers += [names.get(operand, "") or origin.buffer for operand in compute.outputLabeledDs]
    known = iter(origin.operands)
    operands = (*compute.inputLabeledDs, *compute.outputLabeledDs)
    buffers = [
        next(known, buffer) if operand in names else buffer
        for operand, buffer in zip(operands, buffers, strict=True)
    ]
    return StepInfo(sdsc.name, sdsc_file(node.sdsc), source_line(origin), tuple(buffers))


_COPIES = {RESTICKIFY: "spyre.restickify", RELAYOUT: "spyre.relayout"}


def step_labels(bundle: Bundle) -> list[tuple[str, str]]:
    """What a profile calls each step: the operation of PyTorch's that it belongs to, and its layer.

    Copies have names of their own: a model does not ask for most of them.
    """
    labels = []
    for node in _executes(bundle.body):
        name, origin = bundle.sdscs[node.sdsc].name, bundle.origin(node.sdsc)
        labels.append((_COPIES.get(name) or origin.original or origin.aten or name, origin.layer))
    return labels


def source_line(origin: Origin) -> str:
    """Where an operation comes from, in a line."""
    place = f"{origin.file}:{origin.line}" if origin.file else ""
    return "  ".join(part for part in (place, origin.code or origin.aten) if part)


def _executes(body: tuple[Node, ...]) -> Iterator[Execute]:
    for node in body:
        if isinstance(node, Execute):
            yield node
        else:
            yield from _executes(node.body)
