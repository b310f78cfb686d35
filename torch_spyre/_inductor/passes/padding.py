"""Padding of reduced dimensions: what lies behind the last element of a partial stick is masked."""

from __future__ import annotations

from torch_spyre import ir
from torch_spyre.ir.spec import Mask

from ..graph import NeedsStaticSizesError, Op, SpyreGraph


def pad_matmul_operands(graph: SpyreGraph) -> None:
    """Make every reduced dimension a whole number of sticks, padded with the neutral value.

    Needs: `op.fit`.  Leaves: masks on operations whose reduced stick dimension ends inside a
    stick. The card treats masked positions as zeros of k, or as the neutral element of a
    reduction, so no operand is copied to a padded buffer.
    """
    for op in graph.ops:
        if op.fit is not None and op.fit.reduced:
            lengths = tuple(_over_dimensions(op, mask) for mask in op.masks)
            masked = {mask.dim for mask in lengths}
            op.masks = lengths + tuple(m for m in _partial_stick(op) if m.dim not in masked)


def _over_dimensions(op: Op, mask: Mask) -> Mask:
    """A mask over a loop as one over the dimension that the loop became."""
    assert op.fit is not None
    dims = [i for i, loop in enumerate(op.fit.plan.variables) if loop == mask.dim]
    if len(dims) != 1:
        raise NeedsStaticSizesError("a layout divides a reduced dimension of dynamic length")
    return Mask(dims[0], mask.valid, mask.is_symbol)


def _partial_stick(op: Op) -> tuple[Mask, ...]:
    assert op.fit is not None
    plan = op.fit.plan
    if isinstance(plan, ir.MatmulAligned):
        dim, length = plan.lane, plan.k_length
    elif isinstance(plan, ir.Aligned) and plan.stick_dim in plan.reduced:
        dim, length = plan.stick_dim, plan.length or 1
    else:
        return ()
    assert dim is not None
    return (Mask(dim, length),) if length % plan.lanes else ()
