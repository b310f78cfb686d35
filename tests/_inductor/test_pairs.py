"""Complex numbers within a graph: pairs of real ones to the card."""

from __future__ import annotations

import pytest
import torch
from torch import nn

real, imaginary = torch.view_as_real, torch.view_as_complex


@pytest.fixture(autouse=True)
def compile_afresh():
    torch.compiler.reset()


def rotated(x, angles):
    turns = torch.polar(torch.ones_like(angles), angles)
    return real(imaginary(x) * turns[:, None, :]).flatten(2)


def turned_back(x, angles):
    turns = torch.polar(angles, angles) * 0.5
    return real(imaginary(x) * turns.conj().unsqueeze(1).expand(-1, 3, -1))


def times_numbers(x, angles):
    return real((2 + 1j) * imaginary(x) * angles[:, None])


def in_parts(x, angles):
    z = torch.complex(angles, angles.sin()) * imaginary(x)[:, 0]
    return z.real + z.imag


def of_some(x, angles):
    z = imaginary(x).transpose(0, 1)[1:] * 1.5
    return real(z.contiguous()) + angles[0, 0]


@pytest.mark.parametrize("function", [rotated, turned_back, times_numbers, in_parts, of_some])
def test_products_of_complex_numbers_are_those_of_the_cpu(function):
    torch.manual_seed(0)
    x, angles = torch.randn(2, 3, 8, 2), torch.randn(2, 8)
    found = torch.compile(function, fullgraph=True)(x.to("spyre"), angles.to("spyre"))
    torch.testing.assert_close(found.cpu(), function(x, angles), rtol=1e-5, atol=1e-6)
    assert not torch.spyre.fallback_stats()


def test_gradients_go_through_them():
    torch.manual_seed(0)
    x, angles = torch.randn(2, 3, 8, 2), torch.randn(2, 8)
    gradients = []
    for device in ("cpu", "spyre"):
        inputs = [nn.Parameter(each.to(device)) for each in (x, angles)]
        function = rotated if device == "cpu" else torch.compile(rotated, fullgraph=True)
        (function(*inputs) ** 3).sum().backward()
        gradients.append([each.grad.cpu() for each in inputs])
    for found, wanted in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_sizes_may_change():
    compiled = torch.compile(rotated, fullgraph=True, dynamic=True)
    for length in (5, 9):
        x, angles = torch.randn(length, 3, 8, 2), torch.randn(length, 8)
        found = compiled(x.to("spyre"), angles.to("spyre")).cpu()
        torch.testing.assert_close(found, rotated(x, angles), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("function", [imaginary, lambda x: imaginary(x).abs()])
def test_what_leaves_a_graph_or_meets_other_operations_is_refused(function):
    with pytest.raises(Exception, match="compute with real and imaginary parts"):
        torch.compile(function, fullgraph=True)(torch.randn(4, 2, device="spyre"))
