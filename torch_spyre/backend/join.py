"""Iteration dimensions that all operands of some steps walk as one become one.

A longer run is faster to execute, and a step has at most eight dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch_spyre.backend.program import NO_STICK_DIM, Operand, Space, Step, StepKind

_FREE_ORDER = (StepKind.POINTWISE, StepKind.RESTICKIFY, StepKind.GATHER)


def join_dimensions(steps: Sequence[Step]) -> list[Step]:
    """Rewrite steps that have the same cores, extents and roles of dimensions, all alike.

    Where order does not matter, dimensions are sorted by the strides of the last result. The
    accumulated ones of a reduction keep theirs: it decides how results are rounded.
    """
    if not steps:
        return []
    if steps[0].rank == 0:
        return [_of_one_iteration(step) for step in steps]
    groups = _groups(steps)
    if groups == [[dim] for dim in range(steps[0].rank)]:
        return list(steps)
    return [_rewritten(step, groups) for step in steps]


def _groups(steps: Sequence[Step]) -> list[list[int]]:
    """The dimensions of each joined one, outermost first."""
    first, last = steps[0], steps[-1]
    order = list(range(first.rank))
    if first.kind in _FREE_ORDER:
        strides = last.outputs[0].strides
        order.sort(key=lambda dim: -abs(strides[dim]))
    columns = [o.strides for step in steps for o in (*step.inputs, *step.outputs) if o.strides]
    rows = first.extents
    fixed = {first.stick_dim, first.lane_dim, *(mask.dim for mask in first.masks)}
    reduced = first.reduced
    size = {dim: rows[0][dim] for dim in order}
    uniform = {dim: all(row[dim] == size[dim] for row in rows) for dim in order}
    groups: list[list[int]] = []  # innermost first while under construction
    for dim in reversed(order):
        if dim in fixed:
            groups.append([dim])
            continue
        if uniform[dim] and size[dim] == 1 and not reduced >> dim & 1:
            continue
        if groups and groups[-1][0] not in fixed:
            inner = groups[-1]
            count = 1
            for d in inner:
                count *= size[d]
            step_of = inner[-1]
            if (
                all(uniform[d] for d in inner)
                and reduced >> dim & 1 == reduced >> step_of & 1
                and all(column[dim] == column[step_of] * count for column in columns)
            ):
                inner.insert(0, dim)
                continue
        groups.append([dim])
    return groups[::-1] or [[order[-1]]]


def _of_one_iteration(step: Step) -> Step:
    """A step has at least one dimension."""

    def walk(operand: Operand) -> Operand:
        is_value = operand.space in (Space.CONSTANT, Space.SCALAR)
        return operand if is_value else replace(operand, strides=(0,))

    return replace(
        step,
        extents=((1,),),
        inputs=tuple(map(walk, step.inputs)),
        outputs=tuple(map(walk, step.outputs)),
    )


def _rewritten(step: Step, groups: Sequence[Sequence[int]]) -> Step:
    """A joined dimension has the stride of its innermost one."""

    def walk(operand: Operand) -> Operand:
        if not operand.strides:
            return operand
        return replace(operand, strides=tuple(operand.strides[group[-1]] for group in groups))

    def renumbered(dim: int) -> int:
        return next((i for i, group in enumerate(groups) if dim in group), NO_STICK_DIM)

    rows = []
    for row in step.extents:
        joined = []
        for group in groups:
            count = 1
            for dim in group:
                count *= row[dim]
            joined.append(count)
        rows.append(tuple(joined))
    return replace(
        step,
        extents=tuple(rows),
        inputs=tuple(map(walk, step.inputs)),
        outputs=tuple(map(walk, step.outputs)),
        stick_dim=renumbered(step.stick_dim),
        lane_dim=renumbered(step.lane_dim),
        reduced=sum(1 << i for i, group in enumerate(groups) if step.reduced >> group[0] & 1),
        masks=tuple(replace(mask, dim=renumbered(mask.dim)) for mask in step.masks),
    )
