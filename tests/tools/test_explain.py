"""An explanation says what happened, and its times are those of the clock."""

from __future__ import annotations

import os
import re

import msgspec
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile

import torch_spyre
from torch_spyre._inductor import config
from torch_spyre._inductor.origins import layer_name
from torch_spyre.device.diagnostics import environment
from torch_spyre.tools.explain.document import Call, Graph, Source, decode, encode
from torch_spyre.tools.explain.graphs import Window
from torch_spyre.tools.explain.launches import Recording, launches_of
from torch_spyre.tools.measure import measure

HIDDEN, INNER, ROWS = 64, 192, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, INNER, bias=False)
        self.down = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    """Equal layers, then a break of the graph, then an operation that only the CPU has."""

    def __init__(self, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(HIDDEN, 32)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        torch._dynamo.graph_break()
        y = self.head(x)
        values = torch.linalg.svdvals(y.float())
        return torch.sort(y).values, values * 2


class Elapsed(nn.Module):
    """A model between events of its own: those of its last call stay."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.events = [torch.spyre.Event(enable_timing=True) for _ in range(2)]

    @torch.compiler.disable
    def record(self, place):
        self.events[place].record()

    def forward(self, x):
        self.record(0)
        result = self.model(x)
        self.record(1)
        return result

    def nanoseconds(self):
        start, end = self.events
        return round(start.elapsed_time(end) * 1e6)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Model().half().to("spyre").requires_grad_(False)


@pytest.fixture(scope="module")
def x():
    return torch.rand(ROWS, HIDDEN, dtype=torch.float16).to("spyre")


@pytest.fixture(scope="module")
def explained(model, x):
    return torch_spyre.explain(model, x)


def steps(explanation):
    return [step for kernel in explanation.kernels for step in kernel.steps]


# ---- The clock ----------------------------------------------------------------------------------


def test_steps_kernels_and_launches_take_the_same_time(explained):
    for kernel in explained.kernels:
        assert sum(step.duration for step in kernel.steps) == kernel.duration
        starts = [sum(s.duration for s in kernel.steps[:i]) for i in range(len(kernel.steps))]
        assert [step.start for step in kernel.steps] == starts
    for launch in explained.launches:
        if launch.call is not None:
            graph, place = launch.call
            kernel = explained.graphs[graph].calls[place].kernel
            if kernel is not None:
                assert launch.duration == explained.kernels[kernel].duration
                assert launch.name.startswith("spyre_") and explained.kernels[kernel].name in {
                    other.name for other in explained.launches
                }
    assert sum(launch.duration for launch in explained.launches) == explained.duration


def test_a_launch_takes_the_time_of_its_kernel_whatever_its_lengths():
    layer = Block().half().to("spyre").requires_grad_(False)
    compiled = torch.compile(layer, dynamic=True)
    for rows in (40, 300):  # in buckets of 128 and 512
        x = torch.rand(rows, HIDDEN, dtype=torch.float16).to("spyre")
        explanation = torch_spyre.explain(compiled, x)
        (launch,) = [launch for launch in explanation.launches if launch.call is not None]
        (kernel,) = explanation.kernels
        assert launch.duration == kernel.duration == sum(s.duration for s in kernel.steps)


def test_the_call_takes_as_long_as_events_around_it_say(explained, model, x):
    _, cost = measure(torch.compile(model), x)
    assert round(cost.microseconds * 1000) == explained.duration
    launches = [launch for launch in explained.launches if launch.kind == "kernel"]
    assert cost.launches == len(launches)
    assert cost.bytes_read == sum(launch.bytes_read for launch in launches)
    assert cost.bytes_written == sum(launch.bytes_written for launch in launches)


def test_the_profiler_sees_the_same_launches_in_the_same_run(model, x):
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiler:
        explanation = torch_spyre.explain(model, x)
    seen = [
        (event.name(), event.duration_ns())
        for event in profiler.profiler.kineto_results.events()
        if event.device_type() == torch.autograd.DeviceType.PrivateUse1
    ]
    found = [(launch.name, launch.duration) for launch in explanation.launches]
    assert [ns for _, ns in seen[-len(found) :]] == [ns for _, ns in found]
    compiled = [entry for entry in found if entry[0].startswith("spyre_")]
    assert [entry for entry in seen if entry[0].startswith("spyre_")][-len(compiled) :] == compiled


def test_the_cost_report_of_the_same_compile_agrees(model, x, capsys):
    with config.patch(dump_cost=True):
        explanation = torch_spyre.explain(model, x)
    times = re.findall(r"^kernel_\d+ +\d+ +([\d.]+)", capsys.readouterr().err, re.MULTILINE)
    calls = [call for graph in explanation.graphs for call in graph.calls]
    kernels = [explanation.kernels[call.kernel] for call in calls if call.kernel is not None]
    assert [round(float(time) * 1000) for time in times] == [k.duration for k in kernels]


def test_profiler_events_cost_report_and_explanation_agree_about_one_run(x, capsys):
    model = Elapsed(Model().half().to("spyre").requires_grad_(False))
    activities = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
    with config.patch(dump_cost=True), profile(activities=activities) as profiler:
        explanation = torch_spyre.explain(model, x)

    # The call that is measured is the last one: the profiler's last events are its launches.
    events = profiler.profiler.kineto_results.events()
    on_card = torch.autograd.DeviceType.PrivateUse1
    profiled = [event.duration_ns() for event in events if event.device_type() == on_card]
    profiled = profiled[-len(explanation.launches) :]

    times = re.findall(r"^kernel_\d+ +\d+ +([\d.]+)", capsys.readouterr().err, re.MULTILINE)
    reported = iter(round(float(time) * 1000) for time in times)  # of calls of graphs, in order
    of_call = {
        (g, place): next(reported)
        for g, graph in enumerate(explanation.graphs)
        for place, call in enumerate(graph.calls)
        if call.kernel is not None
    }
    assert not list(reported)

    launches = list(zip(explanation.launches, profiled, strict=True))
    compiled = [(launch, ns) for launch, ns in launches if launch.call in of_call]
    assert 1 < len(compiled) < len(launches)  # some of it was not compiled
    assert all(launch.duration == ns == of_call[launch.call] for launch, ns in compiled)
    assert all(launch.duration == ns for launch, ns in launches)
    assert model.nanoseconds() == sum(profiled) == explanation.duration


def test_settings_are_those_that_somebody_set(monkeypatch, tmp_path):
    from torch._inductor.runtime import cache_dir_utils

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(cache_dir_utils, "default_cache_dir", lambda: str(tmp_path))
    assert cache_dir_utils.cache_dir() == os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    assert "TORCHINDUCTOR_CACHE_DIR" not in environment()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "mine"))
    assert environment()["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "mine")


# ---- Graphs -------------------------------------------------------------------------------------


def test_graphs_say_why_they_are_and_what_they_hold(explained):
    first, second = explained.graphs
    assert (first.why, first.source.layer) == ("the first", "layers.0.norm")
    assert re.fullmatch(r"after the graph break at tools/test_explain.py:\d+", second.why)
    assert first.captured == {"linear": 6, "rms_norm": 3, "relu": 3, "add": 3}
    products = ("aten.mm.default", "aten.addmm.default")
    assert sum(first.decomposed.get(name, 0) for name in products) == 6
    assert "aten.mm" in first.fx and "batchmatmul" in first.loops


def test_a_graph_break_has_its_reason_and_its_line(explained):
    (found,) = explained.breaks
    assert "graph_break()" in found.reason
    assert found.source.code == "torch._dynamo.graph_break()"
    assert found.source.function == "forward"


def test_equal_layers_are_calls_of_one_kernel_with_layers_of_their_own(explained):
    calls = explained.graphs[0].calls
    assert [call.kernel for call in calls] == [0, 0, 0]
    for number, call in enumerate(calls):
        assert set(call.layers) <= {
            f"layers.{number}{part}" for part in ("", ".norm", ".up", ".down")
        }
        assert len(call.layers) == len(explained.kernels[0].steps)


def test_operations_of_the_cpu_and_eager_ones_have_their_places(explained):
    calls = explained.graphs[1].calls
    (on_cpu,) = [i for i, call in enumerate(calls) if call.what.startswith("CPU: ")]
    assert "svd" in calls[on_cpu].what and any("svd" in name for name in explained.fallbacks)
    kinds = {launch.kind for launch in explained.launches if launch.call == (1, on_cpu)}
    assert kinds == {"to host", "to card"}
    (sort,) = [i for i, call in enumerate(calls) if call.what == "aten.sort.default"]
    eager = [launch.name for launch in explained.launches if launch.call == (1, sort)]
    assert eager and set(eager) == {"aten::sort"}
    assert calls[sort].source.code == "return torch.sort(y).values, values * 2"


def test_launches_that_are_no_compiled_kernels_say_what_they_cost(explained):
    sorts = [launch for launch in explained.launches if launch.name == "aten::sort"]
    assert sorts
    for launch in sorts:
        assert launch.cores > 0
        busy = msgspec.structs.asdict(launch.units)
        assert 0 < max(busy.values()) <= launch.duration
        assert busy["memory" if launch.bound == "LPDDR5" else launch.bound.lower()] == max(
            busy.values()
        )
    transfers = [launch for launch in explained.launches if launch.kind in ("to host", "to card")]
    assert {(launch.bound, launch.cores, launch.units) for launch in transfers} == {
        ("PCIe", 0, None)
    }


def test_exchanges_belong_to_collectives_and_to_nothing_else():
    """A made-up call of a graph: collectives, operations of the CPU, and what the card did."""
    calls = [
        Call(0, "", ("",)),
        Call(None, "_c10d_functional.all_reduce_.default", ("",)),
        Call(None, "_c10d_functional.wait_tensor.default", ("",)),
        Call(None, "_c10d_functional.all_reduce_.default", ("",)),
        Call(None, "CPU: aten.linalg_qr.default", ("",)),
        Call(0, "", ("",)),
        Call(None, "_c10d_functional.all_gather_into_tensor.default", ("",)),
        Call(0, "", ("",)),
        Call(None, "CPU: aten.linalg_qr.default", ("",)),
    ]
    did = ["kernel", "all_reduce", "all_reduce", "to host", "to card", "kernel"]
    did += ["all_gather", "kernel", "all_reduce"]
    kinds = {"all_reduce": "exchange", "all_gather": "exchange"}
    records = [
        {
            "name": f"spyreccl:{what}" if what in kinds else what,
            "kind": kinds.get(what, what),
            "program": 7 if what == "kernel" else 0,
            **dict.fromkeys(("device", "queue", "begin", "duration"), 0),
            **dict.fromkeys(("bytes_read", "bytes_written"), 64),
        }
        for what in did
    ]
    graph = Graph("graph 0", "the first", Source(), "", {}, {}, "", tuple(calls))
    recording = Recording(records, windows=[Window(0, 0, len(records))])
    found = list(launches_of(recording, [graph], {(0, 7): 0}))
    places = [0, 1, 3, 4, 4, 5, 6, 7, None]  # the last one is of no call here
    assert [launch.call and launch.call[1] for launch in found] == places
    assert [launch.kind for launch in found] == [record["kind"] for record in records]


def test_a_guard_that_failed_is_the_reason_of_a_graph(x):
    def twice(x):
        torch._dynamo.graph_break()
        return half(x) + half(x[:8]).sum()

    def half(x):
        torch._dynamo.graph_break()
        return x / 2

    reasons = [graph.why for graph in torch_spyre.explain(twice, x).graphs]
    assert any(reason.startswith("a guard failed: ") for reason in reasons)


def test_gradients_are_graphs_of_their_own(x):
    layer = Block().half().to("spyre")
    explanation = torch_spyre.explain(lambda x: layer(x).float().sum().backward(), x)
    assert [graph.why for graph in explanation.graphs] == ["the first", "the gradients of graph 0"]
    graphs = {launch.call[0] for launch in explanation.launches if launch.call is not None}
    assert graphs == {0, 1}


# ---- Kernels ------------------------------------------------------------------------------------


def test_multiply_adds_are_those_of_the_matrices(explained):
    macs = sorted(step.macs for step in steps(explained) if step.kind == "matmul")
    assert macs == [ROWS * HIDDEN * 32, ROWS * HIDDEN * INNER, ROWS * HIDDEN * INNER]


def test_loops_are_counted_in_multiply_adds():
    q = torch.rand(1, 4, 512, 64, dtype=torch.float16).to("spyre")
    explanation = torch_spyre.explain(nn.functional.scaled_dot_product_attention, q, q, q)
    assert sum(step.macs for step in steps(explanation)) == 2 * 4 * 512 * 512 * 64


def test_steps_know_their_line_their_operation_and_every_level_below(explained):
    for step in steps(explained):
        assert step.source.file == "tools/test_explain.py" and step.source.code
        assert step.source.aten.startswith(("aten.", "prims."))
        assert step.loop_ir and f'kind="{step.kind}"' in step.spec
        assert step.sdsc.startswith(f'{{"{step.op}":')
    assert all("func.func" in kernel.mlir for kernel in explained.kernels)


def test_the_busiest_unit_is_what_bounds_a_step(explained):
    for step in steps(explained):
        units = step.units
        busy = {"PT": units.pt, "SFP": units.sfp, "LPDDR5": units.memory, "LX": units.lx}
        busy["ring"] = units.ring
        assert busy[step.bound] == max(busy.values())
        slowest = max(units.pt, units.sfp, units.memory, units.lx) + units.ring
        assert abs(step.duration - slowest) <= step.visits


def test_what_is_in_the_scratchpads_at_the_same_time_does_not_overlap(explained):
    assert max(kernel.lx_bytes for kernel in explained.kernels) > 0
    for kernel in explained.kernels:
        local = [buffer for buffer in kernel.buffers if buffer.component == "lx"]
        for i, a in enumerate(local):
            assert a.address + a.nbytes <= kernel.lx_bytes <= kernel.lx_capacity
            for b in local[:i]:
                is_apart = a.address + a.nbytes <= b.address or b.address + b.nbytes <= a.address
                # A result may take the place of an operand that is read for the last time.
                assert is_apart or a.last <= b.first or b.last <= a.first


def test_whatever_is_not_in_a_scratchpad_says_why(explained):
    for kernel in explained.kernels:
        for buffer in kernel.buffers:
            assert bool(buffer.why_not_lx) == (buffer.component != "lx")


def test_copies_that_the_compiler_put_in_have_a_reason(x):
    explanation = torch_spyre.explain(lambda x: torch.softmax(x @ x.t(), -1), x)
    (copy,) = [step for step in steps(explanation) if step.kind == "restickify"]
    assert copy.why.startswith("before batchmatmul: ")


def test_layers_lose_the_spelling_of_dynamo():
    assert layer_name("L['self'].model.layers._modules['3'].mlp") == "model.layers.3.mlp"
    assert layer_name("G['net'].layers[0]") == "layers.0"
    assert layer_name("L['self']") == ""


# ---- What stays as it was -----------------------------------------------------------------------


def test_the_same_model_has_the_same_explanation(explained, model, x):
    assert encode(torch_spyre.explain(model, x)) == encode(explained)


def test_what_is_compiled_of_a_model_elsewhere_stays(x):
    layer = Block().half().to("spyre").requires_grad_(False)
    compiled = torch.compile(layer)
    wanted = compiled(x)
    before = set(vars(layer))
    with torch._dynamo.config.patch(recompile_limit=2):
        for _ in range(4):
            torch_spyre.explain(layer, x)
        torch_spyre.explain(compiled, x)
    assert set(vars(layer)) == before
    counters.clear()
    assert torch.equal(compiled(x).cpu(), wanted.cpu())
    assert not counters["stats"]


def test_a_function_that_is_compiled_keeps_its_settings(x):
    fixed, dynamic = (
        torch_spyre.explain(torch.compile(lambda x: x + 1, dynamic=is_dynamic), x)
        for is_dynamic in (False, True)
    )
    assert fixed.graphs[0].fx.count("placeholder") < dynamic.graphs[0].fx.count("placeholder")


def test_a_module_that_was_compiled_in_place_is_explained_and_stays_so(x):
    layer = Block().half().to("spyre").requires_grad_(False)
    layer.compile()
    own = layer._compiled_call_impl
    assert len(torch_spyre.explain(layer, x).graphs) == 1
    assert layer._compiled_call_impl is own


def test_more_layers_make_no_more_kernels(x):
    few, many = (
        torch_spyre.explain(Model(layers).half().to("spyre").requires_grad_(False), x)
        for layers in (2, 8)
    )
    assert len(many.kernels) == len(few.kernels)
    assert len(encode(many)) < 1.5 * len(encode(few))


def test_a_function_of_cpu_tensors_is_refused_with_the_likely_reason():
    with pytest.raises(ValueError, match="on the device"):
        torch_spyre.explain(lambda x: x + 1, torch.ones(3))


def test_explanations_do_not_nest(x):
    def inner(x):
        torch_spyre.explain(lambda x: x + 1, x)
        return x + 1

    with pytest.raises(RuntimeError, match="one at a time"):
        torch_spyre.explain(torch._dynamo.disable(inner), x)


# ---- Files --------------------------------------------------------------------------------------


def test_a_document_comes_back_as_it_was(explained):
    assert decode(encode(explained)) == explained


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[: len(data) // 2], "truncated"),
        (lambda _: b'{"traceEvents": []}', "version"),
        (lambda _: b"\xff\xfe", "no explanation"),
        (lambda data: data.replace(b'"version":', b'"version":99'), "version 99"),
        (lambda data: data.replace(b'"writes":', b'"writes":9'), "a step's tensor is 9"),
        (lambda data: data.replace(b'"bytes_per_ns":150', b'"bytes_per_ns":0'), "without"),
    ],
)
def test_another_file_is_refused_in_a_line(explained, change, message):
    with pytest.raises(ValueError, match=message) as refused:
        decode(change(encode(explained)))
    assert "\n" not in str(refused.value)


def test_files_are_named_by_what_they_are(explained, tmp_path):
    explained.save(tmp_path / "found.json")
    assert decode((tmp_path / "found.json").read_bytes()) == explained
    with pytest.raises(ValueError, match=r"found.txt: .* \.html or as \.json"):
        explained.save(tmp_path / "found.txt")


def test_the_package_is_imported_without_any_of_this(check_python):
    check_python(
        """
        import sys
        import torch
        import torch_spyre
        assert not [name for name in sys.modules if name.startswith(("rich", "torch_spyre.tools"))]
        """
    )
