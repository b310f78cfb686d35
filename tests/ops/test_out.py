"""`out=` as PyTorch has it where it is not just a place for the result."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn import functional

pytestmark = pytest.mark.filterwarnings("ignore::torch_spyre.ops.fallbacks.FallbackWarning")


@pytest.mark.parametrize("name", ["cumsum", "mean", "sum", "amax", "softmax"])
def test_out_of_another_dtype_does_what_the_cpu_does(name: str) -> None:
    """Some operations cast to it, some compute in it, some refuse."""
    call = getattr(torch, name)
    x = torch.randn(5, 70).half().to("spyre").cpu()  # what the card holds of it
    for dtype in (torch.float32, torch.bool):
        wanted, found = torch.empty(0, dtype=dtype), torch.empty(0, dtype=dtype, device="spyre")
        try:
            call(x, 1, out=wanted)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=re.escape(str(error)[:30])):
                call(x.to("spyre"), 1, out=found)
        else:
            call(x.to("spyre"), 1, out=found)
            torch.testing.assert_close(found.cpu(), wanted, rtol=2**-9, atol=2**-9)


def test_out_that_overlaps_itself_is_refused() -> None:
    x = torch.randn(5, 5, device="spyre")
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.cat([x, x], out=torch.empty(1, 5, device="spyre").expand(10, 5))
    with pytest.raises(RuntimeError, match="scalar type"):
        torch.masked_select(x, x > 0, out=torch.empty(0, dtype=torch.half, device="spyre"))


def test_gradients_of_a_transposed_convolution_have_the_input_shape() -> None:
    """An output padding as long as the stride leaves room for windows that no input has."""
    torch.manual_seed(0)
    host = [torch.randn(2, 2, 4, 4), torch.randn(2, 2, 4, 5)]
    card = [tensor.to("spyre").requires_grad_() for tensor in host]
    host = [tensor.requires_grad_() for tensor in host]
    rest = {"stride": 2, "padding": 1, "output_padding": 3, "groups": 2, "dilation": 4}
    for tensors in (host, card):
        functional.conv_transpose2d(*tensors, **rest).square().sum().backward()
    for wanted, found in zip(host, card, strict=True):
        assert wanted.grad is not None and found.grad is not None
        torch.testing.assert_close(found.grad.cpu(), wanted.grad, rtol=1e-4, atol=1e-4)
