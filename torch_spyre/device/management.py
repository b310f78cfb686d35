"""Which devices there are, which one is current, and their state."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from types import TracebackType

import torch

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device._utils import Device, device_index


@dataclass(frozen=True)
class SpyreDeviceProperties:
    """What a card is made of. `driver` is "SIM" for the software card."""

    name: str
    total_memory: int
    cores: int
    lx_bytes: int
    stick_bytes: int
    host_threads: int
    driver: str = "SIM"

    @property
    def multi_processor_count(self) -> int:
        """The number of cores, under the name that device-agnostic code asks for."""
        return self.cores


def is_available() -> bool:
    """Return True if at least one Spyre device is visible to this process.

    A wrong value in the environment makes it False, with a warning that says so.

    >>> torch.spyre.is_available()
    True
    """
    try:
        return device_count() > 0
    except ValueError as error:
        warnings.warn(f"no spyre device is available: {error}", RuntimeWarning, stacklevel=2)
        return False


def device_count() -> int:
    """Return the number of visible Spyre devices. Opens no card.

    Raises ValueError when an environment variable of the runtime has a value that makes no sense.
    """
    _C.check_environment()
    return _C.device_count()


def current_device() -> int:
    """Return the index of this thread's current Spyre device."""
    return _C.current_device()


def set_device(device: Device) -> None:
    """Make a device this thread's current one."""
    if device is not None:
        _C.set_device(device_index(device))


class device:
    """Context manager that changes the current device for a block.

    >>> with torch.spyre.device(0):
    ...     x = torch.empty(4, device="spyre")
    """

    def __init__(self, device: Device) -> None:
        self.index = device_index(device)
        self._before = -1

    def __enter__(self) -> device:
        self._before = _C.current_device()
        _C.set_device(self.index)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _C.set_device(self._before)


class device_of(device):
    """Context manager that makes a tensor's device current; does nothing for other tensors."""

    def __init__(self, tensor: torch.Tensor) -> None:
        is_ours = tensor.device.type == DEVICE_NAME
        super().__init__(tensor.device if is_ours else None)


def get_device_name(device: Device = None) -> str:
    """Return the name of a device."""
    return get_device_properties(device).name


def get_device_properties(device: Device = None) -> SpyreDeviceProperties:
    """Return a device's properties. Opens the card.

    >>> torch.spyre.get_device_properties().cores
    32
    """
    return SpyreDeviceProperties(**_C.properties(device_index(device)))


def get_device_capability(device: Device = None) -> dict[str, object]:
    """Return what a device can do: its number formats as the dtypes that map to them."""
    device_index(device)
    return {"supported_dtypes": set(_DTYPES), "has_checked_mode": False}


_DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.bool,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes that `torch.autocast("spyre")` accepts."""
    return [torch.float16, torch.bfloat16]


def is_initialized() -> bool:
    """Return True once a card has been opened, which happens on first use."""
    return _C.is_initialized()


def init() -> None:
    """Open the current device's card now instead of on first use."""
    _C.init(_C.current_device())


def synchronize(device: Device = None) -> None:
    """Wait for all queued work of a device, or of all devices if none is given.

    Faults of the card surface here, as the exceptions they are.
    """
    _C.synchronize(-1 if device is None else device_index(device))


def reset(device: Device = None) -> None:
    """Bring a card back after a fault: queued work is dropped, memory keeps its contents."""
    _C.reset(device_index(device))


def _is_in_bad_fork() -> bool:
    """Asked by torch.manual_seed: a card opened before the fork can't be used in the child."""
    return _C.is_bad_fork()
