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
