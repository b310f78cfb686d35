"""Runs random graphs compiled and prints those that fail.

    python tests/_inductor/graph_runner.py 0 50        # seeds 0 to 49
    SPYRE_CARD_CHECK=1 python tests/_inductor/graph_runner.py 7 8

A process of its own, because checked mode is a property of the process. Checked mode can't tell
padding that holds what an earlier buffer left there from elements: where it says that such bytes
are accumulated "together with valid elements", the seed is printed as an alarm, to be run again
without it. There `steps` shows that results don't change with what lies in padding.
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

from torch_spyre.backend.program import Space, Step, StepKind

IS_CHECKED = os.environ.get("SPYRE_CARD_CHECK", "0") != "0"
ALARM = "is accumulated together with valid elements"


def settings_for(seed: int) -> dict[str, object]:
    """Cores, scratchpad planning and solver for a graph."""
    draw = random.Random(f"settings {seed}")
    return {
        "sencores": draw.choice((1, 4, 32)),
        "lx_planning": draw.random() < 0.75,
        "layout_solver": draw.choice(("greedy", "firstfit", "bestfit")),
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

    It can't know which rows a gather meets, and counts sticks once per operand: two operands that
    read the same sticks of one tensor count twice. There it is an upper bound.
    """
    read, written, checked_read, checked_written = launch.traffic
    assert written == checked_written, f"bytes written: {launch.traffic}"
    assert read >= checked_read, f"bytes read: {launch.traffic}"
    if all(is_counted_exactly(step) for step in launch.program.body if isinstance(step, Step)):
        assert read == checked_read, f"bytes read: {launch.traffic}"


def is_counted_exactly(step: Step) -> bool:
    """Does the cost model know the distinct sticks of a step?"""
    symbols = [operand.symbol for operand in step.inputs if operand.space is Space.DEVICE]
    return step.kind is not StepKind.GATHER and len(set(symbols)) == len(symbols)


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
            if IS_CHECKED and ALARM in str(error):
                print(f"alarm {seed}", flush=True)
                continue
            failures += 1
            text = traceback.format_exc().splitlines()[-14:]
            said = [str(error)] if isinstance(error, AssertionError) else text
            print("\n".join([graph.source, f"with {settings}", *said, ""]), flush=True)
    print(f"{failures} failures")
    return failures


if __name__ == "__main__":
    first, *rest = map(int, sys.argv[1:])
    sys.exit(main(range(first, rest[0]) if rest else [first]) > 0)
