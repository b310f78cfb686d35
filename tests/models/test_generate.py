"""`generate()` on the device: both kinds of KV cache, left padding, every search, few graphs."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="an extra: pip install torch-spyre[models]")

from torch._dynamo.utils import counters
from transformers import MistralForCausalLM, T5ForConditionalGeneration

from tests.models.zoo import CAUSAL, NAMED, VOCABULARY, ZOO

PROMPT = 12
PADDING = (0, 3, 5, 7)  # of the texts in a batch, on their left
CACHES = ("dynamic", "static")
BATCHES = (1, 4)


class Forced:
    """Writes down which words a model would say, and has it say the given ones.

    So the model sees the same prefix as the one that the words are from, in its cache too.
    """

    def __init__(self, words: torch.Tensor) -> None:
        self.words = words
        self.said: list[torch.Tensor] = []

    def __call__(self, _: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        word = self.words[:, len(self.said), None].to(scores.device)
        self.said.append(scores.argmax(-1).cpu())
        return torch.full_like(scores, -1e9).scatter(1, word, 0)


def share_of_same_words(
    name: str,
    cache: str,
    batch: int,
    count: int,
    is_compiled: bool = False,
    prompt: int = PROMPT,
) -> float:
    """How many of the CPU's greedy words in float32 the device says, each after the CPU's prefix.

    Counts graphs and fallbacks from zero.
    """
    torch.manual_seed(0)
    model: Any = CAUSAL[name].build().eval()
    tokens = torch.randint(3, VOCABULARY, (batch, prompt))
    mask = torch.ones_like(tokens)
    for text, padding in zip(range(1, batch), PADDING[1:], strict=False):
        tokens[text, :padding] = mask[text, :padding] = 0
    settings = {
        "max_new_tokens": count,
        "do_sample": False,
        "cache_implementation": cache,
        "eos_token_id": None,
    }
    words = model.generate(tokens, attention_mask=mask, **settings)[:, prompt:]
    model = model.half().to("spyre")
    torch.compiler.reset()
    counters.clear()
    torch.spyre.reset_fallback_stats()
    if is_compiled:
        model.forward = torch.compile(model.forward)
    forced = Forced(words)
    model.generate(
        tokens.to("spyre"), attention_mask=mask.to("spyre"), logits_processor=[forced], **settings
    )
    assert not torch.spyre.fallback_stats()
    return float((torch.stack(forced.said, 1) == words).float().mean())


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", CAUSAL)
def test_eager_tokens_are_those_of_the_cpu(name: str, cache: str, batch: int) -> None:
    assert share_of_same_words(name, cache, batch, 6) >= 0.95


def compiled_cases() -> Iterator[Any]:
    """All; in `make test` both caches and both sizes of a batch, with a few models."""
    for name, cache, batch in itertools.product(CAUSAL, CACHES, BATCHES):
        is_quick = name in NAMED and (cache, batch) in (("dynamic", 4), ("static", 1))
        marks = () if is_quick else pytest.mark.slow
        yield pytest.param(name, cache, batch, marks=marks)


@pytest.mark.parametrize(("name", "cache", "batch"), [*compiled_cases()])
def test_compiled_tokens_are_those_of_the_cpu(name: str, cache: str, batch: int) -> None:
    assert share_of_same_words(name, cache, batch, 6, is_compiled=True) >= 0.95
    assert counters["stats"]["unique_graphs"] == 2  # of the prompt, and of all steps
    assert not counters["graph_break"]


@pytest.mark.parametrize("cache", ["dynamic", pytest.param("static", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMED)
def test_of_32_tokens_95_percent_are_those_of_the_cpu(name: str, cache: str) -> None:
    assert share_of_same_words(name, cache, 1, 32, is_compiled=True) >= 0.95


FEW_GRAPHS = [("granite", "static", PROMPT, 2), ("gpt-oss", "dynamic", PROMPT, 4)]
FEW_GRAPHS_SLOW = [
    ("granite", "dynamic", PROMPT, 2),
    *(
        (name, cache, PROMPT, 2)
        for name in CAUSAL
        for cache in CACHES
        if name not in ("granite", "gpt-oss")
    ),
    ("llama", "dynamic", 400, 3),
    ("gpt-oss", "static", PROMPT, 3),
    ("gpt-oss", "dynamic", 100, 4),
]


@pytest.mark.parametrize(
    ("name", "cache", "prompt", "graphs"),
    [*FEW_GRAPHS, *(pytest.param(*case, marks=pytest.mark.slow) for case in FEW_GRAPHS_SLOW)],
)
def test_200_tokens_are_few_graphs(name: str, cache: str, prompt: int, graphs: int) -> None:
    """A prompt's, and one for each bucket of the cache's lengths, or for its one size.

    The window of gpt-oss, 128, is full on the way: one more for the two steps around that, and one
    for those after it.
    """
    share = share_of_same_words(name, cache, 1, 200, is_compiled=True, prompt=prompt)
    assert share >= 0.95
    assert counters["stats"]["unique_graphs"] == graphs
    assert not counters["graph_break"]


def test_a_prompt_may_be_longer_than_the_window() -> None:
    """Of its keys the cache keeps a part, where the prompt has put it: one graph more."""
    torch.manual_seed(0)
    config = CAUSAL["mistral"].build().config
    config.sliding_window, config.eos_token_id = PROMPT - 4, None
    model: Any = MistralForCausalLM(config).eval()
    tokens = torch.randint(3, VOCABULARY, (1, PROMPT))
    settings = {"max_new_tokens": 6, "do_sample": False}
    wanted = model.generate(tokens, **settings)
    model = model.to("spyre")
    torch.compiler.reset()
    counters.clear()
    model.forward = torch.compile(model.forward)
    assert torch.equal(model.generate(tokens.to("spyre"), **settings).cpu(), wanted)
    assert counters["stats"]["unique_graphs"] == 3


class Leaning:
    """A logits processor of a user's: every seventh word is a little likelier."""

    def __call__(self, _: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + 0.3 * (torch.arange(scores.shape[-1], device=scores.device) % 7 == 0)


# In float32, where the card's words are the CPU's without a word being forced.
SEARCHES: dict[str, dict[str, Any]] = {
    "beams": {"num_beams": 3},
    "beams, two answers, static": {
        "num_beams": 4,
        "num_return_sequences": 2,
        "length_penalty": 0.8,
        "cache_implementation": "static",
    },
    "repetition": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    "words": {"bad_words_ids": [[5], [6, 7]], "sequence_bias": [[[9], 1.0]]},
    "an end": {"eos_token_id": [11, 12, 13], "min_new_tokens": 4},
    "a processor": {"logits_processor": [Leaning()]},
    "guidance": {"guidance_scale": 1.5},
}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "the likeliest": {"top_k": 20, "top_p": 0.9, "temperature": 0.7},
    "several": {"num_return_sequences": 3, "min_p": 0.01},
    "beams": {"num_beams": 2},
}


@pytest.fixture(scope="module")
def twins() -> tuple[Any, Any, dict[str, torch.Tensor]]:
    """A Llama in float32, the same on the card, and a batch with padding."""
    torch.manual_seed(0)
    model: Any = CAUSAL["llama"].build().eval()
    model.generation_config.eos_token_id = None
    tokens = torch.randint(3, VOCABULARY, (2, PROMPT))
    mask = torch.ones_like(tokens)
    tokens[1, :5] = mask[1, :5] = 0
    return model, copy.deepcopy(model).to("spyre"), {"input_ids": tokens, "attention_mask": mask}


def words_of(model: Any, batch: dict[str, torch.Tensor], **settings: Any) -> torch.Tensor:
    on_device = {name: tensor.to(model.device) for name, tensor in batch.items()}
    return model.generate(**on_device, max_new_tokens=8, **settings).cpu()


@pytest.mark.parametrize("search", SEARCHES)
def test_every_search_finds_the_words_of_the_cpu(search, twins) -> None:
    model, on_card, batch = twins
    torch.spyre.reset_fallback_stats()
    settings = {"do_sample": False, **SEARCHES[search]}
    assert torch.equal(words_of(on_card, batch, **settings), words_of(model, batch, **settings))
    assert not torch.spyre.fallback_stats()


@pytest.mark.parametrize("cache", ["offloaded", "offloaded_static"])
def test_caches_that_are_moved_to_the_host_are_for_cuda(cache, twins) -> None:
    _, on_card, batch = twins
    with pytest.raises(AssertionError, match="Torch not compiled with CUDA enabled"):
        words_of(on_card, batch, cache_implementation=cache)


def test_flex_attention_is_for_devices_of_a_list(twins) -> None:
    _, on_card, batch = twins
    model = copy.deepcopy(on_card)
    model.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match="FlexAttention is only supported on CUDA, CPU"):
        words_of(model, batch)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_samples_are_drawn_on_the_card_and_follow_the_seed(sampling, twins) -> None:
    _, on_card, batch = twins
    torch.spyre.reset_fallback_stats()
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(words_of(on_card, batch, do_sample=True, **SAMPLINGS[sampling]))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert not torch.spyre.fallback_stats()


@pytest.mark.parametrize("is_compiled", [False, True])
def test_an_encoder_and_decoder_say_what_they_say_on_the_cpu(is_compiled: bool) -> None:
    torch.manual_seed(0)
    model: Any = T5ForConditionalGeneration(ZOO["t5"].build().config).eval()
    tokens = torch.randint(3, VOCABULARY, (2, PROMPT))
    settings = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    settings["decoder_start_token_id"] = 0
    wanted = model.generate(tokens, **settings)
    model = model.half().to("spyre")
    if is_compiled:
        model.forward = torch.compile(model.forward)
    torch.spyre.reset_fallback_stats()
    assert model.generate(tokens.to("spyre"), **settings).tolist() == wanted.tolist()
    assert not torch.spyre.fallback_stats()
