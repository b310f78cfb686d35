"""Coarse tiles: loops that keep what passes between operations in the scratchpads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from compiled import Launch, Run, run_compiled
from steps import check_launch
from torch.nn import functional

from torch_spyre import coarse_tile
from torch_spyre._inductor import config
from torch_spyre._inductor.codegen import opspec
from torch_spyre._inductor.errors import Unsupported
from torch_spyre._inductor.graph import Fit
from torch_spyre._inductor.parts import tiled
from torch_spyre._inductor.passes import division
from torch_spyre.backend.program import Loop as StepLoop
from torch_spyre.backend.program import Space, Step
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


def test_what_is_long_between_two_matmuls_is_added_up_in_parts() -> None:
    """Parts of the long dimension read the weights once; parts of rows would not."""

    def call(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ a) @ b

    inputs = _inputs([(1024, 64), (64, 65536), (65536, 64)])
    run = run_compiled(call, inputs)
    (launch,) = run.launches
    assert len(_loops(launch.bundle)) == 1
    assert launch.traffic.read < 1.25 * sum(2 * tensor.numel() for tensor in inputs)
    assert launch.traffic.written == 2 * run.results[0].numel()
    wanted = call(*(tensor.double() for tensor in inputs))
    assert (run.results[0].double() - wanted).abs().max() < 2**-7 * wanted.abs().max()


def test_small_graphs_have_no_loops() -> None:
    inputs: list[Any] = [torch.randn(64, 256).half(), torch.randn(256, 256).half()]
    run = run_compiled(lambda x, w: functional.softmax(x @ w, -1), inputs)
    assert not any(_loops(launch.bundle) for launch in run.launches)


# ---- Across the loop's edge ---------------------------------------------------------------------


def _in_tiles(call: Function, tiles: dict[int, int], inputs: list[torch.Tensor], **how: Any) -> Run:
    run = run_compiled(coarse_tile(call, tiles=tiles), inputs, check_guarantees=True, **how)
    for launch in run.launches:
        check_launch(launch)
    return run


def _quarters(*size: int) -> torch.Tensor:
    torch.manual_seed(0)
    return (torch.randint(-8, 9, size) / 4).half()


def test_results_in_parts_can_leave_the_graph_and_be_read_after_the_loop() -> None:
    def call(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(x @ w)
        return y, y * 2, y.amax(0) + w[0]

    x, w = _quarters(128, 64), _quarters(64, 128).sign()
    run = _in_tiles(call, {0: 4}, [x, w])
    (launch,) = run.launches
    assert _loops(launch.bundle) == [4]
    y = torch.relu(x @ w)
    for result, wanted in zip(run.results, (y, y * 2, y.amax(0) + w[0]), strict=True):
        assert torch.equal(result, wanted)


def test_counts_go_on_in_the_next_part() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(x.shape[0], device=x.device, dtype=torch.int32)
        return x + rows[:, None] * 2

    x = torch.randint(-99, 99, (64, 128), dtype=torch.int32)
    run = _in_tiles(call, {0: 8}, [x])
    assert _loops(run.launches[0].bundle) == [8]
    assert torch.equal(run.results[0], call(x))
    run = _in_tiles(lambda x: torch.tril(x), {0: 8}, [x])
    assert torch.equal(run.results[0], torch.tril(x))


@pytest.mark.parametrize("settings", [{"lx_planning": False}, {"sencores": 1}, {"sencores": 3}])
def test_loops_do_not_depend_on_cores_or_scratchpads(settings: dict[str, Any]) -> None:
    x, w = _quarters(96, 64), _quarters(64, 64).sign()
    run = _in_tiles(lambda x, w: torch.relu(x @ w) + x, {0: 4}, [x, w], **settings)
    assert _loops(run.launches[0].bundle) == [4]
    assert torch.equal(run.results[0], torch.relu(x @ w) + x)


# ---- Tensors that are too large for a core ------------------------------------------------------


@contextmanager
def _span(nbytes: int) -> Iterator[None]:
    """As if a core could address no more than that of a tensor."""
    limited = functools.partial(division.span_slices, limit=nbytes)
    with (
        mock.patch.object(division, "span_slices", limited),
        mock.patch.object(opspec, "SPAN_LIMIT", nbytes),
    ):
        yield


def _reach(launch: Launch) -> int:
    """The most bytes of a tensor that a core addresses in one step."""

    def visit(body: tuple[Step | StepLoop, ...]) -> Iterator[int]:
        for node in body:
            if isinstance(node, StepLoop):
                yield from visit(node.body)
                continue
            for operand in (*node.inputs, *node.outputs):
                if operand.space is Space.DEVICE:
                    reach = [
                        sum(abs(s) * (n - 1) for s, n in zip(operand.strides, row, strict=True))
                        for row in node.extents
                    ]
                    yield max(reach) + abs(operand.tile_stride) + 128

    return max(visit(launch.program.body))


SPANNING: dict[str, Function] = {
    "copy": lambda x: x.clone(),
    "add": lambda x: x + 1,
    "chain": lambda x: torch.relu(x + 1) * 2 - x,
    "sum of rows": lambda x: x.sum(1),
    "sum of columns": lambda x: x.sum(0),
    "everything": lambda x: x.amax(),
    "transposed": lambda x: x.t().contiguous(),
    "matmul": lambda x: x @ x.t(),
}


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", SPANNING)
def test_what_a_core_can_not_address_is_taken_in_parts(name: str, cores: int) -> None:
    x = _quarters(48, 640).sign()  # 60 KiB
    limit = 1 << 14
    with _span(limit):
        run = run_compiled(SPANNING[name], [x], sencores=cores)
    for launch in run.launches:
        assert _reach(launch) <= limit
    assert torch.equal(run.results[0], SPANNING[name](x))


def test_operations_join_the_loop_that_a_large_tensor_needs() -> None:
    with _span(1 << 14):
        run = run_compiled(SPANNING["chain"], [_quarters(48, 640)], sencores=1)
    (launch,) = run.launches
    (loop,) = launch.bundle.body
    assert isinstance(loop, For) and len(loop.body) == len(launch.bundle.sdscs)


def test_no_parts_within_the_span() -> None:
    with _span(1 << 10), pytest.raises(Unsupported, match="256 MiB .* equal parts"):
        run_compiled(lambda x: x + 1, [_quarters(7, 640).t().contiguous().t()], sencores=1)


@pytest.mark.parametrize("call", [lambda x: x + 1, lambda x: x.amax(1)])
def test_tensors_over_the_span_of_one_core(call: Function) -> None:
    x = torch.ones(1200, 128 * 1024, dtype=torch.half)  # 300 MiB
    x[1199, 7] = 3
    with config.patch(sencores=1), torch.no_grad():
        result = torch.compile(call, dynamic=False)(x.to("spyre")).cpu()
    torch._dynamo.reset()
    assert torch.equal(result, call(x))


@pytest.mark.parametrize("length", [70, 129, 200, 256])
@pytest.mark.parametrize("call", [lambda x: x.sum(0), lambda x: x.amax(), lambda x: x.t() @ x])
def test_parts_end_at_the_length_of_the_launch(call: Function, length: int) -> None:
    """Of a dynamic dimension the last parts have few valid rows, or none."""
    x = _quarters(length, 64).sign()
    card = x.to("spyre")
    torch._dynamo.mark_dynamic(card, 0)
    torch._dynamo.reset()
    with _span(1 << 14), config.patch(sencores=1), torch.no_grad():
        result = torch.compile(call)(card).cpu()
    torch._dynamo.reset()
    assert torch.equal(result, call(x.float()).half().to("spyre").cpu())
