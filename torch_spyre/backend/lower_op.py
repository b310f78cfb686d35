"""One SuperDSC as read: operation, dimensions and what they are, cores, tensors.

Only the normative fields count; fields that follow from them are compared where they are present,
and a disagreement is an error that names both.
"""

from __future__ import annotations

import functools
from math import prod
from typing import NamedTuple, NoReturn

import msgspec

from torch_spyre.backend import opcodes
from torch_spyre.backend.lower_tensor import Tensor, read_tensor
from torch_spyre.backend.program import CORES, StepKind
from torch_spyre.ir.superdsc import (
    MATMULS,
    RELAYOUT,
    RESTICKIFY,
    BundleError,
    ComputeOp,
    SuperDSC,
    path_text,
)

_COPIES = {RESTICKIFY: StepKind.RESTICKIFY, RELAYOUT: StepKind.RING}
_REDUCTIONS = frozenset(("sum", "sum_squares", "mean", "amax", "amin", "prod"))


class Division(NamedTuple):
    """The part of each core, in core order."""

    cores: tuple[int, ...]
    slices: tuple[tuple[int, ...], ...]  # per core, its slice number per dimension
    extent_rows: tuple[tuple[int, ...], ...]  # iterations: one row, or one per core


class Operation:
    """Reads top to bottom: operation, dimensions, tensors, roles of the dimensions, division."""

    kind: StepKind
    opcode: str
    op: ComputeOp
    reduced: tuple[int, ...]
    stick: int | None  # the dimension that counts sticks
    lane: int | None  # of a matmul: the dimension that counts sticks of k
    lanes: int  # elements of one iteration
    ring: int  # cores that make a result together; 0: each makes its own. Relayout: owners
    parts: tuple[int, ...] = ()  # of a relayout: the dimensions that count its owners

    def __init__(self, sdsc: SuperDSC, file: str) -> None:
        self.sdsc, self.file = sdsc, file
        self.dsc = sdsc.dsc
        self.top: tuple[str | int, ...] = (sdsc.name,)
        self.inside: tuple[str | int, ...] = (sdsc.name, "dscs_", 0, sdsc.name)
        self.read_operation()
        self.read_dimensions()
        self.read_tensors()
        self.find_roles()
        self.divide()
        self.check_derived()
        for number, tensor in enumerate(self.tensors):
            self.check_scale(number, tensor)
            self.check_starts(number, tensor)
            if tensor.owners and (number > 0 or self.kind is not StepKind.RING):
                self.fail(
                    *self.trees[number], "coreIdToOwners_", what="only a relayout's source has any"
                )

    def fail(self, *path: str | int, what: str) -> NoReturn:
        raise BundleError(self.file, path_text(*path), what)

    # ---- What the SuperDSC says ------------------------------------------------------------------

    def read_operation(self) -> None:
        if len(self.dsc.computeOp_) != 1:
            self.fail(*self.inside, "computeOp_", what="expected one operation")
        self.op = self.dsc.computeOp_[0]
        where = (*self.inside, "computeOp_", 0)
        name = self.op.opFuncName
        if name in _COPIES:
            self.kind = _COPIES[name]
            self.opcode = "identity"  # by domain, once the formats are read
        elif name in opcodes.by_name():
            self.opcode = name
            if name in MATMULS:
                self.kind = StepKind.MATMUL
            elif name in ("gather", "gather_int"):
                self.kind = StepKind.GATHER
            elif name.removesuffix("_int") in _REDUCTIONS:
                self.kind = StepKind.REDUCTION
            else:
                self.kind = StepKind.POINTWISE
        else:
            self.fail(*where, "opFuncName", what=f"'{name}' is no operation of the card")
        if len(self.op.outputLabeledDs) != 1:
            self.fail(*where, "outputLabeledDs", what="expected one output")
        wanted = 1 if name in _COPIES else len(opcodes.by_name()[name].operands)
        if len(self.op.inputLabeledDs) != wanted:
            self.fail(
                *where,
                "inputLabeledDs",
                what=f"{len(self.op.inputLabeledDs)} inputs; {name} takes {wanted}",
            )
        unit = "pt" if self.kind is StepKind.MATMUL else "sfp"
        if self.op.exUnit != unit:
            self.fail(*where, "exUnit", what=f"'{self.op.exUnit}'; {name} runs on '{unit}'")

    def read_dimensions(self) -> None:
        slices = self.sdsc.numWkSlicesPerDim_
        self.names = tuple(slices)
        self.dims = {name: i for i, name in enumerate(slices)}
        sizes = {key: value for key, value in self.dsc.N_.items() if key != "name_"}
        if set(sizes) != {f"{name}_" for name in slices}:
            self.fail(
                *self.inside,
                "N_",
                what=f"dimensions {sorted(sizes)}, but numWkSlicesPerDim_ has {sorted(slices)}",
            )
        self.extents: list[int] = []
        for name, count in slices.items():
            extent = sizes[f"{name}_"]
            if not isinstance(extent, int) or extent < 1:
                self.fail(*self.inside, "N_", f"{name}_", what=f"{extent!r}; expected an extent")
            if count < 1:
                self.fail(*self.top, "numWkSlicesPerDim_", name, what=f"{count}; at least 1")
            self.extents.append(extent)
        self.slices = tuple(slices.values())

    def read_tensors(self) -> None:
        nodes = {node.ldsIdx_: (i, node) for i, node in enumerate(self.dsc.scheduleTree_)}
        self.tensors: list[Tensor] = []
        self.trees: list[tuple[str | int, ...]] = []
        for number, labeled in enumerate(self.dsc.labeledDs_):
            where = (*self.inside, "labeledDs_", number)
            if labeled.ldsIdx_ != number or number not in nodes:
                self.fail(
                    *where,
                    "ldsIdx_",
                    what=f"{labeled.ldsIdx_}; expected {number}, with an allocate node in "
                    "scheduleTree_",
                )
            if set(labeled.scale_) != set(self.names):
                self.fail(
                    *where,
                    "scale_",
                    what=f"dimensions {sorted(labeled.scale_)}, but N_ has {sorted(self.names)}",
                )
            position, node = nodes[number]
            tree = (*self.inside, "scheduleTree_", position)
            present = sorted(name for name, org in labeled.memOrg_.items() if org.isPresent)
            if present != [node.component_]:
                self.fail(
                    *where,
                    "memOrg_",
                    what=f"says {', '.join(present)}, "
                    f"{path_text(*tree, 'component_')} says {node.component_}",
                )
            self.trees.append(tree)
            self.tensors.append(read_tensor(labeled, node, self.dims, self.fail, tree))
        self.output = self.tensors[
            self.tensor_number(self.op.outputLabeledDs[0], "outputLabeledDs")
        ]
        if self.op.opFuncName in _COPIES and self.output.format.domain == "I":
            self.opcode = "identity_int"

    def tensor_number(self, label: str, field: str) -> int:
        number = number_in(label, "Tensor")
        if number is None or number >= len(self.dsc.labeledDs_):
            self.fail(
                *self.inside,
                "computeOp_",
                0,
                field,
                what=f"'{label}' names none of the {len(self.dsc.labeledDs_)} tensors",
            )
        return number

    # ---- What the dimensions are -----------------------------------------------------------------

    def find_roles(self) -> None:
        """The dimension that counts sticks, that of k, those that are accumulated."""
        scale = self.output.scale
        where = (*self.inside, "labeledDs_", self.tensors.index(self.output), "scale_")
        self.reduced = tuple(i for i, value in enumerate(scale) if value < 0)
        accumulates = self.kind in (StepKind.REDUCTION, StepKind.MATMUL)
        if self.reduced and not accumulates:
            name = self.names[self.reduced[0]]
            self.fail(
                *where, name, what=f"{scale[self.reduced[0]]}; {self.opcode} writes every position"
            )
        self.stick = None if self.kind is StepKind.RESTICKIFY else self.output.lane_dim
        self.lane = None
        lane_reduced = [i for i, value in enumerate(scale) if value == -2]
        if lane_reduced:
            self.stick = lane_reduced[0]
            if len(lane_reduced) > 1 or self.tensors[0].lane_dim != self.stick:
                self.fail(
                    *where,
                    self.names[lane_reduced[-1]],
                    what="-2, but the input's sticks do not run along it",
                )
        if self.kind is StepKind.MATMUL:
            self.lane = self.tensors[0].lane_dim
            if self.lane not in self.reduced:
                self.fail(
                    *where, what="the sticks of a matmul's first operand run along a dimension of k"
                )
        self.lanes = self.lanes_per_iteration()
        self.units = [
            self.lanes if dim in (self.stick, self.lane) else 1 for dim in range(len(self.names))
        ]

    def lanes_per_iteration(self) -> int:
        """Those of a stick of the widest operand."""
        if self.kind is StepKind.RESTICKIFY:
            return 1
        if self.kind is StepKind.MATMUL:
            columns = self.tensors[1].format
            if any(tensor.format.lanes > columns.lanes for tensor in self.tensors):
                self.fail(
                    *self.inside,
                    "labeledDs_",
                    1,
                    "dataFormat_",
                    what=f"{columns.value}; no operand of a matmul has more elements per stick "
                    "than the second",
                )
            return columns.lanes
        formats = [t.format for t in self.tensors if t.lane_dim is not None or t is self.output]
        if self.stick in self.reduced:
            formats.remove(self.output.format)
        return max(fmt.lanes for fmt in formats)

    def divide(self) -> None:
        self.shares = []
        for name, extent, count, unit in zip(
            self.names, self.extents, self.slices, self.units, strict=True
        ):
            iterations = -(-extent // unit)
            share = -(-iterations // count)
            if -(-iterations // share) != count:
                self.fail(
                    *self.top,
                    "numWkSlicesPerDim_",
                    name,
                    what=f"{count} slices of {share} iterations do not divide "
                    f"the {iterations} of N_.{name}_ = {extent}: one would be empty",
                )
            self.shares.append(share * unit)
        division = _division(
            self.names,
            self.slices,
            tuple(zip(self.shares, self.extents, self.units, strict=True)),
            msgspec.msgpack.encode(self.sdsc.coreIdToWkSlice_),
        )
        if isinstance(division, _WrongError):
            self.fail(*self.top, "coreIdToWkSlice_", *division.path, what=division.what)
        self.cores, self.core_slices, self.extent_rows = division
        if self.kind is StepKind.RING:
            self.collect_parts()
        else:
            self.form_rings()

    def collect_parts(self) -> None:
        """Every core of a relayout has an owner for each of its parts."""
        source = self.tensors[0]
        if not (source.is_lx and self.output.is_lx) or source is self.output:
            self.fail(*self.inside, "scheduleTree_", what="a relayout goes from LX to LX")
        self.parts = tuple(
            dim
            for dim, extent in enumerate(self.extents)
            if extent > 1 and self.slices[dim] == 1 and not self.moves(source, dim)
        )
        self.ring = prod(self.extents[dim] for dim in self.parts)
        for core in self.cores:
            owners = source.owners.get(core, ())
            if len(owners) != self.ring:
                self.fail(
                    *self.trees[0],
                    "coreIdToOwners_",
                    str(core),
                    what=f"{len(owners)} owners for {self.ring} parts",
                )

    @staticmethod
    def moves(tensor: Tensor, dim: int) -> bool:
        return tensor.steps[dim] != 0 or tensor.lane_dim == dim

    def form_rings(self) -> None:
        """Cores with slices of the same result are partners, which must be neighbours."""
        kept = [dim for dim in range(len(self.names)) if dim not in self.reduced]
        count = prod(self.slices[dim] for dim in self.reduced)
        self.ring = count if count > 1 else 0
        for first in range(0, len(self.cores), count):
            partners = self.core_slices[first : first + count]
            if len({tuple(row[dim] for dim in kept) for row in partners}) > 1:
                what = "make different results; the partners of a ring are neighbours"
            elif list(partners) != sorted(partners):
                what = "are not in the order of their slices, in which a ring combines them"
            else:
                continue
            cores = ", ".join(map(str, self.cores[first : first + count]))
            self.fail(*self.top, "coreIdToWkSlice_", what=f"cores {cores} {what}")

    # ---- What follows and must agree -------------------------------------------------------------

    def check_derived(self) -> None:
        for where, count in (
            ((*self.top, "numCoresUsed_"), self.sdsc.numCoresUsed_),
            ((*self.inside, "numCoresUsed_"), self.dsc.numCoresUsed_),
        ):
            if count != len(self.cores):
                self.fail(*where, what=f"{count}, but coreIdToWkSlice_ has {len(self.cores)} cores")
        if self.dsc.coreIdsUsed_ != self.cores:
            self.fail(
                *self.inside,
                "coreIdsUsed_",
                what=f"{list(self.dsc.coreIdsUsed_)}, but coreIdToWkSlice_ has {list(self.cores)}",
            )
        stage = self.dsc.dataStageParam_.get("0")
        if stage is None:
            return
        for i, name in enumerate(self.names):
            share, extent = self.shares[i], self.extents[i]
            last = extent - (self.slices[i] - 1) * share
            for field, said, derived in (
                ("ss_", stage.ss_.get(f"{name}_"), min(share, extent)),
                ("el_", stage.el_.get(f"{name}_"), last),
            ):
                if said is not None and said != derived:
                    self.fail(
                        *self.inside,
                        "dataStageParam_",
                        "0",
                        field,
                        f"{name}_",
                        what=f"{said}, but N_.{name}_ = {extent} in numWkSlicesPerDim_.{name} = "
                        f"{self.slices[i]} slices makes {derived}",
                    )

    def check_scale(self, number: int, tensor: Tensor) -> None:
        for i, value in enumerate(tensor.scale):
            moves = self.moves(tensor, i)
            if value == 1 and (moves or self.extents[i] == 1 or tensor is self.output):
                continue
            if value in (-1, -2) and not moves and (value == -1 or tensor is self.output):
                continue
            at = path_text(*self.trees[number], "coordinates_", "coordInfo")
            said = "move" if moves else "do not move"
            self.fail(
                *self.inside,
                "labeledDs_",
                number,
                "scale_",
                self.names[i],
                what=f"{value}, but the folds of {at} {said} along it; expected "
                f"{1 if moves else -1}",
            )

    def check_starts(self, number: int, tensor: Tensor) -> None:
        tree = (*self.trees[number], "startAddressCoreCorelet_", "data_")
        missing = [core for core in self.cores if core not in tensor.starts]
        if missing:
            self.fail(*tree, what=f"no address for core {missing[0]}")
        if tensor.is_lx:
            return
        offsets = _slice_offsets(self.core_slices, tuple(tensor.slice_steps))
        first = tensor.starts[self.cores[0]] - offsets[0]
        for core, offset in zip(self.cores, offsets, strict=True):
            if tensor.starts[core] - offset != first:
                folds = path_text(*self.trees[number], "coordinates_", "coordInfo")
                self.fail(
                    *tree,
                    f"[{core}, 0, 0]",
                    what=f"{tensor.starts[core]}, but the core_fold entries of {folds} put its "
                    f"slice at {first + offset}",
                )


@functools.lru_cache(maxsize=1024)
def _slice_offsets(slices: tuple[tuple[int, ...], ...], steps: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes from the first slice to that of each core."""
    return tuple(sum(map(int.__mul__, row, steps)) for row in slices)


class _WrongError(NamedTuple):
    path: tuple[str, ...]
    what: str


@functools.lru_cache(maxsize=512)
def _division(
    names: tuple[str, ...],
    slices: tuple[int, ...],
    dims: tuple[tuple[int, int, int], ...],  # positions per slice, extent, positions per iteration
    encoded: bytes,
) -> Division | _WrongError:
    """The operations of a kernel are divided in few ways: each is worked out once."""
    rows: dict[int, tuple[int, ...]] = {}
    for core, places in msgspec.msgpack.decode(encoded, type=dict[str, dict[str, int]]).items():
        if not core.isdecimal() or int(core) >= CORES:
            return _WrongError((core,), f"no core; there are {CORES}")
        if not set(places) <= set(names):
            return _WrongError((core,), f"{sorted(places)}; dimensions are {', '.join(names)}")
        row = tuple(places.get(name, 0) for name in names)
        for name, place, count in zip(names, row, slices, strict=True):
            if not 0 <= place < count:
                what = f"slice {place}, but numWkSlicesPerDim_.{name} is {count}"
                return _WrongError((core, name), what)
        rows[int(core)] = row
    cores = tuple(sorted(rows))
    core_slices = tuple(rows[core] for core in cores)
    if not len(set(core_slices)) == len(core_slices) == prod(slices):
        return _WrongError(
            (),
            f"{len(set(core_slices))} distinct slices on {len(cores)} cores; "
            f"numWkSlicesPerDim_ makes {prod(slices)}, each on one core",
        )
    extents = tuple(
        tuple(
            -(-min(share, extent - place * share) // unit)
            for place, (share, extent, unit) in zip(row, dims, strict=True)
        )
        for row in core_slices
    )
    return Division(cores, core_slices, extents[:1] if len(set(extents)) == 1 else extents)


def number_in(label: str, prefix: str) -> int | None:
    """The number in "Tensor3-idx3", "Constant0-idx0", "extent_1"."""
    digits = label.removeprefix(prefix).partition("-")[0]
    return int(digits) if label.startswith(prefix) and digits.isdecimal() else None
