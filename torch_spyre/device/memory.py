"""Memory of the cards: what is used, what is reserved, and giving it back."""

from __future__ import annotations

from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.device._utils import Device, device_index


def memory_stats(device: Device = None) -> dict[str, Any]:
    """Return all statistics of a device's allocator; empty while its card is closed."""
    if not _C.is_initialized():
        return {}
    return dict(torch.accelerator.memory.memory_stats(device_index(device)))


def _stat(name: str, device: Device) -> int:
    return int(memory_stats(device).get(name, 0))


def memory_allocated(device: Device = None) -> int:
    """Return the bytes that tensors occupy on the card, padding included."""
    return _stat("allocated_bytes.all.current", device)


def max_memory_allocated(device: Device = None) -> int:
    """Return the peak of `memory_allocated` since the start or `reset_peak_memory_stats`."""
    return _stat("allocated_bytes.all.peak", device)


def memory_reserved(device: Device = None) -> int:
    """Return the bytes of host memory that stand behind the card's memory."""
    return _stat("reserved_bytes.all.current", device)


def max_memory_reserved(device: Device = None) -> int:
    """Return the peak of `memory_reserved`."""
    return _stat("reserved_bytes.all.peak", device)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Start counting peaks from the current figures."""
    if _C.is_initialized():
        torch.accelerator.memory.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Start counting allocations and frees from zero."""
    if _C.is_initialized():
        torch.accelerator.memory.reset_accumulated_memory_stats(device_index(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Return the free and the total bytes of a card's memory."""
    free, total = torch.accelerator.memory.get_memory_info(device_index(device))
    return free, total


def empty_cache() -> None:
    """Give memory that no tensor uses back to the host."""
    torch.accelerator.memory.empty_cache()
