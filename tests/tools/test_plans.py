"""What `plans_of` shows is what the card is given."""

from __future__ import annotations

import warnings

import torch

from torch_spyre.tools.plans import plans_of

DEVICE = "spyre"


def test_a_formula_is_one_program_with_its_steps() -> None:
    x = torch.rand(3, 70).to(DEVICE)
    (plan,) = plans_of(torch.nn.functional.mish, x)
    assert plan.operation == "aten::mish"
    assert plan.launches == (("softplus", "tanh", "mul"),)
    assert str(plan) == "aten::mish: softplus tanh mul"


def test_as_many_programs_are_shown_as_are_launched() -> None:
    x = torch.rand(3, 70).to(DEVICE)
    plans = plans_of(lambda: x.sort(-1).values.cumsum(0))
    torch.spyre.synchronize()
    before = torch.spyre.counters()["launches"]
    x.sort(-1).values.cumsum(0)
    torch.spyre.synchronize()
    launched = torch.spyre.counters()["launches"] - before
    assert sum(len(plan.launches) for plan in plans) == launched


def test_what_was_planned_before_is_planned_again() -> None:
    x = torch.rand(3, 70).to(DEVICE)
    assert plans_of(torch.exp, x) == plans_of(torch.exp, x) != []


def test_what_the_card_lacks_comes_with_the_reason() -> None:
    x = torch.eye(3).to(DEVICE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (plan,) = (plan for plan in plans_of(torch.linalg.inv, x) if plan.reason)
    assert plan.operation.startswith("aten::linalg_inv")
    assert "on the CPU" in str(plan)


def test_an_empty_out_is_one_plan() -> None:
    x = torch.rand(3, 70).to(DEVICE)
    plans = plans_of(lambda: torch.add(x, x, out=torch.empty(0, device=DEVICE)))
    assert [plan.operation for plan in plans] == ["aten::add.out"]
