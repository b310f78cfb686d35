"""Random views, broadcasts, layouts and dtypes: a plan computes what PyTorch computes."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_card import Call, put
from op_cases import Case, distance, reference
from op_views import fit, operands


@settings(max_examples=150, deadline=None)
@given(operands(), operands(), st.sampled_from(("add.Tensor", "lt.Tensor", "mul.Tensor")))
def test_binary_operations_on_random_views(first: tuple, second: tuple, op: str) -> None:
    (x, x_order), (y, y_order) = first, second
    y = fit(x, y)
    case = Case(op, ())
    dtype, expected = reference(case, [x, y])
    args = [put(x, x_order), put(y, y_order), *([1] if op == "add.Tensor" else [])]
    result = Call(*args).run(f"aten::{op}")
    assert (result.size, result.dtype) == (tuple(expected.shape), dtype)
    assert distance(result.values(), expected, dtype) == 0


@settings(max_examples=150, deadline=None)
@given(operands(), operands())
def test_copies_between_random_views(first: tuple, second: tuple) -> None:
    """Only the view is written, and every element of it."""
    (x, x_order), (y, y_order) = first, second
    if any(n > 1 and s == 0 for n, s in zip(x.shape, x.stride(), strict=True)):
        return
    base = x._base if x._base is not None else x
    if (
        torch.arange(base.numel())
        .as_strided(x.shape, x.stride(), x.storage_offset())
        .unique()
        .numel()
        != x.numel()
    ):
        return
    y = fit(x, y)
    target = put(x, x_order)
    whole = target.like(base)
    Call(target, put(y, y_order)).run("spyre::copy")
    expected = base.clone()
    held = y.to(torch.float32) if y.dtype is torch.bool else y
    expected.as_strided(x.shape, x.stride(), x.storage_offset()).copy_(held)
    wide = np.int64 if whole.values().dtype.kind == "i" else np.float32
    assert distance(whole.values(), expected.numpy().astype(wide), x.dtype) == 0
