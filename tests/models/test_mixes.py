"""Batches and lengths in any order: a bounded number of graphs, and never eager for want of one."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="an extra: pip install torch-spyre[models]")

from torch._dynamo.utils import counters

from tests.models.zoo import CAUSAL, VOCABULARY, ZOO
from torch_spyre._inductor.recompiles import RecompileLimitWarning

Size = tuple[int, int]  # texts in a batch, tokens of the longest

PROMPTS: tuple[Size, ...] = (
    *((1, 12), (1, 20), (1, 150), (4, 12), (4, 33), (2, 70), (8, 9)),
    *((3, 200), (1, 5), (6, 140), (8, 30), (1, 300), (5, 64), (7, 16)),
)
FEW_PROMPTS: tuple[Size, ...] = ((1, 12), (1, 20), (4, 12), (2, 70), (8, 9), (3, 50), (7, 16))


@pytest.fixture(autouse=True)
def within_the_limit() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    torch.spyre.reset_fallback_stats()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompileLimitWarning)
        yield
    assert not torch.spyre.fallback_stats()
    assert not counters["graph_break"]


def texts(batch: int, length: int, side: str) -> dict[str, torch.Tensor]:
    """Random words; the first text is the longest, the others have padding on a side."""
    tokens = torch.randint(3, VOCABULARY, (batch, length))
    mask = torch.ones_like(tokens)
    for text in range(1, batch):
        shorter = int(torch.randint(0, length - 1, ()))
        mask[text, slice(shorter) if side == "left" else slice(length - shorter, None)] = 0
    return {"input_ids": tokens * mask, "attention_mask": mask}


def twins(model: Any, layers: int) -> tuple[Any, Any]:
    """A model with so many layers, and the same on the card, compiled."""
    torch.manual_seed(0)
    config = model.config
    config.num_hidden_layers, config.eos_token_id = layers, None
    reference = type(model)(config).eval()
    on_card = copy.deepcopy(reference).to("spyre")
    on_card.forward = torch.compile(on_card.forward)
    return reference, on_card


def on_card(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to("spyre") for name, tensor in batch.items()}


def generate(name: str, cache: str, prompts: tuple[Size, ...], layers: int) -> int:
    """Graphs of short answers to prompts, each with the CPU's words."""
    reference, model = twins(CAUSAL[name].build(), layers)
    settings = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": cache}
    for size in prompts:
        batch = texts(*size, "left")
        wanted = reference.generate(**batch, **settings)
        assert torch.equal(model.generate(**on_card(batch), **settings).cpu(), wanted), size
    return counters["stats"]["unique_graphs"]


@torch.no_grad()
def encode(name: str, sizes: tuple[Size, ...], layers: int) -> int:
    """Graphs of texts in batches, each as on the CPU."""
    reference, model = twins(ZOO[name].build(), layers)
    for size in sizes:
        batch = texts(*size, "right")
        shown = batch["attention_mask"].bool()
        got = model(**on_card(batch)).last_hidden_state.cpu()
        error = (got - reference(**batch).last_hidden_state)[shown].abs().max()
        assert error < 2e-3, size
    return counters["stats"]["unique_graphs"]


def sizes_of(batches: int, lengths: tuple[int, int], count: int) -> tuple[Size, ...]:
    draw = random.Random(0).randint
    return tuple((draw(1, batches), draw(*lengths)) for _ in range(count))


def test_prompts_in_any_order_are_few_graphs() -> None:
    """Prompts: the first, of one text, three of batches. Steps: of one text, of 2, 4 and 8."""
    assert generate("llama", "dynamic", FEW_PROMPTS, 1) == 9


def test_texts_in_any_order_are_few_graphs() -> None:
    """The first batch; then batches, and single texts, per bucket of lengths."""
    assert encode("bert", ((3, 50), (5, 70), (1, 100), (2, 10), (8, 60), (1, 7), (4, 100)), 1) == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cache", "graphs"),
    [
        (name, cache, n)
        for name in ("llama", "qwen3")
        for cache, n in (("dynamic", 12), ("static", 19))
    ],
)
def test_many_prompts_are_a_graph_per_bucket(name: str, cache: str, graphs: int) -> None:
    """Batches of 1 to 8 prompts of 5 to 300 tokens."""
    assert generate(name, cache, PROMPTS, 2) == graphs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_many_texts_are_a_graph_per_bucket(name: str) -> None:
    """Batches of 1 to 8 texts of 5 to 300 tokens: the first, three of one text, five of more."""
    assert encode(name, sizes_of(8, (5, 300), 60), 2) == 9
