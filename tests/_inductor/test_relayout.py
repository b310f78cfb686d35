"""Relayout: what cores make in their scratchpads reaches others over the ring."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from compiled import Run, run_compiled
from graph_runner import check_graph
from random_graphs import random_graph
from steps import check_launch, same

from torch_spyre import ir
from torch_spyre._inductor.graph import Buffer, Op, Read
from torch_spyre._inductor.passes import clones
from torch_spyre._inductor.passes import relayout as relayout_pass
from torch_spyre._inductor.passes.relayout import relayout
from torch_spyre._inductor.price import op_nanoseconds
from torch_spyre._inductor.sharing import Box, Boxes, boxes
from torch_spyre.backend.cost import program_cost
from torch_spyre.backend.program import Loop, Space, Step, StepKind, encode
from torch_spyre.backend.reference import Memory, Reference
from torch_spyre.ir.bundle import Bundle
from torch_spyre.ir.superdsc import BundleError


def all_steps(body: Sequence[Step | Loop]) -> Iterator[Step]:
    for node in body:
        if isinstance(node, Step):
            yield node
        else:
            yield from all_steps(node.body)


def moves_of(run: Run) -> list[Step]:
    steps = (step for launch in run.launches for step in all_steps(launch.program.body))
    return [step for step in steps if step.kind is StepKind.RING]


# ---- Compiled -----------------------------------------------------------------------------------


def softmax_times(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Rows of the softmax are made on 32 cores; the matmul wants more of them on each, several
    times over."""
    return (torch.softmax(x, 1) + 1) @ w


def operands(rows: int = 512, k: int = 1024, columns: int = 512) -> list[torch.Tensor]:
    torch.manual_seed(rows + k + columns)
    return [torch.randn(rows, k).half(), torch.randn(k, columns).half() / 32]


@pytest.fixture(scope="module")
def planned() -> tuple[Run, list[Op]]:
    """A run, and the relayouts that were thought of."""
    made: list[Op] = []

    def kept(*args: Any) -> Op | None:
        op = relayout(*args)
        made.extend([op] if op else [])
        return op

    with mock.patch.object(relayout_pass, "relayout", kept):
        return run_compiled(softmax_times, operands(), check_guarantees=True), made


@pytest.fixture(scope="module")
def moved(planned: tuple[Run, list[Op]]) -> Run:
    return planned[0]


def test_what_others_read_goes_over_the_ring_and_not_through_memory(moved: Run) -> None:
    (step,) = moves_of(moved)
    assert step.inputs[0].space is Space.RING
    assert step.outputs[0].space is Space.LX
    (launch,) = moved.launches
    x, w = operands()
    once = 2 * (x.numel() + w.numel()), 2 * 512 * 512
    assert (launch.traffic.read, launch.traffic.written) == once


def test_relayouts_do_not_change_a_bit(moved: Run) -> None:
    plain = run_compiled(softmax_times, operands(), lx_planning=False)
    assert not moves_of(plain)
    assert same(moved.results[0], plain.results[0])


@pytest.fixture(scope="module")
def small() -> Run:
    """Whatever the clock says: models that go step by step take their time."""
    with mock.patch.object(clones._Clone, "pays", True):
        return run_compiled(softmax_times, operands(64, 128, 128), check_guarantees=True)


def test_every_step_does_what_it_means(small: Run) -> None:
    assert moves_of(small)
    for launch in small.launches:
        check_launch(launch)


def test_the_reference_agrees(small: Run) -> None:
    (launch,) = small.launches
    reference = Reference(launch.bundle, [Memory.of(array) for array in launch.before])
    reference.run()
    (output,) = launch.written
    layout = launch.layouts[output]
    expected = layout.values(reference.arguments[output].data)
    found = launch.after[output].double().numpy()
    assert np.abs(found - expected).max() <= 2.0**-9 * np.abs(expected).max()


def test_the_plan_is_priced_as_the_card_prices_its_program(planned: tuple[Run, list[Op]]) -> None:
    run, made = planned
    (launch,) = run.launches
    costs = program_cost("kernel", encode(launch.program)).steps
    (step,) = (cost for cost in costs if cost.operation == "relayout")
    (move,) = moves_of(run)
    # 1 MiB, each quarter of a slice from another core. It is sent once, though four cores want it.
    assert move.ring == 4
    assert step.ring_bytes == 2 * 512 * 1024
    assert step.units.ring == pytest.approx(step.ring_bytes * 4 / 550 / 1000, abs=1e-3)
    in_place = [op for op in made if all(t.buffer.local is not None for t in op.tensors)]
    assert {op_nanoseconds(op) / 1000 for op in in_place} == {step.microseconds}


@pytest.mark.parametrize("shape", [(256, 512, 512), (512, 2048, 256), (64, 1024, 2048)])
def test_other_shapes_give_the_bits_of_memory_too(shape: tuple[int, int, int]) -> None:
    run = run_compiled(softmax_times, operands(*shape), check_guarantees=True)
    plain = run_compiled(softmax_times, operands(*shape), lx_planning=False)
    assert same(run.results[0], plain.results[0])


def test_a_relayout_that_costs_more_than_memory_is_left_out() -> None:
    """One stick for 32 cores: LPDDR5 has it sooner."""
    run = run_compiled(lambda x: x.softmax(-1), [torch.randn(1, 16384).half()])
    assert not moves_of(run)


def test_checked_mode_finds_nothing_in_a_relayout(check_python) -> None:
    script = """
        import hashlib, torch

        torch.manual_seed(0)
        x, w = torch.randn(512, 1024).half().to("spyre"), torch.randn(1024, 512).half().to("spyre")
        run = torch.compile(lambda x, w: (torch.softmax(x, 1) + 1) @ w, dynamic=False)
        result = run(x, w).cpu()
        counters = torch.spyre.counters()
        for kind in ("read", "written"):
            checked = counters.get(f"checked_bytes_{kind}")
            assert checked in (None, 0) or counters[f"bytes_{kind}"] == checked, kind
        print(hashlib.sha256(result.numpy().tobytes()).hexdigest())
    """
    seen = {
        check_python(script, SPYRE_CARD_CHECK=check, SPYRE_CARD_THREADS=threads).stdout
        for check, threads in (("1", "2"), ("0", "1"), ("0", "2"))
    }
    assert len(seen) == 1


@pytest.mark.parametrize("seed", [3, 7, 16, 31])
def test_random_graphs_are_right_with_every_relayout_that_is_possible(seed: int) -> None:
    """In 3, 7 and 31 cores that change the stick share the sticks of what they read."""
    with mock.patch.object(clones._Clone, "pays", True):
        check_graph(random_graph(seed), sencores=32)


def test_a_bundle_whose_owners_do_not_fit_is_refused(moved: Run) -> None:
    (launch,) = moved.launches
    number = next(i for i, sdsc in enumerate(launch.bundle.sdscs) if sdsc.name == "relayout")
    assert "9 owners for 4 parts" in _refusal(launch.bundle, number, {"3": tuple(range(9))})
    assert "0 owners for 4 parts" in _refusal(launch.bundle, number, {"3": None})
    assert "of which there are 32" in _refusal(launch.bundle, number, {"3": (0, 1, 2, 32)})


def _refusal(bundle: Bundle, number: int, change: dict[str, tuple[int, ...] | None]) -> str:
    import msgspec

    from torch_spyre.backend.lower import lower

    sdsc = bundle.sdscs[number]
    document = msgspec.to_builtins(sdsc)
    owners = document["dscs_"][0]["relayout"]["scheduleTree_"][0]["coreIdToOwners_"]
    for core, row in change.items():
        if row is None:
            del owners[core]
        else:
            owners[core] = row
    wrong = msgspec.convert(document, type(sdsc))
    sdscs = (*bundle.sdscs[:number], wrong, *bundle.sdscs[number + 1 :])
    with pytest.raises(BundleError) as error:
        lower(msgspec.structs.replace(bundle, sdscs=sdscs))
    return str(error.value)


# ---- Grids --------------------------------------------------------------------------------------


SIZE = (24, 16, 64)


def grid(slices: Sequence[int], copies: int = 1, start: Sequence[int] = (0, 0)) -> Boxes:
    """The boxes of cores that divide [24, 16] from `start` on; `copies` neighbours share each."""
    lengths = [(n - first) // s for n, s, first in zip(SIZE[:2], slices, start, strict=True)]
    return tuple(
        Box(
            tuple(f + i * n for f, i, n in zip(start, place, lengths, strict=True)),
            tuple(f + (i + 1) * n - 1 for f, i, n in zip(start, place, lengths, strict=True)),
        )
        for place in itertools.product(*map(range, slices))
        for _ in range(copies)
    )


def tensor(name: str) -> Buffer:
    storage = ir.Storage(SIZE, (1024, 64, 1), 24 * 16 * 64)
    return Buffer(name, (24, 1024), (1024, 1), torch.float16, 24 * 1024, storage=storage)


def move(owners: Boxes, readers: Boxes) -> Op | None:
    source = Read(tensor("a"), 0, (1024, 1))
    like = Op("neg", "pointwise", (24, 1024), [source], source)
    return relayout(source, lambda: tensor("b"), owners, readers, like)


GRIDS = [
    grid((1, 1)),
    grid((4, 1)),
    grid((1, 4)),
    grid((12, 2)),
    grid((2, 16)),
    grid((24, 1)),
    grid((2, 2), copies=3),
    grid((1, 1), copies=32),
    grid((8, 1), start=(8, 0)),
    tuple(reversed(grid((4, 2)))),
    grid((3, 1)),
    grid((2, 4))[::-1],
]


@pytest.mark.parametrize(("owners", "readers"), list(itertools.product(GRIDS, GRIDS)))
def test_every_part_lies_with_its_owner(owners: Boxes, readers: Boxes) -> None:
    op = move(owners, readers)
    if op is None:
        return
    assert op.fit is not None
    assert op.collection is not None
    assert boxes(op, 1) == readers
    extents = op.fit.extents
    dims = range(len(extents))
    for core, row in enumerate(itertools.product(*map(range, op.slices))):
        inner = [range(n // s) for n, s in zip(extents, op.slices, strict=True)]
        parts = list(itertools.product(*(inner[i] for i in op.collection.parts)))
        for place in itertools.product(*inner):
            at = [row[i] + place[i] if op.slices[i] > 1 else place[i] for i in dims]
            number = parts.index(tuple(place[i] for i in op.collection.parts))
            owner = owners[op.collection.owners[core][number]]
            whole, inside = (
                [c.offset + sum(t.coefficient * at[t.variable] for t in c.terms) for c in where]
                for where in (op.fit.where[0][:-1], op.collection.inside[:-1])
            )
            assert [a - b for a, b in zip(whole, owner.low, strict=True)] == inside
            assert owner.holds(Box(tuple(whole), tuple(whole)))


def test_grids_that_do_not_nest_are_refused() -> None:
    assert move(grid((4, 1)), grid((3, 1))) is None
    assert move(grid((2, 2))[:3], grid((1, 1))) is None
    assert move(grid((8, 1), start=(8, 0)), grid((1, 1))) is None
    assert move(grid((4, 1)), grid((2, 1))) is not None


def test_of_several_owners_the_nearest_sends() -> None:
    """Sixteen cores have each half; a reader takes it from itself, or from the next of them."""
    op = move(grid((2, 1), copies=16), grid((1, 1), copies=32))
    assert op is not None
    assert op.collection is not None
    assert op.collection.owners[0] == (0, 31)
    assert op.collection.owners[15] == (15, 16)
    assert op.collection.owners[20] == (15, 20)
