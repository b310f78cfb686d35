"""Sizes that no number of cores divides: the last core has less to do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torch_spyre.tools.measure import compiled_kernels, measure


@pytest.mark.parametrize("rows", [1, 41])
def test_a_vocabulary_that_nothing_divides(rows: int) -> None:
    torch.manual_seed(0)
    head = nn.Linear(128, 49155, bias=False)  # 768 whole sticks and three elements
    x = torch.randn(rows, 128)
    with torch.no_grad():
        wanted = head(x)
        torch.compiler.reset()
        on_card = torch.compile(head.half().to("spyre"), dynamic=False)
        result, _ = measure(on_card, x.half().to("spyre"))
    steps = compiled_kernels()[-1].steps
    (product,) = (step for step in steps if step.operation == "batchmatmul")
    assert product.cores > 1
    assert product.bytes_written == rows * 769 * 128
    # The weight was laid out once, not in the kernel: it is too large for any other step.
    assert all(step.bytes_read < 1 << 20 for step in steps if step is not product)
    assert (result.cpu().float() - wanted).abs().max() < 2**-7 * wanted.abs().max()


def test_a_sequence_of_41_rows_uses_cores_with_fewer_rows_at_the_end() -> None:
    x = torch.randn(41, 4096).half()
    torch.compiler.reset()
    result, _ = measure(torch.compile(lambda x: x.softmax(-1), dynamic=False), x.to("spyre"))
    steps = compiled_kernels()[-1].steps
    assert min(step.cores for step in steps if step.operation != "reciprocal") >= 21
    assert (result.cpu().float() - x.float().softmax(-1)).abs().max() < 1e-4
