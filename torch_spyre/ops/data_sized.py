"""Operations that ask the card one thing and go on: how large is the result, can it be drawn?

Each is written in other operations, and waits for that one number. `import torch` imports this: it
has to stay cheap.
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


def multinomial(
    x: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Places in each row, each as likely as its number is large among those of the row."""
    _check_draws(x, num_samples, replacement)
    if x.dim() == 2 and x.shape[0] == 0:
        return torch.empty((0, num_samples), dtype=torch.int64, device=x.device)
    weights = x.to(torch.float32)
    _check_weights(weights)
    if replacement and num_samples > 1:
        reached = weights.cumsum(-1)
        drawn = torch.rand(*x.shape[:-1], num_samples, device=x.device, generator=generator)
        # Less than 1 times the last one is less than the last one, rounded as well.
        return torch.searchsorted(reached, drawn * reached[..., -1:], right=True)
    # A race: who waits for something twice as frequent arrives in half the time.
    haste = weights / torch.empty_like(weights).exponential_(generator=generator)
    if num_samples == 1:
        return haste.argmax(-1, keepdim=True)
    return haste.topk(num_samples).indices


def _check_draws(x: Tensor, num_samples: int, replacement: bool) -> None:
    """PyTorch's own conditions, in its words."""
    if not 0 < x.dim() <= 2:
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if not x.is_floating_point():
        raise RuntimeError(
            f"multinomial only supports floating-point dtypes for input, got: {x.dtype}"
        )
    if num_samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replacement and num_samples > x.shape[-1]:
        raise RuntimeError(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
        )


def _check_weights(weights: Tensor) -> None:
    if weights.shape[-1] > 0:
        least, most = torch.aminmax(weights, dim=-1)
        is_number = (least >= 0) & (most < float("inf"))  # NaN is neither
        if (is_number & (most > 0)).all().item():
            return
        if not is_number.all().item():
            raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")


def multinomial_out(
    x: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: torch.Generator | None = None,
    out: Tensor,
) -> Tensor:
    if out.dtype is not torch.int64:
        raise RuntimeError(f"multinomial expects Long tensor out, got: {out.dtype}")
    drawn = multinomial(x, num_samples, replacement, generator=generator)
    return out.resize_(drawn.shape).copy_(drawn)


KERNELS = {
    "nonzero": nonzero,
    "nonzero.out": nonzero_out,
    "masked_select": masked_select,
    "masked_select.out": masked_select_out,
    "bincount": bincount,
    "multinomial": multinomial,
    "multinomial.out": multinomial_out,
    "repeat_interleave.Tensor": repeat_interleave,
}
