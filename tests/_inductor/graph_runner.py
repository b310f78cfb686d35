"""Runs random graphs compiled and prints those that fail.

    python tests/_inductor/graph_runner.py 0 50        # seeds 0 to 49
    SPYRE_CARD_CHECK=1 python tests/_inductor/graph_runner.py 7 8

A process of its own, because checked mode is a property of the process.
"""

from __future__ import annotations

import os
import random
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import torch
from compiled import Launch, run_compiled
from random_graphs import Graph, random_graph
from steps import check_launch

from torch_spyre.backend.program import Step, StepKind

IS_CHECKED = os.environ.get("SPYRE_CARD_CHECK", "0") != "0"


def settings_for(seed: int) -> dict[str, object]:
    """Cores, scratchpad planning and solver for a graph."""
    draw = random.Random(f"settings {seed}")
    return {
        "sencores": draw.choice((1, 4, 32)),
        "lx_planning": draw.random() < 0.75,
        "layout_solver": draw.choice(("greedy", "firstfit", "bestfit", "exact")),
        "boundary_clones": draw.random() < 0.75,
    }


def check_graph(graph: Graph, **settings: object) -> None:
    """Assert that a graph compiled gives its reference, and its kernels what their steps mean."""
    run = run_compiled(graph, graph.inputs, **settings)
    for output, actual in zip(graph.outputs, run.results, strict=True):
        expected = graph.values[output]
        assert actual.dtype is expected.dtype, f"v{output} is {actual.dtype}"
        assert actual.shape == expected.value.shape, f"v{output} is {list(actual.shape)}"
        outside = ~expected.holds(actual)
        if outside.any():
            at = tuple(int(i) for i in outside.nonzero()[0])
            raise AssertionError(
                f"v{output}: {int(outside.sum())} of {outside.numel()} results are out of bounds, "
                f"first {list(at)}: {actual[at].item()} instead of "
                f"{expected.value[at].item()} ± {expected.read_on_host().error[at].item()}"
            )
    for launch in run.launches:
        check_launch(launch)
        if IS_CHECKED:
            check_traffic(launch)


def check_traffic(launch: Launch) -> None:
    """Assert that the cost model counts the bytes that checked mode saw.

    It can't know which rows a gather meets: there it is an upper bound.
    """
    read, written, checked_read, checked_written = launch.traffic
    assert written == checked_written, f"bytes written: {launch.traffic}"
    assert read >= checked_read, f"bytes read: {launch.traffic}"
    steps = [step for step in launch.program.body if isinstance(step, Step)]
    if not any(step.kind is StepKind.GATHER for step in steps):
        assert read == checked_read, f"bytes read: {launch.traffic}"


def main(seeds: Iterable[int]) -> int:
    """Check graphs, print those that fail, return how many."""
    torch.spyre.set_downcast_warning(False)
    failures = 0
    for seed in seeds:
        graph, settings = random_graph(seed), settings_for(seed)
        try:
            check_graph(graph, **settings)
        except Exception as error:
            torch.spyre.reset()  # a fault is sticky
            failures += 1
            text = traceback.format_exc().splitlines()[-14:]
            said = [str(error)] if isinstance(error, AssertionError) else text
            print("\n".join([graph.source, f"with {settings}", *said, ""]), flush=True)
    print(f"{failures} failures")
    return failures


if __name__ == "__main__":
    first, *rest = map(int, sys.argv[1:])
    sys.exit(main(range(first, rest[0]) if rest else [first]) > 0)
