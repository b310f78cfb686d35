"""Makes the compiler known to Inductor and Dynamo, once per process, at the first compile."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device
from torch._inductor.codegen.common import (
    DeviceOpOverrides,
    register_backend_for_device,
    register_device_op_overrides,
)
from torch._inductor.custom_graph_pass import (
    CustomGraphModulePass,
    CustomGraphPass,
    get_hash_for_files,
)

from torch_spyre import _C, _patches, logging_config
from torch_spyre.backend import cache
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device._utils import device_index

from . import config
from .fx import passes as fx_passes
from .fx.decompositions import register_decompositions
from .lowering import register_lowerings
from .scheduling import SuperDSCScheduling
from .wrapper import SpyrePythonWrapperCodegen


class SpyreInterface(DeviceInterface):
    """What Dynamo and Inductor ask of a device."""

    device = torch.spyre.device  # type: ignore[attr-defined]
    Event = torch.Event
    Stream = torch.Stream

    class Worker:
        """The same questions, asked in compile workers."""

        @staticmethod
        def set_device(device: int) -> None:
            _C.set_device(device)

        @staticmethod
        def current_device() -> int:
            return _C.current_device()

        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            return _Properties()

    @staticmethod
    def is_available() -> bool:
        return _C.device_count() > 0

    @staticmethod
    def device_count() -> int:
        return _C.device_count()

    @staticmethod
    def current_device() -> int:
        return _C.current_device()

    @staticmethod
    def set_device(device: Any) -> None:
        _C.set_device(device_index(device))

    @staticmethod
    def maybe_exchange_device(device: int) -> int:
        return SpyreInterface.exchange_device(device)

    @staticmethod
    def exchange_device(device: int) -> int:
        previous = _C.current_device()
        if device >= 0:
            _C.set_device(device)
        return previous

    @staticmethod
    def synchronize(device: Any = None) -> None:
        torch.spyre.synchronize(device)  # type: ignore[attr-defined]

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        return int(torch.accelerator.current_stream(device_idx).stream_id)

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        return ""

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return True

    @staticmethod
    def is_dtype_supported(dtype: torch.dtype, including_emulation: bool = False) -> bool:
        return dtype not in (torch.float64, torch.complex64, torch.complex128)

    @staticmethod
    def is_triton_capable(device: Any = None) -> bool:
        return False


class _Properties:
    """Inductor sizes heuristics by this; ours decide by themselves."""

    multi_processor_count = 32
    name = "spyre"
    type = DEVICE_NAME


class SpyreDeviceOpOverrides(DeviceOpOverrides):
    """Lines of the generated wrapper that depend on the device."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"{name} = lambda device: torch.accelerator.current_stream(device).stream_id"

    def set_device(self, device_idx: int) -> str:
        return f"torch.spyre.set_device({device_idx})"

    def synchronize(self) -> str:
        return "torch.spyre.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        return f"torch.spyre.device({device_idx})"

    def current_stream(self) -> str:
        return "torch.accelerator.current_stream()"


class SpyreGraphPasses(CustomGraphModulePass):
    """The FX passes; its identity stands for the whole compiler in Inductor's cache keys."""

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        fx_passes.run(gm)

    def uuid(self) -> Any:
        return source_hash()


class SpyreJointGraphPasses(CustomGraphPass):
    """Those that come before a graph is parted into forward and backward."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        fx_passes.run_before_partition(graph)

    def uuid(self) -> Any:
        return source_hash()


@functools.cache
def source_hash() -> bytes:
    """Of everything that turns a graph into a program."""
    root = pathlib.Path(__file__).parent.parent
    folders = ("_inductor", "backend", "ir", "ops")
    files = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
    return get_hash_for_files(tuple(map(str, files)), extra=cache.extension())


@functools.cache
def register() -> None:
    """Idempotent; what it changes in Inductor answers for Spyre graphs only."""
    register_interface_for_device(DEVICE_NAME, SpyreInterface)
    register_device_op_overrides(DEVICE_NAME, SpyreDeviceOpOverrides())
    register_backend_for_device(
        DEVICE_NAME,
        SuperDSCScheduling,
        SpyrePythonWrapperCodegen,
        device_custom_pass=SpyreGraphPasses(),
        device_custom_config=config,  # type: ignore[arg-type]
    )
    register_decompositions()
    register_lowerings()
    _patches.count_graphs_by_buckets()
    logging_config.follow_environment()
