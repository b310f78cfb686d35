"""Ranks that die, hang or leave: the others end in time, and say who it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.distributed import launch


def run(script: str, world: int, **environment: str) -> tuple[list[str], list[int]]:
    """Outputs and exit codes of the ranks. None of them leaves a page of counters behind."""
    ranks = launch.start(["-c", launch.BEGIN + script], world, **environment)
    outputs = launch.finish(ranks, 150)
    assert not pages() & {str(rank.process.pid) for rank in ranks}
    return outputs, [rank.process.returncode for rank in ranks]


def pages() -> set[str]:
    """The processes that have one for spyre-smi: torch-spyre.<namespace>.<process>.<start>."""
    names = [name.split(".") for name in os.listdir("/dev/shm")]
    return {parts[2] for parts in names if parts[0] == "torch-spyre" and len(parts) == 4}


def shared_memory() -> set[str]:
    """All but pages of counters, which other programs have for as long as they run."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("torch-spyre.")}


def wait_until(is_so: Callable[[], bool]) -> None:
    """Other tests that run meanwhile may have shared memory as well, for a while."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize("killed", [0, 2, 3])
def test_a_killed_rank_is_named_by_all_others(killed: int, tmp_path: Path) -> None:
    """Rank 0 holds the store: with it the signs of life of the others are gone too."""
    before = shared_memory()
    outputs, codes = run(
        f"""
limit(6)
if rank == {killed}:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(x)
except dist.DistBackendError as error:
    print("told:", error)
    leave_with(3, {str(tmp_path)!r})
    sys.exit(3)
""",
        world=4,
    )
    assert codes == [-signal.SIGKILL if rank == killed else 3 for rank in range(4)], outputs
    for rank in range(4):
        if rank == killed:
            continue
        why = "holds it (rank 0, or" if killed == 0 else f"rank {killed} gives no sign of life"
        assert why in outputs[rank], outputs[rank]
        assert killed == 0 or "(its last sign, up to half a second before" in outputs[rank]
        assert f"all_reduce #2 of group '0' (ranks 0 1 2 3) on rank {rank}" in outputs[rank]
    wait_until(lambda: shared_memory() <= before)


def test_a_rank_that_was_killed_before_a_group_is_made_is_named() -> None:
    outputs, codes = run(
        """
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.new_group(timeout=datetime.timedelta(seconds=2))
except dist.DistBackendError as error:
    print("told:", error)
    sys.exit(3)
""",
        world=2,
    )
    assert codes == [3, -signal.SIGKILL], outputs
    for words in (
        "group '1' (ranks 0 1) could not be made on rank 0: ",
        "rank 1 has not come to make the group. Time-out 2000 ms; Gloo says: ",
    ):
        assert words in outputs[0], outputs[0]


def test_a_failed_call_that_nobody_waits_for_is_one_warning() -> None:
    """The second call fails because the first one did, which is no news."""
    outputs, codes = run(
        """
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
works = [dist.all_reduce(x, async_op=True) for _ in range(2)]
while not all(work.is_completed() for work in works):
    time.sleep(0.1)
""",
        world=2,
    )
    assert codes == [0, -signal.SIGKILL], outputs
    assert outputs[0].count("nobody waited for a call that failed") == 1, outputs[0]
    assert "all_reduce #2" in outputs[0] and "rank 1 gives no sign of life" in outputs[0]


def test_nothing_is_said_where_the_rank_that_holds_the_store_is_done_first() -> None:
    outputs, codes = run(
        """
if rank == 1:
    time.sleep(3)
dist.destroy_process_group()
""",
        world=2,
    )
    assert codes == [0, 0], outputs
    assert outputs == ["", ""]


def test_ranks_hear_that_another_could_not_read_its_inputs() -> None:
    """In checked mode what nobody wrote can't be sent. The group stays usable."""
    outputs, codes = run(
        """
y = torch.empty(1000, device="spyre") if rank == 0 else torch.ones(1000, device="spyre")
try:
    dist.all_reduce(y)
except dist.DistBackendError as error:
    print("told:", error)
fine = torch.ones(3, device="spyre")
try:
    dist.all_reduce(fine)
    print("then:", fine.tolist())
except Exception as error:
    print("then:", type(error).__name__)
""",
        world=2,
        SPYRE_CARD_CHECK="1",
    )
    assert "uninitialised" in outputs[0] or "never written" in outputs[0], outputs
    assert "rank 0 could not read its inputs" in outputs[1], outputs
    assert codes == [0, 0], outputs


def test_a_process_ends_though_a_receive_is_under_way() -> None:
    outputs, codes = run(
        """
if rank == 0:
    work = dist.irecv(torch.empty(3, device="spyre"), 1)
""",
        world=2,
    )
    assert codes == [0, 0], outputs
    assert "nobody waited for a call that failed. spyreccl: recv of group '0'" in outputs[0]


def test_a_send_that_nobody_takes_fails_and_names_the_peer(tmp_path: Path) -> None:
    outputs, codes = run(
        f"""
if rank == 0:
    limit(2)
    try:
        dist.send(x, 1)
    except dist.DistBackendError as error:
        print("told:", error)
        leave_with(1, {str(tmp_path)!r})
while not os.listdir({str(tmp_path)!r}):
    time.sleep(0.1)
""",
        world=2,
    )
    assert codes == [0, 0], outputs
    assert "spyreccl: send of group '0'" in outputs[0] and "peer rank 1" in outputs[0], outputs[0]


def test_a_fault_of_the_card_is_told_and_waits_for_nobody() -> None:
    outputs, _ = run(
        """
from torch_spyre import _C
if rank == 0:
    _C.inject_fault(x.get_device(), "CardLost")
    try:
        dist.all_reduce(x * 2)
    except dist.DistBackendError as error:
        print("told:", error)
""",
        world=2,
    )
    assert "did not run: the card has a fault" in outputs[0], outputs


@pytest.mark.parametrize("backend", ["spyreccl", "cpu:gloo,spyre:spyreccl"])
def test_torchrun_gives_every_process_its_card(backend: str, tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(f"""
import torch
from torch import distributed as dist
dist.init_process_group({backend!r})
x = torch.ones(3, device="spyre")
dist.all_reduce(x)
dist.barrier()
said = f"{{x.device}} {{x.tolist()}} {{torch.spyre.device_count()}}"
open({str(tmp_path)!r} + f"/rank{{dist.get_rank()}}", "w").write(said)
dist.destroy_process_group()
""")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(launch.free_port()), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "No backend of type" not in done.stderr
    for rank in range(2):
        assert (tmp_path / f"rank{rank}").read_text() == f"spyre:{rank} [2.0, 2.0, 2.0] 2"
