"""torch.profiler on the device: kernels and copies by the card's clock."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")

Events = list[dict[str, Any]]


@pytest.fixture
def x() -> torch.Tensor:
    return torch.rand(256, 512, dtype=torch.float16).to("spyre")


@pytest.fixture
def trace(tmp_path: Path) -> Callable[[profile], Events]:
    def exported(prof: profile) -> Events:
        path = tmp_path / "trace.json"
        prof.export_chrome_trace(str(path))
        return json.loads(path.read_text())["traceEvents"]

    return exported


def on_device(events: Events) -> Events:
    found = [event for event in events if event.get("cat") in DEVICE_CATEGORIES]
    return sorted(found, key=lambda event: event["ts"])


def device_events(prof: profile) -> list[Any]:
    events = prof.profiler.kineto_results.events()
    return [e for e in events if e.device_type() == torch.autograd.DeviceType.PrivateUse1]


def durations(prof: profile) -> list[int]:
    """Nanoseconds of the events on the card."""
    return [event.duration_ns() for event in device_events(prof)]


def test_durations_are_those_of_the_cards_events(x: torch.Tensor) -> None:
    (x + x).cpu()
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    with profile(activities=BOTH) as prof:
        start.record()
        for _ in range(3):
            x = torch.softmax(x * 2, -1)
        x.cpu()
        end.record()
    end.synchronize()
    assert sum(durations(prof)) == round(start.elapsed_time(end) * 1e6)


def test_compiled_kernels_have_their_modelled_time(x: torch.Tensor) -> None:
    from torch_spyre.tools.measure import measure

    compiled = torch.compile(lambda x: torch.softmax(x, -1) * 2, dynamic=False)
    _, cost = measure(compiled, x)
    with profile(activities=BOTH) as prof:
        compiled(x)
    (duration,) = durations(prof)
    assert duration == round(cost.microseconds * 1000)
    (name,) = {e.key for e in prof.key_averages() if e.key.startswith("spyre_")}
    assert "softmax" in name


def test_without_kineto_ranges_have_the_time_between_the_cards_events(
    capfd: pytest.CaptureFixture[str],
) -> None:
    x = torch.rand(1024, 1024, dtype=torch.float16).to("spyre")

    def work() -> None:
        for _ in range(3):
            torch.softmax(x * 2, -1)

    work()
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    with torch.autograd.profiler.profile(use_device="spyre") as prof:
        with record_function("mine"):
            start.record()
            work()
            end.record()
        torch.ones(8) + 1  # the card has nothing to do with it
    found = {event.key: event for event in prof.key_averages()}
    elapsed = round(start.elapsed_time(end) * 1e3, 3)  # microseconds
    parts = [found[key].self_device_time_total for key in ("aten::mul", "aten::_softmax")]
    assert found["mine"].device_time_total == int(elapsed)
    assert 0 < elapsed - sum(parts) < 6  # each of six calls loses less than a microsecond
    assert found["aten::add"].device_time_total == 0
    assert "not enabled" not in capfd.readouterr().err


def test_without_kineto_a_stream_of_its_own_is_timed(x: torch.Tensor) -> None:
    stream = torch.spyre.Stream()
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    with torch.spyre.stream(stream):
        torch.softmax(x, -1)
        with torch.autograd.profiler.profile(use_device="spyre") as prof:
            start.record()
            torch.softmax(x, -1)
            end.record()
    (found,) = [event for event in prof.key_averages() if event.key == "aten::_softmax"]
    assert found.device_time_total == int(round(start.elapsed_time(end) * 1e3, 3)) > 0


def test_without_kineto_a_range_that_changes_the_device_has_the_time_of_its_parts(
    check_python: Callable[..., Any],
) -> None:
    script = """
import torch
from torch.autograd.profiler import profile, record_function

x = torch.rand(1024, 1024, dtype=torch.float16).to("spyre:1")
torch.softmax(x, -1)
with profile(use_device="spyre") as prof:
    with record_function("change"):
        torch.spyre.set_device(1)
        torch.softmax(x, -1)
times = {event.key: event.device_time_total for event in prof.key_averages()}
print(times["change"] == times["aten::_softmax"] > 0)
"""
    done = check_python(script, AIU_WORLD_SIZE="2")
    assert done.stdout == "True\n" and "clocks are independent" not in done.stderr


def test_work_starts_when_it_is_launched_or_when_the_work_before_has_ended(
    x: torch.Tensor, trace: Callable[[profile], Events]
) -> None:
    (x + 1).cpu()
    with profile(activities=BOTH) as prof:
        for _ in range(4):
            x = x + 1
        x.cpu()
    events = on_device(trace(prof))
    assert [event["name"] for event in events] == ["aten::add.Tensor"] * 4 + ["Memcpy DtoH"]
    for before, after in itertools.pairwise(events):
        assert after["ts"] >= before["ts"] + before["dur"] - 0.001  # printed in microseconds


def test_device_time_belongs_to_the_operation_that_asked_for_it(x: torch.Tensor) -> None:
    (x @ x.t()).cpu()
    with profile(activities=BOTH) as prof, record_function("mine"):
        (x @ x.t()).cpu()
    averages = {event.key: event for event in prof.key_averages()}
    assert averages["mine"].device_time_total > averages["aten::mm"].device_time_total > 0
    assert "Self SPYRE" in prof.key_averages().table(sort_by="self_device_time_total")


def test_arrows_lead_from_operations_to_their_kernels(
    x: torch.Tensor, trace: Callable[[profile], Events]
) -> None:
    (x + x).cpu()
    with profile(activities=BOTH) as prof:
        (x + x).cpu()
    events = trace(prof)
    starts, ends = (
        {event["id"] for event in events if event.get("cat") == "ac2g" and event["ph"] == phase}
        for phase in "sf"
    )
    assert len(ends) == len(on_device(events)) == 2
    assert starts == ends


def test_every_stream_has_a_track_of_its_own(
    x: torch.Tensor, trace: Callable[[profile], Events]
) -> None:
    stream = torch.spyre.Stream()
    stream.wait_stream(torch.spyre.current_stream())
    with profile(activities=BOTH) as prof:
        x = x * 2
        stream.wait_stream(torch.spyre.current_stream())
        with torch.spyre.stream(stream):
            x = x * 3
        torch.spyre.synchronize()
    events = trace(prof)
    first, second = on_device(events)
    assert (first["tid"], second["tid"]) == (0, stream.id)
    assert second["ts"] >= first["ts"] + first["dur"] - 0.001
    named = {event["tid"] for event in events if event.get("name") == "thread_name"}
    assert {0, stream.id} <= named


def test_memory_of_the_card_is_reported(x: torch.Tensor) -> None:
    with profile(activities=BOTH, profile_memory=True) as prof:
        y = torch.empty(1024, 64, dtype=torch.float16, device="spyre")
        del y
    changes = [e.self_device_memory_usage for e in prof.events() if e.self_device_memory_usage]
    assert 1024 * 128 in changes
    assert -1024 * 128 in changes


def test_schedules_record_the_steps_they_name(x: torch.Tensor) -> None:
    seen = []

    def ready(prof: profile) -> None:
        seen.append(sum(event.count for event in prof.key_averages() if "add" in event.key))

    with profile(
        activities=BOTH,
        schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=ready,
    ) as prof:
        for _ in range(6):
            x = x + 1
            prof.step()
    assert seen == [4]  # two operations and their two kernels


def test_nothing_is_kept_when_nobody_listens(x: torch.Tensor) -> None:
    with profile(activities=BOTH):
        x + x
    for _ in range(3):
        x + x
    with profile(activities=BOTH) as prof:
        x * x
    assert len(durations(prof)) == 1


def test_the_execution_trace_observer_sees_operations(x: torch.Tensor, tmp_path: Path) -> None:
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(tmp_path / "trace.json"))
    with profile(activities=BOTH, execution_trace_observer=observer):
        (x + x).cpu()
    nodes = json.loads((tmp_path / "trace.json").read_text())["nodes"]
    assert any(node["name"] == "aten::add" for node in nodes)


def test_fills_and_copies_are_called_so(x: torch.Tensor) -> None:
    with profile(activities=BOTH) as prof:
        x.clone()
        x.zero_()
        x.fill_(2)
    assert [event.name() for event in device_events(prof)] == ["Memcpy DtoD", "Memset", "Memset"]
