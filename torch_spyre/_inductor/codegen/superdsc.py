"""From OpSpecs to a bundle: every number of a planned operation, in the fields of a SuperDSC.

Nothing is decided here. What the bundle says beyond the spec (per-core start addresses, extents of
slices, the padding lanes that a reduction must not see) follows from it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from torch_spyre.ir.bundle import Address, Bundle, Execute, For, Node
from torch_spyre.ir.spec import (
    ConstantArg,
    IotaArg,
    KernelSpec,
    LoopSpec,
    Mask,
    OpSpec,
    Origin,
    TensorArg,
)
from torch_spyre.ir.superdsc import (
    NO_CONSTANT,
    RELAYOUT,
    RESTICKIFY,
    Allocate,
    Attributes,
    ComputeOp,
    Constant,
    Coordinates,
    DataFormat,
    Dsc,
    LabeledDs,
    MaskedRange,
    Presence,
    PrimaryDs,
    StageExtents,
    SuperDSC,
    neutral_bits,
)

from .folds import (
    CORELET,
    TIME,
    const_data,
    core_map,
    core_maps,
    counted_data,
    prop,
)
from .tensors import Placed, Roles, Split, place

_PRESENT = {"hbm": {"hbm": Presence(True)}, "lx": {"lx": Presence(True)}}
_CLASSES = ("INPUT", "OUTPUT", "KERNEL", "KERNEL_1", "KERNEL_2")
_FIXED_CLASSES = {
    "matmul": ("INPUT", "KERNEL", "OUTPUT"),
    "gather": ("KERNEL", "KERNEL_IDX", "OUTPUT"),
}
_COPIES = {"restickify": RESTICKIFY, "relayout": RELAYOUT}
_SDSC_FOLDS = counted_data(((0, "time", 1),), {"[0]": 0})


def bundle_of(kernel: KernelSpec) -> Bundle:
    """The bundle of a kernel: the same for equal kernels, whatever their dimensions are called."""
    writer = _Writer(kernel)
    body = writer.body(kernel.body, 0)
    return Bundle(
        tuple(writer.sdscs),
        body,
        kernel.args,
        kernel.pool_bytes,
        kernel.extents,
        tuple(writer.origins),
    )


@dataclass
class _Writer:
    kernel: KernelSpec
    sdscs: list[SuperDSC] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)

    def body(self, body: Sequence[OpSpec | LoopSpec], depth: int) -> tuple[Node, ...]:
        nodes: list[Node] = []
        for node in body:
            if isinstance(node, LoopSpec):
                nodes.append(For(node.count, self.body(node.body, depth + 1)))
            else:
                nodes.append(Execute(len(self.sdscs), _addresses(node, depth)))
                self.sdscs.append(superdsc_of(node, self.kernel.extents))
                self.origins.append(node.origin)
        return tuple(nodes)


def _addresses(op: OpSpec, depth: int) -> tuple[Address, ...]:
    found = []
    for arg in op.args:
        if isinstance(arg, TensorArg):
            component, index = arg.allocation.component, arg.allocation.index
            if len(arg.loop_bytes) > depth:
                raise ValueError(f"{op.op}: loop_bytes {arg.loop_bytes} within {depth} loops")
            steps = arg.loop_bytes + (0,) * (depth - len(arg.loop_bytes))
            found.append(Address(component, index if component == "arg" else 0, steps))
    return tuple(found)


def superdsc_of(op: OpSpec, extents: tuple[int, ...] = ()) -> SuperDSC:
    """One operation; `extents` are the largest values of the launch's extent arguments.

    Raises ValueError for a spec that no SuperDSC can express.
    """
    try:
        return _superdsc(op, extents)
    except ValueError as error:
        raise ValueError(f"{op.op}: {error}") from None


def _superdsc(op: OpSpec, extents: tuple[int, ...]) -> SuperDSC:
    split = Split.of(op)
    roles = Roles.of(op)
    name = _COPIES.get(op.kind, op.op)
    maps = core_maps(split.slices, split.order)
    stage = StageExtents(
        ss_={"name_": "core", **_sizes(split, map(min, split.shares, split.extents))},
        el_={"name_": "core", **_sizes(split, split.last_extents)},
    )
    tensors = [
        place(roles, split, number, arg)
        for number, arg in enumerate(arg for arg in op.args if isinstance(arg, TensorArg))
    ]
    classes = _classes(op, tensors)
    constants = _Constants(op)
    masking = _masking(op, split, tensors, extents)
    masks_reduce = any(mask for dim, mask in masking.items() if dim in split.names)
    dsc = Dsc(
        numCoresUsed_=maps.cores,
        coreIdsUsed_=tuple(range(maps.cores)),
        N_={"name_": "n", **_sizes(split, split.extents)},
        dataStageParam_={"0": stage},
        primaryDsInfo_={
            kind: PrimaryDs(t.layout.order, (t.layout.stick_name,), (t.layout.format.lanes,))
            for kind, t in zip(reversed(classes), reversed(tensors), strict=True)
        },
        labeledDs_=tuple(map(_labeled, tensors, classes)),
        scheduleTree_=tuple(_allocate(op, tensor) for tensor in tensors),
        coordinateMasking_=masking,
        maskingConstId_=constants.neutral() if masks_reduce else NO_CONSTANT,
        constantInfo_=constants.table,
        computeOp_=(_compute(op, name, tensors[-1].layout.format, constants),),
    )
    return SuperDSC(
        coreFoldProp_=prop(maps.cores, "core"),
        coreletFoldProp_=CORELET,
        numCoresUsed_=maps.cores,
        numWkSlicesPerDim_=dict(zip(split.names, split.slices, strict=True)),
        coreIdToWkSlice_=maps.slice_of,
        coreIdToDsc_=maps.dsc_of,
        coreIdToDscSchedule=maps.schedule_of,
        sdscFoldProps_=(TIME,),
        sdscFolds_=_SDSC_FOLDS,
        dscs_=({name: dsc},),
    )


def _sizes(split: Split, values: Iterable[int]) -> dict[str, int | str]:
    return {f"{name}_": value for name, value in zip(split.names, values, strict=True)}


def _classes(op: OpSpec, tensors: Sequence[Placed]) -> tuple[str, ...]:
    """A name per distinct layout; a matmul's and a gather's operands have names of their own."""
    if op.kind in _FIXED_CLASSES:
        return _FIXED_CLASSES[op.kind]
    seen: dict[tuple[tuple[str, ...], str, int], str] = {}
    for tensor in tensors:
        seen.setdefault(tensor.layout.kind, _CLASSES[min(len(seen), len(_CLASSES) - 1)])
    return tuple(seen[tensor.layout.kind] for tensor in tensors)


def _labeled(tensor: Placed, kind: str) -> LabeledDs:
    return LabeledDs(
        ldsIdx_=tensor.number,
        dsName_=f"Tensor{tensor.number}",
        dsType_=kind,
        scale_=tensor.layout.scale,
        wordLength=tensor.layout.format.nbytes,
        dataFormat_=tensor.layout.format,
        memOrg_=_PRESENT[tensor.component],
    )


def _allocate(op: OpSpec, tensor: Placed) -> Allocate:
    is_owned = op.kind == "relayout" and tensor.number == 0
    owners = {str(core): row for core, row in enumerate(op.owners)} if is_owned else UNSET
    return Allocate(
        nodeType_="allocate",
        name_=f"allocate_Tensor{tensor.number}_{tensor.component}",
        prev_="",
        ldsIdx_=tensor.number,
        component_=tensor.component,
        layoutDimOrder_=tensor.layout.order,
        maxDimSizes_=tensor.layout.sizes,
        startAddressCoreCorelet_=core_map(tensor.starts),
        coordinates_=Coordinates(tensor.layout.coordinates),
        coreIdToOwners_=owners,
    )


def _compute(op: OpSpec, name: str, result: DataFormat, constants: _Constants) -> ComputeOp:
    inputs = []
    tensors = 0
    for arg in op.inputs:
        if isinstance(arg, TensorArg):
            inputs.append(f"Tensor{tensors}-idx{tensors}")
            tensors += 1
        else:
            number = constants.add(arg)
            inputs.append(f"Constant{number}-idx{number}")
    return ComputeOp(
        exUnit="pt" if op.kind == "matmul" else "sfp",
        opFuncName=name,
        attributes_=Attributes(result, "regular"),
        location="Inner",
        inputLabeledDs=tuple(inputs),
        outputLabeledDs=(f"Tensor{tensors}-idx{tensors}",),
    )


class _Constants:
    """`constantInfo_` under construction; equal constants are one entry."""

    def __init__(self, op: OpSpec) -> None:
        self.op = op
        self.table: dict[str, Constant] = {}
        self.seen: dict[ConstantArg | IotaArg, int] = {}

    def add(self, arg: ConstantArg | IotaArg) -> int:
        number = self.seen.get(arg)
        if number is None:
            number = self.seen[arg] = len(self.table)
            entry = self.value(arg) if isinstance(arg, ConstantArg) else self.count(arg)
            self.table[str(number)] = entry
        return number

    def neutral(self) -> int:
        bits = neutral_bits(self.op.op)
        if bits is None:
            raise ValueError("only reductions and matmuls have masks")
        return self.add(ConstantArg("I" if self.op.op.endswith("_int") else "F", bits))

    @staticmethod
    def value(arg: ConstantArg) -> Constant:
        is_float = arg.domain == "F"
        (value,) = struct.unpack("<f" if is_float else "<i", struct.pack("<I", arg.bits))
        held_as = DataFormat.IEEE_FP32 if is_float else DataFormat.IEEE_INT32
        return Constant(f"{value:.9g}" if is_float else str(value), held_as, const_data(arg.bits))

    def count(self, arg: IotaArg) -> Constant:
        dims = self.op.iteration_space
        folds = [(step, f"c{i}", dims[i].extent) for i, step in enumerate(arg.steps)]
        folds += [(step, f"loop_{i}", 0) for i, step in enumerate(arg.loop_steps)]
        data = counted_data(tuple(folds), {}, arg.offset)
        return Constant("iota", DataFormat.IEEE_INT32, data)


def _masking(
    op: OpSpec, split: Split, tensors: Sequence[Placed], extents: tuple[int, ...]
) -> dict[str, tuple[MaskedRange, ...]]:
    """The masks of the spec, and one where a reduction would see lanes behind the end."""
    found: dict[str, tuple[MaskedRange, ...]] = {}
    for dim in dict.fromkeys((*(mask.dim for mask in op.masks), *op.reduced)):
        mask = _one_mask(op, split, dim, extents)
        if mask is not None:
            start = f"extent_{mask.valid}" if mask.is_symbol else mask.valid
            masked = MaskedRange(start, split.padded[dim], mask.loop_positions)
            found[split.names[dim]] = (masked,)
    if op.kind == "gather":
        table = tensors[0].layout
        if table.indirect is None:
            raise ValueError("no coordinate of the table is an IndirectAccess")
        rows = table.sizes[table.order.index(table.indirect)]
        found[table.indirect] = (MaskedRange(op.rows, max(rows, op.rows)),)
    return found


def _one_mask(op: OpSpec, split: Split, dim: int, extents: tuple[int, ...]) -> Mask | None:
    """What limits a dimension: the shortest of the lengths known, or the launch's."""
    known = [mask for mask in op.masks if mask.dim == dim]
    symbols = [mask for mask in known if mask.is_symbol]
    lengths = [mask for mask in known if not mask.is_symbol]
    if split.padded[dim] != split.extents[dim] and not any(m.loop_positions for m in known):
        lengths.append(Mask(dim, split.extents[dim]))
    shortest = min(lengths, key=lambda mask: mask.valid, default=None)
    if not symbols:
        return shortest
    longest = extents[symbols[0].valid]
    if len(symbols) > 1 or (shortest is not None and shortest.valid < longest):
        raise ValueError(
            f"dimension {op.iteration_space[dim].name} has several masks, and which one "
            f"is the shortest is not known before launch: {known}"
        )
    return symbols[0]
