"""A small Granite model learns a text on the card in seconds, then writes it with `generate()`."""

import time
from types import SimpleNamespace

import torch
from rich.progress import Progress, track
from transformers import GraniteConfig, GraniteForCausalLM

from torch_spyre.tools.measure import measure

TEXT = """A stick is what the card moves : sixty four numbers that travel together . The cores take
sticks from memory , keep what they need , and pass the rest around the ring ."""
VOCABULARY = ["<end>", *dict.fromkeys(TEXT.split())]
TOKENS = torch.tensor([[*map(VOCABULARY.index, TEXT.split()), 0]])
PROMPT, COUNT = TOKENS[:, :4], TOKENS.shape[1] - 4
SETTINGS = {"max_new_tokens": COUNT, "do_sample": False, "cache_implementation": "static"}
SIZE = {"vocab_size": len(VOCABULARY), "hidden_size": 256, "intermediate_size": 512}
LAYERS = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}


def learn(steps: int = 30) -> GraniteForCausalLM:
    """Random weights in Granite's architecture, trained on the card until they hold the text."""
    torch.manual_seed(0)
    model = GraniteForCausalLM(GraniteConfig(**SIZE, **LAYERS, eos_token_id=0, pad_token_id=0))
    tokens, optimizer = TOKENS.to("spyre"), torch.optim.AdamW(model.to("spyre").parameters(), 0.002)
    for _ in track(range(steps), f"{'learning':14}"):
        optimizer.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
    return model.eval()


def write(name: str, model: GraniteForCausalLM) -> str:
    """Its words, with a bar as they come; then how fast they come once everything is planned."""
    prompt = PROMPT.to(model.device)
    with Progress() as bar:
        task = bar.add_task(f"{name:14}", total=COUNT, completed=-1)  # the prompt is put, too
        streamer = SimpleNamespace(put=lambda _: bar.advance(task), end=bar.refresh)
        said = model.generate(prompt, streamer=streamer, **SETTINGS)
    began = time.perf_counter()
    _, cost = measure(model.generate, prompt, **SETTINGS)  # which calls it twice
    print(f"  {2 * COUNT / (time.perf_counter() - began):.0f} tokens/s on this machine", end="")
    print(f", {cost.microseconds / COUNT:.1f} us/token modelled on the card" * (cost.launches > 0))
    return " ".join(VOCABULARY[token] for token in said[0].tolist())


def main() -> None:
    model = learn()
    said = [write("CPU, float32", model.cpu()), write("card, float16", model.half().to("spyre"))]
    model.forward = torch.compile(model.forward)
    said.append(write("card, compiled", model))
    print(said[-1], f"the same from all three: {len(set(said)) == 1}", sep="\n")
    print("ran on the CPU instead:", torch.spyre.fallback_stats() or "nothing")


if __name__ == "__main__":
    torch.spyre.set_downcast_warning(False)
    main()
