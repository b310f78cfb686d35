"""Random tensors, views of them, and layouts, for property tests."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

sizes = st.lists(st.sampled_from((1, 2, 3, 5, 33, 64, 70)), max_size=3).filter(
    lambda size: np.prod(size) <= 3000
)
dtypes = st.sampled_from((torch.float16, torch.float32, torch.int8, torch.int32, torch.bool))


KINDS = (
    *("transpose", "slice", "select", "unsqueeze", "unfold"),
    *("flatten", "reshape", "as_strided"),
)


@st.composite
def views(draw: st.DrawFn, base: torch.Tensor) -> torch.Tensor:
    """A chain of views of a tensor."""
    x = base
    for _ in range(draw(st.integers(0, 3))):
        dim = draw(st.integers(0, max(x.dim() - 1, 0)))
        match draw(st.sampled_from(KINDS)):
            case "transpose" if x.dim() > 1:
                x = x.transpose(dim, draw(st.integers(0, x.dim() - 1)))
            case "slice" if x.dim() and x.shape[dim] > 1:
                start = draw(st.integers(0, x.shape[dim] - 1))
                stop = draw(st.integers(start + 1, x.shape[dim]))
                index = [slice(None)] * x.dim()
                index[dim] = slice(start, stop, draw(st.sampled_from((1, 1, 2, 3))))
                x = x[tuple(index)]
            case "select" if x.dim():
                x = x.select(dim, draw(st.integers(0, x.shape[dim] - 1)))
            case "unsqueeze":
                x = x.unsqueeze(dim)
            case "unfold" if x.dim() and x.shape[dim] > 4 and x.numel() < 1000:
                x = x.unfold(dim, 3, 2)
            case "flatten" if x.is_contiguous():
                x = x.view(-1)
            case "reshape" if x.is_contiguous() and x.numel() % 2 == 0:
                x = x.view(2, -1)
            case "as_strided" if x._base is None and x.dim() and x.numel() > 3:
                x = x.as_strided((2, x.numel() // 2), (1, 2), 0)
            case _:
                pass
    return x


@st.composite
def operands(draw: st.DrawFn) -> tuple[torch.Tensor, tuple[int, ...]]:
    """A view and the order of dimensions in which its storage lies on the card."""
    size, dtype = draw(sizes), draw(dtypes)
    count = int(np.prod(size))
    values = torch.arange(count) % 97 - (0 if dtype is torch.bool else 40)
    base = values.to(dtype).reshape(size).clone()  # the owner of its storage
    order = draw(st.permutations(range(len(size))))
    return draw(views(base)), tuple(order)


def fit(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A part of y that broadcasts with x: dimensions that disagree are cut down to one."""
    while y.dim() > x.dim():
        y = y[0]
    for dim in range(1, y.dim() + 1):
        if y.shape[-dim] not in (1, x.shape[-dim]):
            y = y.narrow(y.dim() - dim, 0, 1)
    return y
