"""What calls cost: modelled time, bytes on the link, and what profiles show."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed as dist

from tests.distributed.cases import Case, World, into
from torch_spyre import _C
from torch_spyre.tools.trace.analyse import Analysis
from torch_spyre.tools.trace.read import read_trace

CASES: dict[str, Case] = {}
case = into(CASES)


def span(call: Callable[[], object]) -> int:
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    torch.spyre.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return round(start.elapsed_time(end) * 1e6)


@case
def a_collective_takes_the_time_of_its_law(world: World) -> None:
    n = world.size
    own = torch.ones(n * 4096, dtype=torch.float16, device="spyre")
    share = torch.empty(4096, dtype=torch.float16, device="spyre")
    kind = _C._cost.Collective
    size = 2 * own.numel()
    others = size * (n - 1) // n
    assert span(lambda: dist.all_reduce(own)) == -(-2 * others // 50)
    assert span(lambda: dist.reduce_scatter_single(share, own)) == -(-others // 50)
    assert span(lambda: dist.all_gather_single(own, share)) == -(-others // 50)
    assert span(lambda: dist.broadcast(own, src=0)) == -(-size // 50)
    assert _C._cost.collective_nanoseconds(kind.AllReduce, size, n) == -(-2 * others // 50)


@case
def an_uneven_exchange_takes_the_time_of_its_bytes(world: World) -> None:
    """All ranks give all to rank 0, which gives nothing away."""
    rows = 50_000
    splits = [rows] + [0] * (world.size - 1)
    own = torch.ones(rows, dtype=torch.float16, device="spyre")
    everything = world.size * rows if world.rank == 0 else 0
    output = torch.empty(everything, dtype=torch.float16, device="spyre")
    taken = [rows if world.rank == 0 else 0] * world.size
    took = span(lambda: dist.all_to_all_single(output, own, taken, splits))
    others = 2 * rows * (world.size - 1)
    assert took == (others if world.rank == 0 else 2 * rows) // 50


@case
def the_host_link_is_not_used(world: World) -> None:
    own = torch.ones(1000, device="spyre")
    before = _C.counters(own.get_device())
    dist.all_reduce(own)
    after = _C.counters(own.get_device())
    assert after["transfers"] == before["transfers"]
    assert after["exchanges"] == before["exchanges"] + 1
    sent = 4000 - 4000 // world.size
    assert after["bytes_out"] - before["bytes_out"] == 2 * sent


@case
def an_exchange_hides_behind_kernels(world: World) -> None:
    a = torch.ones(1024, 1024, dtype=torch.float16, device="spyre")
    b = torch.ones(1024, 1024, dtype=torch.float16, device="spyre")

    def kernels() -> None:
        for _ in range(4):
            a.mul_(1.0)

    def both() -> None:
        work = dist.all_reduce(b, async_op=True)
        kernels()
        work.wait()

    kernels()
    compute, link = span(kernels), span(lambda: dist.all_reduce(b))
    assert span(both) == max(compute, link)


@case
def the_profiler_shows_bytes_and_ranks(world: World) -> None:
    own = torch.ones(64, 64, dtype=torch.float16, device="spyre")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.PrivateUse1]
    with torch.profiler.profile(activities=activities) as profile:
        dist.all_reduce(own)
        torch.spyre.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
        analysis = Analysis(read_trace(trace))
    shown = [
        event["args"]
        for event in events
        if event.get("cat") == "kernel" and event["name"] == "spyreccl:all_reduce"
    ]
    assert len(shown) == 1
    sent = 2 * (8192 - 8192 // world.size)
    assert shown[0]["bytes out"] == sent and shown[0]["modelled ns"] == -(-sent // 50)
    assert shown[0]["ranks"] == " ".join(map(str, world.ranks))
    (card,) = analysis.cards
    assert (card.exchanges, card.linked) == (1, shown[0]["modelled ns"])
    assert not [kernel.name for kernel in analysis.kernels if "spyreccl" in kernel.name]
