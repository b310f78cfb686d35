"""Runs random graphs compiled and prints those that fail.

    python tests/_inductor/graph_runner.py 0 50        # seeds 0 to 49
    SPYRE_CARD_CHECK=1 python tests/_inductor/graph_runner.py 7 8

A process of its own, because checked mode is a property of the process.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest import mock

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import torch
from compiled import Launch, run_compiled
from random_graphs import Graph, random_graph
from steps import check_launch

from torch_spyre._inductor import config
from torch_spyre._inductor.graph import Op
from torch_spyre._inductor.passes import clones, tiling
from torch_spyre.backend.program import StepKind

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


@contextlib.contextmanager
def unusual_plans(seed: int) -> Iterator[None]:
    """For some seeds, plans that only larger tensors would have: as many loops as there can be,
    copies whether they pay or not, scratchpads of a few kilobytes."""
    draw = random.Random(f"plans {seed}")

    def loops_first(ops: Iterable[Op]) -> float:
        return -float(sum(len(op.tiles) for op in ops))

    with contextlib.ExitStack() as stack:
        if draw.random() < 0.5:
            size = draw.choice((128, 512, 2048))
            patch = mock.patch.multiple(
                tiling,
                LEAST_BYTES=1,
                SIZES=(size, size // 2),
                LEAST_SHARE=0,
                nanoseconds=loops_first,
            )
            stack.enter_context(patch)
        if draw.random() < 0.3:
            stack.enter_context(mock.patch.object(clones._Clone, "pays", True))
        if draw.random() < 0.3:
            frac = draw.choice((0.99, 0.995, 0.998))
            stack.enter_context(config.patch(dxp_lx_frac_avail=frac))
        yield


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
    if not any(step.kind is StepKind.GATHER for step in launch.steps):
        assert read == checked_read, f"bytes read: {launch.traffic}"


def main(seeds: Iterable[int]) -> int:
    """Check graphs, print those that fail, return how many."""
    torch.spyre.set_downcast_warning(False)
    failures = 0
    for seed in seeds:
        graph, settings = random_graph(seed), settings_for(seed)
        try:
            with unusual_plans(seed):
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
