"""What the devices have been doing: counters, fallbacks, and a report for bug reports."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.device import memory
from torch_spyre.device._utils import Device, device_index

VARIABLES = (
    *("AIU_", "SPYRE_", "TORCH_SPYRE_", "FLEX_", "DXP_", "SENCORES", "LX_", "LOCAL_", "LAYOUT_"),
    *("TORCH_LOGS", "TORCH_COMPILE_", "TORCHINDUCTOR_"),
)
CACHE_DIR = "TORCHINDUCTOR_CACHE_DIR"


def environment() -> dict[str, str]:
    """The variables of the environment that matter here, as they were set from outside."""
    found = {k: v for k, v in sorted(os.environ.items()) if k.startswith(VARIABLES)}
    inductor = sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    # Inductor writes its own choice into the environment when it first asks for the folder.
    if inductor and found.get(CACHE_DIR) == os.path.abspath(inductor.default_cache_dir()):
        del found[CACHE_DIR]
    return found


def counters(device: Device = None) -> dict[str, Any]:
    """Return a card's counters: bytes by direction, busy time per unit, LX use per core."""
    return _C.counters(device_index(device))


def fallback_stats() -> dict[str, int]:
    """Return how often each operation ran on the CPU because the card doesn't have it.

    >>> torch.spyre.fallback_stats()
    {}
    """
    return _C.fallback_counts()


def reset_fallback_stats() -> None:
    """Start counting from zero; every operation warns once more."""
    _C.reset_fallback_counts()


# Of `TORCH_SPYRE_FFDC=1`; see `ffdc.py`, which keeps it.
newest_failure: dict[str, Any] | None = None


def get_diagnostic_report() -> dict[str, Any]:
    """Return what a bug report needs: versions, environment, devices and their state.

    `"failure"` is the newest failure that `TORCH_SPYRE_FFDC=1` has recorded, as it was then; None
    if there was none.
    """
    return {**state(), "failure": newest_failure}


def state() -> dict[str, Any]:
    """The same without failures."""
    from torch_spyre import __version__

    opened = _C.is_initialized()
    return {
        "torch_spyre": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "host": platform.platform(),
        "environment": environment(),
        "device_count": _C.device_count(),
        "initialized": opened,
        "isa": _C._card.isa(),
        "devices": [
            {
                "properties": _C.properties(index),
                "memory": memory.memory_stats(index),
                "counters": _C.counters(index),
            }
            for index in range(_C.device_count() if opened else 0)
        ],
        "fallbacks": _C.fallback_counts(),
        "plans": _C.plan_cache_stats(),
    }
