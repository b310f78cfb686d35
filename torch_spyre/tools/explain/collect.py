"""`torch_spyre.explain`: compiles a model, calls it, and writes down what happened."""

from __future__ import annotations

import contextlib
import inspect
import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import torch
from torch._dynamo.eval_frame import OptimizedModule, innermost_backend, innermost_fn
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config

import torch_spyre
from torch_spyre import _C
from torch_spyre._inductor import backend
from torch_spyre._inductor import config as compiler_config
from torch_spyre._inductor.observe import observing
from torch_spyre.device.diagnostics import environment

from .document import VERSION, Card, Explanation
from .dynamo import Dynamo
from .graphs import Graphs
from .launches import Recording, launches_of, on_cpu, record

_SET_BY_THE_COMPILER = ("input_layouts", "hints")


class NothingToExplainError(ValueError):
    """Nothing was compiled for Spyre, and nothing ran there."""


def explain(model: Callable[..., Any], *inputs: Any, **kwargs: Any) -> Explanation:
    """Compile a model for these inputs and call it: what became of it, and what a call costs.

    The model is called twice, and the second call is what is measured. It is compiled afresh, with
    no cache of graphs, and apart from what is compiled of it elsewhere: that stays, and so does
    the model. Gradients are recorded as the caller has them: use `torch.no_grad()` for inference.
    """
    original, compile_again = _compiled_apart(model)
    collector = Collector()
    with collector.listening(), _not_compiled(original):
        compiled = compile_again(original)
        compiled(*inputs, **kwargs)
        _, recording = collector.record(lambda: compiled(*inputs, **kwargs))
    return collector.explanation(recording, title_of(original), inputs_of(original, inputs, kwargs))


class Collector:
    """Listens to Dynamo, to the compiler and to the card."""

    def __init__(self) -> None:
        self.dynamo = Dynamo()
        self.graphs = Graphs(self.dynamo.why)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Whatever is compiled meanwhile is compiled afresh, and told to this."""
        with (
            inductor_config.patch(fx_graph_cache=False),
            functorch_config.patch(enable_autograd_cache=False),
            _one_at_a_time(),
            observing(self.graphs.of_compile),
            self.dynamo.watched(),
        ):
            yield

    def record(self, call: Callable[[], Any]) -> tuple[Any, Recording]:
        """Call a function, and note the card's work."""
        return record(call, self.graphs, self.dynamo)

    def explanation(self, recording: Recording, title: str, inputs: Sequence[str]) -> Explanation:
        """The document about all graphs so far, and one call."""
        graphs = tuple(
            msgspec.structs.replace(graph, calls=on_cpu(graph.calls, recording.fallbacks))
            for graph in self.graphs.document()
        )
        if not graphs and not recording.records:
            raise NothingToExplainError(
                "nothing was compiled for Spyre, and nothing ran there: are the model and its "
                "inputs on the device?"
            )
        known = list(self.graphs.kernels.values())
        devices = {found["device"] for found in recording.records}
        programs = {
            (device, kernel.compiled().load(device)): i
            for device in devices
            for i, kernel in enumerate(known)
        }
        # Equal kernels share a program, not their names: that of the first launch counts.
        names = {i: f"spyre_kernel_{i}" for i in range(len(known))}
        for found in reversed(recording.records):
            number = programs.get((found["device"], found["program"]))
            names |= {} if number is None else {number: found["name"]}
        return Explanation(
            version=VERSION,
            title=title,
            inputs=tuple(inputs),
            environment=_environment(),
            card=_card(recording.device),
            duration=recording.duration,
            graphs=graphs,
            breaks=tuple(self.dynamo.breaks),
            fallbacks=recording.fallbacks,
            kernels=tuple(kernel.document(names[i]) for i, kernel in enumerate(known)),
            launches=tuple(launches_of(recording, graphs, programs)),
        )


_explaining = threading.Lock()


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Dynamo and the card's records are one for all."""
    if not _explaining.acquire(blocking=False):
        raise RuntimeError("a model is being explained already; explanations come one at a time")
    try:
        yield
    finally:
        _explaining.release()


# ---- Compiling apart ----------------------------------------------------------------------------


def _compiled_apart(model: Any) -> tuple[Any, Callable[[Any], Callable[..., Any]]]:
    """The model as it was before `torch.compile`, and a compile of it that shares nothing.

    Dynamo keeps what it compiled by code, backend and region; both of the latter are new here.
    """
    settings: dict[str, Any] = {}
    patches: dict[str, Any] = {}
    context: Any = None
    if isinstance(model, OptimizedModule):
        context, model = model.dynamo_ctx, model._orig_mod
    elif hasattr(model, "_torchdynamo_orig_callable"):
        context = inspect.getclosurevars(model).nonlocals.get("self")
        model = innermost_fn(model)
    if context is not None:
        settings = {"dynamic": context._dynamic, "fullgraph": context.fullgraph}
        patches = getattr(innermost_backend(context.callback), "config", None) or {}

    def compile_graph(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        if backend.is_spyre_graph(gm, examples):
            return backend.compile_graph(gm, examples, config_patches=patches)
        compiled: Callable[..., Any] = torch._inductor.compile(gm, list(examples))
        return compiled

    def compile_again(original: Any) -> Callable[..., Any]:
        compile_: Any = torch.compile  # its overloads do not know `isolate_recompiles`
        compiled: Callable[..., Any] = compile_(
            original, backend=compile_graph, isolate_recompiles=True, **settings
        )
        return compiled

    return model, compile_again


@contextlib.contextmanager
def _not_compiled(model: Any) -> Iterator[None]:
    """A module that `Module.compile` compiled in place is called as it is written meanwhile."""
    own = getattr(model, "_compiled_call_impl", None)
    if own is None or not isinstance(model, torch.nn.Module):
        yield
        return
    model._compiled_call_impl = None
    try:
        yield
    finally:
        model._compiled_call_impl = own


# ---- What is said at the top --------------------------------------------------------------------


def title_of(model: Any) -> str:
    """A module's class, or a function's name."""
    if isinstance(model, torch.nn.Module):
        return type(model).__name__
    return getattr(model, "__qualname__", type(model).__name__)


def inputs_of(model: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[str, ...]:
    """The tensors that a model was called with, by name: "x: float16[8, 64] on spyre"."""
    function = model.forward if isinstance(model, torch.nn.Module) else model
    try:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        given = {**{f"argument {i}": value for i, value in enumerate(args)}, **kwargs}
    return tuple(_described(given))


def _described(given: dict[str, Any]) -> Iterator[str]:
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            yield f"{name}: {dtype}{list(value.shape)} on {value.device.type}"
        elif isinstance(value, bool | int | float | str):
            yield f"{name}: {value!r}"
        elif isinstance(value, list | tuple):
            yield from _described({f"{name}[{i}]": item for i, item in enumerate(value)})
        elif isinstance(value, dict):
            yield from _described({f"{name}.{key}": item for key, item in value.items()})
        elif value is not None:
            yield f"{name}: {type(value).__name__}"


def _environment() -> dict[str, str]:
    found = {
        "torch_spyre": torch_spyre.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
    found |= environment()
    defaults = compiler_config._config  # type: ignore[attr-defined]
    for name, entry in defaults.items():
        value = getattr(compiler_config, name)
        if name not in _SET_BY_THE_COMPILER and value != entry.default:
            found[f"torch_spyre._inductor.config.{name}"] = str(value)
    return found


def _card(device: int) -> Card:
    properties = _C.properties(device)
    cores = int(properties["cores"])
    return Card(
        cores=cores,
        macs_per_ns=_C._cost.MACS_PER_NANOSECOND * cores,
        bytes_per_ns=_C._cost.BYTES_PER_NANOSECOND,
        lx_bytes=int(properties["lx_bytes"]),
    )
