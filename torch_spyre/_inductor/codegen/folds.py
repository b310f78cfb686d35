"""The pieces that SuperDSCs are made of, shared between those that need equal ones.

A kernel has thousands of them and few distinct ones. What is cached here is frozen, or a
dictionary that nobody changes.
"""

from __future__ import annotations

import functools
import itertools
from math import prod
from typing import NamedTuple

from torch_spyre.ir.superdsc import (
    Affine,
    CoordInfo,
    Empty,
    FoldedData,
    FoldFunction,
    FoldProp,
    Folds,
    Indirect,
)

_MAP = FoldFunction(Map=Empty())
_CONST = FoldFunction(Const=Empty())


@functools.lru_cache(maxsize=4096)
def affine(alpha: int, beta: int = 0) -> FoldFunction:
    return FoldFunction(Affine=Affine(alpha, beta))


@functools.lru_cache(maxsize=4096)
def prop(factor: int, label: str, dim: str | None = None) -> FoldProp:
    return FoldProp(factor, label, dim)


CORELET = prop(1, "corelet")
TIME = prop(1, "time")
_CORELET_FOLD, _ROW_FOLD = prop(1, "corelet_fold"), prop(1, "row_fold")
_STILL = affine(0)


class CoreMaps(NamedTuple):
    """What a SuperDSC says per core, for one way of dividing the dimensions."""

    cores: int
    slices: tuple[tuple[int, ...], ...]  # per core, its slice number per dimension
    slice_of: dict[str, dict[str, int]]
    dsc_of: dict[str, int]
    schedule_of: dict[str, tuple[tuple[int, ...], ...]]


@functools.lru_cache(maxsize=1024)
def core_maps(slices: tuple[int, ...], order: tuple[int, ...] = ()) -> CoreMaps:
    """Cores take slices in row-major order of `order` and the dimensions it leaves out."""
    count = prod(slices)
    dims = (*order, *(i for i in range(len(slices)) if i not in order))
    back = sorted(range(len(dims)), key=dims.__getitem__)
    counted = itertools.product(*(range(slices[i]) for i in dims))
    rows = tuple(tuple(row[i] for i in back) for row in counted)
    names = [str(core) for core in range(count)]
    return CoreMaps(
        count,
        rows,
        {
            name: {f"c{i}": s for i, s in enumerate(row) if slices[i] > 1}
            for name, row in zip(names, rows, strict=True)
        },
        dict.fromkeys(names, 0),
        dict.fromkeys(names, ((-1, 0, 0, 0),)),
    )


@functools.lru_cache(maxsize=64)
def core_keys(count: int) -> tuple[str, ...]:
    return tuple(f"[{core}, 0, 0]" for core in range(count))


@functools.lru_cache(maxsize=4096)
def core_map(values: tuple[int, ...]) -> FoldedData:
    """A value per core."""
    return FoldedData(
        (_MAP, _CONST, _CONST),
        (prop(len(values), "core"), CORELET, TIME),
        dict(zip(core_keys(len(values)), values, strict=True)),
    )


@functools.lru_cache(maxsize=1024)
def const_data(bits: int) -> FoldedData:
    """One value for all cores."""
    return FoldedData(
        (_CONST, _CONST, _CONST), (prop(1, "core"), CORELET, TIME), {"[0, 0, 0]": bits}
    )


def counted_data(
    folds: tuple[tuple[int, str, int], ...], data: dict[str, int], offset: int = 0
) -> FoldedData:
    """offset + Σ step · index over folds given as (step, label, factor)."""
    functions = [affine(step) for step, _, _ in folds]
    if offset:
        functions[0] = affine(folds[0][0], offset)
    return FoldedData(tuple(functions), tuple(prop(n, label) for _, label, n in folds), data)


class Fold(NamedTuple):
    """alpha · index of an iteration dimension's slice or of positions within it."""

    alpha: int
    factor: int
    dim: str | None


@functools.lru_cache(maxsize=8192)
def coord_info(
    is_stick: bool,
    name: str,
    offset: int,
    cores: tuple[Fold, ...],
    elements: tuple[Fold, ...],
    indirect: int | None,
    is_padded: bool,
) -> CoordInfo:
    """One device dimension; `elements` from elem_arr_0 on, written from the last one down."""
    cores = cores or (Fold(0, 1, None),)
    functions = [affine(fold.alpha, 0 if i else offset) for i, fold in enumerate(cores)]
    attributes = [prop(fold.factor, "core_fold", _other(name, fold)) for fold in cores]
    functions += [_STILL, _STILL]
    attributes += [_CORELET_FOLD, _ROW_FOLD]
    if indirect is not None:
        functions.append(FoldFunction(Indirect=Indirect(indirect)))
        attributes.append(prop(1, "index_fold"))
    for number, fold in reversed(list(enumerate(elements))):
        functions.append(affine(fold.alpha))
        attributes.append(prop(fold.factor, f"elem_arr_{number}", _other(name, fold)))
    return CoordInfo(
        spatial=3,
        temporal=0,
        elemArr=2 if is_stick else 1,
        padding="pad" if is_padded else "nopad",
        folds=Folds(tuple(functions), tuple(attributes)),
    )


def _other(name: str, fold: Fold) -> str | None:
    """The dimension a fold counts along, unless its entry is named after it."""
    return None if fold.dim == name else fold.dim
