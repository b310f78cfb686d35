"""One SuperDSC to one step: how each operand walks the iterations, and which positions count."""

from __future__ import annotations

from dataclasses import dataclass

from torch_spyre.backend.lower_op import Operation, number_in
from torch_spyre.backend.lower_tensor import Tensor, core_values
from torch_spyre.backend.program import (
    LOOP_DEPTH,
    NO_STICK_DIM,
    Lanes,
    Mask,
    Operand,
    Space,
    Step,
    StepKind,
)
from torch_spyre.ir.bundle import MLIR_FILE, Address
from torch_spyre.ir.superdsc import (
    NO_CONSTANT,
    BundleError,
    Constant,
    DataFormat,
    MaskedRange,
    SuperDSC,
    neutral_bits,
)

_FLOAT, _INT = DataFormat.IEEE_FP32, DataFormat.IEEE_INT32


@dataclass(frozen=True)
class Binding:
    """What the addresses of one execution of a SuperDSC are, and where symbols start."""

    addresses: tuple[Address, ...]
    depth: int  # enclosing loops
    pool: int  # the symbol of the pool
    extents: tuple[int, ...]  # their largest values
    first_extent: int  # the symbol of the first one


@dataclass(frozen=True)
class Lowered:
    """A step whose Constant operands count in `constants`, and what the planning of a program
    needs beyond it."""

    step: Step
    constants: tuple[int, ...]
    lanes: int


def lower_step(sdsc: SuperDSC, file: str, binding: Binding) -> Lowered:
    """The step of one SuperDSC; raises BundleError."""
    return _StepWriter(sdsc, file, binding).run()


class _StepWriter(Operation):
    """Turns what was read into operands and masks."""

    def __init__(self, sdsc: SuperDSC, file: str, binding: Binding) -> None:
        super().__init__(sdsc, file)
        self.binding = binding
        self.constants: list[int] = []
        if len(self.binding.addresses) != len(self.tensors):
            raise BundleError(
                MLIR_FILE,
                "",
                f"{self.file} is executed with {len(self.binding.addresses)} addresses, "
                f"it has {len(self.tensors)} tensors",
            )

    def run(self) -> Lowered:
        inputs = tuple(self.operand(i, label) for i, label in enumerate(self.op.inputLabeledDs))
        output = self.operand(len(inputs), self.op.outputLabeledDs[0])
        step = Step(
            opcode=self.opcode,
            kind=self.kind,
            cores=sum(1 << core for core in self.cores),
            extents=self.extent_rows,
            inputs=inputs,
            outputs=(output,),
            stick_dim=NO_STICK_DIM if self.stick is None else self.stick,
            tail_cores=self.tail_cores(),
            lane_dim=NO_STICK_DIM if self.lane is None else self.lane,
            reduced=sum(1 << dim for dim in (*self.reduced, *self.parts)),
            masks=self.masks(),
            ring=self.ring,
        )
        return Lowered(step, tuple(self.constants), self.lanes)

    # ---- Operands --------------------------------------------------------------------------------

    def operand(self, position: int, label: str) -> Operand:
        if label.startswith("Constant"):
            return self.constant(position, label)
        is_output = position == len(self.op.inputLabeledDs)
        number = self.tensor_number(label, "outputLabeledDs" if is_output else "inputLabeledDs")
        tensor = self.tensors[number]
        is_elementwise = self.kind is StepKind.RESTICKIFY or (
            self.kind is StepKind.GATHER and position == 1
        )
        lanes = self.lanes_of(position, tensor, is_elementwise, is_output)
        strides, tile_stride, tail_tiles = self.walk(position, number, tensor)
        if self.kind is StepKind.GATHER and position == 0:
            if tensor.index_tensor is None:
                self.fail(
                    *self.trees[number], "coordinates_", what="a gather's table has no Indirect"
                )
            tile_stride = tensor.row_step
        starts = tuple(tensor.starts[core] for core in self.cores)
        address = self.binding.addresses[number]
        if (address.base == "lx") != tensor.is_lx:
            self.fail(
                *self.trees[number],
                "component_",
                what=f"{'lx' if tensor.is_lx else 'hbm'}, but bundle.mlir gives it an address "
                f"in {address.base}",
            )
        symbol = 0
        if address.base != "lx":
            symbol = address.index if address.base == "arg" else self.binding.pool
        space = Space.LX if tensor.is_lx else Space.DEVICE
        return Operand(
            Space.RING if tensor.owners else space,
            tensor.format.number,
            symbol,
            lanes,
            _shortest(starts),
            strides,
            tile_stride,
            tail_tiles,
            address.loop_bytes,
            tuple(owner for core in self.cores for owner in tensor.owners.get(core, ())),
        )

    def lanes_of(
        self, position: int, tensor: Tensor, is_elementwise: bool, is_output: bool
    ) -> Lanes:
        if is_elementwise:
            return Lanes.ELEMENT
        if tensor.lane_dim is not None or self.kind is StepKind.MATMUL:
            return Lanes.VECTOR
        if self.kind is StepKind.GATHER and position == 0:
            return Lanes.VECTOR
        if not is_output or (self.stick in self.reduced and self.kind is StepKind.REDUCTION):
            return Lanes.FIRST
        return Lanes.VECTOR

    def walk(self, position: int, number: int, tensor: Tensor) -> tuple[tuple[int, ...], int, int]:
        """Byte strides per iteration, bytes between sticks of one, and how many the last has."""
        strides = []
        tile_stride = tail_tiles = 0
        for dim, (step, unit) in enumerate(zip(tensor.steps, self.units, strict=True)):
            if dim == tensor.lane_dim:
                lanes = tensor.format.lanes
                if unit % lanes:
                    self.fail(
                        *self.trees[number],
                        "coordinates_",
                        "coordInfo",
                        what=f"its sticks run along {self.names[dim]}, those of the result do not",
                    )
                tiles = unit // lanes
                strides.append(tiles * step)
                if tiles > 1:
                    tile_stride = step
                if tiles > 1 and dim != self.lane:  # along k a mask says which sticks count
                    tail_tiles = -(-(self.extents[dim] % unit) // lanes) % tiles
            elif unit > 1 and step:
                is_rows_of_k = self.kind is StepKind.MATMUL and position == 1 and dim == self.lane
                if not is_rows_of_k and self.extents[dim] > 1:
                    self.fail(
                        *self.trees[number],
                        "coordinates_",
                        "coordInfo",
                        what=f"it moves along {self.names[dim]}, which runs through the sticks of "
                        "the result, but not through its own",
                    )
                strides.append(step * unit)
                tile_stride = step
            else:
                strides.append(step)
        return tuple(strides), tile_stride, tail_tiles

    def tail_cores(self) -> int:
        """The cores with the last slice of sticks, if its last iteration is partial. Also where no
        operand has missing sticks: the steps of a chain agree in it."""
        if self.stick is None or self.extents[self.stick] % self.units[self.stick] == 0:
            return 0
        last = self.slices[self.stick] - 1
        return sum(
            1 << core
            for core, row in zip(self.cores, self.core_slices, strict=True)
            if row[self.stick] == last
        )

    def constant(self, position: int, label: str) -> Operand:
        number = number_in(label, "Constant")
        constant = self.dsc.constantInfo_.get(str(number))
        where = (*self.inside, "computeOp_", 0, "inputLabeledDs", position)
        if constant is None:
            self.fail(*where, what=f"'{label}' is not in constantInfo_")
        path = (*self.inside, "constantInfo_", str(number))
        if constant.data_.dim_prop_func and constant.data_.dim_prop_func[0].Affine is not None:
            return self.iota(constant, path)
        bits = self.bits(constant, path)
        self.constants.append(bits)
        index = len(self.constants) - 1
        return Operand(Space.CONSTANT, constant.dataFormat_.number, index, lanes=Lanes.FIRST)

    def bits(self, constant: Constant, path: tuple[str | int, ...]) -> int:
        if constant.dataFormat_ not in (_FLOAT, _INT):
            self.fail(*path, "dataFormat_", what="constants are IEEE_FP32 or IEEE_INT32")
        values = core_values(constant.data_, self.fail, (*path, "data_"))
        if set(values) != {0} or not 0 <= values[0] < 1 << 32:
            self.fail(*path, "data_", "data_", what="expected one 32-bit word, at [0, 0, 0]")
        return values[0]

    def iota(self, constant: Constant, path: tuple[str | int, ...]) -> Operand:
        steps = [0] * len(self.names)
        loops = [0] * self.binding.depth
        offset = 0
        data = constant.data_
        for i, (function, attr) in enumerate(
            zip(data.dim_prop_func, data.dim_prop_attr, strict=False)
        ):
            if function.Affine is None:
                self.fail(*path, "data_", "dim_prop_func", i, what="expected Affine, as the first")
            offset += function.Affine.beta_
            loop = number_in(attr.label_, "loop_")
            if attr.label_ in self.dims:
                steps[self.dims[attr.label_]] += function.Affine.alpha_
            elif loop is not None and loop < self.binding.depth:
                loops[loop] += function.Affine.alpha_
            else:
                self.fail(
                    *path,
                    "data_",
                    "dim_prop_attr",
                    i,
                    "label_",
                    what=f"'{attr.label_}' is no dimension of N_ and no enclosing loop",
                )
        per_slice = [step * share for step, share in zip(steps, self.shares, strict=True)]
        bases = tuple(offset + sum(map(int.__mul__, row, per_slice)) for row in self.core_slices)
        return Operand(
            Space.IOTA,
            _INT.number,
            0,
            Lanes.VECTOR,
            _shortest(bases),
            tuple(step * unit for step, unit in zip(steps, self.units, strict=True)),
            0 if self.stick is None else steps[self.stick],
            0,
            tuple(loops),
        )

    # ---- Masks -----------------------------------------------------------------------------------

    def masks(self) -> tuple[Mask, ...]:
        found: list[Mask] = []
        masked = set()
        for name, ranges in self.dsc.coordinateMasking_.items():
            for i, span in enumerate(ranges):
                where = (*self.inside, "coordinateMasking_", name, i)
                if i > 0:
                    self.fail(*where, what="a dimension has one range that does not count")
                if self.kind is StepKind.GATHER:
                    found.append(self.row_count(name, span, where))
                else:
                    found.append(self.mask(name, span, where))
                    masked.add(found[-1].dim)
        if self.kind is StepKind.GATHER and len(found) != 1:
            self.fail(
                *self.inside,
                "coordinateMasking_",
                what="a gather needs one range: the rows behind the last of its table",
            )
        if masked:
            self.check_neutral()
        for dim in self.reduced:
            if dim not in masked and self.extents[dim] % self.units[dim]:
                self.fail(
                    *self.inside,
                    "coordinateMasking_",
                    what=f"no range for {self.names[dim]}: N_.{self.names[dim]}_ = "
                    f"{self.extents[dim]} ends inside a stick of {self.units[dim]}, "
                    "whose padding must not count",
                )
        return tuple(found)

    def mask(self, name: str, span: MaskedRange, where: tuple[str | int, ...]) -> Mask:
        dim = self.dims.get(name)
        if dim is None or dim not in self.reduced:
            self.fail(*where, what=f"{name} is no dimension that {self.opcode} accumulates")
        padded = -(-self.extents[dim] // self.units[dim]) * self.units[dim]
        if span.end_ != padded:
            self.fail(
                *where,
                "end_",
                what=f"{span.end_}, but N_.{name}_ = {self.extents[dim]} ends at {padded}",
            )
        valid, is_symbol = self.valid(span, where)
        if len(span.loopOffsets_) > min(self.binding.depth, LOOP_DEPTH):
            self.fail(*where, "loopOffsets_", what=f"within {self.binding.depth} loops")
        share = self.shares[dim]
        return Mask(
            dim,
            valid,
            is_symbol,
            _shortest(tuple(row[dim] * share for row in self.core_slices)),
            span.loopOffsets_ + (0,) * (self.binding.depth - len(span.loopOffsets_)),
        )

    def valid(self, span: MaskedRange, where: tuple[str | int, ...]) -> tuple[int, bool]:
        if isinstance(span.start_, int):
            return span.start_, False
        number = number_in(span.start_, "extent_")
        if number is None or number >= len(self.binding.extents):
            self.fail(
                *where,
                "start_",
                what=f"'{span.start_}' is no extent of bundle.mlir, which has "
                f"{len(self.binding.extents)}",
            )
        return self.binding.first_extent + number, True

    def row_count(self, name: str, span: MaskedRange, where: tuple[str | int, ...]) -> Mask:
        if name != self.tensors[0].rows_dim:
            self.fail(*where, what=f"{name} is not the dimension of the table with the Indirect")
        valid, is_symbol = self.valid(span, where)
        loops = (0,) * self.binding.depth
        return Mask(NO_STICK_DIM, valid, is_symbol, loop_strides=loops)

    def check_neutral(self) -> None:
        number = self.dsc.maskingConstId_
        constant = self.dsc.constantInfo_.get(str(number))
        where = (*self.inside, "maskingConstId_")
        if number == NO_CONSTANT or constant is None:
            self.fail(*where, what=f"{number} is not in constantInfo_; masks need a constant")
        bits = self.bits(constant, (*self.inside, "constantInfo_", str(number)))
        wanted = neutral_bits(self.opcode)
        if bits != wanted:
            self.fail(
                *where,
                what=f"constantInfo_.{number} holds {bits:#010x}; "
                f"the neutral value of {self.opcode} is {wanted:#010x}",
            )


def _shortest(values: tuple[int, ...]) -> tuple[int, ...]:
    return values[:1] if len(set(values)) == 1 else values
