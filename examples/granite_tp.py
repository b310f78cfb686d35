"""A Granite model on four cards: `torchrun --nproc-per-node 4 examples/granite_tp.py`.

Started as a plain program it calls torchrun itself. HuggingFace divides the model by its own plan
(`tp_plan="auto"`), for which it starts torch.distributed, and PyTorch compiles each rank's part as
one graph, collectives included.
"""

import copy
import os
import subprocess
import sys
import tempfile

import torch
from torch import distributed as dist
from transformers import AutoModelForCausalLM, GraniteConfig, GraniteForCausalLM
from transformers.distributed import DistributedConfig
from transformers.utils import logging

from torch_spyre.tools.measure import measure

CARDS = 4
SIZE = {"vocab_size": 1024, "hidden_size": 512, "intermediate_size": 2048}
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4}
SCALES = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0}
PLACES = (16, 64)  # sentences, words


def in_parts(model: GraniteForCausalLM) -> torch.nn.Module:
    """This rank's part of the model, by way of a checkpoint."""
    plan = DistributedConfig(tp_plan="auto")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=model.dtype, distributed_config=plan
        ).eval()


def main() -> None:
    torch.manual_seed(0)
    model = GraniteForCausalLM(GraniteConfig(**SIZE, **LAYERS, **SCALES)).half().eval()
    words = torch.randint(0, SIZE["vocab_size"], PLACES).to("spyre")
    part = in_parts(model)
    alone = copy.deepcopy(model).to("spyre")
    with torch.no_grad():
        one, cost_of_one = measure(torch.compile(alone, fullgraph=True), words)
        all_cards, cost = measure(torch.compile(part, fullgraph=True), words)
    same = (one.logits.argmax(-1) == all_cards.logits.argmax(-1)).float().mean().item()
    if dist.get_rank() == 0:
        weight = part.model.layers[0].mlp.gate_proj.weight
        print(f"gate_proj: {tuple(weight.shape)}, of which {tuple(weight.to_local().shape)} here")
        for cards, time in (1, cost_of_one), (dist.get_world_size(), cost):
            print(f"{cards} cards {time.microseconds:8.1f} us for {words.numel()} words, modelled")
        print(f"the same next word at {same:.1%} of the places")


if __name__ == "__main__":
    if "RANK" not in os.environ:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*torchrun, "--nproc-per-node", str(CARDS), __file__]
        sys.exit(subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode)
    torch.spyre.set_downcast_warning(False)
    logging.disable_progress_bar()
    main()
    dist.destroy_process_group()
