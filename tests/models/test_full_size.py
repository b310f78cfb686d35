"""Full-size shapes: a Granite-3.3-8B layer with its head of 49155 words, prefill and decode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

hf = pytest.importorskip("transformers", reason="an extra: pip install torch-spyre[models]")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def layer(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import granite_layer

    torch.manual_seed(0)
    torch.compiler.reset()
    counters.clear()
    torch.spyre.reset_fallback_stats()
    yield granite_layer
    torch.compiler.reset()
    assert torch.spyre.fallback_stats() == {}


def check(layer: ModuleType, model: Any) -> None:
    """One graph each, the CPU's directions, and no more bytes than the weights have."""
    tokens = torch.randint(3, layer.VOCABULARY, (1, layer.PREFILL + layer.DECODED))
    wanted = layer.run(model.float(), model.config, tokens)
    found = layer.on_card("fp16", model.half(), tokens)
    assert found.graphs == 2  # a prefill's, and one for all tokens after it
    for got, reference in zip(
        (found.passes.prefill, *found.passes.decoded),
        (wanted.prefill, *wanted.decoded),
        strict=True,
    ):
        assert layer.cosine(got, reference) > 0.999
    prefill, decode = found.costs
    print(f"modelled: prefill {prefill.microseconds:.0f} us, ", end="")
    print(f"decode {decode.microseconds:.0f} us, roofline {found.roofline:.0f} us")
    assert found.roofline < decode.microseconds < 1.1 * found.roofline
    assert decode.bytes_read < 1.05 * layer.weight_bytes(model)
    logits = found.passes.prefill.nbytes / layer.BYTES_PER_MICROSECOND
    assert prefill.microseconds < 1.1 * (found.roofline + logits)


@torch.no_grad()
def test_an_odd_vocabulary_is_decoded_at_the_speed_of_its_head(layer: ModuleType) -> None:
    """The head, which is tied to the embedding, ends inside a stick: 49155 = 768 · 64 + 3."""
    config = hf.GraniteConfig(
        vocab_size=layer.VOCABULARY,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    check(layer, hf.GraniteForCausalLM(config).eval().half())


@torch.no_grad()
def test_a_layer_of_granite_runs_at_full_size(layer: ModuleType) -> None:
    check(layer, layer.granite_layer())
