"""Dynamo's limit of graphs per function: what counts, what is said, and which graphs are spared."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch._dynamo import cache_size, convert_frame
from torch._dynamo.utils import counters

from torch_spyre._inductor.recompiles import RecompileLimitWarning

LIMIT = 3


@pytest.fixture(autouse=True)
def few_graphs():
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(recompile_limit=LIMIT):
        yield


def double(x: torch.Tensor, name: str = "") -> torch.Tensor:
    return x if name == "none" else (x * 2).sum(-1)


def ones(*sizes: int, device: str = "spyre") -> torch.Tensor:
    return torch.ones(sizes, dtype=torch.float16, device=device)


def graphs_of(compiled: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> int:
    for call in calls:
        compiled(*call)
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("caches", ["cold", "warm"])
def test_graphs_for_other_buckets_do_not_count(caches: str) -> None:
    compiled = torch.compile(double, dynamic=True)
    calls = [(ones(4, length),) for length in (2, 129, 257, 513, 1025)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompileLimitWarning)
        if caches == "warm":  # guards of kept graphs say what their buckets are
            graphs_of(compiled, calls)
            torch._dynamo.reset()
            counters.clear()
        assert graphs_of(compiled, calls) == 5


def test_graphs_for_fixed_sizes_count_and_the_warning_names_the_size() -> None:
    compiled = torch.compile(double, dynamic=False)
    calls = [(ones(4, length),) for length in (5, 6, 7, 8, 9)]
    with pytest.warns(RecompileLimitWarning) as caught:
        assert graphs_of(compiled, calls) == LIMIT
    (warning,) = caught
    assert "recompile_limit allows" in str(warning.message)
    assert "dimension 1 of L['x']: 7, 6, 5\n" in str(warning.message)
    assert "mark_dynamic" in str(warning.message)


def test_variants_of_a_call_count() -> None:
    calls = [(ones(4, 8), name) for name in "abcdef"]
    with pytest.warns(RecompileLimitWarning, match="do not differ in sizes"):
        assert graphs_of(torch.compile(double), calls) == LIMIT


def test_variants_count_in_each_bucket() -> None:
    calls = [(ones(4, length), name) for length in (2, 129) for name in "abcdef"]
    with pytest.warns(RecompileLimitWarning):
        assert graphs_of(torch.compile(double, dynamic=True), calls) == LIMIT


def test_a_limit_of_the_function_itself_is_followed() -> None:
    compiled = torch.compile(double, dynamic=False, recompile_limit=5)
    calls = [(ones(4, length),) for length in range(5, 15)]
    with pytest.warns(RecompileLimitWarning):
        assert graphs_of(compiled, calls) == 5


def test_functions_on_the_cpu_have_the_limit_of_dynamo() -> None:
    torch.compile(double)(ones(4, 8))
    torch._dynamo.reset()
    counters.clear()
    calls = [(ones(4, length, device="cpu"),) for length in range(5, 15)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompileLimitWarning)
        assert graphs_of(torch.compile(double, dynamic=False, backend="eager"), calls) == LIMIT
    answer = convert_frame.compute_cache_size(None, [], 0)
    assert type(answer) is cache_size.CacheSizeRelevantForFrame


def hide(tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    return tokens * 2 if mask is None else tokens * mask


def test_a_mask_that_comes_later_has_the_dynamic_sizes_of_its_tokens() -> None:
    """Dynamo alone takes it for fixed once more: another graph for 5 x 9, and one for 4 x 9."""

    def tokens(*sizes: int) -> torch.Tensor:
        return torch.ones(sizes, dtype=torch.int32, device="spyre")

    compiled = torch.compile(hide)
    sizes = [(2, 7), (3, 9)]
    assert graphs_of(compiled, [(tokens(*size),) for size in sizes]) == 2
    sizes = [(5, 9), (4, 9), (4, 20)]
    assert graphs_of(compiled, [(tokens(*size), tokens(*size)) for size in sizes]) == 3


def step(cache: torch.Tensor, row: torch.Tensor, mask: torch.Tensor) -> Any:
    cache = torch.cat([cache, row], 1)
    places = torch.arange(cache.size(1), device=cache.device)
    return cache, (cache * mask[:, places, None]).sum(1)


def test_the_mask_of_a_cache_that_grows_has_room_for_as_many_rows() -> None:
    """Its own buckets would be 2 to 128, to 256, to 512."""
    compiled = torch.compile(step)
    for length in (20, 21, 150, 300, 508, 510, 511, 512):
        cache, row, mask = ones(2, length, 64), ones(2, 1, 64), torch.ones(2, length + 1).int()
        mask[:, 0] = 0
        _, total = compiled(cache, row, mask.to("spyre"))
        assert total.tolist() == [[length] * 64] * 2
    assert counters["stats"]["unique_graphs"] <= 3
