"""Loops over what a reduction reduces: each part is combined into an accumulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled import Launch, Run, run_compiled
from steps import bytes_of, check_launch

import torch_spyre
from torch_spyre._inductor.errors import HintError, Unsupported
from torch_spyre.backend.disassemble import disassemble
from torch_spyre.backend.reference import Memory, Reference
from torch_spyre.ir.bundle import Bundle, Execute, For, Node

Function = Callable[..., torch.Tensor]


def quarters(*size: int) -> torch.Tensor:
    """Numbers whose sums and products of two are exact, so that no order of adding shows."""
    torch.manual_seed(0)
    return (torch.randint(-8, 9, size) / 4).half()


def outline(bundle: Bundle) -> list[Any]:
    """The names of a kernel's operations; a loop is its count and its body."""

    def visit(body: tuple[Node, ...]) -> Iterator[Any]:
        for node in body:
            if isinstance(node, For):
                yield (node.count, list(visit(node.body)))
            else:
                yield bundle.sdscs[node.sdsc].name

    return list(visit(bundle.body))


def executes(body: tuple[Node, ...]) -> Iterator[Execute]:
    for node in body:
        if isinstance(node, For):
            yield from executes(node.body)
        else:
            yield node


def tiled(function: Function, tiles: dict[int, int], *inputs: Any, argument: int = 0) -> Run:
    """Compile with tiles, and check every step of what was launched."""
    with_tiles = torch_spyre.coarse_tile(function, tiles=tiles, argument=argument)
    run = run_compiled(with_tiles, inputs, check_guarantees=True)
    for launch in run.launches:
        check_launch(launch)
    return run


def as_the_reference_says(launch: Launch) -> bool:
    """Does numpy, from the SuperDSCs alone, give the bits that the card gave?"""
    memories = [Memory.of(array) for array in bytes_of(launch)[: len(launch.bundle.args)]]
    reference = Reference(launch.bundle, memories, launch.extents)
    reference.run()
    return all(
        torch.equal(
            torch.from_numpy(launch.layouts[i].values(memories[i].data)).to(launch.after[i].dtype),
            launch.after[i],
        )
        for i in launch.written
    )


REDUCTIONS: dict[str, tuple[Function, torch.Tensor, str, str]] = {
    "sum": (lambda x, dim: x.sum(dim), quarters(64, 256), "sum", "add"),
    "sum of squares": (lambda x, dim: (x * x).sum(dim), quarters(64, 256), "sum_squares", "add"),
    "amax": (lambda x, dim: x.amax(dim), quarters(64, 256), "amax", "maximum"),
    "amin": (lambda x, dim: x.amin(dim), quarters(64, 256), "amin", "minimum"),
    "sum of float32": (lambda x, dim: x.sum(dim), quarters(64, 256).float(), "sum", "add"),
    "sum of int32": (
        lambda x, dim: x.sum(dim, dtype=torch.int32),
        torch.randint(-99, 99, (64, 256), dtype=torch.int32),
        "sum_int",
        "add_int",
    ),
    "amax of int32": (
        lambda x, dim: x.amax(dim),
        torch.randint(-(2**31), 2**31, (64, 256), dtype=torch.int32),
        "amax_int",
        "maximum_int",
    ),
    "amin of int8": (
        lambda x, dim: x.amin(dim),
        torch.randint(-128, 128, (64, 256), dtype=torch.int8),
        "amin_int",
        "minimum_int",
    ),
    "any": (lambda x, dim: x.any(dim), quarters(64, 256) > 1.9, "amax", "maximum"),
}


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_in_parts_gives_the_same_bits(name: str, dim: int) -> None:
    function, x, opcode, combining = REDUCTIONS[name]
    run = tiled(lambda x: function(x, dim), {dim: 4 if dim == 0 else 2}, x)
    (launch,) = run.launches
    loops = [node for node in outline(launch.bundle) if isinstance(node, tuple)]
    ((count, body),) = loops
    steps = [step for step in body if step != "relayout"]  # where cores share them otherwise
    assert count == (4 if dim == 0 else 2) and steps[-2:] == [opcode, combining]
    assert as_the_reference_says(launch)
    (whole,) = run_compiled(lambda x: function(x, dim), [x]).results
    assert torch.equal(run.results[0], whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_products_are_multiplied_up(dtype: torch.dtype) -> None:
    x = torch.where(torch.arange(64 * 128).reshape(64, 128) % 7 == 0, 2, -1).to(dtype)
    run = tiled(lambda x: x.prod(0, dtype=dtype), {0: 8}, x)
    assert torch.equal(run.results[0], x.prod(0, dtype=dtype))


def test_everything_can_be_reduced_to_one_number() -> None:
    x = quarters(64, 256)
    run = tiled(lambda x: x.amax(), {0: 8}, x)
    assert torch.equal(run.results[0], x.amax())


def test_sums_in_parts_are_rounded_once() -> None:
    """The accumulator has more bits than the parts would have in the result's format."""
    torch.manual_seed(1)
    x = torch.randn(4096, 64).half().to("spyre").cpu()
    run = tiled(lambda x: x.sum(0), {0: 16}, x)
    exact = x.double().sum(0)
    bound = 4096 * 2.0**-24 * x.double().abs().sum(0) + 2.0**-9 * exact.abs()
    assert ((run.results[0].double() - exact).abs() <= bound).all()


def test_symbols_in_one_part_win_over_numbers_in_others() -> None:
    x = quarters(64, 128)
    x[5, 3], x[40, 4] = torch.nan, -torch.inf
    run = tiled(lambda x: (x.amax(0), x.amin(0)), {0: 8}, x)
    whole = run_compiled(lambda x: (x.amax(0), x.amin(0)), [x]).results
    for one, other in zip(run.results, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert run.results[0][3].isnan() and run.results[1][4] == -torch.inf


# ---- Matmuls ------------------------------------------------------------------------------------


MATMULS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "matrices": ((64, 256), (256, 128)),
    "batches": ((3, 16, 256), (3, 256, 64)),
    "a row": ((1, 512), (512, 128)),
}


@pytest.mark.parametrize("name", MATMULS)
def test_k_in_parts_gives_the_same_bits(name: str) -> None:
    a, b = (quarters(*size) for size in MATMULS[name])
    run = tiled(torch.matmul, {a.dim() - 1: 4}, a, b)
    (launch,) = run.launches
    assert outline(launch.bundle) == ["identity", (4, ["batchmatmul", "add"]), "identity"]
    assert as_the_reference_says(launch)
    assert torch.equal(run.results[0], (a.float() @ b.float()).half().to("spyre").cpu())


def test_the_accumulator_stays_in_the_scratchpads() -> None:
    in_parts = torch_spyre.coarse_tile(torch.matmul, tiles={1: 4})
    run = run_compiled(in_parts, [quarters(128, 512), quarters(512, 256)])
    (launch,) = run.launches
    fill, matmul, add, round_ = executes(launch.bundle.body)
    assert [address.base for address in fill.addresses] == ["lx"]
    assert [address.base for address in matmul.addresses] == ["arg", "arg", "lx"]
    assert [address.base for address in add.addresses] == ["lx"] * 3
    assert [address.base for address in round_.addresses] == ["lx", "arg"]
    # A and B once, in parts; the result once.
    assert launch.traffic.read == 2 * (128 * 512 + 512 * 256)
    assert launch.traffic.written == 2 * 128 * 256


def test_the_last_operation_of_a_chain_adds_up() -> None:
    """What lies between two matmuls is one part, and never whole anywhere."""

    def mlp(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ up) @ down

    x, up, down = quarters(64, 128), quarters(128, 512).sign(), quarters(512, 64).sign()
    run = tiled(mlp, {1: 4}, x, up, down, argument=1)
    (launch,) = run.launches
    body = ["batchmatmul", "relu", "batchmatmul", "add"]
    assert outline(launch.bundle) == ["identity", (4, body), "identity"]
    assert launch.bundle.pool_bytes == 0
    assert torch.equal(run.results[0], run_compiled(mlp, [x, up, down]).results[0])


# ---- Loops within loops -------------------------------------------------------------------------


def test_loops_nest_in_the_order_of_the_tiles() -> None:
    a, b = quarters(64, 256), quarters(256, 256)
    wanted = (a.float() @ b.float()).half().to("spyre").cpu()

    def rows_then_k(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch_spyre.coarse_tile(torch.matmul, tiles={0: 2, 1: 4})(x, w)

    run = run_compiled(rows_then_k, [a, b])
    inner = (4, ["batchmatmul", "add"])
    assert outline(run.launches[0].bundle) == [(2, ["identity", inner, "identity"])]
    assert torch.equal(run.results[0], wanted)
    check_launch(run.launches[0])

    run = tiled(torch.matmul, {1: 4, 0: 2}, a, b)
    body = [(2, ["batchmatmul", "add"])]
    assert outline(run.launches[0].bundle) == ["identity", (4, body), "identity"]
    assert torch.equal(run.results[0], wanted)


def test_three_loops_and_their_text(tmp_path: Path) -> None:
    a, b = quarters(64, 256), quarters(256, 256)
    columns = torch_spyre.coarse_tile(torch.matmul, tiles={1: 2}, argument=1)
    run = tiled(columns, {0: 4, 1: 2}, a, b)
    (launch,) = run.launches
    assert torch.equal(run.results[0], (a.float() @ b.float()).half().to("spyre").cpu())
    assert as_the_reference_says(launch)
    (rows,) = outline(launch.bundle)
    assert rows == (4, ["identity", (2, [(2, ["batchmatmul", "add"])]), "identity"])
    launch.bundle.write(tmp_path)
    text = (tmp_path / "bundle.mlir").read_text()
    assert text.count("scf.for") == 3 and text.count("sdsc_execute") == 4
    listing = disassemble(launch.program)
    assert [listing.count(f"loop {n} times") for n in (4, 2)] == [1, 2]
    assert listing.count("step batchmatmul") == 1


def test_one_dimension_is_tiled_twice() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        torch_spyre.name_tensor_dims(a, [None, "K"])
        with torch_spyre.spyre_hint({"K": 2}), torch_spyre.spyre_hint({"K": 2}):
            return a @ b

    a, b = quarters(64, 512), quarters(512, 64)
    run = run_compiled(function, [a, b])
    check_launch(run.launches[0])
    inner = ["identity", (2, ["batchmatmul", "add"]), "identity", "add"]
    assert outline(run.launches[0].bundle) == ["identity", (2, inner), "identity"]
    assert torch.equal(run.results[0], (a.float() @ b.float()).half().to("spyre").cpu())


# ---- Graphs -------------------------------------------------------------------------------------


def test_a_softmax_along_what_it_reduces_is_three_loops() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 1024).half()
    run = tiled(lambda x: torch.softmax(x.float(), -1), {1: 4}, x)
    (launch,) = run.launches
    loops = [node for node in outline(launch.bundle) if isinstance(node, tuple)]
    assert [body[0] for _, body in loops] == ["amax", "exp_sub", "div"]
    exact = torch.softmax(x.to("spyre").cpu().double(), -1)
    assert (run.results[0] - exact).abs().max() < 2.0**-20


def test_what_is_computed_from_a_sum_comes_after_the_loop() -> None:
    x = quarters(64, 256)
    run = tiled(lambda x: (x.sum(0) * 2 + x[0]).amax(), {0: 4}, x)
    wanted = (x.float().sum(0).half().to("spyre").cpu() * 2 + x[0]).amax()
    assert torch.equal(run.results[0], wanted.to("spyre").cpu())


def test_indices_have_no_accumulator() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0)

    with pytest.raises(Unsupported):
        tiled(function, {0: 4}, torch.ones(64, 128))


def test_parts_are_whole_sticks() -> None:
    with pytest.raises(Unsupported, match="whole sticks"):
        tiled(lambda x: x.sum(1), {1: 2}, quarters(64, 100))
    with pytest.raises(HintError, match="5 tiles do not divide .* which is 64 long"):
        tiled(lambda x: x.sum(0), {0: 5}, quarters(64, 100))


def test_checked_mode_finds_nothing(check_python: Any) -> None:
    done = check_python(
        """
        import torch, torch_spyre

        def mlp(x, up, down):
            return torch.relu(x @ up) @ down

        x, up, down = (torch.randn(n, m).half().to("spyre") for n, m in
                       ((96, 128), (128, 512), (512, 192)))
        for tiles, argument in (({1: 4}, 1), ({1: 2}, 0), ({0: 3, 1: 2}, 0)):
            tiled = torch_spyre.coarse_tile(mlp, tiles=tiles, argument=argument)
            torch.compile(tiled, dynamic=False)(x, up, down).cpu()
        rows = torch_spyre.coarse_tile(lambda x: x.amax(0) + x.sum(0), tiles={0: 8})
        torch.compile(rows, dynamic=False)(x).cpu()
        counters = torch.spyre.counters()
        for kind in ("read", "written"):
            assert counters[f"bytes_{kind}"] == counters[f"checked_bytes_{kind}"], kind
        print("clean")
        """,
        SPYRE_CARD_CHECK="1",
    )
    assert done.stdout.strip() == "clean"
