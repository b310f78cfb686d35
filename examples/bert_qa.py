"""A small BERT learns on the card, in seconds, to find answers in sentences of a tiny language."""

from __future__ import annotations

import random

import torch
from rich.progress import track
from transformers import BertConfig, BertForQuestionAnswering

PARTS = {
    "who": ("the baker", "old mister lund", "anna", "the night nurse", "my sister"),
    "action": ("sold", "found", "lost", "painted", "carried away"),
    "what": ("a brass lamp", "his boat", "seven letters", "the piano", "bread"),
    "where": ("in oslo", "behind the mill", "at the harbour", "on the old bridge"),
    "when": ("last spring", "on friday", "at noon", "two years ago"),
}
WORDS = ["[PAD]", *dict.fromkeys(" ".join([*PARTS, *sum(PARTS.values(), ())]).split())]
SIZE = {"vocab_size": len(WORDS), "hidden_size": 64, "intermediate_size": 128}
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 2, "initializer_range": 0.1}


def exercises(count: int) -> tuple[list[list[str]], dict[str, torch.Tensor]]:
    """Questions, each with a sentence, as words; and as tokens, with the answers' places."""
    texts, places = [], []
    for _ in range(count):
        parts = {name: random.choice(options).split() for name, options in PARTS.items()}
        asked = random.choice(list(PARTS))
        before = sum(len(parts[name]) for name in list(PARTS)[: list(PARTS).index(asked)])
        texts.append([asked, *(word for part in parts.values() for word in part)])
        places.append((1 + before, before + len(parts[asked])))
    padded = [text + ["[PAD]"] * (16 - len(text)) for text in texts]
    tokens = torch.tensor([[WORDS.index(word) for word in text] for text in padded])
    first, last = torch.tensor(places).T
    return texts, {"input_ids": tokens, "start_positions": first, "end_positions": last}


if __name__ == "__main__":
    torch.spyre.set_downcast_warning(False)
    torch.manual_seed(0)
    random.seed(0)
    model = BertForQuestionAnswering(BertConfig(**SIZE, **LAYERS)).to("spyre")
    optimizer = torch.optim.AdamW(model.parameters(), 0.002)
    for _ in track(range(100), "learning on the card"):
        optimizer.zero_grad()
        model(**{name: x.to("spyre") for name, x in exercises(32)[1].items()}).loss.backward()
        optimizer.step()
    texts, asked = exercises(100)
    with torch.no_grad():
        exact = torch.stack(model.eval().cpu()(**asked)[1:])
        said = torch.stack(model.half().to("spyre")(asked["input_ids"].to("spyre"))[:2]).cpu()
    for text, (start, end) in list(zip(texts, said.argmax(-1).T, strict=True))[:5]:
        print(f"{text[0] + '?':9}{' '.join(text[start : end + 1]):20}in: {' '.join(text[1:])}")
    right = said.argmax(-1) == torch.stack([asked["start_positions"], asked["end_positions"]])
    print(f"{int(right.all(0).sum())} of 100 answers are right")
    print(f"logits in float16 are within {(said - exact).abs().max():.3f} of the CPU's in float32")
