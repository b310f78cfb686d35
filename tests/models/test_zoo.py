"""Unmodified HuggingFace models on the device: right, in one graph, and without the CPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="an extra: pip install torch-spyre[models]")

from torch._dynamo.utils import counters

from tests.models.zoo import ZOO, answer


@pytest.mark.parametrize("name", ZOO)
def test_forward_is_right_eager_and_compiled(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = ZOO[name].build().eval(), ZOO[name].inputs()
    with torch.no_grad():
        wanted = answer(model(**inputs))
        model = model.half().to("spyre")
        inputs = {
            key: (x.half() if x.is_floating_point() else x).to("spyre") for key, x in inputs.items()
        }
        torch.spyre.reset_fallback_stats()
        eager = answer(model(**inputs)).cpu().float()
        torch.compiler.reset()
        counters.clear()
        compiled = answer(torch.compile(model)(**inputs)).cpu().float()
    assert not torch.spyre.fallback_stats()
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    for result in (eager, compiled):
        similarity = torch.nn.functional.cosine_similarity(result.flatten(), wanted.flatten(), 0)
        assert similarity > 0.9999
        assert (result - wanted).abs().max() < 2**-7 * max(float(wanted.abs().max()), 1)
