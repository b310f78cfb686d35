"""Operations whose result is as large as the data says: they count on the card, ask, and go on.

Each is written in other operations; the one number that they wait for is how many elements there
are. `import torch` imports this: it has to stay cheap.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def _counted(mask: Tensor) -> tuple[Tensor, int]:
    """How many elements of a flat mask are true up to each one, and in all."""
    counts = mask.to(torch.int32).cumsum(0, dtype=torch.int32)
    return counts, int(counts[-1].item()) if mask.numel() else 0


def _true_places(mask: Tensor) -> Tensor:
    """The positions of the true elements of a flat mask."""
    counts, total = _counted(mask)
    if total == 0:
        return torch.empty(0, dtype=torch.int64, device=mask.device)
    # Those that are false go behind the end.
    place = torch.where(mask, counts - 1, total).to(torch.int64)
    numbers = torch.arange(mask.numel(), device=mask.device)
    table = torch.zeros(total + 1, dtype=torch.int64, device=mask.device)
    return table.scatter(0, place, numbers)[:total]


def nonzero(x: Tensor) -> Tensor:
    flat = _true_places((x != 0).reshape(-1))
    if x.dim() == 0:
        return flat.new_empty((flat.numel(), 0))
    # One row per dimension in memory, as on the CPU.
    result = torch.empty((x.dim(), flat.numel()), dtype=torch.int64, device=x.device)
    for dim in reversed(range(x.dim())):
        result[dim] = flat % x.shape[dim]
        flat = torch.div(flat, x.shape[dim], rounding_mode="floor")
    return result.t()


def nonzero_out(x: Tensor, *, out: Tensor) -> Tensor:
    if out.dtype is not torch.int64:
        raise RuntimeError(f"nonzero: expected out of scalar type Long, but got {out.dtype}")
    found = nonzero(x)
    return out.resize_(found.shape).copy_(found)


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    x, mask = torch.broadcast_tensors(x, mask)
    return x.reshape(-1).index_select(0, _true_places(mask.reshape(-1)))


def masked_select_out(x: Tensor, mask: Tensor, *, out: Tensor) -> Tensor:
    if out.dtype is not x.dtype:
        raise RuntimeError(
            f"masked_select(): self and result must have the same scalar type, not {x.dtype} and "
            f"{out.dtype}"
        )
    found = masked_select(x, mask)
    return out.resize_(found.shape).copy_(found)


def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    if x.dim() != 1 or x.dtype.is_floating_point:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != x.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if weights is not None and weights.dtype is not torch.float32:
        # PyTorch's result is float64, which no card holds: this says so.
        return torch.zeros(minlength, dtype=torch.float64, device=x.device)
    dtype = torch.int64 if weights is None else torch.float32
    if x.numel() == 0:
        return torch.zeros(minlength, dtype=torch.int64, device=x.device)
    least, most = torch.aminmax(x)
    if int(least.item()) < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    counts = torch.zeros(max(int(most.item()) + 1, minlength), dtype=dtype, device=x.device)
    ones = torch.ones_like(x, dtype=dtype) if weights is None else weights.to(dtype)
    return counts.scatter_add(0, x.to(torch.int64), ones)


def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    """[2, 0, 1] -> [0, 0, 2]"""
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int32, torch.int64):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if repeats.numel() == 0:
        return torch.empty(0, dtype=repeats.dtype, device=repeats.device)
    if int(repeats.amin().item()) < 0:
        raise RuntimeError("repeats can not be negative")
    ends = repeats.to(torch.int32).cumsum(0, dtype=torch.int32)
    total = output_size if output_size is not None else int(ends[-1].item())
    # Where one number's copies end the next one's begin.
    steps = torch.zeros(total + 1, dtype=torch.int32, device=repeats.device)
    steps = steps.index_add(0, ends, torch.ones_like(ends))
    return steps[:total].cumsum(0, dtype=repeats.dtype)


KERNELS = {
    "nonzero": nonzero,
    "nonzero.out": nonzero_out,
    "masked_select": masked_select,
    "masked_select.out": masked_select_out,
    "bincount": bincount,
    "repeat_interleave.Tensor": repeat_interleave,
}


def register() -> torch.library.Library:
    """The registrations last as long as what is returned."""
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in KERNELS.items():
        library.impl(name, kernel, "PrivateUse1")
    return library
