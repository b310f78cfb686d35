"""Loop nests for steps that go element by element: one nest in a given order, along a dimension,
and how cores can share it.

The first access of a nest is the one that is written. Offsets and strides count device elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from torch_spyre import ir
from torch_spyre.backend.program import STEP_RANK
from torch_spyre.ops.plan import Sizes
from torch_spyre.ops.views import View, contiguous_strides


def is_linear(storage: ir.Storage) -> bool:
    """Do elements lie on the card as they do on the host, one behind the other?"""
    return all(place.stride == place.device_stride for place in storage.places)


def element_access(view: View) -> ir.Access:
    """The access to a view; one to a linear storage needs no digits, so it is never cut."""
    if is_linear(view.storage):
        return ir.Access(None, view.offset, view.stride)
    return view.access()


def ordered_nest(size: Sizes, views: list[View]) -> ir.Nest | None:
    """One nest that walks the views in row-major order of their size; None if that takes several.

    Loops are sorted by their first access: a count of the iterations keeps them in order.
    """
    count = ir.Access(None, 0, contiguous_strides(size))
    nests = ir.pieces(size, [count, *map(element_access, views)])
    if len(nests) != 1:
        return None
    (nest,) = nests
    return ir.Nest(nest.extents, nest.strides[1:], nest.offsets[1:])


def row_nest(dim: int, *views: View) -> ir.Nest | None:
    """One nest of views of one size whose last loop is all of `dim`; None if that takes several.

    A counter that moves along `dim` alone keeps its loop apart from the others.
    """
    size = views[0].size
    counter = ir.Access(None, 0, tuple(int(i == dim) for i in range(len(size))))
    nests = ir.pieces(size, [*map(element_access, views), counter])
    if len(nests) != 1:
        return None
    (nest,) = nests
    along = [i for i, step in enumerate(nest.strides[-1]) if step]
    others = [i for i in range(len(nest.extents)) if i not in along]
    if len(along) > 1 or len(others) == STEP_RANK:
        return None

    def last(values: Sizes, absent: int) -> Sizes:
        return (*(values[i] for i in others), values[along[0]] if along else absent)

    return ir.Nest(
        last(nest.extents, 1), tuple(last(s, 0) for s in nest.strides[:-1]), nest.offsets[:-1]
    )


def shareable(extents: Sizes, strides: Sizes, offset: int, lanes: int) -> tuple[bool, ...]:
    """The loops that cores may divide, so that no two of them write the same stick.

    Such a loop goes from stick to stick, as do those around it, and what lies within one of its
    iterations ends before the sticks of the next begin.

    >>> shareable((8, 70), (70, 1), 0, lanes=64)
    (False, False)
    >>> shareable((8, 70), (128, 1), 0, lanes=64)
    (True, False)
    """
    steps = [abs(step) for step in strides]
    low = offset + sum(min(0, step * (n - 1)) for n, step in zip(extents, strides, strict=True))

    def is_ok(dim: int) -> bool:
        if not steps[dim]:
            return extents[dim] == 1
        covered = low % lanes + 1
        for n, step in zip(extents, steps, strict=True):
            if n == 1:
                continue
            if step < steps[dim]:
                covered += step * (n - 1)
            elif step % lanes:
                return False
        return covered <= steps[dim] and steps[dim] % lanes == 0

    return tuple(map(is_ok, range(len(extents))))


def in_groups(nest: ir.Nest, lanes: int, has_rows: bool = False) -> Iterator[ir.Nest]:
    """Where cores could not share a nest, group iterations that fill whole sticks together.

    With `has_rows` the last loop stays whole.

    >>> [part.extents for part in in_groups(ir.Nest((200, 70), ((70, 1),), (0,)), 64, True)]
    [(6, 32, 70), (8, 70)]
    """
    free = len(nest.extents) - has_rows
    shared = shareable(nest.extents, nest.strides[0], nest.offsets[0], lanes)
    is_shared = any(ok and n > 1 for ok, n in zip(shared[:free], nest.extents, strict=False))
    if is_shared or len(nest.extents) == STEP_RANK:
        yield nest
        return
    for dim in sorted(range(free), key=lambda dim: -nest.extents[dim]):
        group = lanes // gcd(nest.strides[0][dim], lanes)
        count = nest.extents[dim] // group
        if group == 1 or count < 2:
            continue
        whole = _split(nest, dim, count, group)
        if shareable(whole.extents, whole.strides[0], whole.offsets[0], lanes)[dim]:
            yield whole
            rest = nest.extents[dim] - count * group
            if rest:
                yield _rest(nest, dim, count * group)
            return
    yield nest


def _split(nest: ir.Nest, dim: int, count: int, group: int) -> ir.Nest:
    """The first `count` groups of iterations of a loop, as two loops."""
    return ir.Nest(
        (*nest.extents[:dim], count, group, *nest.extents[dim + 1 :]),
        tuple((*s[:dim], s[dim] * group, s[dim], *s[dim + 1 :]) for s in nest.strides),
        nest.offsets,
    )


def _rest(nest: ir.Nest, dim: int, start: int) -> ir.Nest:
    """The iterations of a loop from `start` on."""
    steps = zip(nest.offsets, nest.strides, strict=True)
    return ir.Nest(
        (*nest.extents[:dim], nest.extents[dim] - start, *nest.extents[dim + 1 :]),
        nest.strides,
        tuple(offset + start * strides[dim] for offset, strides in steps),
    )
