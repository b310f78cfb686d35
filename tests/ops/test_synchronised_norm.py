"""The parts of nn.SyncBatchNorm, put together as it does, are the norm of the whole batch."""

from __future__ import annotations

import pytest
import torch

DEVICE = "spyre"
EPS, MOMENTUM = 1e-5, 0.1


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 3, 7)])
@pytest.mark.parametrize("is_affine", [True, False])
def test_parts_of_a_batch_are_normalised_as_the_whole(
    shape: tuple[int, ...], is_affine: bool
) -> None:
    torch.manual_seed(0)
    x, grad = torch.randn(shape).requires_grad_(), torch.randn(shape)
    norm = torch.nn.BatchNorm1d if len(shape) == 2 else torch.nn.BatchNorm2d
    whole = norm(5, EPS, MOMENTUM, affine=is_affine)
    if is_affine:
        torch.nn.init.uniform_(whole.weight)
        torch.nn.init.uniform_(whole.bias)
    weight, bias = (
        None if p is None else p.detach().to(DEVICE) for p in (whole.weight, whole.bias)
    )
    expected = whole(x)
    expected.backward(grad)

    parts = [part.detach().to(DEVICE) for part in x.split([2, 4])]  # of two ranks
    grads = [part.to(DEVICE) for part in grad.split([2, 4])]
    found = [torch.batch_norm_stats(part, EPS) for part in parts]
    means, invstds = (torch.stack(each) for each in zip(*found, strict=True))
    counts = torch.tensor([part.numel() / 5 for part in parts], device=DEVICE)
    running = torch.zeros(5, device=DEVICE), torch.ones(5, device=DEVICE)
    mean, invstd = torch.batch_norm_gather_stats_with_counts(
        parts[0], means, invstds, *running, MOMENTUM, EPS, counts
    )
    results = [torch.batch_norm_elemt(p, weight, bias, mean, invstd, EPS) for p in parts]
    sums = [
        torch.batch_norm_backward_reduce(g, p, mean, invstd, weight, True, is_affine, is_affine)
        for g, p in zip(grads, parts, strict=True)
    ]
    total, product, weight_grad, bias_grad = (
        sum(each[1:], each[0]) for each in zip(*sums, strict=True)
    )
    each_count = counts.to(torch.int32).view(-1, 1)
    input_grads = [
        torch.batch_norm_backward_elemt(g, p, mean, invstd, weight, total, product, each_count)
        for g, p in zip(grads, parts, strict=True)
    ]

    def same(found: torch.Tensor, expected: torch.Tensor | None) -> None:
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)

    same(torch.cat(results), expected.detach())
    same(torch.cat(input_grads), x.grad)
    same(running[0], whole.running_mean)
    same(running[1], whole.running_var)
    if is_affine:
        same(weight_grad, whole.weight.grad)
        same(bias_grad, whole.bias.grad)


def test_sixteen_bits_stay_sixteen_bits_with_statistics_in_float32() -> None:
    x = torch.randn(4, 5, 3, device=DEVICE, dtype=torch.float16)
    mean, invstd = torch.batch_norm_stats(x, EPS)
    assert mean.dtype is invstd.dtype is torch.float32
    assert torch.batch_norm_elemt(x, None, None, mean, invstd, EPS).dtype is torch.float16
