"""What generated code calls: kernels that compile in the background and launch without Python.

    kernel = spyre_kernel("eJx...", "fused_add_0")     # when the module is loaded
    ...
    kernel.launch([x, w, out], [])                     # per call: one step into C++

The string holds the whole bundle and the views of its arguments, so generated code runs on its own:
if the SpyreCode was deleted from the cache, it is compiled again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from torch_spyre import _C
from torch_spyre.backend import cache
from torch_spyre.backend.compile import compile_bundle, step_labels
from torch_spyre.backend.kernel import (
    ArgView,
    deserialize_kernel,
    make_kernel,
    serialize_kernel,
)
from torch_spyre.device import ffdc
from torch_spyre.ir.bundle import Bundle
from torch_spyre.logging_config import get_logger

from . import observe

__all__ = [
    "ArgView",
    "SpyreKernel",
    "empty_strided_spyre",
    "reset",
    "serialize_kernel",
    "settle",
    "spyre_kernel",
    "wait",
]


log = get_logger("backend")

Launch = Callable[[Sequence[torch.Tensor], Sequence[int]], None]


class SpyreKernel:
    """A kernel that may still be compiling; the first launch waits for it.

    From then on `launch` is the C++ method itself.
    """

    __slots__ = ("_future", "_labels", "launch", "name")

    def __init__(
        self, future: Future[_C.Kernel], name: str, labels: Sequence[tuple[str, str]]
    ) -> None:
        self._future = future
        self._labels = labels
        self.name = name
        self.launch: Launch = self._first_launch

    def wait(self) -> _C.Kernel:
        """The compiled kernel. Raises what its compilation raised."""
        kernel = self._future.result().labelled(self.name, self._labels)
        self.launch = kernel.launch
        return kernel

    def _first_launch(self, tensors: Sequence[torch.Tensor], extents: Sequence[int] = ()) -> None:
        self.wait().launch(tensors, extents)

    def __call__(self, *tensors: torch.Tensor, extents: Sequence[int] = ()) -> None:
        self.launch(tensors, extents)


class _Compiler:
    """Compiles each distinct kernel of this process once, on a few threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._kernels: dict[tuple[str, tuple[ArgView, ...]], Future[_C.Kernel]] = {}

    def submit(self, bundle: Bundle, views: tuple[ArgView, ...], name: str) -> Future[_C.Kernel]:
        key = (bundle.content_hash, views)
        with self._lock:
            known = self._kernels.get(key)
            if known is None or (known.done() and known.exception() is not None):
                if self._threads is None:
                    self._threads = ThreadPoolExecutor(_thread_count(), "spyre-compile")
                observers = observe.current()
                for observer in observers:
                    observer.kernel_started()
                # Settings of PyTorch's belong to a thread: whether to use the cache is asked here.
                kept = cache.default_cache()
                known = self._threads.submit(_compile, bundle, views, name, kept, observers)
                self._kernels[key] = known
            return known

    def pending(self) -> list[Future[_C.Kernel]]:
        with self._lock:
            return [future for future in self._kernels.values() if not future.done()]

    def all(self) -> list[Future[_C.Kernel]]:
        with self._lock:
            return list(self._kernels.values())

    def forget(self) -> None:
        with self._lock:
            self._kernels.clear()


def _thread_count() -> int:
    return max(1, min(4, len(os.sched_getaffinity(0))))


def _compile(
    bundle: Bundle,
    views: tuple[ArgView, ...],
    name: str,
    kept: cache.SpyreCodeCache | None,
    observers: tuple[observe.Observer, ...],
) -> _C.Kernel:
    start = time.perf_counter()
    was_kept = False
    try:
        was_kept = kept is not None and kept.path(cache.key_of(bundle.content_hash)).exists()
        with ffdc.reporting("compile", origin=bundle.origin(0)):
            return make_kernel(compile_bundle(bundle, kept), views, name)
    finally:
        seconds = time.perf_counter() - start
        for observer in observers:
            observer.kernel_done(seconds, was_kept)
        how = "found" if was_kept else "compiled"
        log.info("kernel %s: %s in %.1f ms", name, how, seconds * 1e3)


_compiler = _Compiler()


def _start_over() -> None:
    """A forked child has none of its parent's threads, and perhaps a lock that nobody holds."""
    global _compiler
    _compiler = _Compiler()


os.register_at_fork(after_in_child=_start_over)


def spyre_kernel(serialized: str | bytes, name: str) -> SpyreKernel:
    """The kernel of a text of `serialize_kernel`; starts compiling it and returns at once.

    Equal kernels share one program on the card; in profiles each has its own name and layers.
    """
    bundle, views = deserialize_kernel(serialized)
    return SpyreKernel(_compiler.submit(bundle, views, name), name, step_labels(bundle))


def wait() -> None:
    """Waits until every kernel that was asked for is compiled; raises what went wrong first."""
    for future in _compiler.pending():
        future.result()


def settle() -> None:
    """Waits likewise, whatever becomes of the kernels: their launches raise what went wrong."""
    futures.wait(_compiler.pending())


def kernels() -> list[_C.Kernel]:
    """The distinct kernels that this process has compiled, in the order in which it met them."""
    return [future.result() for future in _compiler.all()]


def reset() -> None:
    """Forgets the kernels of this process; those in use stay. For tests and `torch.compiler`."""
    _compiler.forget()


# A new tensor of a layout, for generated code.
empty_strided_spyre = _C.empty_strided_with_layout
