"""Where the cores find one tensor of an operation: its device dimensions, folds and starts."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple

from torch_spyre.ir import CORES
from torch_spyre.ir.spec import Coordinate, Dim, OpSpec, TensorArg
from torch_spyre.ir.superdsc import FORMAT_BY_NUMBER, CoordInfo, DataFormat
from torch_spyre.ir.terms import Term

from .folds import Fold, coord_info, core_maps


@dataclass(frozen=True)
class Split:
    """How the iteration dimensions are divided among the cores. Names are canonical: c0, c1, …"""

    names: tuple[str, ...]
    extents: tuple[int, ...]
    slices: tuple[int, ...]
    shares: tuple[int, ...]  # positions of one slice; those of the last one may be fewer
    padded: tuple[int, ...]  # extents in whole iterations
    order: tuple[int, ...] = ()  # in which cores count through the slices

    @classmethod
    def of(cls, op: OpSpec) -> Split:
        return cls._of(op.iteration_space, op.lanes, (op.stick, op.lane), op.core_order)

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def _of(
        cls,
        dims: tuple[Dim, ...],
        lanes: int,
        sticks: tuple[int | None, ...],
        order: tuple[int, ...],
    ) -> Split:
        names, shares, padded = [], [], []
        for i, dim in enumerate(dims):
            unit = lanes if i in sticks else 1
            iterations = -(-dim.extent // unit)
            share = -(-iterations // dim.slices)
            if dim.extent < 1 or -(-iterations // share) != dim.slices:
                raise ValueError(
                    f"dimension {dim.name} of extent {dim.extent} can't be divided into "
                    f"{dim.slices} slices of whole iterations ({unit} positions), none empty"
                )
            names.append(f"c{i}")
            shares.append(share * unit)
            padded.append(iterations * unit)
        if prod(dim.slices for dim in dims) > CORES:
            raise ValueError(f"more slices than the {CORES} cores: {dims}")
        return cls(
            tuple(names),
            tuple(dim.extent for dim in dims),
            tuple(dim.slices for dim in dims),
            tuple(shares),
            tuple(padded),
            order,
        )

    @property
    def last_extents(self) -> tuple[int, ...]:
        dims = zip(self.extents, self.slices, self.shares, strict=True)
        return tuple(extent - (slices - 1) * share for extent, slices, share in dims)


class Roles(NamedTuple):
    """What the dimensions and tensors of an operation are to it."""

    kind: str
    stick: int | None
    lane: int | None
    reduced: tuple[int, ...]
    tensor_numbers: tuple[int, ...]  # of the arguments: how many tensors stand before each

    @classmethod
    def of(cls, op: OpSpec) -> Roles:
        is_tensor = [isinstance(arg, TensorArg) for arg in op.args]
        numbers = tuple(sum(is_tensor[:i]) for i in range(len(is_tensor)))
        return cls(op.kind, op.stick, op.lane, op.reduced, numbers)


@dataclass(frozen=True)
class Layout:
    """A tensor as its allocate node and labeled data structure describe it, but for addresses."""

    format: DataFormat
    order: tuple[str, ...]
    sizes: tuple[int, ...]
    stick_name: str
    coordinates: dict[str, CoordInfo]
    scale: dict[str, int]
    indirect: str | None  # the dimension that an index tensor addresses
    offset: int  # bytes from the tensor's address
    slice_steps: tuple[int, ...]  # bytes per slice of each iteration dimension

    @property
    def kind(self) -> tuple[tuple[str, ...], str, int]:
        return self.order, self.stick_name, self.format.lanes


class Placed(NamedTuple):
    """A tensor of an operation, and where each core finds its part."""

    number: int
    component: Literal["hbm", "lx"]
    layout: Layout
    starts: tuple[int, ...]  # bytes, per core


def place(roles: Roles, split: Split, number: int, arg: TensorArg) -> Placed:
    """Resolve one tensor; raises ValueError for coordinates that sticks can't express."""
    where = arg.allocation
    is_lx = where.component == "lx"
    layout = _layout(
        roles,
        split,
        number,
        arg.is_input,
        arg.device_dtype,
        arg.device_size,
        arg.device_coordinates,
        is_lx,
        arg.owner,
    )
    base = layout.offset + (0 if where.component == "arg" else where.index)
    starts = _starts(split.slices, split.order, base, layout.slice_steps)
    return Placed(number, "lx" if is_lx else "hbm", layout, starts)


@functools.lru_cache(maxsize=4096)
def _starts(
    slices: tuple[int, ...], order: tuple[int, ...], base: int, steps: tuple[int, ...]
) -> tuple[int, ...]:
    rows = core_maps(slices, order).slices
    return tuple(base + sum(map(int.__mul__, row, steps)) for row in rows)


@functools.lru_cache(maxsize=4096)
def _layout(
    roles: Roles,
    split: Split,
    number: int,
    is_input: bool,
    device_dtype: int,
    device_size: tuple[int, ...],
    coordinates: tuple[Coordinate, ...],
    is_lx: bool,
    owner: tuple[Coordinate, ...],
) -> Layout:
    """Few layouts occur in a model, and each of them in many operations."""
    fmt = FORMAT_BY_NUMBER.get(device_dtype)
    if fmt is None or device_size[-1] != fmt.lanes:
        raise ValueError(
            f"tensor {number}: format {device_dtype} with {device_size[-1]} elements in a stick"
        )
    device = _device(roles, split, number, coordinates, fmt)
    names = _names(device, coordinates, split)
    infos: dict[str, CoordInfo] = {}
    sizes = []
    offset = 0
    steps = [0] * len(split.names)
    for name, j in zip(names, device.listed, strict=True):
        dim = _Dimension(roles, split, fmt, device, j)
        stride = prod(device_size[j + 1 :]) * fmt.nbytes
        offset += coordinates[j].offset * stride
        for term in coordinates[j].terms:
            steps[term.variable] += dim.slice_step(term) * stride
        infos[name] = dim.info(name, coordinates[j], is_lx, owner[j] if is_lx and owner else None)
        sizes.append(device_size[j] * dim.unit)
    addressed = [
        name
        for name, j in zip(names, device.listed, strict=True)
        if coordinates[j].indirect is not None
    ]
    # Every core has a slice of its own in LX, but where in an owner's its part begins may differ.
    starts_alike = is_lx and not (roles.kind == "relayout" and is_input)
    return Layout(
        fmt,
        names,
        tuple(sizes),
        names[device.listed.index(device.stick)],
        infos,
        _scale(roles, split, is_input, coordinates),
        addressed[0] if addressed else None,
        offset,
        (0,) * len(steps) if starts_alike else tuple(steps),
    )


class _Device(NamedTuple):
    """Which device dimensions are listed, and which of them is the stick dimension."""

    listed: tuple[int, ...]
    stick: int  # the device dimension that stands for tile and lane together, or the lane's own
    variable: int | None  # the iteration dimension that runs through the lanes
    has_tiles: bool = False


def _device(
    roles: Roles,
    split: Split,
    number: int,
    coordinates: tuple[Coordinate, ...],
    fmt: DataFormat,
) -> _Device:
    last = len(coordinates) - 1
    every = tuple(range(last + 1))
    lane = coordinates[last]
    if roles.kind == "restickify" or (roles.kind == "gather" and number == 1):
        return _Device(every, last, None)
    if not lane.terms:
        if lane.offset:
            raise ValueError(f"tensor {number}: reads lane {lane.offset}, only 0 can be")
        return _Device(every, last, None)
    term = lane.terms[0]
    one_stick = term.modulo is None and split.extents[term.variable] <= fmt.lanes
    if (
        len(lane.terms) > 1
        or lane.offset
        or term.variable not in (roles.stick, roles.lane)
        or term.coefficient != 1
        or term.floordiv != 1
        or not (one_stick or term.modulo == fmt.lanes)
    ):
        raise ValueError(
            f"tensor {number}: lane {lane.text(split.names)} is no "
            f"Mod(c, {fmt.lanes}) of the dimension that runs through sticks"
        )
    for j, coordinate in enumerate(coordinates[:last]):
        if any(t.variable == term.variable and t.floordiv == fmt.lanes for t in coordinate.terms):
            return _Device(tuple(range(last)), j, term.variable, has_tiles=True)
    if split.extents[term.variable] > fmt.lanes:
        raise ValueError(f"tensor {number}: no coordinate counts its sticks")
    return _Device(every, last, term.variable)


def _names(device: _Device, coordinates: tuple[Coordinate, ...], split: Split) -> tuple[str, ...]:
    """After the one iteration dimension that moves along it, else after its position."""
    names: list[str] = []
    for j in device.listed:
        moving = {term.variable for term in coordinates[j].terms}
        name = split.names[moving.pop()] if len(moving) == 1 else ""
        if not name or name in names or coordinates[j].indirect is not None:
            name = f"d{j}"
        names.append(name)
    return tuple(names)


def _scale(
    roles: Roles, split: Split, is_input: bool, coordinates: tuple[Coordinate, ...]
) -> dict[str, int]:
    if not is_input:
        gone = {dim: -2 if dim == roles.stick else -1 for dim in roles.reduced}
        return {name: gone.get(i, 1) for i, name in enumerate(split.names)}
    moving = {term.variable for c in coordinates for term in c.terms}
    return {name: 1 if i in moving else -1 for i, name in enumerate(split.names)}


class _Dimension(NamedTuple):
    """One device dimension of a tensor. The stick dimension's positions are listed in elements."""

    roles: Roles
    split: Split
    format: DataFormat
    device: _Device
    number: int

    @property
    def is_stick(self) -> bool:
        return self.device.variable is not None and self.number == self.device.stick

    @property
    def unit(self) -> int:
        """Listed positions per position of the device dimension: sticks are listed in elements."""
        return self.format.lanes if self.is_stick and self.device.has_tiles else 1

    def runs_through_sticks(self, term: Term) -> bool:
        """Is it the tile (or the lane) of the variable that runs through the lanes?"""
        divisor = self.format.lanes if self.device.has_tiles else 1
        is_own = self.is_stick and term.variable == self.device.variable
        return is_own and term.floordiv == divisor

    def slice_step(self, term: Term) -> int:
        """Positions of the device dimension from one slice of the term's variable to the next."""
        share = self.split.shares[term.variable]
        if self.runs_through_sticks(term):
            return term.coefficient * share // self.format.lanes if self.device.has_tiles else 0
        if term.floordiv != 1 or term.modulo is not None:
            text = Coordinate(0, (term,)).text(self.split.names)
            raise ValueError(
                f"{text} in device dimension "
                f"{self.number} is not the tile of a stick; split the iteration dimension"
            )
        return term.coefficient * share

    def info(
        self, name: str, coordinate: Coordinate, is_lx: bool, owner: Coordinate | None
    ) -> CoordInfo:
        """Folds: where slices start, then positions within a slice."""
        cores: list[Fold] = []
        elements: list[Fold] = []
        lanes = self.format.lanes
        is_padded = False
        for term in coordinate.terms:
            dim = self.split.names[term.variable]
            share = self.split.shares[term.variable]
            if self.runs_through_sticks(term):
                alpha = term.coefficient * lanes
                elements[:0] = [Fold(1, lanes, dim), Fold(alpha, -(-share // lanes), dim)]
                cores.append(Fold(term.coefficient * share, self.split.slices[term.variable], dim))
                is_padded = self.split.extents[term.variable] % lanes != 0
            else:
                alpha = term.coefficient * self.unit
                elements.append(Fold(alpha, share, dim))
                cores.append(Fold(alpha * share, self.split.slices[term.variable], dim))
        offset = coordinate.offset
        if is_lx:  # start addresses do not follow from these: every core has its own LX
            starts = owner or Coordinate()
            offset += starts.offset
            cores = [
                Fold(
                    term.coefficient * self.unit,
                    self.split.slices[term.variable],
                    self.split.names[term.variable],
                )
                for term in starts.terms
            ]
        return coord_info(
            self.is_stick,
            name,
            offset * self.unit,
            tuple(cores),
            tuple(elements),
            None if coordinate.indirect is None else self.roles.tensor_numbers[coordinate.indirect],
            is_padded,
        )
