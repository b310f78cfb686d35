"""Finding and reading what processes publish: a file each, laid out by `csrc/card/telemetry.h`.

A file is read with `pread`, not mapped: one that shrinks while it is looked at is then a short
read, not a SIGBUS. Whatever is not what it claims to be is left out without a word; a file whose
process is gone is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = Path("/dev/shm")
MAGIC, VERSION, CARDS = b"SPYRESMI", 1, 8
FAULTS = ("dma", "ecc", "core hang", "card lost", "internal", "check failed", "index")

_NAME = re.compile(r"torch-spyre\.(\d{1,20})\.(\d{1,10})\.(\d{1,20})")
_HEADER = struct.Struct("=8sIIq168s")
_CARD = struct.Struct("=19q40x")


@dataclass(frozen=True)
class Reading:
    """The words of one card, in their order in memory: gauges, then counters since it opened."""

    is_open: int = 0
    fault: int = 0
    memory_total: int = 0
    memory_used: int = 0
    memory_reserved: int = 0
    clock: int = 0
    launches: int = 0
    transfers: int = 0
    bytes_to_card: int = 0
    bytes_to_host: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    pt_busy: int = 0
    sfp_busy: int = 0
    memory_busy: int = 0
    lx_busy: int = 0
    compute_busy: int = 0
    to_card_busy: int = 0
    to_host_busy: int = 0

    @property
    def fault_name(self) -> str | None:
        """What went wrong on the card, until it is reset."""
        if self.fault == 0:
            return None
        return FAULTS[self.fault - 1] if 0 < self.fault <= len(FAULTS) else "unknown"


@dataclass(frozen=True)
class Process:
    """A process that has opened cards, and what it has published of each."""

    pid: int
    start: int  # ticks since the host started; with the pid, a name that is never given again
    command: str
    opened: float  # seconds since the epoch
    cards: dict[int, Reading]


def processes(directory: Path | None = None) -> list[Process]:
    """Every process that publishes here and may be looked at, in the order of their numbers.

    Raises `OSError` if the directory itself can't be read.
    """
    directory = directory or DIRECTORY
    found = []
    for name in os.listdir(directory):
        match = _NAME.fullmatch(name)
        # A process of another namespace has a number that means somebody else here.
        if match is None or int(match[1]) != _pid_namespace():
            continue
        pid, start = int(match[2]), int(match[3])
        if start_time(pid) != start:
            with contextlib.suppress(OSError):  # another user's, or already gone
                os.unlink(directory / name)
            continue
        content = _content(directory / name, pid)
        process = content and _parsed(content, pid, start)
        if process:
            found.append(process)
    return sorted(found, key=lambda process: (process.pid, process.start))


def start_time(pid: int) -> int | None:
    """When a process started, in ticks; None if it is gone, or only a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name in brackets may hold spaces and brackets itself.
    fields = text[text.rfind(b")") + 1 :].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _content(path: Path, pid: int) -> bytes | None:
    """The bytes of a page, if it is a file that belongs to the process in its name."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # another user's, or gone by now
        return None
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.stat(f"/proc/{pid}").st_uid:
            return None
        return os.pread(descriptor, _HEADER.size + CARDS * _CARD.size, 0)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _parsed(content: bytes, pid: int, start: int) -> Process | None:
    if len(content) < _HEADER.size + CARDS * _CARD.size:
        return None
    magic, version, cards, opened, command = _HEADER.unpack_from(content)
    if (magic, version, cards) != (MAGIC, VERSION, CARDS):
        return None
    words = _CARD.iter_unpack(content[_HEADER.size :])
    readings = {card: Reading(*reading) for card, reading in enumerate(words) if reading[0] == 1}
    return Process(pid, start, _command(command), opened / 1e9, readings)


def _command(arguments: bytes) -> str:
    """A command line as a terminal may show it: one line, and nothing that steers the terminal."""
    is_cut = not arguments.endswith(b"\0")
    program, *others = arguments.rstrip(b"\0").decode(errors="replace").split("\0")
    line = " ".join(" ".join([os.path.basename(program), *others]).split())
    return "".join(c if c.isprintable() else "?" for c in line) + ("…" if is_cut else "")
