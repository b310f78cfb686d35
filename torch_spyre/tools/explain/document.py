"""The document that an explanation is: plain data, from which both the text and the page are made.

`collect.py` fills it in while a model is compiled and called; `text.py` prints it for a terminal
and `page.py` embeds it in one HTML file. Neither of the two knows the compiler.

Indices stand for references: a `Call` names its kernel by its place in `Explanation.kernels`, a
`Step` its tensors by their places in `Kernel.buffers`. Equal layers of a model are calls of the
same kernel, so forty layers do not make the document forty times as long. Times are whole
nanoseconds of the card's clock: modelled. `None` stands for what is not known.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

VERSION = 2


class Source(msgspec.Struct, frozen=True):
    """Where an operation comes from in the model."""

    file: str = ""  # the last two parts of its path
    line: int = 0
    function: str = ""
    code: str = ""  # the line itself
    aten: str = ""  # the operation of PyTorch's that was lowered
    layer: str = ""  # the module: "model.layers.3.self_attn"; "" outside of modules


class Buffer(msgspec.Struct, frozen=True):
    """A tensor of a kernel."""

    name: str
    dtype: str  # of PyTorch: "float16"
    shape: tuple[int, ...]  # on the host
    device_size: tuple[int, ...]
    stride_map: tuple[int, ...]
    component: str  # "argument", "pool" (LPDDR5 inside the kernel) or "lx"
    address: int  # in LX or in the pool: bytes from its start; of an argument: its number
    nbytes: int  # of an LX buffer, what one core holds; else all of it, with padding
    first: int  # the first and the last step that touch it: its life
    last: int
    why_not_lx: str = ""  # of what is not in LX


class Units(msgspec.Struct, frozen=True):
    """How long each unit of the card is busy with a step, or with all of a launch."""

    pt: float
    sfp: float
    memory: float  # LPDDR5
    lx: float
    ring: float


class Step(msgspec.Struct, frozen=True):
    """An operation of a kernel: all its visits, if it is in a loop."""

    op: str  # "batchmatmul"
    kind: str  # "pointwise", "reduction", "matmul", "restickify", "relayout", …
    start: int  # from the start of the kernel; steps in a loop are shown one after the other
    duration: int
    visits: int
    loops: tuple[int, ...]  # counts of the loops around it, outermost first
    cores: int
    slices: dict[str, int]  # per dimension of its iteration space: in how many parts cores take it
    bound: str  # "PT", "SFP", "LPDDR5", "LX" or "ring"
    units: Units
    macs: int  # multiply-adds
    bytes_read: int  # of LPDDR5
    bytes_written: int
    reads: tuple[int, ...]
    writes: int
    source: Source  # in the first call of the kernel; `Call.layers` has those of the others
    why: str = ""  # of a copy that the compiler put in: the reason
    loop_ir: str = ""  # the loop-level operation, as planned
    spec: str = ""  # the OpSpec
    sdsc: str = ""  # its SuperDSC: JSON without white space


class Kernel(msgspec.Struct, frozen=True):
    """A distinct kernel: one program on the card, launched once or many times."""

    name: str
    hash: str  # of its bundle
    duration: int  # of every launch: it has the lengths of its bucket
    cores: int
    lx_bytes: int  # of each scratchpad, in use at most
    lx_capacity: int  # what a plan may use
    pool_bytes: int
    arguments: int
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    mlir: str  # its bundle.mlir


class Call(msgspec.Struct, frozen=True):
    """A place in a graph where a kernel is launched, or where something else is called."""

    kernel: int | None  # None: an operation that is no kernel of the graph
    what: str  # of the latter: "aten.sort", "CPU: aten.linalg_qr"
    layers: tuple[str, ...]  # per step of the kernel: the layer that it belongs to here
    source: Source = Source()  # of what is no kernel


class Graph(msgspec.Struct, frozen=True):
    """What Dynamo captured, and what became of it."""

    name: str
    why: str  # why there is this graph: "the first", a graph break, a guard that failed
    source: Source  # where it begins
    fx: str  # its operations after decomposition, as text
    captured: dict[str, int]  # operations as the model called them: "linear", and how often
    decomposed: dict[str, int]  # operations as they were lowered: "aten.mm.default"
    loops: str  # the loop-level IR as translated, before the passes
    calls: tuple[Call, ...]


class Break(msgspec.Struct, frozen=True):
    """A place where Dynamo could not go on."""

    reason: str
    source: Source


class Launch(msgspec.Struct, frozen=True):
    """Work of the card in the call that was measured, in the order in which it was asked for."""

    name: str
    kind: str  # "kernel", "to card", "to host", "exchange" (between cards)
    device: int
    queue: int
    start: int  # from the start of the call
    duration: int
    bytes_read: int  # of an exchange: sent
    bytes_written: int  # and received
    call: tuple[int, int] | None  # the graph and the place in its calls; None: an eager operation
    bound: str = ""  # the unit that is busy longest; "PCIe" or "link" of what is no kernel
    cores: int = 0
    macs: int = 0  # multiply-adds
    units: Units | None = None  # of a kernel


class Card(msgspec.Struct, frozen=True):
    """The limits that a roofline is drawn with."""

    cores: int
    macs_per_ns: float  # 16-bit, all cores
    bytes_per_ns: float  # LPDDR5, one way
    lx_bytes: int  # per core


class Explanation(msgspec.Struct, frozen=True):
    """Everything about one model and one call of it."""

    version: int
    title: str  # "GraniteForCausalLM"
    inputs: tuple[str, ...]  # "input_ids: int64[1, 128]"
    environment: dict[str, str]  # versions, and the settings that differ from their defaults
    card: Card
    duration: int  # of the measured call, by the card's clock
    graphs: tuple[Graph, ...]
    breaks: tuple[Break, ...]
    fallbacks: dict[str, int]  # operations that ran on the CPU in that call
    kernels: tuple[Kernel, ...]
    launches: tuple[Launch, ...]
    fallbacks_elsewhere: dict[str, int] = {}  # only in other parts of the script

    def __str__(self) -> str:
        from .text import summary

        return summary(self)

    def __repr__(self) -> str:
        return f"<Explanation of {self.title}: {self.duration} ns modelled>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page (`.html`), or the document (`.json`), which `spyre explain` shows."""
        target = Path(path)
        if target.suffix == ".html":
            from .page import render

            target.write_text(render(self), encoding="utf-8")
        elif target.suffix == ".json":
            target.write_bytes(encode(self))
        else:
            raise ValueError(f"{target.name}: an explanation is saved as .html or as .json")


def encode(explanation: Explanation) -> bytes:
    """The document as JSON."""
    return msgspec.json.encode(explanation)


class _Version(msgspec.Struct):
    """The part of a document that all versions have."""

    version: int


def decode(data: bytes | str) -> Explanation:
    """A document of `encode`; `ValueError` says in one line what is wrong with another one."""
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version != VERSION:
            raise ValueError(f"an explanation of version {version}; this is version {VERSION}")
        found = msgspec.json.decode(data, type=Explanation)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"no explanation of torch_spyre: {error}") from None
    _check_references(found)
    return found


def _check_references(explanation: Explanation) -> None:
    """Whoever shows a document relies on it: all numbers in it that name something do so."""
    card = explanation.card
    if min(card.cores, card.macs_per_ns, card.bytes_per_ns, card.lx_bytes) <= 0:
        raise ValueError("no explanation of torch_spyre: a card without cores, speed or memory")
    for number, kernel in enumerate(explanation.kernels):
        buffers, steps = len(kernel.buffers), len(kernel.steps)
        named = [place for step in kernel.steps for place in (*step.reads, step.writes)]
        lives = [place for buffer in kernel.buffers for place in (buffer.first, buffer.last)]
        _check(named, buffers, f"kernel {number}: a step's tensor")
        _check(lives, steps, f"kernel {number}: a tensor's step")
    for number, graph in enumerate(explanation.graphs):
        called = [call.kernel for call in graph.calls if call.kernel is not None]
        _check(called, len(explanation.kernels), f"graph {number}: a call's kernel")
        for call in graph.calls:
            if call.kernel is not None:
                steps = len(explanation.kernels[call.kernel].steps)
                _check(range(len(call.layers)), steps, f"graph {number}: a layer's step")
    for launch in explanation.launches:
        if launch.call is not None:
            graph_number, place = launch.call
            _check([graph_number], len(explanation.graphs), "a launch's graph")
            calls = explanation.graphs[graph_number].calls
            _check([place], len(calls), "a launch's call")


def _check(numbers: Iterable[int], count: int, what: str) -> None:
    for number in numbers:
        if not 0 <= number < count:
            raise ValueError(f"no explanation of torch_spyre: {what} is {number} of {count}")
