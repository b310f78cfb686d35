"""`torch.spyre`: the device as its users see it, after the pattern of `torch.cuda`."""

from __future__ import annotations

import sys

from torch_spyre._C import (
    DataFormats,
    ElementArrangement,
    SpyreTensorLayout,
    get_device_dtype,
    get_downcast_warning,
    set_downcast_warning,
)
from torch_spyre.device import memory
from torch_spyre.device.diagnostics import (
    counters,
    fallback_stats,
    get_diagnostic_report,
    reset_fallback_stats,
)
from torch_spyre.device.management import (
    SpyreDeviceProperties,
    _is_in_bad_fork,
    current_device,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_initialized,
    reset,
    set_device,
    synchronize,
)
from torch_spyre.device.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from torch_spyre.device.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_spyre.device.streams import (
    Event,
    Stream,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

__all__ = [
    "DataFormats",
    "ElementArrangement",
    "Event",
    "SpyreDeviceProperties",
    "SpyreTensorLayout",
    "Stream",
    "_is_in_bad_fork",
    "counters",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "fallback_stats",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_dtype",
    "get_device_name",
    "get_device_properties",
    "get_diagnostic_report",
    "get_downcast_warning",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset",
    "reset_accumulated_memory_stats",
    "reset_fallback_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_downcast_warning",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]

# `import torch.spyre.memory` works like `import torch.cuda.memory`.
sys.modules.setdefault("torch.spyre.memory", memory)
