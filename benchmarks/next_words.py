"""Do 2 and 4 cards say the same next word as one card, and as the CPU in float32?

Small Granite models with random weights, divided by HuggingFace (`tp_plan="auto"`) and compiled.
Random weights give flat logits, so rounding to 16 bits decides some places; how many, one card
against float32 says. Every place has the same words before it, whatever was said (teacher forcing).
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from _ranks import run_ranks
from _report import Report

CARDS = (2, 4)
HIDDEN = (256, 512)
SEEDS = (0, 1)
PLACES = (16, 64)  # sentences, words
SCALES: dict[str, dict[str, float]] = {
    "Granite's": {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0},
    "1": {},
}
MODELS = [(scales, *rest) for scales in SCALES for rest in itertools.product(HIDDEN, SEEDS)]
TARGET = 0.99  # of Granite's multipliers, against one card


def granite(scales: str, hidden: int, seed: int) -> Any:
    from transformers import GraniteConfig, GraniteForCausalLM

    torch.manual_seed(seed)
    sizes = {"vocab_size": 512, "hidden_size": hidden, "intermediate_size": 2 * hidden}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4}
    return GraniteForCausalLM(GraniteConfig(**sizes, **layers, **SCALES[scales])).half().eval()


# ---- One rank -----------------------------------------------------------------------------------


def divided(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    plan = DistributedConfig(tp_plan="auto")
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float16, distributed_config=plan
    ).eval()


def next_words(model: Any, words: torch.Tensor) -> torch.Tensor:
    torch._dynamo.reset()
    return torch.compile(model, fullgraph=True)(words.to("spyre")).logits.float().cpu().argmax(-1)


@torch.no_grad()
def shares(model: Any, folder: Path) -> dict[str, float]:
    """At which share of the places two of the three say the same."""
    words = torch.randint(0, 512, PLACES, generator=torch.Generator().manual_seed(0))
    several = next_words(divided(folder), words)
    one = next_words(copy.deepcopy(model).to("spyre"), words)
    exact = model.float()(words).logits.argmax(-1)
    pairs = {"one card": (several, one), "CPU": (several, exact), "one card, CPU": (one, exact)}
    return {name: (a == b).float().mean().item() for name, (a, b) in pairs.items()}


def run_rank(folder: Path, report: Path) -> None:
    from torch import distributed as dist
    from transformers.utils import logging

    torch.spyre.set_downcast_warning(False)
    logging.disable_progress_bar()
    dist.init_process_group("cpu:gloo,spyre:spyreccl")
    found: dict[str, list[dict[str, float]]] = {scales: [] for scales in SCALES}
    for number, model in enumerate(MODELS):
        found[model[0]].append(shares(granite(*model), folder / str(number)))
    if dist.get_rank() == 0:
        report.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


# ---- All of them --------------------------------------------------------------------------------


def measured(folder: Path, cards: int) -> dict[str, list[dict[str, float]]]:
    report = folder / f"cards{cards}.json"
    run_ranks(cards, __file__, ["--rank", str(folder), str(report)])
    return json.loads(report.read_text())


def spread(models: list[dict[str, float]], pair: str) -> str:
    found = [model[pair] for model in models]
    return f"{min(found):.1%} to {max(found):.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        run_rank(*map(Path, arguments.rank))
        return
    report = Report("next_words", "The same next word on several cards, on one, and on the CPU")
    with tempfile.TemporaryDirectory() as name:
        for number, model in enumerate(MODELS):
            granite(*model).save_pretrained(Path(name, str(number)))
        found = {cards: measured(Path(name), cards) for cards in CARDS}
    rows = [
        [title.format(cards), *(spread(found[cards][scales], pair) for scales in SCALES)]
        for title, pair, counts in (
            ("{} cards and one card", "one card", CARDS),
            ("one card and the CPU in float32", "one card, CPU", CARDS[:1]),
            ("{} cards and the CPU in float32", "CPU", CARDS),
        )
        for cards in counts
    ]
    places = PLACES[0] * PLACES[1]
    models = f"hidden sizes {HIDDEN}, seeds {SEEDS}"
    report.table(f"the same next word of {places}, {models}", ["multipliers", *SCALES], rows)
    least = min(model["one card"] for cards in CARDS for model in found[cards]["Granite's"])
    verdict = "reached" if least >= TARGET else "missed"
    report.remark(
        f"{verdict}: with Granite's multipliers at least {least:.1%} of next words are one card's "
        f"(target {TARGET:.0%})"
    )
    report.write()


if __name__ == "__main__":
    main()
