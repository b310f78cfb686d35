"""What a compile is doing, for those who want to know: clocks, the progress line, explanations.

    with observing(make_observer):               # who wants to know
        torch.compile(model)(x)

    with compiling(next(numbers), graph):        # in the compiler
        with stage("span_reduction", planned): ...
        for observer in current():
            observer.planned(...)

Without observers an event is a loop over nothing.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from torch_spyre import _environment

if TYPE_CHECKING:
    from torch._inductor.graph import GraphLowering

    from .graph import SpyreGraph
    from .plan import Kernels


class Observer:
    """Is told about one compile. Here are all events; each observer has those it cares about."""

    def begin_graph(self, number: int, is_backward: bool) -> None:
        """AOTAutograd made a graph of Dynamo's graph with this number."""

    def begin_stage(self, stage: str, graph: SpyreGraph | None) -> None:
        """A part of the work on a graph. All come again if the graph needs another form."""

    def kernel_planned(self, kernels: int, of: int) -> None:
        """So many kernels have cores and places by now."""

    def end_stage(self, stage: str, graph: SpyreGraph | None) -> None:
        """Not told after an error: that ends the compile."""

    def planned(self, graph: SpyreGraph, lowered: GraphLowering, kernels: Kernels) -> None:
        """All passes are done and the kernels are written."""

    def kernel_started(self) -> None:
        """The back end has a kernel to compile."""

    def kernel_done(self, seconds: float, was_kept: bool) -> None:
        """It is done with one. Told by threads of its own, perhaps after the end."""

    def end_graph(self, code: Any) -> None:
        """The graph is compiled; `code.current_callable` is what will be called."""

    def finish(self, succeeded: bool) -> None:
        """The end of the compile."""


# Is asked at the start of a compile whether it wants to observe; None: it doesn't. There is no
# graph where a backward graph is compiled by itself, later: its number is that of the forward one.
Make: TypeAlias = Callable[[int, torch.fx.GraphModule | None], Observer | None]

numbers = itertools.count()  # of Dynamo's graphs
_makes: list[Make] = []


@contextlib.contextmanager
def observing(make: Make) -> Iterator[None]:
    """Ask this at the start of every compile meanwhile."""
    _makes.append(make)
    try:
        yield
    finally:
        _makes.remove(make)


@functools.cache
def _from_outside() -> tuple[Make, ...]:
    """What people ask for by the environment."""
    from torch_spyre.tools import progress, timing

    wanted: dict[Make, bool] = {
        timing.printed: _environment.flag("TORCH_SPYRE_TIMING", False),
        progress.of_compile: _environment.flag("TORCH_SPYRE_PROGRESS", True),
    }
    return tuple(make for make, is_wanted in wanted.items() if is_wanted)


class _Thread(threading.local):
    observers: tuple[Observer, ...] | None = None  # None outside of compiles


_thread = _Thread()


def current() -> tuple[Observer, ...]:
    """The observers of this thread's compile."""
    return _thread.observers or ()


@contextlib.contextmanager
def compiling(number: int, graph: torch.fx.GraphModule | None = None) -> Iterator[None]:
    """Around one compile. Inside another it is a part of that."""
    if _thread.observers is not None:
        yield
        return
    made = [make(number, graph) for make in (*_from_outside(), *_makes)]
    observers = tuple(observer for observer in made if observer is not None)
    with contextlib.ExitStack() as ends:  # each is told of the end, whatever another one raises
        for observer in reversed(observers):
            ends.push(functools.partial(_finish, observer))
        _thread.observers = observers
        try:
            yield
        finally:
            _thread.observers = None


def _finish(observer: Observer, error: type[BaseException] | None, *_: object) -> None:
    observer.finish(succeeded=error is None)


@contextlib.contextmanager
def stage(name: str, graph: SpyreGraph | None = None) -> Iterator[None]:
    """Around a part of a compile."""
    for observer in current():
        observer.begin_stage(name, graph)
    yield
    for observer in current():
        observer.end_stage(name, graph)
