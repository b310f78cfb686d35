"""One tensor of a SuperDSC, read from its allocate node: bytes per position of each dimension."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from msgspec import UNSET

from torch_spyre.backend.program import CORES
from torch_spyre.ir.superdsc import (
    ELEMENTWISE,
    STICKWISE,
    Allocate,
    CoordInfo,
    DataFormat,
    FoldedData,
    FoldFunction,
    FoldProp,
    LabeledDs,
)

Fail = Callable[..., NoReturn]
_INDEX = re.compile(r"\[(\d+), 0, 0\]")


@dataclass
class Tensor:
    """How iterations and slices move a tensor's address. Steps are bytes, by dimension number."""

    format: DataFormat
    is_lx: bool
    scale: tuple[int, ...]
    # Positions within a slice. For `lane_dim` it is the bytes from stick to stick.
    steps: list[int]
    # Slices, and the part that is the same for all cores.
    slice_steps: list[int]
    offset: int = 0
    lane_dim: int | None = None  # the dimension that runs through the lanes of the sticks
    row_step: int = 0  # bytes per row that an index tensor names
    rows_dim: str | None = None
    index_tensor: int | None = None
    starts: dict[int, int] = field(default_factory=dict)  # by core
    # The source of a relayout: by core, the cores that it finds the parts of its slice in.
    owners: dict[int, tuple[int, ...]] = field(default_factory=dict)


def read_tensor(
    labeled: LabeledDs,
    node: Allocate,
    dims: Mapping[str, int],
    fail: Fail,
    tree: tuple[str | int, ...],
) -> Tensor:
    """Resolve the folds of an allocate node; `tree` is its path, for messages."""
    rank = len(dims)
    tensor = Tensor(
        labeled.dataFormat_,
        node.component_ == "lx",
        tuple(labeled.scale_[name] for name in dims),
        [0] * rank,
        [0] * rank,
    )
    if len(node.layoutDimOrder_) != len(node.maxDimSizes_):
        fail(
            *tree,
            "maxDimSizes_",
            what=f"{len(node.maxDimSizes_)} sizes for the {len(node.layoutDimOrder_)} dimensions "
            "of layoutDimOrder_",
        )
    infos = node.coordinates_.coordInfo
    if set(infos) != set(node.layoutDimOrder_):
        fail(
            *tree,
            "coordinates_",
            "coordInfo",
            what=f"dimensions {sorted(infos)}, but layoutDimOrder_ has "
            f"{sorted(node.layoutDimOrder_)}",
        )
    for name, stride in _strides(node, tensor.format, fail, tree).items():
        reader = _DimensionReader(
            tensor, name, stride, dims, fail, (*tree, "coordinates_", "coordInfo", name)
        )
        reader.read(infos[name])
    tensor.starts = core_values(
        node.startAddressCoreCorelet_, fail, (*tree, "startAddressCoreCorelet_")
    )
    if node.coreIdToOwners_ is not UNSET:
        tensor.owners = _owners(node.coreIdToOwners_, fail, (*tree, "coreIdToOwners_"))
    return tensor


def _owners(
    given: Mapping[str, tuple[int, ...]], fail: Fail, path: tuple[str | int, ...]
) -> dict[int, tuple[int, ...]]:
    for core, owners in given.items():
        if not core.isdigit() or any(not 0 <= owner < CORES for owner in owners):
            fail(*path, core, what=f"{list(owners)}; expected cores, of which there are {CORES}")
    return {int(core): owners for core, owners in given.items()}


def _strides(
    node: Allocate, fmt: DataFormat, fail: Fail, tree: tuple[str | int, ...]
) -> dict[str, int]:
    """Bytes per position; for the stick dimension, which counts elements, bytes per stick."""
    infos = node.coordinates_.coordInfo
    sticks = [name for name in node.layoutDimOrder_ if infos[name].elemArr == STICKWISE]
    if len(sticks) > 1:
        fail(
            *tree,
            "coordinates_",
            "coordInfo",
            what=f"{' and '.join(sticks)} both have elemArr 2; one dimension can be the stick's",
        )
    stride = fmt.nbytes * (fmt.lanes if sticks else 1)
    strides = {}
    for position in range(len(node.layoutDimOrder_) - 1, -1, -1):
        name, size = node.layoutDimOrder_[position], node.maxDimSizes_[position]
        strides[name] = stride
        lanes = fmt.lanes if name in sticks else 1
        if size < 1 or size % lanes:
            fail(
                *tree,
                "maxDimSizes_",
                position,
                what=f"{size}; expected a positive multiple of {lanes}"
                + (", whole sticks" if lanes > 1 else ""),
            )
        stride *= size // lanes
    if not sticks and node.maxDimSizes_[-1] != fmt.lanes:
        fail(
            *tree,
            "maxDimSizes_",
            len(node.maxDimSizes_) - 1,
            what=f"{node.maxDimSizes_[-1]}; the last dimension of a tensor without a stick "
            f"dimension is one stick, {fmt.lanes} elements of {fmt.value}",
        )
    return strides


@dataclass
class _DimensionReader:
    tensor: Tensor
    name: str
    stride: int
    dims: Mapping[str, int]
    fail: Fail
    path: tuple[str | int, ...]

    def read(self, info: CoordInfo) -> None:
        folds = info.folds
        if info.elemArr not in (ELEMENTWISE, STICKWISE):
            self.fail(*self.path, "elemArr", what=f"{info.elemArr}; expected 1 or 2")
        if len(folds.dim_prop_func) != len(folds.dim_prop_attr):
            self.fail(
                *self.path,
                "folds",
                what=f"{len(folds.dim_prop_func)} functions in dim_prop_func, "
                f"{len(folds.dim_prop_attr)} properties in dim_prop_attr",
            )
        is_stick = info.elemArr == STICKWISE
        for i, (function, attr) in enumerate(
            zip(folds.dim_prop_func, folds.dim_prop_attr, strict=True)
        ):
            self.read_fold(i, function, attr, is_stick)

    def read_fold(self, i: int, function: FoldFunction, attr: FoldProp, is_stick: bool) -> None:
        label = attr.label_
        if function.Indirect is not None:
            self.tensor.row_step, self.tensor.rows_dim = self.stride, self.name
            self.tensor.index_tensor = function.Indirect.ldsIdx_
            return
        if function.Affine is None:
            self.fail(*self.path, "folds", "dim_prop_func", i, what="expected Affine or Indirect")
        alpha, beta = function.Affine.alpha_, function.Affine.beta_
        if label == "elem_arr_0" and is_stick:
            if alpha != 1 or beta:
                self.fail(
                    *self.path,
                    "folds",
                    "dim_prop_func",
                    i,
                    "Affine",
                    what=f"alpha_ {alpha}, beta_ {beta}; lanes are taken in order, 1 and 0",
                )
            self.tensor.lane_dim = self.dimension(i, attr)
            return
        step, start = self.in_bytes(i, alpha, is_stick), self.in_bytes(i, beta, is_stick)
        if label == "core_fold":
            self.tensor.offset += start
            if alpha:
                self.tensor.slice_steps[self.dimension(i, attr)] += step
        elif label.startswith("elem_arr_"):
            if beta:
                self.fail(
                    *self.path,
                    "folds",
                    "dim_prop_func",
                    i,
                    "Affine",
                    "beta_",
                    what=f"{beta}; where a slice starts is the beta_ of core_fold",
                )
            if alpha:
                self.tensor.steps[self.dimension(i, attr)] += step
        elif label not in ("corelet_fold", "row_fold"):
            self.fail(
                *self.path,
                "folds",
                "dim_prop_attr",
                i,
                "label_",
                what=f"'{label}' is none of core_fold, corelet_fold, row_fold, elem_arr_<n>",
            )
        elif alpha or beta:
            self.fail(
                *self.path,
                "folds",
                "dim_prop_func",
                i,
                "Affine",
                what=f"{label} must be 0: a core has one corelet and one row of elements here",
            )

    def in_bytes(self, i: int, positions: int, is_stick: bool) -> int:
        lanes = self.tensor.format.lanes if is_stick else 1
        if positions % lanes:
            self.fail(
                *self.path,
                "folds",
                "dim_prop_func",
                i,
                "Affine",
                what=f"{positions} elements along the stick dimension; "
                f"expected whole sticks of {lanes}",
            )
        return positions // lanes * self.stride

    def dimension(self, i: int, attr: FoldProp) -> int:
        name = attr.dim_ or self.name
        number = self.dims.get(name)
        if number is None:
            self.fail(
                *self.path,
                "folds",
                "dim_prop_attr",
                i,
                what=f"'{name}' is no dimension of N_ ({', '.join(self.dims)}); "
                "dim_ says which one the fold counts along",
            )
        return number


def core_values(data: FoldedData, fail: Fail, path: tuple[str | int, ...]) -> dict[int, int]:
    """`data_` by core: one entry per core of a Map."""
    cores = _cores(tuple(data.data_))
    if isinstance(cores, str):
        fail(*path, "data_", what=f"'{cores}' is no index [core, corelet, time]")
    return dict(zip(cores, data.data_.values(), strict=True))


@functools.lru_cache(maxsize=256)
def _cores(keys: tuple[str, ...]) -> tuple[int, ...] | str:
    """The core in each key "[core, 0, 0]", or the first key that is none."""
    cores = []
    for key in keys:
        match = _INDEX.fullmatch(key)
        if match is None:
            return key
        cores.append(int(match[1]))
    return tuple(cores)
