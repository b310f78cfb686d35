"""The steps of fused optimisers, which HuggingFace's Trainer asks for by default, and what a
gradient scaler does around them.

Each parameter is updated by a handful of operations. They have the learning rate as an argument, so
that a schedule does not plan anything anew, and nothing waits for the card but the question whether
there was an overflow. 16-bit parameters are updated in 32 bits and rounded once. `import torch`
imports this: it has to stay cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

Tensor = torch.Tensor
Tensors = Sequence[Tensor]


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype is torch.float32 else x.to(torch.float32)


def _kernel(update: Callable[..., None], *, decays_apart: bool = False) -> Callable[..., None]:
    """The operation that updates all parameters, from what updates one in 32 bits, in place.

    Weights decay as a part of the gradient, or apart from it.
    """

    def step(
        parameters: Tensors,
        grads: Tensors,
        *states: Tensors,
        lr: float | Tensor,
        weight_decay: float,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
        **settings: Any,
    ) -> None:
        if found_inf is not None and found_inf.item():
            return
        for i, (parameter, grad) in enumerate(zip(parameters, grads, strict=True)):
            if grad_scale is not None:  # those given lose the scaler's factor
                grad.copy_(_wide(grad) / grad_scale)
            own = [parameter, *(state[i] for state in states if len(state))]
            wide = [_wide(x) for x in own]
            way = -_wide(grad) if maximize else _wide(grad)
            if decays_apart:
                wide[0].mul_(1 - lr * weight_decay)
            elif weight_decay:
                way = way + wide[0] * weight_decay
            update(way, *wide, lr=lr, **settings)
            for x, changed in zip(own, wide, strict=True):
                if changed is not x:
                    x.copy_(changed)

    return step


def _adam(
    grad: Tensor,
    parameter: Tensor,
    average: Tensor,
    squares: Tensor,
    *others: Tensor,
    lr: float | Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    amsgrad: bool,
) -> None:
    """Others are the largest squares, with amsgrad, and the number of the step."""
    average.lerp_(grad, 1 - beta1)
    squares.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    if amsgrad:
        squares = torch.maximum(others[0], squares, out=others[0])
    step = others[-1]
    size = squares.sqrt() / (1 - beta2**step).sqrt() + eps
    parameter.sub_(average / size * (lr / (1 - beta1**step)))


def _sgd(
    grad: Tensor,
    parameter: Tensor,
    *buffers: Tensor,
    lr: float | Tensor,
    momentum: float,
    dampening: float,
    nesterov: bool,
    is_first_step: bool,
) -> None:
    """The buffer is there with momentum."""
    for buffer in buffers:
        if is_first_step:
            buffer.copy_(grad)
        else:
            buffer.mul_(momentum).add_(grad * (1 - dampening))
        grad = grad + buffer * momentum if nesterov else buffer
    parameter.sub_(grad * lr)


def _adagrad(
    grad: Tensor,
    parameter: Tensor,
    total: Tensor,
    step: Tensor,
    *,
    lr: float | Tensor,
    lr_decay: float,
    eps: float,
) -> None:
    total.addcmul_(grad, grad)
    parameter.sub_(grad / (total.sqrt() + eps) * (lr / (1 + (step - 1) * lr_decay)))


# ---- Gradient scalers ---------------------------------------------------------------------------


def _check_and_unscale(grads: Tensors, found_inf: Tensor, inv_scale: Tensor) -> None:
    for grad in grads:
        is_wrong = ~torch.isfinite(grad).all()
        found_inf.copy_(torch.maximum(found_inf, is_wrong.to(found_inf.dtype)))
        grad.copy_(_wide(grad) * inv_scale)


def _update_scale(
    scale: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> Tensor:
    """Smaller after an overflow; larger after so many steps without one, if that is a number."""
    overflowed = found_inf != 0
    steps = growth_tracker + 1
    is_time = steps >= growth_interval
    grown = scale * scale_growth_factor
    larger = torch.where(is_time & torch.isfinite(grown), grown, scale)
    growth_tracker.copy_(torch.where(overflowed | is_time, 0, steps))
    return scale.copy_(torch.where(overflowed, scale * scale_backoff_factor, larger))


def _overloads() -> Iterator[tuple[str, Callable[..., None]]]:
    steps: dict[str, Callable[..., None]] = {
        "_fused_adam_": _kernel(_adam),
        "_fused_adamw_": _kernel(_adam, decays_apart=True),
        "_fused_sgd_": _kernel(_sgd),
        "_fused_adagrad_": _kernel(_adagrad),
    }
    for name, step in steps.items():
        yield name, step
        yield f"{name}.tensor_lr", step  # the learning rate as a tensor


KERNELS: dict[str, Callable[..., Tensor | None]] = {
    **dict(_overloads()),
    "_amp_foreach_non_finite_check_and_unscale_": _check_and_unscale,
    "_amp_update_scale_": _update_scale,
}
