"""`generate()` on the device: both kinds of KV cache, batches with left padding, few graphs."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

pytest.importorskip("transformers", reason="an extra: pip install torch-spyre[models]")

from torch._dynamo.utils import counters

from tests.models.zoo import CAUSAL, VOCABULARY

PROMPT = 12
PADDING = (0, 3, 5, 7)  # of the texts in a batch, on their left
CACHES = ("dynamic", "static")
NAMED = ("granite", "llama", "qwen3")


class Answers(NamedTuple):
    """What the device said, what the CPU says in float32, and what the device would say after each
    prefix of that: the share of it that is the same."""

    said: torch.Tensor
    wanted: torch.Tensor
    share: float


def generate(name: str, cache: str, batch: int, count: int, is_compiled: bool = False) -> Answers:
    """Greedy answers of a length; counts graphs and fallbacks from zero."""
    torch.manual_seed(0)
    model: Any = CAUSAL[name].build().eval()
    tokens = torch.randint(3, VOCABULARY, (batch, PROMPT))
    mask = torch.ones_like(tokens)
    for text, padding in zip(range(1, batch), PADDING[1:], strict=False):
        tokens[text, :padding] = mask[text, :padding] = 0
    settings = {
        "max_new_tokens": count,
        "do_sample": False,
        "cache_implementation": cache,
        "eos_token_id": None,
    }
    wanted = model.generate(tokens, attention_mask=mask, **settings)
    model = model.half().to("spyre")
    torch.compiler.reset()
    counters.clear()
    torch.spyre.reset_fallback_stats()
    forward = model.forward
    if is_compiled:
        model.forward = torch.compile(forward)
    said = model.generate(tokens.to("spyre"), attention_mask=mask.to("spyre"), **settings).cpu()
    seen = torch.cat([mask, torch.ones(batch, count, dtype=mask.dtype)], 1)
    with torch.no_grad():
        logits = forward(wanted.to("spyre"), attention_mask=seen.to("spyre")).logits
    next_words = logits.argmax(-1).cpu()[:, PROMPT - 1 : -1]
    return Answers(said, wanted, float((next_words == wanted[:, PROMPT:]).float().mean()))


def check(answers: Answers) -> None:
    """Close calls of random weights may go either way, and a text goes on as it went."""
    assert not torch.spyre.fallback_stats()
    assert answers.said.shape == answers.wanted.shape
    assert answers.share >= 0.95
    first = answers.said[:, PROMPT] == answers.wanted[:, PROMPT]
    assert first.float().mean() >= 0.75


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", CAUSAL)
def test_eager_tokens_are_those_of_the_cpu(name: str, cache: str, batch: int) -> None:
    check(generate(name, cache, batch, 6))


@pytest.mark.parametrize(
    "name",
    [name if name in NAMED else pytest.param(name, marks=pytest.mark.slow) for name in CAUSAL],
)
@pytest.mark.parametrize(("cache", "batch"), [("dynamic", 4), ("static", 1)])
def test_compiled_tokens_are_those_of_the_cpu(name: str, cache: str, batch: int) -> None:
    check(generate(name, cache, batch, 6, is_compiled=True))
    assert counters["stats"]["unique_graphs"] == 2  # of the prompt, and of all steps
    assert not counters["graph_break"]


@pytest.mark.parametrize("name", NAMED)
def test_of_32_tokens_95_percent_are_those_of_the_cpu(name: str) -> None:
    check(generate(name, "static", 1, 32))


@pytest.mark.parametrize(("cache", "graphs"), [("dynamic", 3), ("static", 2)])
@pytest.mark.parametrize(
    "name", ["granite", *(pytest.param(n, marks=pytest.mark.slow) for n in NAMED[1:])]
)
def test_200_tokens_are_few_graphs(name: str, cache: str, graphs: int) -> None:
    """A prompt's, and one for each bucket of the cache's lengths: 128 and 256, or its one size."""
    check(generate(name, cache, 1, 200, is_compiled=True))
    assert counters["stats"]["unique_graphs"] == graphs
    assert not counters["graph_break"]
