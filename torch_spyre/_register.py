"""Tells PyTorch about the device: its name, its module, its methods, its kernels."""

from __future__ import annotations

import atexit
import time

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

from torch_spyre import _C, _patches, distributed, logging_config
from torch_spyre import device as device_module
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.ops import data_sized, optimisers, registry, traced

_library: torch.library.Library  # kept: dropping it would unregister its kernels


def register() -> None:
    """Run by `torch_spyre._autoload`, once."""
    rename_privateuse1_backend(DEVICE_NAME)
    torch._register_device_module(DEVICE_NAME, device_module)
    generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    table = {name: registry.value_keys(name) for name in registry.overload_names()}
    _C.start(table, traced.NAMES)
    global _library
    _library = torch.library.Library("aten", "IMPL")
    for name, kernel in (data_sized.KERNELS | optimisers.KERNELS).items():
        _library.impl(name, kernel, "PrivateUse1")
    _patches.apply()
    logging_config.register()
    distributed.register()
    atexit.register(_finish)


def _finish() -> None:
    """Let the device's threads come to rest while they can still take Python's lock.

    An engine that drops its last reference to a tensor afterwards would end the process with an
    abort. PyTorch's own autograd thread of a device does the same: it lets go of Python objects
    shortly after `backward()` returned, and offers nothing to wait for.
    """
    if _C.is_initialized():
        _C._distributed.close()
        _C.drain()
        time.sleep(0.02)
