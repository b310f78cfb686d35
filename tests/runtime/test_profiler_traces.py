"""What an exported trace holds of the card: names, figures, layers, ranges."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
LAYERS = 4

Trace = dict[str, Any]
Export = Callable[[profile], Trace]


@pytest.fixture
def export(tmp_path: Path) -> Export:
    def exported(prof: profile) -> Trace:
        path = tmp_path / "trace.json"
        prof.export_chrome_trace(str(path))
        return json.loads(path.read_text())

    return exported


def events(trace: Trace, *categories: str) -> list[Trace]:
    wanted = categories or DEVICE_CATEGORIES
    found = [event for event in trace["traceEvents"] if event.get("cat") in wanted]
    return sorted(found, key=lambda event: event["ts"])


def names(trace: Trace, kind: str) -> dict[Any, set[str]]:
    """What processes or threads are called, in the whole trace."""
    found: dict[Any, set[str]] = {}
    for event in trace["traceEvents"]:
        if event["name"] == kind:
            key = event["pid"] if kind == "process_name" else (event["pid"], event["tid"])
            found.setdefault(key, set()).add(event["args"]["name"])
    return found


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024, bias=False), nn.Linear(1024, 256, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.5 * self.down(functional.silu(self.up(functional.rms_norm(x, x.shape[-1:]))))


class Model(nn.Module):
    """Enough equal layers that each becomes a launch of one kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Mlp() for _ in range(LAYERS))
        self.head = nn.Linear(256, 128, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return functional.softmax(self.head(x), -1)


@pytest.fixture(scope="module")
def model() -> Iterator[Callable[[], torch.Tensor]]:
    from torch_spyre._inductor import runtime

    torch.compiler.reset()
    runtime.reset()
    compiled = torch.compile(Model().half().to("spyre").requires_grad_(False), dynamic=False)
    x = torch.rand(64, 256, dtype=torch.float16).to("spyre")
    compiled(x)
    yield lambda: compiled(x)
    torch.compiler.reset()


# ---- Names --------------------------------------------------------------------------------------


def test_cards_and_streams_have_names_that_nobody_else_gives(export: Export) -> None:
    x = torch.ones(64, 64, dtype=torch.float16, device="spyre")
    stream = torch.spyre.Stream()
    with profile(activities=BOTH) as prof:
        x + x
        with torch.spyre.stream(stream):
            x * x
        torch.spyre.synchronize()
    trace = export(prof)
    first, second = events(trace, "kernel")
    card = first["pid"]
    assert names(trace, "process_name")[card] == {"spyre:0"}
    threads = names(trace, "thread_name")
    assert threads[card, 0] == {"default stream"}
    assert threads[card, second["tid"]] == {f"stream {stream.id}"}


def test_pytorch_sees_the_index_of_the_card() -> None:
    x = torch.ones(64, 64, dtype=torch.float16, device="spyre")
    with profile(activities=BOTH) as prof:
        x + x
    on_card = [e for e in prof.events() if e.device_type == torch.autograd.DeviceType.PrivateUse1]
    assert [event.device_index for event in on_card] == [0]


def test_every_card_has_a_track_of_its_own(check_python: Callable[..., Any]) -> None:
    check_python(
        """
        import json, tempfile, torch
        from torch.profiler import ProfilerActivity, profile
        a, b = (torch.ones(64, 64, dtype=torch.float16, device=f"spyre:{n}") for n in (0, 1))
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as prof:
            a + a, b + b
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            prof.export_chrome_trace(file.name)
            trace = json.load(open(file.name))
        kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
        names = {event["pid"]: event["args"]["name"] for event in trace["traceEvents"]
                 if event["name"] == "process_name"}
        assert [names[event["pid"]] for event in kernels] == ["spyre:0", "spyre:1"]
        assert [event["args"]["device"] for event in kernels] == [0, 1]
        assert [card["id"] for card in trace["deviceProperties"]] == [0, 1]
        """,
        AIU_WORLD_SIZE="2",
    )


# ---- Ranges -------------------------------------------------------------------------------------


def test_ranges_of_the_host_are_on_the_card_around_their_work(export: Export) -> None:
    x = torch.ones(256, 256, dtype=torch.float16, device="spyre")
    with profile(activities=BOTH) as prof:
        with record_function("outer"):
            x = x + 1
            with record_function("inner"):
                x = x * 2
        x = x - 1
    trace = export(prof)
    ranges = {event["name"]: event for event in events(trace, "gpu_user_annotation")}
    add, mul, _ = events(trace, "kernel")
    assert list(ranges) == ["outer", "inner"]
    for name, first, last in (("outer", add, mul), ("inner", mul, mul)):
        shown = ranges[name]
        assert shown["ts"] == pytest.approx(first["ts"], abs=0.002)
        end = last["ts"] + last["dur"]
        assert shown["ts"] + shown["dur"] == pytest.approx(end, abs=0.002)


def test_ranges_do_not_count_twice() -> None:
    x = torch.ones(256, 256, dtype=torch.float16, device="spyre")
    with profile(activities=BOTH) as prof, record_function("mine"):
        x = x + 1
    averages = prof.key_averages()
    table = averages.table(sort_by="self_device_time_total")
    (kernel,) = (event for event in averages if event.key == "aten::add.Tensor")
    assert f"Self SPYRE time total: {kernel.self_device_time_total:.3f}us" in table


def test_the_time_of_a_range_is_that_of_the_work_in_it() -> None:
    x = torch.ones(256, 256, dtype=torch.float16, device="spyre")
    with profile(activities=BOTH) as prof, record_function("outer"):
        x = x + 1
        with record_function("inner"):
            x = x * 2
    rows = {e.key: e for e in prof.key_averages() if e.device_type == torch.autograd.DeviceType.CPU}
    add, mul = rows["aten::add"].device_time_total, rows["aten::mul"].device_time_total
    assert rows["inner"].device_time_total == pytest.approx(mul)
    assert rows["outer"].device_time_total == pytest.approx(add + mul)
    assert rows["outer"].self_device_time_total == pytest.approx(0)


# ---- Figures ------------------------------------------------------------------------------------


def test_events_say_what_units_did(export: Export) -> None:
    a = torch.ones(128, 512, dtype=torch.float16, device="spyre")
    b = torch.ones(512, 256, dtype=torch.float16, device="spyre")
    with profile(activities=BOTH) as prof:
        (a @ b).cpu()
    trace = export(prof)
    product, copy = events(trace, "kernel", "gpu_memcpy")
    figures = product["args"]
    assert figures["MACs"] == 128 * 512 * 256
    assert figures["bytes read"] == a.nbytes + b.nbytes
    assert figures["bytes written"] == copy["args"]["bytes read"] == 128 * 256 * 2
    busiest = max(figures[f"{unit} ns"] for unit in ("PT", "SFP", "LPDDR5", "LX"))
    assert busiest <= figures["modelled ns"] <= busiest + figures["ring ns"] + 1
    assert figures["cores"] == 32 and figures["LX bytes"] >= 0


def test_a_trace_has_the_limits_of_its_cards(export: Export) -> None:
    x = torch.ones(64, dtype=torch.float16, device="spyre")
    with profile(activities=BOTH) as prof:
        x + x
    (card,) = export(prof)["deviceProperties"]
    assert card["MACs per ns"] == 32 * 1140
    assert (card["LPDDR5 bytes per ns"], card["PCIe bytes per ns"]) == (150, 50)


# ---- A compiled model ---------------------------------------------------------------------------


def test_steps_of_a_kernel_add_up_to_its_event(model: Callable[[], Any], export: Export) -> None:
    with profile(activities=BOTH) as prof:
        model()
    trace = export(prof)
    columns = trace["spyre"]["columns"]
    totals = {"ns": "modelled ns", "MACs": "MACs", "PT ns": "PT ns", "bytes read": "bytes read"}
    kernels = events(trace, "kernel")
    assert len(kernels) > LAYERS
    for event in kernels:
        described = trace["spyre"]["kernels"][event["args"]["kernel"]]
        assert described["name"] == event["name"]
        for column, total in totals.items():
            at = columns.index(column)
            assert sum(step[at] for step in described["steps"]) == event["args"][total]


def test_equal_kernels_know_the_layer_of_each_launch(
    model: Callable[[], Any], export: Export
) -> None:
    with profile(activities=BOTH) as prof:
        model()
    trace = export(prof)
    layer, macs = (trace["spyre"]["columns"].index(name) for name in ("layer", "MACs"))
    products = [
        step[layer]
        for event in events(trace, "kernel")
        for step in trace["spyre"]["kernels"][event["args"]["kernel"]]["steps"]
        if step[macs]
    ]
    halves = [f"layers.{n}.{half}" for n in range(LAYERS) for half in ("up", "down")]
    assert products == [*halves, "head"]


def test_gradients_belong_to_the_layer_that_they_are_of(export: Export) -> None:
    compiled = torch.compile(nn.Sequential(nn.Linear(64, 64), nn.ReLU()).half().to("spyre"))
    x = torch.rand(64, 64, dtype=torch.float16).to("spyre")
    compiled(x).sum().backward()
    with profile(activities=BOTH) as prof:
        compiled(x).sum().backward()
    trace = export(prof)
    found = {(s[0], s[1]) for kernel in trace["spyre"]["kernels"] for s in kernel["steps"]}
    assert {("aten.mm", "0"), ("aten.threshold_backward", "1")} <= found


def test_profile_events_and_cost_report_agree_to_the_nanosecond(
    model: Callable[[], Any],
) -> None:
    from torch_spyre.tools.measure import compiled_kernels

    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    with profile(activities=BOTH) as prof:
        start.record()
        model()
        end.record()
    end.synchronize()
    launched = [e for e in prof.profiler.kineto_results.events() if is_on_card(e)]
    elapsed = round(start.elapsed_time(end) * 1e6)
    assert sum(event.duration_ns() for event in launched) == elapsed
    reported = {kernel.name: round(kernel.microseconds * 1000) for kernel in compiled_kernels()}
    own = [event for event in launched if event.name() in reported]
    assert 1 < len(own) < len(launched)  # equal layers share a program, but not its name
    assert all(event.duration_ns() == reported[event.name()] for event in own)
    assert {event.duration_ns() for event in launched} == {event.duration_ns() for event in own}


def test_work_starts_when_it_was_launched_or_when_the_work_before_ended(
    model: Callable[[], Any],
) -> None:
    with profile(activities=BOTH) as prof:
        model()
        model()
    found = list(prof.profiler.kineto_results.events())
    calls = {e.correlation_id(): e for e in found if e.name() == "spyreLaunchKernel"}
    ended = 0
    for event in filter(is_on_card, found):
        call = calls[event.correlation_id()]
        launched = call.start_ns() + call.duration_ns()
        assert event.start_ns() == max(launched, ended)
        ended = event.start_ns() + event.duration_ns()


def is_on_card(event: Any) -> bool:
    return bool(event.device_type() == torch.autograd.DeviceType.PrivateUse1)
