"""The card's work in one call of a model, by the card's clock, and which part of a graph asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import msgspec
import torch

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device.diagnostics import fallback_stats
from torch_spyre.device.management import synchronize

from .document import Call, Graph, Launch, Units
from .dynamo import Dynamo
from .graphs import Graphs, Window

Result = TypeVar("Result")
Record: TypeAlias = dict[str, Any]

_ON_CPU = "CPU: "
_UNITS = ("PT", "SFP", "LPDDR5", "LX", "ring")  # in the order of `Units`
_BOUND_OF_KIND = {"to card": "PCIe", "to host": "PCIe", "exchange": "link"}
_EXCHANGE = "spyreccl:"  # what names of exchanges between cards begin with


@dataclass(frozen=True)
class Recording:
    """What the card did in one call."""

    records: Sequence[Record] = ()  # in the order in which work was asked for
    start: int = 0  # on the card's clock
    device: int = 0
    elapsed: int = 0  # between events around the call
    windows: Sequence[Window] = ()
    compiles: Sequence[tuple[int, int]] = ()
    fallbacks: dict[str, int] = field(default_factory=dict)

    @property
    def in_compiles(self) -> frozenset[int]:
        """Records of what PyTorch tried on the device while it compiled."""
        return frozenset(i for first, last in self.compiles for i in range(first, last))

    @property
    def duration(self) -> int:
        """Of the call, as long as it takes when nothing is compiled in it."""
        tried = (self.records[i] for i in self.in_compiles)
        return self.elapsed - sum(r["duration"] for r in tried if r["device"] == self.device)


def record(call: Callable[[], Result], graphs: Graphs, dynamo: Dynamo) -> tuple[Result, Recording]:
    """Call a function on the current device and stream, and note the card's work."""
    start, end = (torch.Event(DEVICE_NAME, enable_timing=True) for _ in range(2))
    synchronize()
    device = _C.current_device()
    before = fallback_stats()
    graphs.windows, dynamo.compiles = [], []
    _C.start_recording()
    try:
        start.record()
        began = _C.now(device)
        result = call()
        end.record()
        synchronize()
    finally:
        records = _C.stop_recording()
    return result, Recording(
        records,
        began,
        device,
        round(start.elapsed_time(end) * 1e6),
        graphs.windows,
        dynamo.compiles,
        dict(Counter(fallback_stats()) - Counter(before)),
    )


# ---- Launches -----------------------------------------------------------------------------------


def launches_of(
    recording: Recording, graphs: Sequence[Graph], programs: dict[tuple[int, int], int]
) -> Iterator[Launch]:
    """The work of a recording. `programs` names the kernels by device and number there."""
    asked_by = _asked_by(recording, graphs, programs)
    left_out = recording.in_compiles
    starts = {recording.device: recording.start}
    for i, found in enumerate(recording.records):
        device = found["device"]
        start = starts.setdefault(device, found["begin"])
        if i in left_out:
            starts[device] = start + found["duration"]
            continue
        yield Launch(
            name=found["name"],
            kind=found["kind"],
            device=device,
            queue=found["queue"],
            start=max(found["begin"] - start, 0),
            duration=found["duration"],
            bytes_read=found["bytes_read"],
            bytes_written=found["bytes_written"],
            call=asked_by.get(i),
            bound=_bound(found),
            cores=found.get("cores", 0),
            macs=found.get("macs", 0),
            units=Units(*map(float, found["units"])) if "units" in found else None,
        )


def _bound(found: Record) -> str:
    """What a launch waits for: the unit that is busy longest, or the way to elsewhere."""
    if "units" not in found:
        return _BOUND_OF_KIND.get(found["kind"], "")
    busy = found["units"]
    return _UNITS[busy.index(max(busy))]


def _asked_by(
    recording: Recording, graphs: Sequence[Graph], programs: dict[tuple[int, int], int]
) -> dict[int, tuple[int, int]]:
    """For work that the code of a graph asked for: the graph, and the place among its calls."""
    found: dict[int, tuple[int, int]] = {}
    for window in recording.windows:
        calls = graphs[window.graph].calls
        place = 0
        for i in range(window.first, window.last):
            entry = recording.records[i]
            kernel = programs.get((entry["device"], entry["program"]))
            at = (
                _operation_place(calls, place, entry)
                if kernel is None
                else _kernel_place(calls, place, kernel)
            )
            if at is not None:
                found[i] = window.graph, at
                # An operation may ask for several things; a kernel and an exchange are one each.
                is_one = kernel is not None or entry["kind"] == "exchange"
                place = at + 1 if is_one else at
    return found


def _kernel_place(calls: Sequence[Call], place: int, kernel: int) -> int | None:
    """Generated code has no branches: the next call of this kernel."""
    return next((i for i in range(place, len(calls)) if calls[i].kernel == kernel), None)


def _operation_place(calls: Sequence[Call], place: int, entry: Record) -> int | None:
    """Before the next kernel: the operation of this name, or the only one there is."""
    name = entry["name"]
    if name.startswith(f"{DEVICE_NAME}::"):  # a copy of the runtime's, for an argument
        return None
    candidates = []
    for i in range(place, len(calls)):
        if calls[i].kernel is not None:
            break
        candidates.append(i)
    if entry["kind"] == "exchange":
        return next((i for i in candidates if _is_collective(calls[i].what, name)), None)
    if entry["kind"] == "kernel":
        same = [i for i in candidates if _packet(calls[i].what) == _packet(name)]
    else:  # to the host and back
        same = [i for i in candidates if calls[i].what.startswith(_ON_CPU)]
    if same:
        return same[0]
    return candidates[0] if len(candidates) == 1 else None


def _is_collective(operation: str, exchange: str) -> bool:
    """Is this call what makes cards exchange something?

    >>> _is_collective("_c10d_functional.all_gather_into_tensor.default", "spyreccl:all_gather")
    True
    """
    library, _, rest = operation.partition(".")
    return library.startswith("_c10d_") and rest.startswith(exchange.removeprefix(_EXCHANGE))


def _packet(operation: str) -> str:
    """An operation without its overload, in either spelling.

    >>> _packet("aten::sort.stable"), _packet("CPU: aten.sort.default")
    ('aten.sort', 'aten.sort')
    """
    parts = operation.removeprefix(_ON_CPU).replace("::", ".").split(".")
    return ".".join(parts[:2])


def on_cpu(calls: Sequence[Call], fallbacks: dict[str, int]) -> tuple[Call, ...]:
    """Calls, with those marked that the CPU does."""
    names = {_packet(name) for name in fallbacks}
    return tuple(
        msgspec.structs.replace(call, what=f"{_ON_CPU}{call.what}")
        if call.kernel is None and not call.what.startswith(_ON_CPU) and _packet(call.what) in names
        else call
        for call in calls
    )
