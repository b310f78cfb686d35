"""Numbers with an error bound: what PyTorch means in float64, and how far the card may be from it.

Every operation gives the exact result of the values and a bound that holds for any operands within
theirs: the errors carried on, and the roundings of the operation itself. A result outside the bound
is wrong; a comparison of values closer than their errors may go either way and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tests.ops import step_model

# Half the distance of neighbours, relative: SEN169 has 9 fraction bits, IEEE_FP32 23. Cards round
# away from zero on ties, which is no further. The two units that fp32 transcendentals may be off
# are covered by counting roundings generously.
UNIT = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-10, torch.float32: 2.0**-24}
TINY = {torch.float16: 2.0**-31, torch.bfloat16: 2.0**-31, torch.float32: 2.0**-126}
FP32 = 2.0**-24


@dataclass(frozen=True)
class Bounded:
    """A tensor in float64, the largest error of each element, and its dtype in the model."""

    value: torch.Tensor
    error: torch.Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Bounded:
        """A tensor as it is after it was copied to the card: no error."""
        seen = torch.from_numpy(step_model.as_seen_by_card(tensor).astype("float64"))
        return cls(seen, torch.zeros_like(seen), tensor.dtype)

    @property
    def is_float(self) -> bool:
        return self.dtype.is_floating_point

    @property
    def magnitude(self) -> torch.Tensor:
        return self.value.abs() + self.error

    def view(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Bounded:
        return Bounded(change(self.value), change(self.error), self.dtype)

    def rounded(self, dtype: torch.dtype | None = None, times: int = 1) -> Bounded:
        """Stored in a format, after this many roundings of it."""
        dtype = dtype or self.dtype
        if not dtype.is_floating_point:
            return Bounded(self.value, self.error, dtype)
        grown = self.error + times * (UNIT[dtype] * self.magnitude + TINY[dtype])
        # Roundings of what is rounded already: second order, covered by a hair.
        return Bounded(self.value, grown * (1 + 2 * times * UNIT[dtype]), dtype)

    def read_on_host(self) -> Bounded:
        """Copied back: bfloat16 is rounded to its 7 fraction bits, float16 loses small numbers."""
        if self.dtype is torch.bfloat16:
            return Bounded(self.value, self.error + 2.0**-8 * self.magnitude, self.dtype)
        if self.dtype is torch.float16:
            return Bounded(self.value, self.error + 2.0**-25, self.dtype)
        return self

    def holds(self, actual: torch.Tensor) -> torch.Tensor:
        """Which elements of a result are within the bound."""
        final = self.read_on_host()
        return (actual.double() - final.value).abs() <= final.error

    def lipschitz(
        self, function: Callable[[torch.Tensor], torch.Tensor], factor: float, times: int = 2
    ) -> Bounded:
        """A function that nowhere grows faster than `factor`."""
        return Bounded(function(self.value), factor * self.error, self.dtype).rounded(times=times)


def promoted(a: Bounded, b: Bounded) -> torch.dtype:
    """As PyTorch promotes: a 0-dim tensor gives way to others of its kind."""
    meta = [torch.empty(x.value.shape, dtype=x.dtype, device="meta") for x in (a, b)]
    return torch.result_type(*meta)


def aligned(a: Bounded, b: Bounded) -> tuple[Bounded, Bounded]:
    """Both as the operation takes them: a 0-dim float32 beside float16 is rounded first."""
    dtype = promoted(a, b)
    if not dtype.is_floating_point:
        return a, b
    a, b = (x if UNIT.get(x.dtype, 0) == UNIT[dtype] else x.rounded(dtype) for x in (a, b))
    return a, b


def add(a: Bounded, b: Bounded) -> Bounded:
    a, b = aligned(a, b)
    return Bounded(a.value + b.value, a.error + b.error, promoted(a, b)).rounded()


def sub(a: Bounded, b: Bounded) -> Bounded:
    a, b = aligned(a, b)
    return Bounded(a.value - b.value, a.error + b.error, promoted(a, b)).rounded()


def mul(a: Bounded, b: Bounded) -> Bounded:
    a, b = aligned(a, b)
    error = a.value.abs() * b.error + b.value.abs() * a.error + a.error * b.error
    return Bounded(a.value * b.value, error, promoted(a, b)).rounded()


def maximum(a: Bounded, b: Bounded) -> Bounded:
    a, b = aligned(a, b)
    error = torch.maximum(*torch.broadcast_tensors(a.error, b.error))
    return Bounded(torch.maximum(a.value, b.value), error, promoted(a, b)).rounded()


def minimum(a: Bounded, b: Bounded) -> Bounded:
    a, b = aligned(a, b)
    error = torch.maximum(*torch.broadcast_tensors(a.error, b.error))
    return Bounded(torch.minimum(a.value, b.value), error, promoted(a, b)).rounded()


def greater(a: Bounded, b: Bounded) -> Bounded:
    """A truth is 1 or 0; where either may come out its error is 1."""
    value = (a.value > b.value).double()
    a, b = aligned(a, b)
    slack = a.error + b.error
    is_open = (a.value - b.value).abs() <= slack
    is_open &= slack > 0
    return Bounded(value, is_open.double(), torch.bool)


def where(c: Bounded, a: Bounded, b: Bounded) -> Bounded:
    a, b = aligned(a, b)
    x, y, ex, ey, truth, doubt = torch.broadcast_tensors(
        a.value, b.value, a.error, b.error, c.value, c.error
    )
    error = torch.where(truth != 0, ex, ey)
    error = torch.where(doubt > 0, (x - y).abs() + ex + ey, error)
    return Bounded(torch.where(truth != 0, x, y), error, promoted(a, b)).rounded()


def convert(a: Bounded, dtype: torch.dtype) -> Bounded:
    if dtype.is_floating_point or not a.is_float:
        return Bounded(a.value, a.error, dtype).rounded()
    low, high = torch.trunc(a.value - a.error), torch.trunc(a.value + a.error)
    return Bounded(torch.trunc(a.value), high - low, dtype)


def total(a: Bounded, dims: tuple[int, ...], keepdim: bool) -> Bounded:
    """A sum: one fp32 rounding per addition at most, and one to the result's format."""
    count = 1
    for dim in dims:
        count *= a.value.shape[dim]
    value, error = a.value.sum(dims, keepdim), a.error.sum(dims, keepdim)
    dtype = a.dtype if a.is_float else torch.int64
    if a.is_float:
        error = error + count * FP32 * 1.01 * a.magnitude.sum(dims, keepdim)
    return Bounded(value, error, dtype).rounded()


def mean(a: Bounded, dims: tuple[int, ...], keepdim: bool) -> Bounded:
    count = 1
    for dim in dims:
        count *= a.value.shape[dim]
    whole = total(a, dims, keepdim)
    return Bounded(whole.value / count, whole.error / count, whole.dtype).rounded(times=2)


def largest(a: Bounded, dims: tuple[int, ...], keepdim: bool) -> Bounded:
    return Bounded(a.value.amax(dims, keepdim), a.error.amax(dims, keepdim), a.dtype).rounded()


def smallest(a: Bounded, dims: tuple[int, ...], keepdim: bool) -> Bounded:
    return Bounded(a.value.amin(dims, keepdim), a.error.amax(dims, keepdim), a.dtype).rounded()


def matmul(a: Bounded, b: Bounded) -> Bounded:
    """Products are exact or fused in fp32; as many roundings as additions, and one at the end."""
    k = a.value.shape[-1]
    size, other = a.value.abs(), b.value.abs()
    error = size @ b.error + a.error @ other + a.error @ b.error
    error = error + (k + 1) * FP32 * 1.01 * (a.magnitude @ b.magnitude)
    return Bounded(a.value @ b.value, error, promoted(a, b)).rounded()


def softmax(a: Bounded, dim: int) -> Bounded:
    """exp(x - max) / sum, with roundings to the format in between.

    An error e of x is a factor exp(2 max|e|) at most, as the whole row may move against one
    element. The rounded difference x - max (at most |x - max| + 2 max|e| units of the format) is
    one more such e.
    """
    value = a.value.softmax(dim)
    unit = UNIT[a.dtype]
    spread = (a.value.amax(dim, True) - a.value.amin(dim, True)) + 2 * a.error.amax(dim, True)
    shift = 2 * (a.error.amax(dim, True) + unit * spread)
    relative = torch.expm1(shift) + 6 * unit + a.value.shape[dim] * FP32
    relative = relative * (1 + relative)
    tiny = 4 * a.value.shape[dim] * TINY[a.dtype]
    return Bounded(value, value * relative + tiny, a.dtype)


def cat(parts: list[Bounded], dim: int) -> Bounded:
    dtype = parts[0].dtype
    for part in parts:
        dtype = torch.promote_types(dtype, part.dtype)
    value = torch.cat([part.value for part in parts], dim)
    error = torch.cat([part.error for part in parts], dim)
    return Bounded(value, error, dtype).rounded()


def of_positive(a: Bounded, function: Callable[[torch.Tensor], torch.Tensor]) -> Bounded:
    """A function of |x| + 1 that is no steeper than 1 there: log, sqrt, rsqrt, reciprocal."""
    one = torch.tensor(1.0, dtype=torch.float64)
    shifted = add(a.lipschitz(torch.abs, 1, times=0), Bounded(one, one * 0, a.dtype))
    return shifted.lipschitz(function, 1)
