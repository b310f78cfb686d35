"""The analysis of traces: made-up ones with known answers, real ones, and other files."""

from __future__ import annotations

import csv
import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from torch_spyre.tools import cli
from torch_spyre.tools.trace.analyse import NO_LAYER, Analysis
from torch_spyre.tools.trace.command import main
from torch_spyre.tools.trace.read import read_trace

CARD = {"MACs per ns": 1000.0, "LPDDR5 bytes per ns": 100.0, "PCIe bytes per ns": 10.0}
COLUMNS = ["op", "layer", "ns", "MACs", "bytes read", "bytes written"]
COLUMNS += ["PT ns", "SFP ns", "LPDDR5 ns", "LX ns", "ring ns"]
HOST, THREAD = 77, 78

Event = dict[str, Any]


def work(name: str, start: int, ns: int, *, category: str = "kernel", **more: Any) -> Event:
    """Work on a card; times are nanoseconds, as in all of these tests."""
    card, stream = more.pop("card", 0), more.pop("stream", 0)
    named = {"device": card, "stream": stream, "modelled ns": ns}
    named |= {key.replace("_", " "): value for key, value in more.items()}
    where = {"pid": 5000000 + card, "tid": stream}
    return {"ph": "X", "cat": category, "name": name, **where, **times(start, ns), "args": named}


def on_host(name: str, start: int, ns: int, category: str = "cpu_op", **arguments: Any) -> Event:
    where = {"pid": HOST, "tid": THREAD, "args": arguments}
    return {"ph": "X", "cat": category, "name": name, **where, **times(start, ns)}


def times(start: int, ns: int) -> Event:
    return {"ts": 4e12 + start / 1000, "dur": ns / 1000}


def document(*events: Event, kernels: list[Any] | None = None, cards: int = 1) -> Event:
    found: Event = {"traceEvents": list(events)}
    found["deviceProperties"] = [{"id": n, "name": "Spyre", **CARD} for n in range(cards)]
    if kernels is not None:
        found["spyre"] = {"version": 1, "columns": COLUMNS, "kernels": kernels}
    return found


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], Path]:
    def written(content: Any) -> Path:
        path = tmp_path / "trace.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return written


@pytest.fixture
def analyse(write: Callable[[Any], Path]) -> Callable[..., Analysis]:
    def analysed(content: Any, depth: int | None = None) -> Analysis:
        return Analysis(read_trace(write(content)), depth)

    return analysed


# ---- Cards --------------------------------------------------------------------------------------


def test_a_card_is_busy_while_any_of_its_streams_is(analyse: Callable[..., Analysis]) -> None:
    found = analyse(
        document(
            work("a", 0, 100),
            work("b", 50, 100, stream=3),  # beside a, until 150
            work("c", 400, 100),
            work("elsewhere", 0, 1000, card=1),
            cards=2,
        )
    )
    first, second = found.cards
    assert (first.span, first.busy, first.idle) == (500, 250, 250)
    assert (second.span, second.busy) == (1000, 1000)
    assert {group.name: group.figures.ns for group in found.streams} == {
        "spyre:0, default stream": 200,
        "spyre:0, stream 3": 100,
        "spyre:1, default stream": 1000,
    }


def test_gaps_say_what_lies_around_them_and_what_the_host_did(
    analyse: Callable[..., Analysis],
) -> None:
    found = analyse(
        document(
            work("a", 0, 100),
            work("b", 600, 100),
            work("c", 710, 100),
            on_host("aten::slow", 100, 450),
            on_host("aten::inner", 120, 400),  # within slow
            on_host("aten::quick", 560, 30),
        )
    )
    longest, short = found.cards[0].gaps
    assert (longest.start, longest.ns, longest.before, longest.after) == (100, 500, "a", "b")
    assert longest.host == "aten::slow"
    assert (short.ns, short.host) == (10, "")


def test_utilisation_is_of_the_time_in_which_kernels_run(analyse: Callable[..., Analysis]) -> None:
    figures = {"MACs": 25_000, "bytes_read": 6_000, "bytes_written": 2_000}
    units = {"PT_ns": 30, "LPDDR5_ns": 90, "SFP_ns": 5}
    found = analyse(
        document(
            work("product", 0, 100, **figures, **units),
            work("Memcpy HtoD", 100, 900, category="gpu_memcpy", bytes_written=9_000),
        )
    )
    (kernel,) = found.kernels
    assert (kernel.pt_use, kernel.memory_use, kernel.roofline) == (0.25, 0.8, 0.8)
    assert (kernel.intensity, kernel.rate, kernel.bound) == (25_000 / 8_000, 250, "LPDDR5")
    (card,) = found.cards
    assert (card.computed.pt_use, card.computed.memory_use) == (0.25, 0.8)
    assert (card.copied, card.transfers) == (900, 1)


def test_copies_are_counted_by_direction(analyse: Callable[..., Analysis]) -> None:
    def copy(way: str, start: int, **more: Any) -> Event:
        return work(f"Memcpy {way}", start, 100, category="gpu_memcpy", **more)

    found = analyse(
        document(
            copy("HtoD", 0, bytes_written=1000),
            copy("HtoD", 200, bytes_written=500),
            copy("DtoH", 400, bytes_read=300),
            copy("DtoD", 600, bytes_read=700, bytes_written=700),
        )
    )
    shown = {copies.direction: (copies.count, copies.bytes, copies.ns) for copies in found.copies}
    assert shown == {
        "host to card": (2, 1500, 200),
        "card to host": (1, 300, 100),
        "copy": (1, 700, 100),
    }


def exchange(start: int, ns: int, out: int, into: int) -> Event:
    """As the profiler shows a collective of spyreccl: like a kernel, but for what it carries."""
    return work("spyreccl:all_reduce", start, ns, stream=33, bytes_out=out, bytes_in=into)


def test_exchanges_between_cards_are_no_work_of_the_cores(
    analyse: Callable[..., Analysis],
    write: Callable[[Any], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = document(
        work("product", 0, 100, MACs=100_000, bytes_read=1_000, PT_ns=100),
        exchange(100, 800, 4_000, 4_000),
        exchange(900, 100, 500, 0),
    )
    found = analyse(trace)
    for groups in (found.kernels, found.ops, found.layers):
        assert [(group.calls, group.figures.ns) for group in groups] == [(1, 100)]
    (card,) = found.cards
    assert (card.computed.calls, card.computed.pt_use, card.computed.bound) == (1, 1.0, "PT")
    assert (card.linked, card.exchanges, card.share(card.linked)) == (900, 2, 0.9)
    assert (card.copied, card.transfers) == (0, 0)
    (copies,) = found.copies
    assert (copies.direction, copies.count) == ("between cards", 2)
    assert (copies.bytes, copies.ns) == (8_500, 900)
    assert {group.name: group.figures.ns for group in found.streams} == {
        "spyre:0, default stream": 100,
        "spyre:0, stream 33": 900,
    }
    assert main([str(write(trace))]) == 0
    printed = capsys.readouterr().out
    assert "1 kernel 100 ns" in printed and "PT        100 %" in printed
    assert "link      900 ns in 2 exchanges, 90 % of the time" in printed


# ---- Operations and layers ----------------------------------------------------------------------

KERNELS = [
    {
        "name": "fused_0",
        "steps": [
            ["aten.mm", "layers.0.up", 60, 600, 10, 0, 60, 0, 10, 0, 0],
            ["aten.silu", "layers.0", 30, 0, 0, 5, 0, 30, 1, 0, 0],
            ["aten.add", "", 10, 0, 0, 5, 0, 10, 1, 0, 0],
        ],
    },
    {"name": "fused_1", "steps": [["aten.mm", "head", 40, 400, 10, 0, 40, 0, 10, 0, 0]]},
]


def in_time(groups: Any) -> dict[str, tuple[int, int]]:
    return {group.name: (group.calls, group.figures.ns) for group in groups}


def test_kernels_count_step_by_step_where_their_steps_are_known(
    analyse: Callable[..., Analysis],
) -> None:
    trace = document(
        *(work("fused_0", 1000 * n, 100, kernel=0) for n in range(3)),
        work("fused_1", 5000, 40, kernel=1),
        work("aten::mm", 6000, 7),
        work("from another trace", 7000, 1, kernel=9),
        kernels=KERNELS,
    )
    found = analyse(trace)
    assert in_time(found.ops) == {
        "aten.mm": (5, 3 * 60 + 40 + 7),
        "aten.silu": (3, 90),
        "aten.add": (3, 30),
        "from another trace": (1, 1),
    }
    layers = {"layers.0.up": (3, 180), "layers.0": (3, 90), "head": (1, 40), NO_LAYER: (5, 38)}
    assert in_time(found.layers) == layers
    assert in_time(analyse(trace, 2).layers)["layers.0"] == (6, 270)
    times = [group.figures.ns for group in found.layers]
    assert times == sorted(times, reverse=True)
    assert found.layers[0].bound == "PT"


def test_eager_work_belongs_to_modules_or_ranges_around_its_launch(
    analyse: Callable[..., Analysis],
) -> None:
    def launch(number: int, start: int) -> list[Event]:
        call = on_host("spyreLaunchKernel", start, 5, "privateuse1_runtime", correlation=number)
        return [call, work(f"k{number}", start + 5, 10 * number, correlation=number)]

    found = analyse(
        document(
            on_host("nn.Module: Model_0", 100, 900, "python_function"),
            on_host("nn.Module: Linear_0", 200, 100, "python_function"),
            on_host("model.py(3): forward", 150, 500, "python_function"),
            on_host("ProfilerStep#3", 0, 3000, "user_annotation"),
            on_host("decode", 2000, 500, "user_annotation"),
            on_host("token", 2100, 100, "user_annotation"),
            *launch(1, 250),
            *launch(2, 400),
            *launch(3, 2150),
            *launch(4, 2300),
            *launch(5, 2900),
        )
    )
    assert in_time(found.layers) == {
        "Model_0.Linear_0": (1, 10),
        "Model_0": (1, 20),
        "[decode.token]": (1, 30),
        "[decode]": (1, 40),
        NO_LAYER: (1, 50),
    }


# ---- The command --------------------------------------------------------------------------------

SMALL = document(work("<first> & 'second'", 0, 100, MACs=5_000, bytes_read=4_000), kernels=[])


def test_text_has_the_cards_and_all_tables(
    write: Callable[[Any], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    many = [work(f"kernel_{n}", 1000 * n, 100 - n, MACs=100) for n in range(20)]
    assert main([str(write(document(*many)))]) == 0
    printed = capsys.readouterr().out
    for part in ("modelled", "spyre:0", "By kernel", "By op", "By layer", "By stream", "gaps"):
        assert part in printed
    by_kernel = printed[printed.index("By kernel") : printed.index("By op")]
    assert "kernel_9" in by_kernel and "kernel_10" not in by_kernel
    assert by_kernel.endswith("… and 10 more\n\n")
    assert main([str(write(document(*many))), "--by", "kernel", "--top", "20"]) == 0
    printed = capsys.readouterr().out
    assert "kernel_19" in printed and "By op" not in printed


def test_csv_is_one_table_with_plain_numbers(
    write: Callable[[Any], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(write(SMALL)), "--format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert row["kernel"] == "<first> & 'second'"
    assert (int(row["ns"]), int(row["macs"]), int(row["bytes_read"])) == (100, 5000, 4000)
    assert (float(row["pt_use"]), float(row["memory_use"])) == (0.05, 0.4)


def test_the_page_stands_alone(write: Callable[[Any], Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main([str(write(SMALL)), "--format", "html", "-o", str(page)]) == 0
    shown = page.read_text()
    assert "&lt;first&gt; &amp;" in shown and "<first>" not in shown
    assert "://" not in shown and "<script" not in shown and "src=" not in shown
    picture = ElementTree.fromstring(shown[shown.index("<svg") : shown.index("</svg>") + 6])
    discs = [shape for shape in picture.iter("circle") if shape.get("class") == "kernel"]
    assert ["40 % of the roofline" in (disc.findtext("title") or "") for disc in discs] == [True]


def test_the_roof_is_where_rates_meet(write: Callable[[Any], Path], tmp_path: Path) -> None:
    """Work at both limits is a disc in the corner of the roof."""
    page = tmp_path / "page.html"
    corner = document(work("k", 0, 100, MACs=100_000, bytes_read=10_000))
    assert main([str(write(corner)), "--format", "html", "-o", str(page)]) == 0
    shown = page.read_text()
    picture = ElementTree.fromstring(shown[shown.index("<svg") : shown.index("</svg>") + 6])
    roof = next(picture.iter("polyline")).attrib["points"].split()
    disc = next(picture.iter("circle"))
    assert roof[1] == f"{disc.get('cx')},{disc.get('cy')}"


def test_a_packed_trace_says_the_same(
    write: Callable[[Any], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = write(SMALL)
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    printed = []
    for path in (plain, packed):
        assert cli.main(["trace", str(path)]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_work_that_takes_no_time_is_on_the_page(write: Callable[[Any], Path]) -> None:
    path = write(document(work("k", 0, 0, MACs=5, bytes_read=4)))
    assert main([str(path), "--format", "html", "-o", str(path.with_suffix(".html"))]) == 0


CUDA = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1.0, "dur": 2.0}
STEP = ["aten.mm", "", 60, -600, 10, 0, 60, 0, 10, 0, 0]
UNUSABLE = {
    "": "empty",
    "{": "truncated",
    json.dumps(SMALL)[:-40]: "truncated",
    "\x7fELF": "no JSON",
    "[1, 2]": "no trace",
    '{"resourceSpans": []}': "no trace",
    '{"traceEvents": []}': "empty",
    json.dumps({"traceEvents": [CUDA]}): "not those of a Spyre card",
    json.dumps(document(on_host("aten::add", 0, 5))): "ProfilerActivity.PrivateUse1",
    json.dumps(document(work("k", 0, 5, MACs="many"))): "damaged",
    json.dumps({**SMALL, "spyre": {"version": 1, "kernels": [{"name": "k", "steps": [[1]]}]}}): (
        "damaged"
    ),
    json.dumps(document(work("k", 0, 5, MACs=-1, bytes_read=1))): "damaged",
    json.dumps(document(work("k", 0, -5))): "damaged",
    json.dumps(document(work("k", 0, 5, MACs=10**400))): "damaged",
    json.dumps(document(exchange(0, 5, -1, 0))): "damaged",
    json.dumps({**SMALL, "deviceProperties": [{"id": 0, **CARD, "MACs per ns": 0.0}]}): "damaged",
    json.dumps({**SMALL, "deviceProperties": [{"id": 0, **CARD, "LPDDR5 bytes per ns": -1}]}): (
        "damaged"
    ),
    json.dumps(document(work("k", 0, 5), kernels=[{"name": "k", "steps": [STEP]}])): "damaged",
    json.dumps(document(work("k", 0, 5), {**on_host("aten::add", 0, 5), "tid": [7]})): "no trace",
    json.dumps(document(work("k", 0, 5), {**on_host("aten::add", 0, 5), "ts": 1e308})): "no trace",
    json.dumps({**SMALL, "spyre": {"version": 2, "programs": {}}}): "version 2",
    '{"traceEvents": [{"args": ' + "[" * 100_000 + "]" * 100_000 + "}]}": "no JSON",
}


@pytest.mark.parametrize("content", UNUSABLE, ids=lambda content: UNUSABLE[content])
def test_a_file_that_is_no_such_trace_gets_one_line(
    content: str, write: Callable[[Any], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(content)
    for form in ("text", "html", "csv"):
        assert main([str(path), "--format", form]) == 2
        done = capsys.readouterr()
        assert done.out == "" and done.err.count("\n") == 1
        assert str(path) in done.err and UNUSABLE[content] in done.err


def test_files_that_cannot_be_read_or_written_get_one_line(
    write: Callable[[Any], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "short.json.gz"
    short.write_bytes(gzip.compress(json.dumps(SMALL).encode())[:60])
    unwritable = tmp_path / "none" / "page.html"
    for arguments in (
        [str(tmp_path / "missing.json")],
        [str(tmp_path)],
        [str(short)],
        [str(write(SMALL)), "-o", str(unwritable)],
    ):
        assert main(arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_the_command_needs_no_torch(write: Callable[[Any], Path], tmp_path: Path) -> None:
    fake = tmp_path / "torch"
    fake.mkdir()
    (fake / "__init__.py").write_text("raise SystemExit('torch was imported')")
    done = subprocess.run(
        [sys.executable, "-m", "torch_spyre.tools.trace", str(write(SMALL))],
        env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "By kernel" in done.stdout, done.stderr


def test_output_that_can_t_be_written_is_one_line(write: Callable[[Any], Path]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "torch_spyre.tools.trace", str(write(SMALL))],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr == "spyre trace: can't print: No space left on device\n"


def test_closed_output_is_one_line(write: Callable[[Any], Path]) -> None:
    command = f"{sys.executable} -m torch_spyre.tools.trace {write(SMALL)} >&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    problem = "spyre trace: can't print: standard output is closed\n"
    assert (done.returncode, done.stderr) == (2, problem)


# ---- Real traces --------------------------------------------------------------------------------

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(256, 512, bias=False), nn.Linear(512, 256, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


@pytest.fixture
def model() -> Model:
    return Model().half().to("spyre").requires_grad_(False)


def profiled(call: Callable[[], Any], path: Path, **options: Any) -> tuple[Analysis, int]:
    """The analysis of a call, and how long the card's events say that it took."""
    call()
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    with profile(activities=BOTH, **options) as prof:
        start.record()
        call()
        end.record()
    end.synchronize()
    prof.export_chrome_trace(str(path))
    return Analysis(read_trace(path)), round(start.elapsed_time(end) * 1e6)


def test_times_of_a_compiled_model_are_those_of_the_cards_events(
    model: Model, tmp_path: Path
) -> None:
    x = torch.rand(64, 256, dtype=torch.float16).to("spyre")
    found, elapsed = profiled(lambda: torch.compile(model)(x), tmp_path / "trace.json.gz")
    for groups in (found.kernels, found.ops, found.layers, found.streams):
        assert sum(group.figures.ns for group in groups) == elapsed
    macs = {group.name: group.figures.macs for group in found.layers if group.figures.macs}
    assert macs == {"up": 64 * 256 * 512, "down": 64 * 256 * 512}


def test_eager_layers_need_the_profilers_stacks(model: Model, tmp_path: Path) -> None:
    x = torch.rand(64, 256, dtype=torch.float16).to("spyre")
    found, elapsed = profiled(lambda: model(x), tmp_path / "trace.json", with_stack=True)
    assert sum(group.figures.ns for group in found.layers) == elapsed
    names = [group.name for group in found.layers if group.figures.macs]
    assert sorted(names) == ["Model_0.Linear_0", "Model_0.Linear_1"]


def test_streams_and_copies_of_a_real_trace(tmp_path: Path) -> None:
    stream = torch.spyre.Stream()
    host = torch.rand(128, 128, dtype=torch.float16)

    def call() -> None:
        x = host.to("spyre")
        stream.wait_stream(torch.spyre.current_stream())
        with torch.spyre.stream(stream), record_function("mine"):
            (x + x).cpu()

    found, _ = profiled(call, tmp_path / "trace.json")
    names = {f"spyre:0, stream {stream.id}", "spyre:0, default stream"}
    assert {group.name for group in found.streams} == names
    assert [(c.direction, c.bytes) for c in found.copies] == [
        ("card to host", host.nbytes),
        ("host to card", host.nbytes),
    ]
    assert [group.name for group in found.layers] == ["[mine]"]
