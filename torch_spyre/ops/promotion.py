"""The common dtype of an operation's operands, by PyTorch's rules.

Tensors with dimensions come before 0-dim tensors, those before Python numbers; an operand of a
lower rank only matters if its category (bool < int < float) is higher. PyTorch offers this for
two operands (`torch.result_type`); operations here have up to four, some of them numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torch_spyre.ops.formats import Kind, kind_of
from torch_spyre.ops.plan import ScalarMeta, TensorMeta


def _wrapped_dtype(value: bool | int | float | torch.dtype) -> torch.dtype:
    """The dtype with which a Python number enters promotion."""
    if isinstance(value, torch.dtype):
        kind = kind_of(value)
    elif isinstance(value, bool):
        kind = Kind.BOOL
    else:
        kind = Kind.INT if isinstance(value, int) else Kind.FLOAT
    return {
        Kind.BOOL: torch.bool,
        Kind.INT: torch.int64,
        Kind.FLOAT: torch.get_default_dtype(),
    }[kind]


def _join(a: torch.dtype | None, b: torch.dtype) -> torch.dtype:
    return b if a is None else torch.promote_types(a, b)


def _over(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """Let operands of a lower rank weigh in only with a higher category."""
    if higher is None or lower is None:
        return higher if lower is None else lower
    if kind_of(higher) is Kind.FLOAT:
        return higher
    if kind_of(higher) is Kind.BOOL or kind_of(lower) is Kind.FLOAT:
        return torch.promote_types(higher, lower)
    return higher


def common_dtype(operands: Iterable[object]) -> torch.dtype:
    """The dtype in which PyTorch would compute on these operands."""
    tensors: torch.dtype | None = None
    singles: torch.dtype | None = None
    numbers: torch.dtype | None = None
    for operand in operands:
        if isinstance(operand, TensorMeta):
            if operand.size:
                tensors = _join(tensors, operand.dtype)
            else:
                singles = _join(singles, operand.dtype)
        elif isinstance(operand, ScalarMeta):
            if operand.is_wrapped:
                numbers = _join(numbers, _wrapped_dtype(operand.dtype))
            else:
                singles = _join(singles, operand.dtype)
        elif isinstance(operand, bool | int | float):
            numbers = _join(numbers, _wrapped_dtype(operand))
    common = _over(tensors, _over(singles, numbers))
    if common is None:
        raise ValueError("an operation without operands has no common dtype")
    return common
