"""Unmodified HuggingFace models on the device: right, in one graph, and without the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="an extra: pip install torch-spyre[models]")

from torch._dynamo.utils import counters

from tests.models.further import FURTHER, NOT_WHOLE, WITH_COMPLEX_NUMBERS
from tests.models.report import Distance, Row, examine, on_card
from tests.models.zoo import CAUSAL, NAMED, VOCABULARY, ZOO, Inputs, answer

PADDING = 5  # at the end of the second text


def compiled_in_one_graph(model: Any, inputs: Inputs) -> torch.Tensor:
    """What a model on the card answers; fails if anything of it was not in its one graph."""
    torch.compiler.reset()
    counters.clear()
    torch.spyre.reset_fallback_stats()
    found = answer(torch.compile(model)(**inputs)).cpu().float()
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
    assert not torch.spyre.fallback_stats()
    return found


def check(row: Row) -> None:
    print(row)
    assert (row.graphs, row.breaks, row.fallbacks) == (1, 0, 0)
    for distance in (row.eager, row.compiled):
        assert distance.cosine > 0.9999
        assert distance.largest < 2**-7 * max(distance.reach, 1)


@pytest.mark.parametrize("name", ZOO)
def test_forward_is_right_eager_and_compiled(name: str) -> None:
    check(examine(name, ZOO[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", FURTHER)
def test_forward_of_models_outside_of_the_zoo_is_right(name: str) -> None:
    check(examine(name, FURTHER[name]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "graphs", "fallbacks"), [("bart, float16", 4, 0), ("qwen3-next", 1, 1)]
)
def test_what_is_not_one_graph_on_the_card_is_right_all_the_same(
    name: str, graphs: int, fallbacks: int
) -> None:
    row = examine(name, NOT_WHOLE[name])
    assert (row.graphs, row.fallbacks) == (graphs, fallbacks)
    assert min(row.eager.cosine, row.compiled.cosine) > 0.9999


@pytest.mark.parametrize(
    "name",
    [
        "bert",
        "mpnet",
        "modernbert",
        "distilbert",
        pytest.param("clip", marks=pytest.mark.slow),
        pytest.param("t5", marks=pytest.mark.slow),
    ],
)
@torch.no_grad()
def test_padding_changes_nothing_where_the_texts_are(name: str) -> None:
    torch.manual_seed(0)
    model: Any = ZOO[name].build().eval()
    inputs = ZOO[name].inputs()
    mask = torch.ones_like(inputs["input_ids"])
    inputs["input_ids"][1, -PADDING:] = mask[1, -PADDING:] = 0
    inputs["attention_mask"] = mask
    wanted = answer(model(**inputs))
    # CLIP's are of whole texts, T5's of the texts of its decoder, which are not padded.
    is_text = mask.bool() if wanted.shape[:-1] == mask.shape else torch.tensor(True)
    found = compiled_in_one_graph(model.half().to("spyre"), on_card(inputs, torch.float16))
    assert Distance.between(found[is_text], wanted[is_text]).cosine > 0.9999


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_COMPLEX_NUMBERS)
@torch.no_grad()
def test_complex_rotary_embeddings_run_compiled(name: str) -> None:
    torch.manual_seed(0)
    model: Any = WITH_COMPLEX_NUMBERS[name].build().eval()
    inputs = WITH_COMPLEX_NUMBERS[name].inputs()
    wanted = answer(model(**inputs))
    model, inputs = model.half().to("spyre"), on_card(inputs, torch.float16)
    found = compiled_in_one_graph(model, inputs)
    assert Distance.between(found, wanted).cosine > 0.9999
    with pytest.raises(TypeError, match="Cannot put a torch.complex64 tensor on a spyre device"):
        model(**inputs)


@pytest.mark.parametrize(
    "name",
    [name if name in NAMED else pytest.param(name, marks=pytest.mark.slow) for name in CAUSAL],
)
@torch.no_grad()
def test_next_words_after_random_ones_are_those_of_the_cpu(name: str) -> None:
    """1024 positions. What a random model says by itself goes round in a circle of a few words."""
    torch.manual_seed(0)
    model: Any = CAUSAL[name].build().eval()
    tokens = torch.randint(3, VOCABULARY, (4, 256))
    wanted = model(tokens).logits.argmax(-1)
    assert len(wanted.unique()) > 64
    found = model.half().to("spyre")(tokens.to("spyre")).logits.argmax(-1).cpu()
    assert (found == wanted).float().mean() >= 0.98
