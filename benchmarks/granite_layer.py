"""One layer of Granite-3.3-8B with its head of 49155 words, at full size: prefill and decode.

The model is HuggingFace's, as it is, with random weights. Modelled time is compared with the
roofline of its weights: each once through LPDDR5 at 150 GB/s. Wall time is that of this machine,
beside the CPU's.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from _report import Report
from _workloads import example
from torch import nn

from torch_spyre.tools.measure import Cost, measure

PREFILL, DECODED, CACHE = 128, 4, 256
VOCABULARY = 49155
BYTES_PER_MICROSECOND = 150e3
LEAST_COSINE = 0.999
MOST_OVER_ROOFLINE = 1.1  # of a decode step, for the verdict


def granite_layer() -> nn.Module:
    """GraniteForCausalLM with the sizes of Granite-3.3-8B, but one layer."""
    import transformers as hf

    config = hf.GraniteConfig(
        vocab_size=VOCABULARY,
        hidden_size=4096,
        intermediate_size=12800,
        num_hidden_layers=1,
        num_attention_heads=32,
        num_key_value_heads=8,
        rope_theta=1e7,
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
        attention_multiplier=0.0078125,
        logits_scaling=16.0,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    # Weights that fp16 holds, so that all dtypes have the same.
    return hf.GraniteForCausalLM(config).eval().half()


@dataclass(frozen=True)
class Passes:
    """Logits of the prefill and of each token after it, and how long both took, in seconds."""

    prefill: torch.Tensor
    decoded: list[torch.Tensor]
    prefill_seconds: float
    decode_seconds: float  # per token, the best


def static_cache(config: Any) -> Any:
    from transformers import StaticCache

    return StaticCache(config=config, max_cache_len=CACHE)


def run(model: Callable[..., Any], config: Any, tokens: torch.Tensor) -> Passes:
    """A prefill into a static cache, then token by token."""
    cache = static_cache(config)
    began = time.perf_counter()
    prefill = model(tokens[:, :PREFILL], past_key_values=cache).logits.cpu()
    first = time.perf_counter() - began
    decoded, seconds = [], []
    for at in range(PREFILL, PREFILL + DECODED):
        began = time.perf_counter()
        decoded.append(model(tokens[:, at : at + 1], past_key_values=cache).logits.cpu())
        seconds.append(time.perf_counter() - began)
    return Passes(prefill, decoded, first, min(seconds))


def costs(model: Callable[..., Any], config: Any, tokens: torch.Tensor) -> tuple[Cost, Cost]:
    """What a prefill and a decode step cost on the card."""

    def prefill() -> Any:
        cache = static_cache(config)
        model(tokens[:, :PREFILL], past_key_values=cache)
        return cache

    cache, first = measure(prefill)
    return first, measure(model, tokens[:, PREFILL : PREFILL + 1], past_key_values=cache)[1]


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    """The least of all positions."""
    return float(nn.functional.cosine_similarity(a.double(), b.double(), -1).min())


def weight_bytes(model: nn.Module) -> int:
    """What a forward pass must read: a tied table counts once, as the head's weight."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return sum(tensor.nbytes for tensor in tensors.values())


@dataclass(frozen=True)
class OnCard:
    """A kind of weights on the card."""

    kind: str
    passes: Passes
    costs: tuple[Cost, Cost]
    roofline: float  # microseconds
    compile_seconds: float
    graphs: int


def on_card(kind: str, model: nn.Module, tokens: torch.Tensor) -> OnCard:
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    model.to("spyre")
    tokens = tokens.to("spyre")
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    began = time.perf_counter()
    run(compiled, model.config, tokens)
    compiling = time.perf_counter() - began
    passes = run(compiled, model.config, tokens)
    return OnCard(
        kind,
        passes,
        costs(compiled, model.config, tokens),
        weight_bytes(model) / BYTES_PER_MICROSECOND,
        compiling - passes.prefill_seconds - DECODED * passes.decode_seconds,
        counters["stats"]["unique_graphs"],
    )


def show(report: Report, found: list[OnCard], wanted: Passes, hosts: dict[str, Passes]) -> None:
    rows = [
        [
            card.kind,
            phase,
            cost.microseconds,
            card.roofline,
            f"{cost.microseconds / card.roofline:.3f}",
            cost.bytes_read / 2**20,
            cost.launches,
        ]
        for phase in (0, 1)
        for card in found
        for cost in [card.costs[phase]]
    ]
    for row in rows:
        row[1] = "decode" if row[1] else f"prefill {PREFILL}"
    names = ["weights", "pass", "modelled us", "roofline us", "ratio", "MiB read", "kernels"]
    report.table("On the card's clock", names, rows)
    passes = {f"CPU {name}": host for name, host in hosts.items()}
    passes |= {f"card, {card.kind}": card.passes for card in found}
    report.table(
        "On this machine",
        ["", "prefill ms", "decode ms", "cosine to CPU float32, prefill", "decode"],
        [
            [
                name,
                1e3 * each.prefill_seconds,
                1e3 * each.decode_seconds,
                f"{cosine(each.prefill, wanted.prefill):.6f}",
                f"{min(map(cosine, each.decoded, wanted.decoded)):.6f}",
            ]
            for name, each in passes.items()
        ],
    )
    report.table(
        "Compiling",
        ["weights", "graphs", "seconds"],
        [[card.kind, card.graphs, card.compile_seconds] for card in found],
    )


def missed(found: list[OnCard], wanted: Passes) -> list[str]:
    """What a fp16 layer fails to do; quantised ones are as exact as their weights."""
    plain = next((card for card in found if card.kind == "fp16"), None)
    wrong = [f"{card.kind}: {card.graphs} graphs" for card in found if card.graphs != 2]
    wrong += [
        f"{card.kind}: decode takes {card.costs[1].microseconds:.0f} us"
        for card in found
        if card.costs[1].microseconds > MOST_OVER_ROOFLINE * card.roofline
    ]
    if plain is not None:
        results = [plain.passes.prefill, *plain.passes.decoded]
        least = min(map(cosine, results, [wanted.prefill, *wanted.decoded]))
        wrong += [f"fp16: cosine {least}"] if least < LEAST_COSINE else []
    fallbacks = torch.spyre.fallback_stats()
    return wrong + ([f"fallbacks {fallbacks}"] if fallbacks else [])


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default="fp16,fp8,int8 weights", help="of weights, a,b")
    parser.add_argument("--json", default="granite_layer", help="name of the file in results")
    options = parser.parse_args()
    report = Report(options.json, "Granite-3.3-8B: one layer and the head, at full size")
    model = granite_layer()
    tokens = torch.randint(3, VOCABULARY, (1, PREFILL + DECODED))
    hosts = {}
    for dtype in (torch.float32, torch.bfloat16):
        host = copy.deepcopy(model).to(dtype)
        run(host, model.config, tokens)
        hosts[str(dtype).removeprefix("torch.")] = run(host, model.config, tokens)
        del host
    wanted = hosts["float32"]
    torch.spyre.reset_fallback_stats()
    quantised = example("quantised_block").quantised
    found = []
    for kind in options.kinds.split(","):
        print(f"  {kind}", file=sys.stderr)
        own = copy.deepcopy(model)
        own.model.layers = quantised(own.model.layers, kind)  # the head stays in fp16
        found.append(on_card(kind, own, tokens))
        del own
    show(report, found, wanted, hosts)
    report.finish(missed(found, wanted), "the layer is not what it should be")


if __name__ == "__main__":
    main()
