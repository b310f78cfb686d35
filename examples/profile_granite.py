"""A small Granite model under the profiler: a trace for Perfetto, and what the trace says."""

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from transformers import GraniteConfig, GraniteForCausalLM

from torch_spyre.tools.trace.command import main as analyse

TRACE = "granite_trace.json"
CONFIG = GraniteConfig(
    vocab_size=4096,
    hidden_size=512,
    intermediate_size=1536,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
)
STEPS = {"wait": 1, "warmup": 1, "active": 3}  # compiling is not what we want to see


def headline(text: str) -> None:
    print(f"\n== {text}")


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    model = GraniteForCausalLM(CONFIG).half().eval().to("spyre")
    forward = torch.compile(model, dynamic=False)
    prompts = torch.randint(CONFIG.vocab_size, (sum(STEPS.values()), 1, 128))
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1],
        schedule=schedule(**STEPS),
        on_trace_ready=lambda prof: prof.export_chrome_trace(TRACE),
    ) as prof:
        for prompt in prompts:
            with record_function("next word"):
                logits = forward(prompt.to("spyre"), use_cache=False).logits
                logits[:, -1].argmax(-1).cpu()
            prof.step()
    headline("what the profiler says")
    for event in prof.key_averages():
        if event.key.startswith("spyre_") or event.key.startswith("Memcpy"):
            name = f"{event.key[:40]:40}"
            print(f"{name} {event.count:3} times, {event.device_time:8.3f} us each, modelled")
    headline("what the trace says, by layer")
    analyse([TRACE, "--by", "layer", "--depth", "3"])
    headline("by operation")
    analyse([TRACE, "--by", "op", "--top", "6"])
    headline("written")
    analyse([TRACE, "--format", "html", "-o", "granite_trace.html"])
    print(f"{TRACE}, for ui.perfetto.dev, and granite_trace.html")


if __name__ == "__main__":
    torch.spyre.set_downcast_warning(False)
    main()
