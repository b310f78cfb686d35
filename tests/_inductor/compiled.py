"""Compiles and runs a function on the card, and keeps every kernel it launched with its operands.

The operands of a launch are kept as the bytes that the program sees, so that the same program can
be run again elsewhere: on a card of its own, step by step, and by the numpy model.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tests.ops import program_model, step_model
from torch_spyre import _C
from torch_spyre._inductor import config, runtime
from torch_spyre.backend.lower import lower
from torch_spyre.backend.program import Program, Step
from torch_spyre.ir import Storage
from torch_spyre.ir.bundle import Bundle

DEVICE = "spyre"


@dataclass(frozen=True)
class Layout:
    """A kernel's argument as the compiler knew it, and the place of each of its elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device_size: tuple[int, ...]
    stride_map: tuple[int, ...]

    @property
    def format(self) -> int:
        return step_model.FORMAT_OF[self.dtype]

    @functools.cached_property
    def places(self) -> np.ndarray:
        """The device element of each element, in the argument's shape."""
        reach = sum((n - 1) * step for n, step in zip(self.size, self.stride, strict=True))
        storage = Storage(self.device_size, self.stride_map, reach + 1)
        offsets = np.zeros(self.size, np.int64)
        for dim, (n, step) in enumerate(zip(self.size, self.stride, strict=True)):
            shape = [1] * len(self.size)
            shape[dim] = n
            offsets += (np.arange(n) * step).reshape(shape)
        found = np.zeros(self.size, np.int64)
        for place in storage.places:
            found += offsets // place.stride * place.device_stride
            offsets = offsets % place.stride
        return found

    def image(self, tensor: torch.Tensor, nbytes: int, seed: int) -> np.ndarray:
        """Bytes of the argument on the card: noise, except where the tensor's elements are."""
        # A kernel that reads only the first part of a tensor relies on no more bytes than that.
        whole = math.prod(self.device_size) * np.dtype(step_model.RAW[self.format]).itemsize
        memory = program_model.noise(max(nbytes, whole), seed)
        elements = memory.view(step_model.RAW[self.format])
        elements[self.places.reshape(-1)] = step_model.to_card(tensor)
        return memory

    def elements(self, memory: np.ndarray) -> np.ndarray:
        """The argument's own elements of its bytes, in its shape; raw."""
        return memory.view(step_model.RAW[self.format])[self.places]

    def values(self, memory: np.ndarray) -> np.ndarray:
        """The argument's widened values."""
        flat = self.elements(memory).reshape(-1)
        return step_model.widen(np.ascontiguousarray(flat), self.format).reshape(self.size)


class Traffic(NamedTuple):
    """LPDDR5 bytes of a launch: by the cost model, and as checked mode counted them."""

    read: int
    written: int
    checked_read: int
    checked_written: int

    @classmethod
    def now(cls) -> Traffic:
        torch.spyre.synchronize()
        counters = torch.spyre.counters()
        names = ("bytes_read", "bytes_written", "checked_bytes_read", "checked_bytes_written")
        return cls(*(counters[name] for name in names))

    def since(self, start: Traffic) -> Traffic:
        return Traffic(*(now - then for now, then in zip(self, start, strict=True)))


@dataclass(frozen=True)
class Launch:
    """A kernel with the operands of one launch, and what they held afterwards."""

    bundle: Bundle
    program: Program
    layouts: tuple[Layout, ...]
    extents: tuple[int, ...]
    before: tuple[np.ndarray, ...]  # bytes per argument
    is_fresh: tuple[bool, ...]  # per argument: nothing has written it
    after: tuple[torch.Tensor, ...]  # values per argument, on the host
    # Values read back are those on the card: not so for bfloat16 of an earlier kernel.
    is_exact: bool
    traffic: Traffic

    @property
    def steps(self) -> list[Step]:
        """Of the program, those in loops once."""

        def visit(body: Sequence[Any]) -> Iterator[Step]:
            for node in body:
                if isinstance(node, Step):
                    yield node
                else:
                    yield from visit(node.body)

        return list(visit(self.program.body))

    @property
    def written(self) -> list[int]:
        return [i for i, argument in enumerate(self.bundle.args) if argument.is_written]


@dataclass
class Recording:
    """Everything that compiled functions launched."""

    launches: list[Launch] = field(default_factory=list)
    bundles: list[Bundle] = field(default_factory=list)  # as they were compiled
    is_on: bool = True
    _fresh: set[int] = field(default_factory=set)  # storages that nothing has written
    _computed: set[int] = field(default_factory=set)  # storages that kernels wrote

    def allocate(self, *args: Any) -> torch.Tensor:
        """A new tensor for generated code."""
        tensor = _C.empty_strided_with_layout(*args)
        self._fresh.add(_storage(tensor))
        self._computed.discard(_storage(tensor))
        return tensor

    def record(
        self,
        bundle: Bundle,
        views: Sequence[runtime.ArgView],
        launch: runtime.Launch,
        tensors: Sequence[torch.Tensor],
        extents: Sequence[int],
    ) -> None:
        layouts = tuple(
            Layout(v.size, v.stride, getattr(torch, v.dtype), v.device_size, v.stride_map)
            for v in views
        )
        before = tuple(
            self._bytes(tensor, layout, argument.nbytes, seed)
            for seed, (tensor, layout, argument) in enumerate(
                zip(tensors, layouts, bundle.args, strict=True)
            )
        )
        is_exact = not any(
            tensor.dtype is torch.bfloat16 and _storage(tensor) in self._computed
            for tensor in tensors
        )
        is_fresh = tuple(_storage(tensor) in self._fresh for tensor in tensors)
        start = Traffic.now()
        launch(tensors, extents)
        traffic = Traffic.now().since(start)
        written = {
            _storage(tensor)
            for tensor, argument in zip(tensors, bundle.args, strict=True)
            if argument.is_written
        }
        self._computed |= written
        self._fresh -= written
        after = tuple(_read(t, layout) for t, layout in zip(tensors, layouts, strict=True))
        self.launches.append(
            Launch(
                bundle,
                lower(bundle),
                layouts,
                tuple(extents),
                before,
                is_fresh,
                after,
                is_exact,
                traffic,
            )
        )

    def _bytes(self, tensor: torch.Tensor, layout: Layout, nbytes: int, seed: int) -> np.ndarray:
        if _storage(tensor) in self._fresh:
            return program_model.noise(nbytes, seed)
        return layout.image(_read(tensor, layout), nbytes, seed)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _read(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The elements that the kernel was compiled for, from where the tensor starts."""
    return tensor.as_strided(layout.size, layout.stride).cpu()


@contextlib.contextmanager
def recording() -> Iterator[Recording]:
    """Keep the kernels that are compiled inside, and each of their launches while it is on."""
    kept = Recording()
    original = runtime.spyre_kernel

    def spyre_kernel(serialized: str | bytes, name: str) -> Any:
        kernel = original(serialized, name)
        bundle, views = runtime.deserialize_kernel(serialized)
        kept.bundles.append(bundle)
        recorder = mock.Mock(spec=["launch"])

        def launch(tensors: Sequence[torch.Tensor], extents: Sequence[int] = ()) -> None:
            if kept.is_on:
                kept.record(bundle, views, kernel.launch, tensors, extents)
            else:
                kernel.launch(tensors, extents)

        recorder.launch = launch
        return recorder

    caches = {"fx_graph_cache": False, "fx_graph_remote_cache": False}
    with (
        mock.patch.object(runtime, "spyre_kernel", spyre_kernel),
        mock.patch.object(runtime, "empty_strided_spyre", kept.allocate),
        torch._inductor.config.patch(caches),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        torch._dynamo.reset()
        try:
            yield kept
        finally:
            torch._dynamo.reset()


Function = Callable[..., Any]


def to_card(value: Any) -> Any:
    """A tensor on the card with the host's strides and start; views of one tensor stay such."""
    if not isinstance(value, torch.Tensor):
        return value
    base = value._base if value._base is not None else value
    card = base.to(DEVICE)
    if value is base:
        return card
    return card.as_strided(value.shape, value.stride(), value.storage_offset())


def on_card(args: Sequence[Any]) -> list[Any]:
    return [to_card(arg) for arg in args]


def on_host(result: Any) -> Any:
    return pytree.tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, result)


@dataclass(frozen=True)
class Run:
    """What a compiled function returned, and the launches behind it."""

    results: list[torch.Tensor]  # on the host
    recording: Recording

    @property
    def launches(self) -> list[Launch]:
        return self.recording.launches


def run_compiled(function: Function, args: Sequence[Any], **settings: Any) -> Run:
    """Compile for these arguments (given on the host) and run once."""
    with recording() as kept, config.patch(**settings), torch.no_grad():
        compiled = torch.compile(function, dynamic=False)
        results = on_host(compiled(*on_card(args)))
    tensors = [x for x in pytree.tree_leaves(results) if isinstance(x, torch.Tensor)]
    return Run(tensors, kept)
