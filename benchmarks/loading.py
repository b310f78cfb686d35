"""Loading half a gigabyte of weights: host memory beyond the card, and time against the CPU's.

A seeded Llama in bfloat16 is written to a directory and loaded in five ways, each in a fresh
process, as it is and converted to float16. *Own* memory is what only the process holds (anonymous
and shared pages), as a peak over the start, less what tensors occupy on the card at that moment:
the software card's memory is memory of the process too. *File pages* are those of the mapped
checkpoint, which the kernel drops when it needs them. Target: own memory at most 1.2 times the
model.

Time is compared with `from_pretrained` on the CPU in the same run. With the file's own dtype that
maps the checkpoint and reads nothing of it, so the second row also copies every weight once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _report import Report, median

# name of the row, in the order of the table
WAYS = {
    "cpu": "from_pretrained on the CPU",
    "cpu, copied": "... every weight copied once",
    "device_map": 'from_pretrained(device_map="spyre")',
    "load_model": "empty_weights, load_model",
    "to": 'from_pretrained on the CPU, .to("spyre")',
}
ON_CARD = ("device_map", "load_model", "to")
DTYPES = ("bfloat16", "float16")
TARGET = 1.2
MEBIBYTE = 1 << 20


def model_config(hidden: int, layers: int) -> Any:
    import transformers

    return transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )


def write_checkpoint(folder: Path, hidden: int, layers: int) -> int:
    """The seeded model in bfloat16; how many bytes its weights have."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(model_config(hidden, layers)).to(torch.bfloat16)
    model.save_pretrained(folder)
    return sum(parameter.nbytes for parameter in model.parameters())


def load(way: str, dtype_name: str, folder: str) -> dict[str, float]:
    """Runs in a process of its own, which has loaded nothing before."""
    import time

    import torch
    import transformers

    import torch_spyre
    from torch_spyre.tools.host_memory import measure_host_memory

    transformers.utils.logging.disable_progress_bar()
    model_class, dtype = transformers.LlamaForCausalLM, getattr(torch, dtype_name)
    config = transformers.AutoConfig.from_pretrained(folder)
    (torch.ones(4, device="spyre") + 1).cpu()

    def work() -> tuple[Any, float]:
        start = time.perf_counter()
        if way == "load_model":
            with torch_spyre.empty_weights():
                model = model_class(config)
            torch_spyre.load_model(model, folder, dtype=dtype)
        else:
            device_map = {"device_map": "spyre"} if way == "device_map" else {}
            model = model_class.from_pretrained(folder, dtype=dtype, **device_map)
        if way == "to":
            model = model.to("spyre")
        if way == "cpu, copied":
            for parameter in model.parameters():
                parameter.data = parameter.data.clone()
        torch.spyre.synchronize()
        return model, time.perf_counter() - start

    (model, seconds), memory = measure_host_memory(work)
    expected = "spyre" if way in ON_CARD else "cpu"
    assert {p.device.type for p in model.parameters()} == {expected}, way
    return {
        "own": memory.own,
        "files": memory.files,
        "card": memory.card,
        "ratio": memory.ratio,
        "seconds": seconds,
    }


def load_in_process(way: str, dtype: str, folder: Path) -> dict[str, float]:
    run = subprocess.run(
        [sys.executable, __file__, "--load", way, dtype, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(run.stdout.splitlines()[-1])


def row(way: str, runs: list[dict[str, float]], reference: float) -> list[Any]:
    seconds = median([run["seconds"] for run in runs])
    worst = max(runs, key=lambda run: run["own"])
    on_card = way in ON_CARD
    return [
        WAYS[way],
        worst["card"] / MEBIBYTE,
        worst["own"] / MEBIBYTE,
        round(worst["ratio"], 3) if on_card else "",
        worst["files"] / MEBIBYTE,
        seconds,
        seconds / reference,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--load", nargs=3, metavar=("WAY", "DTYPE", "FOLDER"), help="one load")
    options = parser.parse_args()
    if options.load:
        print(json.dumps(load(*options.load)))
        return
    report = Report("loading", "Loading a checkpoint: host memory beyond the card, and time")
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        nbytes = write_checkpoint(Path(folder), options.hidden, options.layers)
        load_in_process("cpu, copied", DTYPES[0], Path(folder))  # into the page cache
        for dtype in DTYPES:
            runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
            for _ in range(options.rounds):
                for way, found in runs.items():
                    found.append(load_in_process(way, dtype, Path(folder)))
            reference = median([run["seconds"] for run in runs["cpu"]])
            report.table(
                f"{nbytes / MEBIBYTE:.0f} MiB of bfloat16, loaded as {dtype} (MiB, seconds)",
                ["way", "on card", "own beyond", "own/card", "file pages", "time", "time/CPU"],
                [row(way, found, reference) for way, found in runs.items()],
            )
            loads = [run for way in ("device_map", "load_model") for run in runs[way]]
            worst = max(worst, *(run["ratio"] for run in loads))
    verdict = "met" if worst <= TARGET else "missed"
    report.remark(
        f"Own memory beyond the card, loading to it: at most {worst:.3f} times what is on the "
        f"card; the target of {TARGET} is {verdict}"
    )
    report.write()


if __name__ == "__main__":
    main()
