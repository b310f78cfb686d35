"""Coarse tiles: loops that keep what passes between operations in the scratchpads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled import run_compiled
from torch.nn import functional

from torch_spyre._inductor import config
from torch_spyre._inductor.graph import Fit
from torch_spyre._inductor.parts import tiled
from torch_spyre.ir import Aligned
from torch_spyre.ir.bundle import Bundle, Execute, For, Node
from torch_spyre.ir.walks import Walk

Function = Callable[..., torch.Tensor]


def _loops(bundle: Bundle) -> list[int]:
    """Iterations of all loops of a kernel."""

    def visit(body: tuple[Node, ...]) -> list[int]:
        found = []
        for node in body:
            if isinstance(node, For):
                found += [node.count, *visit(node.body)]
            else:
                assert isinstance(node, Execute)
        return found

    return visit(bundle.body)


def _fit(extents: tuple[int, ...], stick: int | None, length: int | None) -> Fit:
    walk = Walk(0, tuple(1 << (8 * i) for i in range(len(extents))), "vector", 1, 0, 0)
    return Fit(Aligned(extents, stick, 64, (walk,), (), length, (None,) * len(extents)), ((),))


def test_parts_are_equal_and_of_whole_sticks() -> None:
    fit = _fit((12, 8), 1, 512)
    part = tiled(fit, 0, 4)
    assert part is not None and part.extents == (3, 8) and part.plan.length == 512
    part = tiled(fit, 1, 4)
    assert part is not None and part.extents == (12, 2) and part.plan.length == 128
    assert tiled(fit, 0, 5) is None
    assert tiled(_fit((12, 8), 1, 500), 1, 4) is None  # the last stick is partial


# Between whose operations more passes than all scratchpads hold together.
WORK: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "scores": (
        lambda q, k, v: functional.softmax(q @ k.transpose(-2, -1) * 0.1, -1) @ v,
        [(8, 1024, 64), (8, 2048, 64), (8, 2048, 64)],
    ),
    "two layers": (
        lambda x, a, b: functional.gelu(x @ a) @ b,
        [(8192, 64), (64, 4096), (4096, 64)],
    ),
    "rows": (
        lambda x, y: functional.softmax(x.float() * y, -1) - functional.softmax(x.float() + y, -1),
        [(8192, 2048), (2048,)],
    ),
}


def _inputs(shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [
        (torch.randn(shape) / shape[-2 if len(shape) > 1 else 0] ** 0.25).half() for shape in shapes
    ]


@pytest.mark.parametrize("name", ["scores", "two layers"])
def test_what_does_not_fit_is_made_in_parts(name: str) -> None:
    call, shapes = WORK[name]
    inputs = _inputs(shapes)
    run = run_compiled(call, inputs)
    loops = [count for launch in run.launches for count in _loops(launch.bundle)]
    assert loops and all(count > 1 for count in loops)
    wanted = call(*(tensor.double() for tensor in inputs))
    error = (run.results[0].double() - wanted).abs().max()
    assert error < 2**-7 * wanted.abs().max()


@pytest.mark.parametrize("name", ["scores", "two layers"])
def test_loops_move_fewer_bytes_and_change_little(name: str) -> None:
    call, shapes = WORK[name]
    inputs = _inputs(shapes)
    full = run_compiled(call, inputs)
    with config.patch(plan="basic"):
        basic = run_compiled(call, inputs)
    moved = [
        sum(launch.traffic.read + launch.traffic.written for launch in run.launches)
        for run in (full, basic)
    ]
    assert moved[0] < moved[1] / 2
    assert not any(_loops(launch.bundle) for launch in basic.launches)
    scale = basic.results[0].float().abs().max()
    assert (full.results[0].float() - basic.results[0].float()).abs().max() < 2**-8 * scale


def test_small_graphs_have_no_loops() -> None:
    inputs: list[Any] = [torch.randn(64, 256).half(), torch.randn(256, 256).half()]
    run = run_compiled(lambda x, w: functional.softmax(x @ w, -1), inputs)
    assert not any(_loops(launch.bundle) for launch in run.launches)
