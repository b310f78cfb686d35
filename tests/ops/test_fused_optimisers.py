"""Fused optimisers step on the card, as far from the exact step as the parameters' format is."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import torch_spyre

DEVICE = "spyre"
STEPS = 6
SHAPES = ((7, 5), (64,), (3, 130), ())

Optimiser = type[torch.optim.Optimizer]
CASES: list[tuple[Optimiser, dict[str, Any]]] = [
    (torch.optim.AdamW, {}),
    (torch.optim.AdamW, {"amsgrad": True, "maximize": True, "weight_decay": 0.1}),
    (torch.optim.AdamW, {"lr": torch.tensor(1e-2)}),
    (torch.optim.Adam, {"weight_decay": 0.1}),
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1}),
]
NAMES = [" ".join([kind.__name__, *settings]) for kind, settings in CASES]


def trained(
    kind: Optimiser, settings: dict[str, Any], dtype: torch.dtype, device: str, **more: Any
) -> list[torch.Tensor]:
    """Parameters after some steps with given gradients, both on the grid of `dtype`."""
    torch.manual_seed(0)
    exact = torch.float64 if device == "cpu" else dtype
    start = [torch.randn(shape).to(dtype) for shape in SHAPES]
    parameters = [torch.nn.Parameter(x.to(exact).to(device)) for x in start]
    # A schedule changes a learning rate that is a tensor in place.
    optimiser = kind(parameters, **{"lr": 1e-2, **copy.deepcopy(settings)}, **more)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.9)
    for _ in range(STEPS):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape).to(dtype).to(exact).to(device)
        optimiser.step()
        schedule.step()
    return [parameter.detach().cpu().double() for parameter in parameters]


@pytest.mark.parametrize(("dtype", "fraction_bits"), [(torch.float32, 21), (torch.float16, 9)])
@pytest.mark.parametrize(("kind", "settings"), CASES, ids=NAMES)
def test_steps_are_exact_but_for_rounding(
    kind: Optimiser, settings: dict[str, Any], dtype: torch.dtype, fraction_bits: int
) -> None:
    torch.spyre.reset_fallback_stats()
    wanted = trained(kind, settings, dtype, "cpu")
    found = trained(kind, settings, dtype, DEVICE, fused=True)
    assert torch.spyre.fallback_stats() == {}
    for a, b in zip(found, wanted, strict=True):
        rounding = STEPS * b.abs().clamp_min(1).max() * 2.0 ** -(fraction_bits + 1)
        # A 16-bit average is rounded at each step too, and divided by its equally rounded size.
        moved = STEPS * 1e-2 * 2.0 ** -(fraction_bits - 2)
        assert (a - b).abs().max() <= rounding + moved


def test_an_overflow_skips_the_step_and_halves_the_scale() -> None:
    torch.spyre.reset_fallback_stats()
    parameter = torch.nn.Parameter(torch.ones(8, device=DEVICE))
    optimiser = torch.optim.AdamW([parameter], lr=0.1, fused=True)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0, growth_interval=2)
    seen = []
    for gradient in (float("nan"), 1.0, float("inf"), 1.0, 1.0):
        loss = scaler.scale((parameter * gradient).sum())
        loss.backward()
        scaler.step(optimiser)
        scaler.update()
        optimiser.zero_grad()
        seen.append((round(parameter[0].item(), 3), scaler.get_scale()))
    # Growing takes two steps in a row that are right.
    assert seen == [(1.0, 512), (0.899, 512), (0.899, 256), (0.798, 256), (0.697, 512)]
    assert optimiser.state[parameter]["step"].item() == 3
    assert torch.spyre.fallback_stats() == {}


def test_a_new_learning_rate_plans_nothing_anew() -> None:
    parameter = torch.nn.Parameter(torch.ones(8, device=DEVICE))
    optimiser = torch.optim.AdamW([parameter], fused=True)
    planned = []
    for rate in (0.1, 0.2, 0.3):
        optimiser.param_groups[0]["lr"] = rate
        parameter.grad = torch.ones_like(parameter)
        optimiser.step()
        planned.append(torch_spyre._C.plan_cache_stats()["entries"])
    assert planned[0] == planned[1] == planned[2]
