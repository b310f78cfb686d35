"""Attention as an online softmax: sections of queries, chunks of keys, scores in LX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from compiled import run_compiled
from torch.nn import functional

from tests.ops import step_model
from torch_spyre.ops import attention

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True, "keys": 200},
    "more queries than keys": {"is_causal": True, "queries": 200, "keys": 70},
    "more keys than queries": {"is_causal": True, "queries": 70, "keys": 200},
    "groups": {"is_causal": True, "keys": 200, "key_heads": 2, "enable_gqa": True},
    "decode": {"queries": 1, "keys": 333, "key_heads": 2, "enable_gqa": True},
    "scale": {"scale": 0.7},
    "scale below zero": {"scale": -0.3},
    "mask": {"mask": "bool"},
    "bias": {"mask": "float"},
    "rows in memory": {"is_causal": True, "keys": 200, "is_permuted": True},
    "no queries": {"queries": 0},
    "no keys": {"keys": 0},
    "float32": {"is_causal": True, "keys": 200, "dtype": torch.float32},
}


@pytest.fixture
def small_parts() -> Iterator[None]:
    """Several sections and chunks at lengths that a test can afford."""
    with mock.patch.multiple(attention, SECTION=64, CHUNK=64, MOST_SECTIONS=4, MOST_CHUNKS=3):
        yield


def _inputs(case: dict[str, Any]) -> tuple[list[torch.Tensor], dict[str, Any]]:
    torch.manual_seed(0)
    heads, queries, width = 4, case.get("queries", 200), 64
    keys, key_heads = case.get("keys", 150), case.get("key_heads", heads)
    query = torch.randn(2, heads, queries, width)
    if case.get("is_permuted"):
        query = torch.randn(2, queries, heads, width).transpose(1, 2)
    inputs = [query, *(torch.randn(2, key_heads, keys, width) for _ in range(2))]
    if case.get("mask") == "bool":
        mask = torch.rand(queries, keys) < 0.5
        mask[3] = False  # a query that sees nothing
        mask[5, :64] = False  # nor this one, of the first chunk
        inputs.append(mask)
    elif case.get("mask") == "float":
        inputs.append(torch.randn(2, 1, queries, keys) * 10)
    dtype = case.get("dtype", torch.float16)
    inputs = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
    return inputs, {k: case[k] for k in ("is_causal", "scale", "enable_gqa") if k in case}


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("name", CASES)
def test_sections_and_chunks_make_the_whole(name: str) -> None:
    inputs, rest = _inputs(CASES[name])
    run = run_compiled(
        lambda *x: functional.scaled_dot_product_attention(*x, **rest),
        inputs,
        check_guarantees=True,
    )
    exact = [
        torch.from_numpy(step_model.as_seen_by_card(x)) if x.is_floating_point() else x
        for x in inputs
    ]
    wanted = functional.scaled_dot_product_attention(*exact, **rest)
    bound = 1e-5 if inputs[0].dtype is torch.float32 else 2**-8
    torch.testing.assert_close(run.results[0].float(), wanted, rtol=bound, atol=bound)


def test_a_causal_section_leaves_out_the_keys_behind_it() -> None:
    sections = list(attention._sections(2048, 2048, True))
    assert [seen for _, seen in sections] == [256 * (i + 1) for i in range(8)]
    assert list(attention._sections(2048, 2048, False)) == [((0, 2048), 2048)]


@pytest.mark.parametrize("is_causal", [True, False])
def test_scores_never_reach_memory(is_causal: bool) -> None:
    heads, length, width = 32, 1024, 64
    query, key, value = (torch.randn(1, heads, length, width).half() for _ in range(3))
    run = run_compiled(
        lambda *x: functional.scaled_dot_product_attention(*x, is_causal=is_causal),
        [query, key, value],
    )
    (launch,) = run.launches
    tensor = heads * length * width * 2
    # The result, and the mask of the sections' diagonals.
    assert tensor <= launch.traffic.written <= 1.1 * tensor
    # Queries once per chunk of keys, keys and values once.
    assert launch.traffic.read <= 5 * tensor


def test_groups_read_their_keys_once() -> None:
    query = torch.randn(1, 32, 1, 128).half()
    key, value = (torch.randn(1, 8, 2048, 128).half() for _ in range(2))
    run = run_compiled(
        lambda *x: functional.scaled_dot_product_attention(*x, enable_gqa=True),
        [query, key, value],
    )
    tensor = key.numel() * 2
    assert sum(launch.traffic.read for launch in run.launches) <= 3.2 * tensor


def test_heads_narrower_than_a_stick_are_moved_in_sticks() -> None:
    """Not element by element, a stick for each: queries of 12 heads once took 64 times the room."""
    batch, length, heads, width = 4, 64, 12, 32

    def attend(x: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        projected = (functional.linear(x, weight, bias) for weight in weights)
        parts = [y.view(batch, length, heads, width).transpose(1, 2) for y in projected]
        return functional.scaled_dot_product_attention(*parts)

    torch.manual_seed(0)
    x = torch.randn(batch, length, heads * width).half()
    weights = (torch.randn(3, heads * width, heads * width) * 0.05).half()
    run = run_compiled(attend, [x, weights, torch.zeros(heads * width).half()])
    written = sum(launch.traffic.written for launch in run.launches)
    scores = batch * heads * length * length * 2
    assert written <= 4 * x.numel() * 2 + 6 * scores


def test_groups_may_have_dropout() -> None:
    query = torch.randn(1, 8, 64, 64).half()
    key, value = (torch.randn(1, 2, 64, 64).half() for _ in range(2))
    value = value.abs() + 1
    run = run_compiled(
        lambda *x: functional.scaled_dot_product_attention(*x, dropout_p=0.5, enable_gqa=True),
        [query, key, value],
    )
    wanted = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    assert run.results[0].shape == wanted.shape
    # What is kept is doubled, so the means of many agree; and it was drawn, so the results do not.
    means = run.results[0].float().mean(), wanted.float().mean()
    assert abs(means[0] - means[1]) < 0.05 * means[1]
    assert not torch.allclose(run.results[0].float(), wanted.float(), rtol=0.1)
