"""`out=` as PyTorch has it where it is not just a place for the result."""

from __future__ import annotations

import re
from collections.abc import Callable

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


LISTS = {
    "one dtype": (torch.bfloat16, torch.bfloat16),
    "a common dtype": (torch.float16, torch.float32),
    "a common dtype that holds less": (torch.int32, torch.float16),
    "integers": (torch.int8, torch.int32),
    "bools": (torch.bool, torch.bool),
}


def pieces(dtypes: tuple[torch.dtype, ...]) -> list[torch.Tensor]:
    """Small numbers, but in int32 such that float16 has not all of them."""
    values = torch.arange(3 * 70).reshape(3, 70) % 100
    return [(values * 13 + 1025 if d is torch.int32 else values).to(d) for d in dtypes]


@pytest.mark.parametrize("dtypes", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.float16, torch.int32, torch.bool])
@pytest.mark.parametrize("dim", [0, 1])
def test_cat_casts_to_out_on_the_card(
    dtypes: tuple[torch.dtype, ...], out_dtype: torch.dtype, dim: int
) -> None:
    host = pieces(dtypes)
    card = [tensor.to("spyre") for tensor in host]
    wanted, found = torch.empty(0, dtype=out_dtype), torch.empty(0, dtype=out_dtype, device="spyre")
    try:
        torch.cat(host, dim, out=wanted)
    except TypeError as error:
        with pytest.raises(TypeError, match=re.escape(str(error))):
            torch.cat(card, dim, out=found)
        return
    torch.spyre.reset_fallback_stats()
    assert torch.cat(card, dim, out=found) is found
    assert not torch.spyre.fallback_stats()
    tolerance = 2**-9 if out_dtype is torch.float16 else 0  # the card's has a bit less
    torch.testing.assert_close(found.cpu(), wanted, rtol=tolerance, atol=0)


VIEWS = {
    "rows of a larger tensor": lambda base: base[2:8],
    "columns of a larger tensor": lambda base: base[:6, 5:75],
    "every second row": lambda base: base[:12:2, :70],
    "a flat piece": lambda base: base.view(-1)[100:520].view(6, 70),
    "a transposed tensor": lambda base: base.view(-1)[:420].view(70, 6).t(),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_cat_writes_the_view_that_out_is_and_nothing_else(
    view: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    base = torch.full((12, 70 if view is VIEWS["rows of a larger tensor"] else 80), -1.0)
    host = [torch.randint(-99, 99, (3, 70)).to(dtype) for _ in range(2)]
    card, into = [tensor.to("spyre") for tensor in host], base.to("spyre")
    torch.spyre.reset_fallback_stats()
    torch.cat(card, out=view(into))
    torch.cat(host, out=view(base))
    assert not torch.spyre.fallback_stats()
    assert torch.equal(into.cpu(), base)


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
