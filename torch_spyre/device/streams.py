"""Streams and events. A stream is one of the card's queues; an event is a point in its work.

Times are the card's own, modelled in whole nanoseconds: the same from run to run, whatever the
host was doing.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Self

import torch

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device._utils import Device, device_index

_FIRST_HIGH_PRIORITY = 33


class Stream(torch.Stream):
    """A queue of work on a device, first in, first out.

    ``Stream(device=None, priority=0)`` takes the next stream of a pool, round robin: streams 1 to
    32 for priority 0, 33 to 64 for any other. As a context manager it becomes the current stream.

    >>> s = torch.spyre.Stream()
    >>> with torch.spyre.stream(s):
    ...     x = torch.ones(100, device="spyre")
    """

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> Self:
        if kwargs:  # stream_id, device_index, device_type: a stream that exists
            return super().__new__(cls, **kwargs)
        return super().__new__(
            cls, device=torch.device(DEVICE_NAME, device_index(device)), priority=priority
        )

    @property
    def id(self) -> int:
        """0 for the default stream, else the place in the pools."""
        return self.stream_id

    @property
    def priority(self) -> int:
        """0 for the default stream and the low-priority pool, -1 for the high-priority pool."""
        return -1 if self.stream_id >= _FIRST_HIGH_PRIORITY else 0

    def device(self) -> torch.device:  # type: ignore[override]
        """Return the stream's device. A method, unlike `torch.Stream.device`."""
        return torch.device(DEVICE_NAME, self.device_index)

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Record an event (a new one, if none is given) after the work queued so far."""
        event = torch.Event(device=DEVICE_NAME) if event is None else event
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"torch.spyre.Stream(device={self.device()}, id={self.id}, priority={self.priority})"


class _EventType(type):
    """PyTorch takes nothing but its own class for an event, so ours makes instances of that."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == DEVICE_NAME

    def __call__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        if interprocess:
            raise NotImplementedError("spyre events can't be shared between processes")
        return torch.Event(
            device=torch.device(DEVICE_NAME), enable_timing=enable_timing, blocking=blocking
        )


class Event(metaclass=_EventType):
    """A point in a stream's work, to wait for or, with ``enable_timing``, to time.

    ``Event(enable_timing=False, blocking=False)`` gives a `torch.Event` of this device.

    >>> start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    >>> start.record(); y = x + x; end.record(); end.synchronize()
    >>> milliseconds = start.elapsed_time(end)  # modelled time of the card
    """


def _wrap(stream: torch.Stream) -> Stream:
    return Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


@functools.cache
def _device_type() -> int:
    """The number under which streams know their kind of device."""
    return torch.accelerator.current_stream().device_type


def current_stream(device: Device = None) -> Stream:
    """Return this thread's current stream on a device."""
    return _wrap(torch.accelerator.current_stream(device_index(device)))


def default_stream(device: Device = None) -> Stream:
    """Return a device's default stream, which has id 0."""
    return Stream(stream_id=0, device_index=device_index(device), device_type=_device_type())


def set_stream(stream: torch.Stream | None) -> None:
    """Make a stream this thread's current one on its device."""
    if stream is not None:
        if stream.device_type != _device_type():
            raise ValueError(f"expected a stream of a {DEVICE_NAME} device, got {stream}")
        _C.set_stream(stream.device_index, stream.stream_id)


def stream(stream: torch.Stream | None) -> contextlib.AbstractContextManager[Any]:
    """Return the stream, for use in a ``with`` block; None changes nothing."""
    return contextlib.nullcontext() if stream is None else stream
