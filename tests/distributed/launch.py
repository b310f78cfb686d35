"""Start the ranks of a program as torchrun would, and collect what they leave behind."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]

# How a script for several ranks begins. On a busy machine they start far apart: they have more than
# a minute to find each other, and a short time-out only for what shall fail.
BEGIN = """
import datetime, os, signal, sys, time
from pathlib import Path
import torch
from torch import distributed as dist
dist.init_process_group("spyreccl", timeout=datetime.timedelta(seconds=90))
rank = dist.get_rank()
x = torch.ones(1000, device="spyre")
dist.all_reduce(x)

def limit(seconds):
    dist.group.WORLD.set_timeout(datetime.timedelta(seconds=seconds))

def leave_with(ranks, folder):  # the store is in rank 0: it stays until the others are done
    Path(folder, str(rank)).touch()
    end = time.monotonic() + 60
    while rank == 0 and len(os.listdir(folder)) < ranks and time.monotonic() < end:
        time.sleep(0.1)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclasses.dataclass(frozen=True)
class Rank:
    process: subprocess.Popen[str]
    output: IO[str]  # a file: a pipe would stop the rank once it is full


@dataclasses.dataclass(frozen=True)
class Machine:
    """Where ranks run: here, or in a network namespace that plays a machine of its own."""

    address: str = "127.0.0.1"
    interface: str = "lo"
    prefix: tuple[str, ...] = ()  # of commands that run on it


def start(
    command: list[str], world: int, machines: Sequence[Machine] = (Machine(),), **environment: str
) -> list[Rank]:
    """One process per rank; each has the card of its machine that its LOCAL_RANK names."""
    ranks_of_one = world // len(machines)
    shared = {
        "MASTER_ADDR": machines[0].address,
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(ranks_of_one),
        "OMP_NUM_THREADS": "1",
        "SPYRE_CARD_THREADS": "1",
        "TORCH_SPYRE_DOWNCAST_WARN": "0",
        **environment,
    }
    started = []
    for rank in range(world):
        machine = machines[rank // ranks_of_one]
        own = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % ranks_of_one),
            "GLOO_SOCKET_IFNAME": machine.interface,
        }
        output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `finish` closes it
        process = subprocess.Popen(
            [*machine.prefix, sys.executable, *command],
            cwd=ROOT,
            env={**os.environ, **shared, **own},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(Rank(process, output))
    return started


def finish(ranks: list[Rank], seconds: float) -> list[str]:
    """The output of each rank. No process is left, whatever happens."""
    end = time.monotonic() + seconds
    try:
        for rank in ranks:
            rank.process.wait(max(1, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        for rank in ranks:
            rank.process.kill()
            rank.process.wait()
    outputs = []
    for rank in ranks:
        rank.output.seek(0)
        outputs.append(rank.output.read())
        rank.output.close()
    return outputs


def run_cases(world: int, folder: Path) -> list[dict[str, str | None]]:
    """What every rank says of every case: nothing, or what went wrong.

    Of a rank that died there is only its output, under no name.
    """
    ranks = start(["-m", "tests.distributed.worker", str(folder)], world)
    outputs = finish(ranks, 480)
    reports = [folder / f"rank{rank}.json" for rank in range(world)]
    return [
        json.loads(report.read_text()) if report.exists() else {"": output[-3000:]}
        for report, output in zip(reports, outputs, strict=True)
    ]
