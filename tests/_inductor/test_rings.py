"""Cores that accumulate together: what the compiler cuts, what comes out, and how long it takes."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from compiled import Run, run_compiled
from steps import check_launch

from tests.ops import step_model
from torch_spyre._inductor import division
from torch_spyre._inductor.division import MatmulShape, MatmulSplit
from torch_spyre._inductor.passes import division as division_pass
from torch_spyre.backend.program import Space, Step


def steps_of(run: Run) -> list[Step]:
    found = [node for launch in run.launches for node in launch.program.body]
    assert all(isinstance(step, Step) for step in found)
    return [step for step in found if isinstance(step, Step)]


def seen(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(step_model.as_seen_by_card(x)).double()


def is_near(result: torch.Tensor, exact: torch.Tensor, units: float = 4) -> bool:
    """Within some units in the last place of the largest number, of the card's fp16."""
    return bool((result.double() - exact).abs().max() <= units * 2.0**-10 * exact.abs().max())


# ---- Reductions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [16384, 15000])
def test_a_softmax_of_one_row_uses_many_cores_and_stays_in_their_scratchpads(columns: int) -> None:
    x = torch.randn(1, columns).half()
    run = run_compiled(lambda x: x.softmax(-1), [x], check_guarantees=True)
    reductions = [step for step in steps_of(run) if step.opcode in ("amax", "sum")]
    assert [step.ring for step in reductions] == [8, 8]
    assert all(step.outputs[0].space is Space.LX for step in reductions)
    (launch,) = run.launches
    nbytes = -(-columns // 64) * 128
    # One value, the divisor, goes from the core that inverts it to the others.
    assert (launch.traffic.read, launch.traffic.written) == (nbytes + 128, nbytes + 128)
    check_launch(launch)
    assert is_near(run.results[0], seen(x).softmax(-1))


def test_the_sum_of_everything_follows_what_makes_it() -> None:
    x = (torch.rand(1024, 64) - 3).half()
    run = run_compiled(lambda x: torch.exp(x).sum(), [x], check_guarantees=True)
    (total,) = (step for step in steps_of(run) if step.opcode == "sum")
    assert total.ring > 1
    for launch in run.launches:
        check_launch(launch)
    assert is_near(run.results[0], seen(x).exp().sum())


def test_columns_are_summed_on_as_many_cores_as_have_rows() -> None:
    x = torch.randn(1024, 128).half()
    run = run_compiled(lambda x: torch.relu(x).sum(0), [x], check_guarantees=True)
    (total,) = (step for step in steps_of(run) if step.opcode == "sum")
    assert total.ring > 1
    for launch in run.launches:
        check_launch(launch)
    assert is_near(run.results[0], seen(x).relu().sum(0))


@pytest.mark.parametrize("reduce", ["amax", "amin", "sum"])
def test_integers_are_accumulated_in_rings_too(reduce: str) -> None:
    x = torch.randint(-1000, 1000, (2048, 32), dtype=torch.int32)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 3 - 7
        return y.sum(dtype=torch.int32) if reduce == "sum" else getattr(y, reduce)()

    run = run_compiled(function, [x], check_guarantees=True)
    assert max(step.ring for step in steps_of(run)) > 1
    for launch in run.launches:
        check_launch(launch)
    assert torch.equal(run.results[0], function(x))


def test_many_rows_leave_no_core_idle_and_need_no_ring() -> None:
    run = run_compiled(lambda x: x.softmax(-1), [torch.randn(256, 512).half()])
    assert not any(step.ring for step in steps_of(run))


# ---- Matmuls ------------------------------------------------------------------------------------


def test_k_is_cut_where_the_clock_says_so() -> None:
    """In fp32 a row times one stick of columns waits for the array, not for LPDDR5."""
    a, b = torch.randn(1, 4096), torch.randn(4096, 32)
    run = run_compiled(torch.mm, [a, b], check_guarantees=True)
    (step,) = steps_of(run)
    assert step.ring == 2
    (launch,) = run.launches
    check_launch(launch)
    assert (run.results[0] - a @ b).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("a", "b", "k_slices"),
    [((3, 512), (512, 128), 4), ((2, 5, 300), (2, 300, 64), 5), ((1, 448), (448, 200), 4)],
)
def test_a_k_split_gives_what_the_model_of_its_steps_gives(
    a: tuple[int, ...], b: tuple[int, ...], k_slices: int
) -> None:
    """Whatever the clock says: the sums go on in the scratchpads of all partners."""

    def split(
        shape: MatmulShape, cores: int, least: MatmulSplit, ks: tuple[int, ...], **_: object
    ) -> MatmulSplit:
        found = division.matmul_division(shape, cores // k_slices, least)
        return MatmulSplit(found.batch, found.m, found.n, k_slices)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ y) + 1

    x, y = torch.randn(a).half(), torch.randn(b).half()
    with mock.patch.object(division_pass, "matmul_division", split):
        run = run_compiled(function, [x, y], check_guarantees=True)
    (step,) = (step for step in steps_of(run) if step.opcode == "batchmatmul")
    assert step.ring == k_slices
    for launch in run.launches:
        check_launch(launch)
    assert is_near(run.results[0], (seen(x) @ seen(y)).relu() + 1)


def test_threads_do_not_change_a_bit(check_python) -> None:
    script = """
        import hashlib, torch

        torch.manual_seed(0)
        x, a, b = torch.randn(1, 16384), torch.randn(1, 4096), torch.randn(4096, 32)
        softmax = torch.compile(lambda x: x.softmax(-1), dynamic=False)
        matmul = torch.compile(torch.mm, dynamic=False)
        one = softmax(x.half().to("spyre")).cpu()
        two = matmul(a.to("spyre"), b.to("spyre")).cpu()
        print(hashlib.sha256(one.numpy().tobytes() + two.numpy().tobytes()).hexdigest())
    """
    assert len({check_python(script, SPYRE_CARD_THREADS=n).stdout for n in ("1", "2")}) == 1


def test_checked_mode_finds_nothing_in_a_ring(check_python) -> None:
    done = check_python(
        """
        import torch

        x = torch.randn(1, 16384).half().to("spyre")
        softmax = torch.compile(lambda x: x.softmax(-1), dynamic=False)
        softmax(x).cpu()
        counters = torch.spyre.counters()
        for kind in ("read", "written"):
            assert counters[f"bytes_{kind}"] == counters[f"checked_bytes_{kind}"], kind
        print("clean")
        """,
        SPYRE_CARD_CHECK="1",
    )
    assert done.stdout.strip() == "clean"
