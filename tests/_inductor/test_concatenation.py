"""`cat` within a kernel: parts write their slices of one buffer, which the host never sees."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def compile_afresh():
    torch.compiler.reset()


def halves_swapped(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1) * 2 + x


def nested(x):
    inner = torch.cat((x + 1, x - 1), 0)
    return torch.cat((inner, inner * 2), 0) + 1


@pytest.mark.parametrize("function", [halves_swapped, nested])
def test_a_concatenation_inside_a_kernel_needs_no_tensor_of_its_own(function):
    x = torch.randint(-8, 8, (4, 128)).half()  # exact in the card's format
    assert torch.equal(torch.compile(function)(x.to("spyre")).cpu(), function(x))
