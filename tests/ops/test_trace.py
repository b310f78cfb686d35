"""Traced operations against the CPU: all of it on the card, in shapes that do not fill sticks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

from torch_spyre.tools.plans import plans_of

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def all_on_the_card() -> Iterator[None]:
    torch.spyre.reset_fallback_stats()
    yield
    assert torch.spyre.fallback_stats() == {}


def agree(call: Callable[..., Any], *args: Any, **options: Any) -> None:
    """The same results as on the CPU; floats within float32's rounding of sums."""

    def on_card(value: Any) -> Any:
        return value.to("spyre") if isinstance(value, torch.Tensor) else value

    expected = call(*args, **options)
    found = call(*map(on_card, args), **{name: on_card(v) for name, v in options.items()})
    pairs = (
        zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
    )
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-5, atol=1e-5)


def numbers(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(
    ("mode", "size", "to"),
    [
        ("linear", (2, 3, 7), (11,)),
        ("bilinear", (2, 3, 5, 7), (3, 13)),
        ("bicubic", (1, 3, 5, 7), (9, 4)),
        ("trilinear", (1, 2, 3, 4, 5), (5, 4, 3)),
    ],
)
def test_interpolation_takes_the_taps_that_pytorch_takes(mode, size, to, align_corners):
    agree(functional.interpolate, numbers(*size), to, mode=mode, align_corners=align_corners)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("scale", [0.6, 1.7, 3.0])
def test_a_scale_names_the_nearest_elements(mode, scale):
    agree(functional.interpolate, numbers(2, 3, 5, 7), scale_factor=scale, mode=mode)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
def test_the_gradient_of_an_interpolation_returns_to_its_taps(mode):
    def gradient(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (functional.interpolate(x, (8, 4), mode=mode) * weight).sum().backward()
        assert x.grad is not None
        return x.grad

    agree(gradient, numbers(1, 3, 5, 7), numbers(1, 3, 8, 4))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_a_grid_samples_outside_of_the_image_as_its_padding_says(mode, padding):
    grid = numbers(2, 3, 5, 2) * 1.5
    options = {"mode": mode, "padding_mode": padding, "align_corners": False}
    agree(functional.grid_sample, numbers(2, 3, 5, 7), grid, **options)


@pytest.mark.parametrize(("size", "to"), [((1, 4, 4, 4), (2, 3)), ((2, 3, 7, 5), (3, 5))])
def test_adaptive_windows_cover_what_pytorchs_cover(size, to):
    agree(functional.adaptive_max_pool2d, numbers(*size), to, return_indices=True)
    agree(functional.adaptive_avg_pool2d, numbers(*size), to)


def test_rows_of_rows_are_the_rows_that_both_indices_name():
    rows, columns = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 1, 2, 2, 3])
    x = torch.arange(64.0).view(1, 4, 4, 4).half()

    def twice(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        picked = x.index_select(2, rows).unflatten(2, (2, 2))
        return picked.index_select(4, columns)

    agree(twice, x, rows, columns)


@pytest.mark.parametrize("p", [1, 3])
def test_mvlgamma_in_place_is_mvlgamma(p):
    agree(lambda x: x.clone().mvlgamma_(p), numbers(5, 5).abs() + p)


@pytest.mark.parametrize("offset", [-7, -1, 0, 2, 30])
def test_indices_of_triangles_go_row_by_row(offset):
    for call in (torch.tril_indices, torch.triu_indices):
        found = call(20, 21, offset, device="spyre")
        assert torch.equal(found.cpu(), call(20, 21, offset))


def test_integer_matrices_have_integer_factors():
    a = torch.arange(12, dtype=torch.int32)
    agree(torch.addmm, a.view(3, 4)[:, :3], a.view(3, 4), a.view(4, 3), beta=1.7, alpha=2.6)


def test_a_batch_norm_that_does_not_train_has_no_statistics_of_the_batch():
    stats = [numbers(2), numbers(2).abs()]
    agree(torch.native_batch_norm, numbers(3, 2, 4), None, None, *stats, False, 0.1, 1e-5)


def test_places_among_sorted_numbers_are_found_from_either_side():
    edges, x = (
        torch.tensor([-1.0, 0.0, 0.0, 2.0]),
        torch.tensor([[-3.0, 0.0, 2.0], [1.0, 5.0, -1.0]]),
    )
    for right in (False, True):
        agree(torch.searchsorted, edges, x, right=right)
        agree(torch.bucketize, x, edges, right=right)


def test_repeats_of_none_are_left_out():
    agree(torch.repeat_interleave, torch.tensor([2, 0, 1, 3]))


@pytest.mark.parametrize("size", [(32, 20), (32, 33), (32, 63), (7, 33), (4, 200), (3, 5, 40)])
def test_an_index_whose_rows_end_inside_of_sticks_is_copied_in_few_steps(size):
    """A copy for each row once made 220 steps, and as many milliseconds to plan them."""
    index = torch.randint(0, 50, size, generator=torch.Generator().manual_seed(1))
    agree(functional.embedding, index, numbers(50, 96))
    (plan,) = plans_of(functional.embedding, index.to("spyre"), numbers(50, 96).to("spyre"))[-1:]
    assert sum(map(len, plan.launches)) <= 6, str(plan)


def test_only_named_rows_of_an_embedding_are_shortened():
    agree(
        lambda w, i: aten.embedding_renorm_(w.clone(), i, 1.0, 2.0),
        numbers(7, 5) * 3,
        torch.tensor([1, 1, 4]),
    )


@pytest.mark.parametrize("reduce", ["mean", "prod", "amin", "amax"])
def test_rows_are_reduced_into_the_rows_that_an_index_names(reduce):
    index = torch.tensor([0, 2, 2])
    agree(torch.index_reduce, numbers(3, 5), 0, index, numbers(3, 5), reduce, include_self=False)


def test_a_scatter_of_least_elements_starts_from_nothing_in_16_bits():
    index = torch.tensor([[0, 1, 1]])
    x, source = torch.zeros(1, 4).half(), torch.tensor([[5.0, 3.0, 4.0]]).half()
    agree(torch.scatter_reduce, x, 1, index, source, "amin", include_self=False)


def test_numbers_between_integers_are_between_integers():
    for call in (torch.linspace, torch.logspace):
        found = call(1, 4.3, 9, dtype=torch.int32, device="spyre")
        assert torch.equal(found.cpu(), call(1, 4.3, 9, dtype=torch.int32))
