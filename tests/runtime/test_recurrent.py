"""nn.LSTM and nn.GRU: PyTorch asks devices for fused cells, ours are made of card operations."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

from torch_spyre.ops.fallbacks import FallbackWarning


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_outputs_and_gradients_are_those_of_the_cpu(kind, bias):
    torch.manual_seed(0)
    layer = kind(5, 7, num_layers=2, bias=bias)
    twin = copy.deepcopy(layer).to("spyre")
    x = torch.randn(3, 2, 5)
    expected = layer(x)[0]
    expected.sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        result = twin(x.to("spyre"))[0]
        result.sum().backward()
    torch.testing.assert_close(result.cpu(), expected)
    for ours, theirs in zip(twin.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_single_cells(kind):
    torch.manual_seed(0)
    cell = kind(4, 6)
    x = torch.randn(3, 4)
    expected = cell(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        result = copy.deepcopy(cell).to("spyre")(x.to("spyre"))
    first = (result[0], expected[0]) if kind is nn.LSTMCell else (result, expected)
    torch.testing.assert_close(first[0].cpu(), first[1])
