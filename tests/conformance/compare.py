"""When is a result right? Bounds that say so, for each dtype of a result.

Integers, bools, shapes and dtypes must be equal. For floats there are two references, both on the
CPU from the very inputs that the card holds: *narrow* in the dtype of the call, and *wide* in the
next wider one. A result is right if each element is near the narrow reference, or near the wide one
within the bound of its dtype plus what the CPU itself loses in the narrow dtype (its intermediate
results are rounded, too). So an operation that the CPU computes well must be computed well.

16-bit floats are SEN169 on the card: nine fraction bits, so that one unit in the last place is
2^-9, and one symbol for both NaN and +inf. Two units are allowed, because composites round more
than once. float32 has the tolerance that the entry itself states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.opinfo.core import DecorateInfo, OpInfo
from torch.utils import _pytree

from tests.conformance.expected import Expectation

_EVERYTHING = Expectation()

# Two units in the last place, relative; for float32 PyTorch's own default.
_RELATIVE = {
    torch.float16: 2.0**-8,
    torch.bfloat16: 2.0**-6,
    torch.float32: 1.3e-6,
    torch.float8_e4m3fn: 2.0**-3,
    torch.float8_e5m2: 2.0**-2,
}
_ABSOLUTE = {torch.float32: 1e-5, torch.float16: 2.0**-24}
# The card's intermediate results have one fraction bit less than the CPU's in float16, hence twice
# the error, and their roundings may fall the other way.
_OWN_ERRORS = 4.0
# A CPU result that is worse than this, relative to the largest element, vouches for nothing.
_MOST_OWN_ERROR = 2.0**-5


@dataclass(frozen=True)
class Tolerance:
    """Relative and absolute bounds of a dtype."""

    relative: float
    absolute: float


def tolerance(op: OpInfo, dtype: torch.dtype, expected: Expectation = _EVERYTHING) -> Tolerance:
    """The bound of a dtype; for float32 as wide as the entry itself asks for on the CPU."""
    relative, absolute = _RELATIVE.get(dtype, 0.0), _ABSOLUTE.get(dtype, 0.0)
    if dtype is not torch.float32:
        return Tolerance(relative, max(absolute, expected.near))
    relative = max(relative, expected.relative)
    for decorated in op.decorators:
        if not isinstance(decorated, DecorateInfo) or decorated.device_type not in (None, "cpu"):
            continue
        for decorator in decorated.decorators:
            if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
                relative = max(relative, decorator.d[dtype].rtol)
                absolute = max(absolute, decorator.d[dtype].atol)
    return Tolerance(relative, absolute)


@dataclass(frozen=True)
class Reference:
    """What the CPU gives: in the dtype of the call and, where there is one, in a wider one."""

    narrow: Any
    wide: Any = None


def mismatch(
    op: OpInfo, result: Any, reference: Reference, expected: Expectation = _EVERYTHING
) -> str | None:
    """How a result (on the host) differs from the reference; None: it is right."""
    ours, our_tree = _pytree.tree_flatten(result)
    if expected.wider:
        narrowed = zip(ours, _pytree.tree_leaves(reference.narrow), strict=False)
        ours = [_like_the_cpu(*leaves) for leaves in narrowed]
    narrow, tree = _pytree.tree_flatten(reference.narrow)
    if len(ours) != len(narrow):
        return f"{our_tree} instead of {tree}"
    wide = _pytree.tree_leaves(reference.wide) if reference.wide is not None else [None] * len(ours)
    if len(wide) != len(ours):
        wide = [None] * len(ours)
    for index, leaves in enumerate(zip(ours, narrow, wide, strict=True)):
        found = _leaf_mismatch(op, *leaves, expected)
        if found:
            return f"result {index}: {found}" if len(ours) > 1 else found
    return None


def name_equals(x: torch.Tensor, dim: int, result: Any, reference: Any) -> Any:
    """The reference with the result's indices, where both name equal elements of `x`.

    An index that names another element twice, or none, is no reason to take it.
    """

    def settled(ours: Any, theirs: Any) -> Any:
        if not isinstance(theirs, torch.Tensor) or theirs.dtype is not torch.int64 or x.dim() == 0:
            return theirs
        if not isinstance(ours, torch.Tensor) or ours.shape != theirs.shape or not ours.numel():
            return theirs
        kept = x.dim() == ours.dim()
        places, wanted = (t if kept else t.unsqueeze(dim) for t in (ours, theirs))
        in_order = places.sort(dim).values
        is_inside = bool(((places >= 0) & (places < x.shape[dim])).all())
        if not is_inside or bool((in_order.diff(dim=dim) == 0).any()):
            return theirs
        named, expected = x.gather(dim, places), x.gather(dim, wanted)
        is_equal = (named == expected) | ((named != named) & (expected != expected))
        return torch.where(is_equal if kept else is_equal.squeeze(dim), ours, theirs)

    if isinstance(reference, torch.Tensor):
        return settled(result, reference)
    return tuple(map(settled, result, reference))


def _like_the_cpu(ours: Any, narrow: Any) -> Any:
    tensors = isinstance(ours, torch.Tensor) and isinstance(narrow, torch.Tensor)
    if tensors and (ours.dtype, narrow.dtype) == (torch.float32, torch.float16):
        return ours.to(torch.float16)
    return ours


def _leaf_mismatch(
    op: OpInfo, ours: Any, narrow: Any, wide: Any, expected: Expectation
) -> str | None:
    if not isinstance(narrow, torch.Tensor):
        return _scalar_mismatch(op, ours, narrow, wide, expected)
    if not isinstance(ours, torch.Tensor):
        return f"{type(ours).__name__} instead of a tensor"
    if ours.shape != narrow.shape:
        return f"shape {list(ours.shape)} instead of {list(narrow.shape)}"
    if ours.dtype is not narrow.dtype:
        return f"{ours.dtype} instead of {narrow.dtype}"
    if expected.check != "values" or ours.numel() == 0:
        return None
    bound = tolerance(op, narrow.dtype, expected)
    right = _near(bound, ours, narrow, wide if isinstance(wide, torch.Tensor) else None)
    if bool(right.all()):
        return None
    where = tuple((~right).nonzero()[0].tolist())
    exact = "" if not isinstance(wide, torch.Tensor) else f" (exactly {wide[where].item()})"
    return (
        f"{int((~right).sum())} of {ours.numel()} elements: at {list(where)} "
        f"{ours[where].item()} instead of {narrow[where].item()}{exact}"
    )


def _scalar_mismatch(
    op: OpInfo, ours: Any, narrow: Any, wide: Any, expected: Expectation
) -> str | None:
    if type(ours) is not type(narrow):
        return f"{type(ours).__name__} instead of {type(narrow).__name__}"
    if expected.check != "values" or ours == narrow:
        return None
    if isinstance(narrow, float):
        as_tensors = [torch.tensor(x) if isinstance(x, float) else None for x in (ours, narrow)]
        wider = torch.tensor(wide, dtype=torch.float64) if isinstance(wide, float) else None
        bound = tolerance(op, torch.float32, expected)
        if bool(_near(bound, as_tensors[0], as_tensors[1], wider)):
            return None
    elif isinstance(narrow, torch.device):
        return None
    return f"{ours!r} instead of {narrow!r}"


def _near(
    bound: Tolerance, ours: torch.Tensor, narrow: torch.Tensor, wide: torch.Tensor | None
) -> torch.Tensor:
    """For each element: is it right?"""
    if not narrow.dtype.is_floating_point:
        return (ours == narrow) | (ours == wide if wide is not None else False)
    right = _within(ours, narrow, bound, 0.0)
    if wide is None or not wide.dtype.is_floating_point:
        return right
    return right | _within(ours, wide, bound, _OWN_ERRORS * _own_error(narrow, wide))


def _own_error(narrow: torch.Tensor, wide: torch.Tensor) -> float:
    """How far the CPU itself is off in the narrow dtype."""
    exact = wide.double()
    is_finite = exact.isfinite() & narrow.isfinite()
    if not bool(is_finite.any()):
        return 0.0
    error = (narrow.double() - exact)[is_finite].abs().max().item()
    return min(error, _MOST_OWN_ERROR * exact[is_finite].abs().max().item())


def _within(
    ours: torch.Tensor, reference: torch.Tensor, bound: Tolerance, slack: float
) -> torch.Tensor:
    expected, got = reference.double(), ours.double()
    near = (got - expected).abs() <= bound.absolute + slack + bound.relative * expected.abs()
    same = (got == expected) | (got.isnan() & expected.isnan())
    if ours.dtype in (torch.float16, torch.bfloat16):
        # What the dtype can't hold is an infinity on the host; +inf and NaN are one on the card.
        held = expected.to(ours.dtype).double()
        same |= (
            (got == held)
            | (got.isnan() & (held == torch.inf))
            | ((got == torch.inf) & held.isnan())
        )
    return near | same
