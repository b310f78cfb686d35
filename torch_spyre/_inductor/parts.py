"""One of several equal parts of an operation."""

from __future__ import annotations

from dataclasses import replace

from torch_spyre import ir

from .graph import Fit


def tiled(fit: Fit, dim: int, count: int) -> Fit | None:
    """One of `count` equal parts of an operation along a dimension; None if it has none.

    Parts of dimensions that count sticks are whole sticks.
    """
    plan = fit.plan
    extent = plan.extents[dim]
    if extent % count:
        return None
    extents = (*plan.extents[:dim], extent // count, *plan.extents[dim + 1 :])
    elements = extent * plan.lanes
    if isinstance(plan, ir.MatmulAligned):
        n, k = plan.n_length, plan.k_length
        if elements != {plan.stick: n, plan.lane: k}.get(dim, elements):
            return None
        n, k = (n // count if dim == plan.stick else n), (k // count if dim == plan.lane else k)
        return Fit(replace(plan, extents=extents, n_length=n, k_length=k), fit.where)
    if dim != plan.stick_dim:
        return Fit(replace(plan, extents=extents), fit.where)
    if plan.length != elements:
        return None
    return Fit(replace(plan, extents=extents, length=elements // count), fit.where)
