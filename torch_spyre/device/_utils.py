"""What all parts of `torch.spyre` need: from whatever names a device to its index."""

from __future__ import annotations

from typing import TypeAlias

import torch

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME

Device: TypeAlias = torch.device | int | str | None


def device_index(device: Device = None) -> int:
    """The index of a Spyre device; the current one for None or a device without index.

    >>> device_index("spyre:0")
    0
    """
    if device is None:
        return _C.current_device()
    if isinstance(device, bool) or not isinstance(device, (int, str, torch.device)):
        raise TypeError(f"expected a device, an index or None, got {device!r}")
    if isinstance(device, int):
        if device < 0:
            raise ValueError(f"a device index must not be negative, got {device}")
        return _C.checked_index(device)
    device = torch.device(device)
    if device.type != DEVICE_NAME:
        raise ValueError(f"expected a {DEVICE_NAME} device, got {device}")
    return _C.checked_index(-1 if device.index is None else device.index)
