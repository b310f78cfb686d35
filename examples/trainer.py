"""HuggingFace's Trainer teaches a small Granite, on the card, to continue sequences of numbers."""

from __future__ import annotations

import os

os.environ["ACCELERATE_TORCH_DEVICE"] = "spyre"  # as in a shell, before the program starts

import torch
from transformers import (
    GraniteConfig,
    GraniteForCausalLM,
    Trainer,
    TrainingArguments,
)

NUMBERS, LENGTH = 40, 12
SIZE = {"vocab_size": NUMBERS, "hidden_size": 64, "intermediate_size": 128}
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
SETTINGS = {"max_steps": 80, "per_device_train_batch_size": 32, "learning_rate": 5e-3}
QUIET = {"report_to": [], "save_strategy": "no", "logging_steps": 40, "disable_tqdm": True}


def sequences(count: int) -> list[dict[str, torch.Tensor]]:
    """Numbers that go up by the same step, around the end."""
    steps, starts = torch.randint(1, 6, (count, 1)), torch.randint(0, NUMBERS, (count, 1))
    rows = (starts + steps * torch.arange(LENGTH)) % NUMBERS
    return [{"input_ids": row, "labels": row} for row in rows]


if __name__ == "__main__":
    torch.spyre.set_downcast_warning(False)
    torch.manual_seed(0)
    model = GraniteForCausalLM(GraniteConfig(**SIZE, **LAYERS))
    arguments = TrainingArguments(output_dir="trainer", **SETTINGS, **QUIET)
    torch.spyre.reset_fallback_stats()
    result = Trainer(model, arguments, train_dataset=sequences(1000)).train()
    print("trained on", model.device, "in steps:", result.global_step)
    print("on the CPU instead:", torch.spyre.fallback_stats())
    prompts = torch.stack([row["input_ids"][:4] for row in sequences(5)]).to(model.device)
    answers = model.eval().generate(prompts, max_new_tokens=6, do_sample=False, pad_token_id=0)
    for row in answers.tolist():
        print(*row[:4], "->", *row[4:])
