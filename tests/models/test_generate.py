"""`generate()` on the device: both kinds of KV cache, no fallback, and the tokens of the CPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="an extra: pip install torch-spyre[models]")

from tests.models.zoo import CAUSAL, VOCABULARY

NEW_TOKENS = 8


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["granite", "llama", "qwen3"])
def test_greedy_tokens_are_those_of_the_cpu(name: str, cache: str) -> None:
    torch.manual_seed(0)
    model = CAUSAL[name].build().eval()
    prompt = torch.randint(3, VOCABULARY, (1, 12))
    settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "cache_implementation": cache}
    wanted = model.generate(prompt, **settings)
    model = model.half().to("spyre")
    torch.spyre.reset_fallback_stats()
    result = model.generate(prompt.to("spyre"), **settings).cpu()
    assert not torch.spyre.fallback_stats()
    assert result.shape == wanted.shape
    with torch.no_grad():  # what it would have said after each prefix of the CPU's answer
        said = model(wanted.to("spyre")).logits.argmax(-1).cpu()
    assert (said[:, 11:-1] == wanted[:, 12:]).float().mean() >= 0.95
    assert torch.equal(result, wanted)
