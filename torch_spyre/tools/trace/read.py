"""From a file of `export_chrome_trace` to the work in it."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec

KERNEL, TO_CARD, TO_HOST, ON_CARD, FILL = "kernel", "host to card", "card to host", "copy", "fill"
EXCHANGE = "between cards"
# What the profiler calls work that is not a kernel of the model's.
_KINDS = {"Memcpy HtoD": TO_CARD, "Memcpy DtoH": TO_HOST, "Memcpy DtoD": ON_CARD, "Memset": FILL}
_DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_HOST_CATEGORIES = frozenset({"cpu_op", "user_annotation"})
_MODULE = "nn.Module: "

# What a file may say: limits far beyond any card's, within which all sums and quotients are finite.
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Rate: TypeAlias = Annotated[float, msgspec.Meta(ge=1e-9, le=1e18)]
Microseconds: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
Thread: TypeAlias = int | str | None


class TraceError(Exception):
    """A file that can't be analysed; the message is one line that says why."""


class Figures(NamedTuple):
    """What work takes: modelled time, multiply-adds, bytes, and how long each unit is busy, in ns.

    Bytes are those of LPDDR5; of a copy between host and card, those that went over PCIe; of an
    exchange between cards, those that went out over the link, and those that came in.
    """

    ns: int = 0
    macs: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    pt: int = 0
    sfp: int = 0
    memory: int = 0
    lx: int = 0
    ring: int = 0


class Work(NamedTuple):
    """An event of a card's track."""

    kind: str
    name: str
    card: int
    stream: int
    start: int  # ns, on the host's clock
    figures: Figures
    call: int | None  # the number that its launch on the host has, too
    kernel: int | None  # place in `Trace.kernels`, if its steps are known

    @property
    def end(self) -> int:
        return self.start + self.figures.ns


class Step(NamedTuple):
    """A part of a compiled kernel."""

    op: str
    layer: str
    figures: Figures


class HostEvent(NamedTuple):
    """Something that a thread of the host was doing."""

    category: str  # "cpu_op", "user_annotation", "module" or "call"
    name: str
    thread: Thread
    start: int
    end: int


class Card(msgspec.Struct, frozen=True):
    """The limits of a card, per nanosecond. The defaults are for traces that have none."""

    id: int = 0
    name: str = "IBM Spyre"
    mac_rate: Rate = msgspec.field(default=36480.0, name="MACs per ns")
    memory_rate: Rate = msgspec.field(default=150.0, name="LPDDR5 bytes per ns")
    pcie_rate: Rate = msgspec.field(default=50.0, name="PCIe bytes per ns")


class Trace(NamedTuple):
    """What a file holds."""

    works: list[Work]  # in the order of their starts
    kernels: tuple[tuple[Step, ...], ...]
    calls: dict[int, HostEvent]  # launches and copies on the host, by number
    host: list[HostEvent]
    cards: dict[int, Card]


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    tid: Thread = None
    ts: Microseconds = 0.0
    dur: Microseconds = 0.0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Document(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    devices: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"[]"), name="deviceProperties")
    spyre: msgspec.Raw = msgspec.Raw(b"null")


class _Arguments(msgspec.Struct):
    """Of a card's event."""

    device: int = 0
    stream: int = 0
    correlation: int | None = None
    kernel: int | None = None
    ns: Count = msgspec.field(default=0, name="modelled ns")
    macs: Count = msgspec.field(default=0, name="MACs")
    bytes_read: Count = msgspec.field(default=0, name="bytes read")
    bytes_written: Count = msgspec.field(default=0, name="bytes written")
    bytes_out: Count | None = msgspec.field(default=None, name="bytes out")  # of an exchange
    bytes_in: Count = msgspec.field(default=0, name="bytes in")
    pt: Count = msgspec.field(default=0, name="PT ns")
    sfp: Count = msgspec.field(default=0, name="SFP ns")
    memory: Count = msgspec.field(default=0, name="LPDDR5 ns")
    lx: Count = msgspec.field(default=0, name="LX ns")
    ring: Count = msgspec.field(default=0, name="ring ns")


class _Kernel(msgspec.Struct):
    name: str
    steps: list[tuple[str, str, Count, Count, Count, Count, Count, Count, Count, Count, Count]]


class _Version(msgspec.Struct):
    """The part of what a trace says about kernels that all versions have."""

    version: int


class _Kernels(msgspec.Struct):
    kernels: list[_Kernel]


_VERSION = 1


def read_trace(path: Path) -> Trace:
    """The work of Spyre cards in a file, `.json` or `.json.gz`."""
    document = _document(path, _bytes(path))
    try:
        return _trace(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path}: damaged: {error}") from None
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"{path}: truncated or damaged: {error}") from None
    except OSError as error:
        raise TraceError(f"{path}: can't be read: {error.strerror}") from None
    if not data.strip():
        raise TraceError(f"{path}: the file is empty")
    return data


def _document(path: Path, data: bytes) -> _Document:
    try:
        if data.lstrip()[:1] == b"[":  # Chrome's short form
            return _Document(msgspec.json.decode(data, type=list[_Event]))
        return msgspec.json.decode(data, type=_Document)
    except msgspec.ValidationError as error:
        raise TraceError(f"{path}: no trace of torch.profiler: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path}: truncated, or no JSON: {error}") from None


def _trace(document: _Document) -> Trace:
    works = _works(document.events)
    cards = msgspec.json.decode(document.devices, type=list[Card])
    calls, host = _host(document.events)
    return Trace(works, _kernels(document), calls, host, {card.id: card for card in cards})


def _kernels(document: _Document) -> tuple[tuple[Step, ...], ...]:
    """The steps of all kernels that the trace has them of."""
    found = msgspec.json.decode(document.spyre, type=_Version | None)
    if found is None:
        return ()
    if found.version != _VERSION:
        raise TraceError(
            f"its kernels are described in version {found.version}, and this reads version "
            f"{_VERSION}: use the torch_spyre that made the trace"
        )
    kernels = msgspec.json.decode(document.spyre, type=_Kernels).kernels
    return tuple(tuple(map(_step, kernel.steps)) for kernel in kernels)


def _step(row: tuple[Any, ...]) -> Step:
    op, layer, *figures = row
    return Step(op, layer, Figures(*figures))


def _works(events: list[_Event]) -> list[Work]:
    decode = msgspec.json.Decoder(_Arguments).decode
    on_devices = [event for event in events if event.cat in _DEVICE_CATEGORIES]
    works = [
        _work(event, decode(event.args))
        for event in on_devices
        if b'"modelled ns"' in bytes(event.args)  # other devices have no such clock
    ]
    if not works:
        raise TraceError(_why_nothing(events, on_devices))
    return sorted(works, key=lambda work: work.start)


def _work(event: _Event, found: _Arguments) -> Work:
    kind, moved = _KINDS.get(event.name, KERNEL), (found.bytes_read, found.bytes_written)
    if found.bytes_out is not None:
        kind, moved = EXCHANGE, (found.bytes_out, found.bytes_in)
    return Work(
        kind,
        event.name,
        found.device,
        found.stream,
        _nanoseconds(event.ts),
        Figures(
            found.ns,
            found.macs,
            *moved,
            found.pt,
            found.sfp,
            found.memory,
            found.lx,
            found.ring,
        ),
        found.correlation,
        found.kernel,
    )


def _why_nothing(events: list[_Event], on_devices: list[_Event]) -> str:
    if not events:
        return "the trace is empty"
    if on_devices:
        return "its device events are not those of a Spyre card"
    return (
        "no work of a Spyre card in it; profile with "
        "activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]"
    )


def _host(events: list[_Event]) -> tuple[dict[int, HostEvent], list[HostEvent]]:
    decode = msgspec.json.Decoder(_Arguments).decode
    calls, host = {}, []
    for event in events:
        category, name = event.cat, event.name
        if event.ph != "X":
            continue
        if category == "privateuse1_runtime":
            found = decode(event.args)
            if found.correlation is not None:
                calls[found.correlation] = _host_event("call", name, event)
        elif category in _HOST_CATEGORIES:
            host.append(_host_event(category, name, event))
        elif category == "python_function" and name.startswith(_MODULE):
            host.append(_host_event("module", name.removeprefix(_MODULE), event))
    return calls, host


def _host_event(category: str, name: str, event: _Event) -> HostEvent:
    start = _nanoseconds(event.ts)
    return HostEvent(category, name, event.tid, start, start + _nanoseconds(event.dur))


def _nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)
