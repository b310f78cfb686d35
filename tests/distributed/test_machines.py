"""Two machines with two cards each: network namespaces with a cable between them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed import launch


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)


def plug(names: list[str]) -> list[launch.Machine]:
    """Two namespaces and a cable; the addresses are only known inside of them."""
    for name in names:
        ip("netns", "add", name)
    ip(
        "link",
        "add",
        "card0",
        "netns",
        names[0],
        "type",
        "veth",
        "peer",
        "card1",
        "netns",
        names[1],
    )
    machines = []
    for number, name in enumerate(names):
        address, interface = f"192.168.77.{number + 1}", f"card{number}"
        ip("-n", name, "address", "add", f"{address}/24", "dev", interface)
        for up in ("lo", interface):
            ip("-n", name, "link", "set", up, "up")
        machines.append(launch.Machine(address, interface, ("ip", "netns", "exec", name)))
    return machines


@pytest.fixture
def machines() -> Iterator[list[launch.Machine]]:
    names = [f"spyre-test-{os.getpid()}-{number}" for number in range(2)]
    try:
        yield plug(names)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces need root and iproute2: {error}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def test_collectives_cross_machines_and_cards_are_counted_per_machine(machines) -> None:
    script = """
x = torch.full((1000,), float(rank), device="spyre")
dist.all_reduce(x)
parts = [torch.empty_like(x) for _ in range(4)]
dist.all_gather(parts, x + rank)
print("said:", x.device, x[0].item(), [part[-1].item() for part in parts])
dist.destroy_process_group()
"""
    ranks = launch.start(["-c", launch.BEGIN + script], 4, machines)
    outputs = launch.finish(ranks, 150)
    for rank, output in enumerate(outputs):
        assert f"said: spyre:{rank % 2} 6.0 [6.0, 7.0, 8.0, 9.0]" in output, output


def test_machines_that_are_cut_off_are_named_and_do_not_hang(machines, tmp_path: Path) -> None:
    """The store is on the first one: those on the second can't ask it who is missing."""
    script = f"""
limit(6)
try:
    for _ in range(1000):
        dist.all_reduce(x)
        print("works", flush=True)
        time.sleep(0.1)
except dist.DistBackendError as error:
    print("told:", error, flush=True)
    leave_with(4, {str(tmp_path)!r})
    os._exit(3)  # at once: PyTorch would wait for the store
"""
    ranks = launch.start(["-c", launch.BEGIN + script], 4, machines)
    end = time.monotonic() + 150
    while not all(b"works" in os.pread(rank.output.fileno(), 1 << 20, 0) for rank in ranks):
        assert time.monotonic() < end
        time.sleep(0.1)
    ip("-n", machines[0].prefix[-1], "link", "set", machines[0].interface, "down")
    outputs = launch.finish(ranks, 150)
    assert [rank.process.returncode for rank in ranks] == [3] * 4, outputs
    for output in outputs[:2]:
        assert "rank 2 gives no sign of life" in output, output
        assert "rank 3 gives no sign of life" in output, output
    for output in outputs[2:]:
        assert "the store of the group can't be reached" in output, output
