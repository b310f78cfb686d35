"""A Granite-style model on 1, 2, 4 and 8 cards, tensor parallel: does modelled time fall?

HuggingFace divides the model (`tp_plan="auto"`), PyTorch compiles each rank's part as one graph.
What is expected is the kernels' time on one card divided by the cards, plus what the link takes for
the bytes of the collectives. What is more than that is work that every card does for itself: norms,
residuals, and kernels that are less busy with a part than with the whole.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from _ranks import run_ranks
from _report import Report

PREFILL, CACHE = 64, 128
SIZE = {"vocab_size": 4096, "hidden_size": 1024, "intermediate_size": 4096}
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 8}
MOST_OVER_EXPECTED = 1.5  # of a decode step on 8 cards, for the verdict


# ---- One rank -----------------------------------------------------------------------------------


def load(folder: Path, cards: int) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    plan = {"distributed_config": DistributedConfig(tp_plan="auto")} if cards > 1 else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16, **plan)
    return model.to("spyre").eval()


def figures(work: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
    """Of the second call, in microseconds, and the bytes that this card sends."""
    from torch_spyre.tools.measure import measure

    before = torch.spyre.counters()
    _, cost = measure(work, *args, **kwargs)
    after = torch.spyre.counters()
    return {
        "us": cost.microseconds,
        "link_us": (after["link_busy_ns"] - before["link_busy_ns"]) / 2000,  # of two calls
        "bytes": (after["bytes_out"] - before["bytes_out"]) / 2,
    }


@torch.no_grad()
def run_rank(folder: Path, cards: int, report: Path) -> None:
    from torch import distributed as dist
    from transformers import StaticCache
    from transformers.utils import logging

    torch.spyre.set_downcast_warning(False)
    logging.disable_progress_bar()
    dist.init_process_group("cpu:gloo,spyre:spyreccl")
    model = load(folder, cards)
    words = torch.randint(0, SIZE["vocab_size"], (1, PREFILL + 1)).to("spyre")
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    cache = StaticCache(config=model.config, max_cache_len=CACHE)
    prefill = figures(compiled, words[:, :PREFILL])
    compiled(words[:, :PREFILL], past_key_values=cache)
    decode = figures(compiled, words[:, PREFILL:], past_key_values=cache)
    if dist.get_rank() == 0:
        report.write_text(json.dumps({"prefill": prefill, "decode": decode}))
    dist.barrier()
    dist.destroy_process_group()


# ---- All of them --------------------------------------------------------------------------------


def checkpoint(folder: Path) -> None:
    from transformers import GraniteConfig, GraniteForCausalLM

    torch.manual_seed(0)
    GraniteForCausalLM(GraniteConfig(**SIZE, **LAYERS)).half().save_pretrained(folder)


def measured(folder: Path, cards: int) -> dict[str, dict[str, float]]:
    """What rank 0 of so many finds."""
    report = folder / f"cards{cards}.json"
    run_ranks(cards, __file__, ["--rank-of", str(cards), str(folder), str(report)])
    return json.loads(report.read_text())


def rows(found: dict[int, dict[str, dict[str, float]]], what: str) -> list[list[Any]]:
    one = found[1][what]["us"]
    table = []
    for cards, all_figures in found.items():
        own = all_figures[what]
        expected = one / cards + own["link_us"]
        table.append(
            [cards, own["us"], own["link_us"], int(own["bytes"]), expected, own["us"] / expected]
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cards", default="1,2,4,8", help="how many, separated by commas")
    parser.add_argument("--rank-of", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank_of:
        cards, folder, report_file = arguments.rank_of
        run_rank(Path(folder), int(cards), Path(report_file))
        return
    counts = sorted({1, *map(int, arguments.cards.split(","))})
    report = Report("cards", "Granite-style model, tensor parallel, modelled time per card")
    with tempfile.TemporaryDirectory() as name:
        checkpoint(Path(name))
        found = {cards: measured(Path(name), cards) for cards in counts}
    columns = ["cards", "us modelled", "of it link", "bytes sent", "us expected", "times expected"]
    report.table(f"prefill of {PREFILL} words", columns, rows(found, "prefill"))
    report.table("one word", columns, rows(found, "decode"))
    most = counts[-1]
    ratio = rows(found, "decode")[-1][-1]
    verdict = "reached" if ratio <= MOST_OVER_EXPECTED else "missed"
    report.remark(
        f"{verdict}: one word on {most} cards takes {ratio:.2f} times what one card's time "
        f"divided by {most} and the link give (target {MOST_OVER_EXPECTED})"
    )
    report.write()


if __name__ == "__main__":
    main()
