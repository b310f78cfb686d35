"""The steps of fused optimisers, which HuggingFace's Trainer asks for by default, and what a
gradient scaler does around them.

Each parameter is updated by a handful of operations. They have the learning rate as an argument, so
that a schedule does not plan anything anew, and nothing waits for the card but the question whether
there was an overflow. 16-bit parameters are updated in 32 bits and rounded once. `import torch`
imports this: it has to stay cheap.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import torch

Tensor = torch.Tensor
Tensors = Sequence[Tensor]
Rate = float | Tensor


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype is torch.float32 else x.to(torch.float32)


def _store(x: Tensor, wide: Tensor) -> None:
    if wide is not x:
        x.copy_(wide)


def _overflowed(found_inf: Tensor | None) -> bool:
    return found_inf is not None and bool(found_inf.item())


def _gradients(
    parameters: Tensors,
    grads: Tensors,
    weight_decay: float,
    maximize: bool,
    grad_scale: Tensor | None,
) -> Iterator[Tensor]:
    """Gradients in 32 bits as the step is to take them; those given lose the scaler's factor."""
    for parameter, grad in zip(parameters, grads, strict=True):
        if grad_scale is not None:
            grad.copy_(_wide(grad) / grad_scale)
        wide = -_wide(grad) if maximize else _wide(grad)
        yield wide + _wide(parameter) * weight_decay if weight_decay else wide


def _adam(
    is_decay_apart: bool,
    parameters: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    max_exp_avg_sqs: Tensors,
    state_steps: Tensors,
    *,
    lr: Rate,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    if _overflowed(found_inf):
        return
    inside = 0.0 if is_decay_apart else weight_decay
    made = _gradients(parameters, grads, inside, maximize, grad_scale)
    for i, grad in enumerate(made):
        parameter, step = _wide(parameters[i]), _wide(state_steps[i])
        average, squares = _wide(exp_avgs[i]), _wide(exp_avg_sqs[i])
        if is_decay_apart and weight_decay:
            parameter.mul_(1 - lr * weight_decay)
        average.lerp_(grad, 1 - beta1)
        squares.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        _store(exp_avgs[i], average)
        _store(exp_avg_sqs[i], squares)
        if amsgrad:
            largest = _wide(max_exp_avg_sqs[i])
            squares = torch.maximum(largest, squares, out=largest)
            _store(max_exp_avg_sqs[i], largest)
        size = squares.sqrt() / (1 - beta2**step).sqrt() + eps
        parameter.sub_(average / size * (lr / (1 - beta1**step)))
        _store(parameters[i], parameter)


def _sgd(
    parameters: Tensors,
    grads: Tensors,
    momentum_buffers: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: Rate,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    if _overflowed(found_inf):
        return
    made = _gradients(parameters, grads, weight_decay, maximize, grad_scale)
    for i, grad in enumerate(made):
        if momentum:
            buffer = _wide(momentum_buffers[i])
            if is_first_step:
                buffer.copy_(grad)
            else:
                buffer.mul_(momentum).add_(grad * (1 - dampening))
            _store(momentum_buffers[i], buffer)
            grad = grad + buffer * momentum if nesterov else buffer
        parameter = _wide(parameters[i])
        parameter.sub_(grad * lr)
        _store(parameters[i], parameter)


def _adagrad(
    parameters: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    *,
    lr: Rate,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    if _overflowed(found_inf):
        return
    made = _gradients(parameters, grads, weight_decay, maximize, grad_scale)
    for i, grad in enumerate(made):
        parameter, total, step = _wide(parameters[i]), _wide(state_sums[i]), _wide(state_steps[i])
        total.addcmul_(grad, grad)
        _store(state_sums[i], total)
        rate = lr / (1 + (step - 1) * lr_decay)
        parameter.sub_(grad / (total.sqrt() + eps) * rate)
        _store(parameters[i], parameter)


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
        "_fused_adam_": functools.partial(_adam, False),
        "_fused_adamw_": functools.partial(_adam, True),
        "_fused_sgd_": _sgd,
        "_fused_adagrad_": _adagrad,
    }
    for name, step in steps.items():
        yield name, step
        yield f"{name}.tensor_lr", step  # the learning rate as a tensor


KERNELS: dict[str, Callable[..., Tensor | None]] = {
    **dict(_overloads()),
    "_amp_foreach_non_finite_check_and_unscale_": _check_and_unscale,
    "_amp_update_scale_": _update_scale,
}
