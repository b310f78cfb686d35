"""Cold and warm compiles for the card against Inductor's for the CPU, in the same run.

Each measurement is a new process. It imports torch, then the parts of the compiler that both
devices share, and makes the inputs; these are reported, not counted. The clock runs from the first
call of the compiled function to its result: so what a device alone imports, the card's compiler
included, is counted. Cold: Inductor's cache directory is empty. Warm: a second process with the
directory that the first one left. The CPU compiles the same graph in fp32, its shortest compile.
Devices take turns; the median counts. Targets: cold not slower, warm within 1.5 times. The card
is compiled for a second time with SPYRE_PLAN=basic, to see what the search for a plan costs: cold
within 1.5 times.

Models of 4 and 40 equal layers are compiled cold, once per device: 40 layers within 1.5 times. The
back end (from bundles to card programs; processor time of its threads) works once for all equal
layers: for 40 at most twice what it takes for 4.

With --profile, where the card's compile spends its time, by pass and by function.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from _report import Report, median

COLD_TARGET, WARM_TARGET, PLAN_TARGET = 1.0, 1.5, 1.5
MODEL_TARGET, BACK_END_TARGET = 1.5, 2.0
GRAPHS = ("1 op", "20 ops", "Granite block")
MODELS = ("Granite, 4 layers", "Granite, 40 layers")
DEVICES = ("spyre", "cpu")
BASIC = "spyre, basic plan"


# ---- In the new process -------------------------------------------------------------------------


@dataclass
class Clock:
    """Seconds since the last time it was asked."""

    start: float

    def lap(self) -> float:
        start, self.start = self.start, time.perf_counter()
        return self.start - start


def compile_once(graph: str, device: str, profile: str) -> dict[str, Any]:
    """Compile and call one graph; seconds of each phase, and which caches hit."""
    clock = Clock(time.perf_counter())
    import torch

    seconds = {"import torch": clock.lap()}
    import torch._dynamo
    import torch._inductor.compile_fx

    seconds["import Inductor"] = clock.lap()
    import _workloads

    dtype = torch.float16 if device == "spyre" else torch.float32
    torch.manual_seed(0)
    count_back_end = graph in MODELS and device == "spyre"
    with torch.no_grad(), back_end_seconds() if count_back_end else nullcontext([]) as back_end:
        work = _workloads.GRAPHS[graph]().to(device, dtype).compiled()
        clock.lap()
        with profiled(profile):
            result = work.run().cpu()
        seconds["first call"] = clock.lap()
        seconds["back end"] = sum(back_end)
        work.run().cpu()
        seconds["second call"] = clock.lap()
    assert bool(result.isfinite().all()), f"{graph} on {device}: the result is not finite"
    return {"seconds": seconds, "hits": cache_hits(device)}


@contextmanager
def back_end_seconds() -> Iterator[list[float]]:
    """Processor time per bundle that is compiled inside."""
    from torch_spyre._inductor import runtime

    seconds: list[float] = []
    compile_bundle = runtime.compile_bundle

    def timed(*args: Any) -> Any:
        start = time.thread_time()
        try:
            return compile_bundle(*args)
        finally:
            seconds.append(time.thread_time() - start)

    with mock.patch.object(runtime, "compile_bundle", timed):
        yield seconds


def cache_hits(device: str) -> dict[str, int]:
    """How often each cache that a warm compile depends on had what it was asked for."""
    from torch._dynamo.utils import counters

    hits = {
        "FX graph": counters["inductor"]["fxgraph_cache_hit"],
        "AOTAutograd": counters["aot_autograd"]["autograd_cache_hit"],
    }
    if device == "spyre":
        from torch_spyre.backend.cache import default_cache

        kernels = default_cache()
        hits["SpyreCode"] = kernels.statistics.hits if kernels else 0
    return hits


@contextmanager
def profiled(path: str) -> Iterator[None]:
    """Writes what the block did to a file, if one is given."""
    if not path:
        yield
        return
    import cProfile

    profile = cProfile.Profile()
    with profile:
        yield
    profile.dump_stats(path)


# ---- In this process ----------------------------------------------------------------------------


def in_new_process(graph: str, device: str, cache: Path, profile: str = "") -> dict[str, Any]:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled once, as users have it
    environment.pop("SPYRE_PLAN", None)
    if device == BASIC:
        device, environment["SPYRE_PLAN"] = "spyre", "basic"
    run = subprocess.run(
        [sys.executable, __file__, "--once", graph, "--device", device, "--profile", profile],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise RuntimeError(f"{graph} on {device} failed:\n{run.stderr}")
    return json.loads(run.stdout.splitlines()[-1])


@dataclass(frozen=True)
class Sample:
    """Two processes that share a cache directory."""

    cold: dict[str, Any]
    warm: dict[str, Any]


def sample(graph: str, device: str) -> Sample:
    cache = Path(tempfile.mkdtemp(prefix="spyre-compile-time-"))
    try:
        cold = in_new_process(graph, device, cache)
        warm = in_new_process(graph, device, cache)
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    missed = [name for name, hits in warm["hits"].items() if not hits]
    if missed:
        raise RuntimeError(f"{graph} on {device}: no hit in the {' and '.join(missed)} cache")
    return Sample(cold, warm)


def measure(rounds: int) -> dict[tuple[str, str], list[Sample]]:
    for device in DEVICES:  # brings files into the page cache, writes .pyc
        sample(GRAPHS[0], device)
    samples: dict[tuple[str, str], list[Sample]] = {}
    for turn in range(rounds):
        for graph in GRAPHS:
            devices = (*DEVICES, BASIC)
            for device in devices if turn % 2 == 0 else reversed(devices):
                samples.setdefault((graph, device), []).append(sample(graph, device))
    return samples


def phase(samples: list[Sample], way: str, name: str) -> float:
    return median([getattr(each, way)["seconds"][name] for each in samples])


def report_samples(report: Report, samples: dict[tuple[str, str], list[Sample]]) -> None:
    rounds = len(next(iter(samples.values())))
    rows, missed = [], []
    for graph in GRAPHS:
        for way, target in (("cold", COLD_TARGET), ("warm", WARM_TARGET)):
            card, cpu = (phase(samples[graph, d], way, "first call") for d in DEVICES)
            verdict = "met" if card / cpu <= target else "missed"
            if verdict == "missed":
                missed.append(f"{graph} {way}")
            rows.append([graph, way, card, cpu, round(card / cpu, 2), target, verdict])
    report.table(
        f"first call to result, seconds, median of {rounds}",
        ["graph", "caches", "card", "CPU", "ratio", "target", "verdict"],
        rows,
    )
    plans = []
    for graph in GRAPHS:
        full, basic = (phase(samples[graph, d], "cold", "first call") for d in ("spyre", BASIC))
        verdict = "met" if full / basic <= PLAN_TARGET else "missed"
        if verdict == "missed":
            missed.append(f"{graph} against a basic plan")
        plans.append([graph, full, basic, round(full / basic, 2), PLAN_TARGET, verdict])
    report.table(
        f"the search for a plan, cold, seconds, median of {rounds}",
        ["graph", "full", "basic", "ratio", "target", "verdict"],
        plans,
    )
    report.table(
        "beside it, seconds",
        ["graph", "device", "import torch", "import Inductor", "second call"],
        [
            [
                graph,
                device,
                *(
                    phase(samples[graph, device], "warm", name)
                    for name in ("import torch", "import Inductor", "second call")
                ),
            ]
            for graph in GRAPHS
            for device in DEVICES
        ],
    )
    report.remark(f"Targets missed: {', '.join(missed)}." if missed else "All targets met.")


def report_models(report: Report) -> None:
    """Cold compiles of whole models."""
    seconds: dict[tuple[str, str], dict[str, float]] = {}
    for graph in MODELS:
        for device in DEVICES:
            with tempfile.TemporaryDirectory(prefix="spyre-compile-time-") as cache:
                seconds[graph, device] = in_new_process(graph, device, Path(cache))["seconds"]
    rows = []
    for graph in MODELS:
        card, cpu = (seconds[graph, device] for device in DEVICES)
        ratio = card["first call"] / cpu["first call"]
        rows.append(
            [graph, card["first call"], cpu["first call"], round(ratio, 2), card["back end"]]
        )
    report.table(
        "models, cold, first call to result, seconds",
        ["model", "card", "CPU", "ratio", "of it back end"],
        rows,
    )
    few, many = rows
    for what, value, target in (
        (f"{MODELS[1]}, card over CPU", many[3], MODEL_TARGET),
        ("back end, 40 layers over 4", many[4] / few[4], BACK_END_TARGET),
    ):
        verdict = "met" if value <= target else "missed"
        report.remark(f"{what}: {value:.2f}, target {target}: {verdict}.")


# ---- Where the time goes ------------------------------------------------------------------------

# Cumulative times of these tell the story; (file, function) as cProfile has them.
PHASES = {
    "all": ("eval_frame.py", "compile_wrapper"),
    "importing and registering our compiler": ("registration.py", "<module>"),
    "AOT tracing": ("graph_compile.py", "aot_stage1_graph_capture"),
    "Inductor's graph passes": ("joint_graph.py", "joint_graph_passes"),
    "... its attention patterns": ("fuse_attention.py", "_sfdp_init"),
    "Inductor's lowering": ("_inductor/graph.py", "run"),
    "our plan": ("_inductor/plan.py", "plan_graph"),
    "... translation": ("translate.py", "run"),
    "... split_multi_op_bodies": ("split.py", "split_multi_op_bodies"),
    "... layouts": ("passes/layouts.py", "propagate_spyre_tensor_layouts"),
    "... restickifies": ("restickify.py", "insert_restickifies"),
    "... span_reduction": ("passes/spans.py", "span_reduction"),
    "... cores, scratchpads, tiles": ("passes/tiling.py", "plan_together"),
    "... divisions": ("passes/division.py", "divide_kernel"),
    "... scratchpads": ("passes/scratchpad.py", "place_kernel"),
    "... bundles": ("codegen/superdsc.py", "bundle_of"),
    "Inductor's scheduler": ("scheduler.py", "_init"),
    "hash of torch's sources (cache key)": ("codecache.py", "torch_key"),
}


def report_profile(report: Report) -> None:
    """Profiles a cold and a warm compile of the largest graph. Profiled code runs slower."""
    cache = Path(tempfile.mkdtemp(prefix="spyre-compile-time-"))
    try:
        for way in ("cold", "warm"):
            path = str(cache / f"{way}.prof")
            in_new_process(GRAPHS[-1], "spyre", cache, path)
            rows = [[name, seconds] for name, seconds in phases(path) if seconds >= 0.001]
            report.table(f"{GRAPHS[-1]}, {way}, under cProfile", ["phase", "seconds"], rows)
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def phases(path: str) -> Iterator[tuple[str, float]]:
    import pstats

    stats = pstats.Stats(path).stats  # type: ignore[attr-defined]
    for name, (file, function) in PHASES.items():
        found = [
            cumulative
            for (where, _, called), (_, _, _, cumulative, _) in stats.items()
            if called == function and where.endswith(file)
        ]
        yield name, max(found, default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="0: only whole models")
    parser.add_argument("--profile", nargs="?", const="yes", default="", help="also by pass")
    parser.add_argument("--json", default="compile_time", help="name of the file in results")
    parser.add_argument("--once", default="", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="spyre", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(compile_once(options.once, options.device, options.profile)))
        return
    report = Report(options.json, "Compile time: for the card against Inductor's for the CPU")
    if options.rounds:
        report_samples(report, measure(options.rounds))
    report_models(report)
    if options.profile:
        report_profile(report)
    report.write()


if __name__ == "__main__":
    main()
