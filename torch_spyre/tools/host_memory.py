"""How much of the host's memory work takes beyond the card.

The software card's memory is memory of this process, so a plain look at the process says little.
What counts is what the process holds besides: tensors on the host, buffers, what the heap keeps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from torch_spyre.device.management import init, synchronize
from torch_spyre.device.memory import memory_allocated

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_STATUS = Path("/proc/self/status")
_INTERVAL = 0.001  # seconds


@dataclass(frozen=True)
class HostMemory:
    """Bytes that a piece of work took, as peaks over its start; `card` is what it left there.

    `own` is memory that only this process holds (anonymous and shared), less what tensors occupy
    on the card at the same moment. `files` are pages of mapped files: the kernel drops them when
    somebody else needs the memory.
    """

    own: int
    files: int
    card: int

    @property
    def ratio(self) -> float:
        """Own memory beyond the card, as a part of what went to the card."""
        return self.own / max(self.card, 1)


def measure_host_memory(
    work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> tuple[Result, HostMemory]:
    """Call a function; its result, and the host memory that it took beyond the current card.

    A thread looks every millisecond, so a peak that is shorter may be missed. What the first call
    of anything imports counts too: import it before.
    """
    init()
    before, card_before = _held(), memory_allocated()
    own = files = 0
    is_done = threading.Event()

    def look() -> None:
        nonlocal own, files
        # The card first: a tensor that is made in between then counts against us.
        card = memory_allocated() - card_before
        held = _held()
        own = max(own, held.own - before.own - card)
        files = max(files, held.files - before.files)

    def watch() -> None:
        while not is_done.wait(_INTERVAL):
            look()

    watcher = threading.Thread(target=watch, name="host memory", daemon=True)
    watcher.start()
    try:
        result = work(*args, **kwargs)
        synchronize()
        look()
    finally:
        is_done.set()
        watcher.join()
    return result, HostMemory(own, files, memory_allocated() - card_before)


@dataclass(frozen=True)
class _Held:
    own: int
    files: int


def _held() -> _Held:
    """What the process has in memory now, as Linux counts it."""
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines() if "\t" in line)
    kib = {name: int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem", "RssFile")}
    return _Held((kib["RssAnon"] + kib["RssShmem"]) * 1024, kib["RssFile"] * 1024)
