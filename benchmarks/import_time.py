"""What the package adds to `import torch`. Target: at most 5 %, and no card opened.

Three ways of importing, each in a fresh process, in turn, so that a slow phase of the machine
hits all of them alike:

- absent: the entry point is hidden, as if the package were not installed (the reference);
- off: `TORCH_DEVICE_BACKEND_AUTOLOAD=0`, torch doesn't even look for backends;
- installed: as users have it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

from _report import Report, median

HIDE = """
import importlib.metadata as metadata
find = metadata.entry_points
metadata.entry_points = lambda **by: [e for e in find(**by) if e.name != "torch_spyre"]
"""
# Loaded before the clock starts in all three ways: torch imports it in any case.
MEASURE = """
import importlib.metadata, json, sys, time
{prepare}
wall, cpu = time.perf_counter(), time.process_time()
import torch
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
module = getattr(torch, "spyre", None)
print(json.dumps({{
    "wall": wall,
    "cpu": cpu,
    "loaded": module is not None,
    "opened": module is not None and module.is_initialized(),
}}))
"""
WAYS = {"absent": (HIDE, "1"), "off": ("", "0"), "installed": ("", "1")}
TARGET = 1.05


def import_torch(way: str) -> dict[str, float]:
    """Imports torch in a new process and returns seconds of wall clock and processor."""
    prepare, autoload = WAYS[way]
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    run = subprocess.run(
        [sys.executable, "-c", MEASURE.format(prepare=prepare)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result = json.loads(run.stdout)
    if result["loaded"] != (way == "installed"):
        raise RuntimeError(f"'{way}': torch.spyre is {'' if result['loaded'] else 'not '}there")
    if result["opened"]:
        raise RuntimeError("importing torch opened a card")
    return {"wall": result["wall"], "cpu": result["cpu"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds

    report = Report("import_time", "`import torch` with and without the package")
    for way in WAYS:
        import_torch(way)  # brings the files into the page cache, writes .pyc
    samples: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for turn in range(rounds):
        # Each way comes first equally often.
        order = list(WAYS)[turn % len(WAYS) :] + list(WAYS)[: turn % len(WAYS)]
        for way in order:
            samples[way].append(import_torch(way))

    medians = {
        way: {clock: median([sample[clock] for sample in runs]) for clock in ("wall", "cpu")}
        for way, runs in samples.items()
    }
    reference = medians["absent"]
    report.table(
        f"seconds, median of {rounds}",
        ["way", "wall", "processor", "wall ratio", "processor ratio", "least wall", "most wall"],
        [
            [
                way,
                figures["wall"],
                figures["cpu"],
                figures["wall"] / reference["wall"],
                figures["cpu"] / reference["cpu"],
                min(sample["wall"] for sample in samples[way]),
                max(sample["wall"] for sample in samples[way]),
            ]
            for way, figures in medians.items()
        ],
    )
    ratio = medians["installed"]["wall"] / reference["wall"]
    verdict = "met" if ratio <= TARGET else "missed"
    report.remark(f"installed against absent: {ratio:.3f}; the target of {TARGET} is {verdict}")
    report.write()


if __name__ == "__main__":
    main()
