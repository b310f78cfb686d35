"""The SpyreCode of kernels that were compiled before, on disk, beside Inductor's own caches.

A file is named by everything that its content depends on: the bundle, the version of the program
format, and the back end itself. So nothing in the cache is ever out of date; what can't be read is
warned about and compiled again.
"""

from __future__ import annotations

import functools
import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch_spyre
from torch_spyre import _C
from torch_spyre.backend import opcodes
from torch_spyre.backend import program as card_program
from torch_spyre.backend.spyrecode import VERSION, OtherVersionError, SpyreCode, SpyreCodeError

SUFFIX = ".spyrecode"


class SpyreCodeCacheWarning(UserWarning):
    """A file of the cache is of no use, or can't be written: kernels are compiled again."""


@functools.cache
def extension() -> str:
    """A hash of the C++ part of the package as it was built: the clock and the formats are in it.

    Of its bytes, in a few milliseconds: times of files are no use where an installer sets them.
    """
    with open(_C.__file__, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def back_end() -> str:
    """A hash of what turns bundles into programs: its sources, opcodes and formats."""
    package = Path(torch_spyre.__file__).parent
    digest = hashlib.sha256()
    for source in sorted([*package.glob("backend/*.py"), *package.glob("ir/*.py")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    digest.update(repr(sorted((op.name, op.value) for op in opcodes.by_name().values())).encode())
    digest.update(f"{VERSION} {card_program.VERSION} {extension()}".encode())
    return digest.hexdigest()


def key_of(bundle_hash: str) -> str:
    """The name under which a bundle's SpyreCode is kept."""
    return hashlib.sha256(f"{bundle_hash} {back_end()}".encode()).hexdigest()


@dataclass
class Statistics:
    """How often a kernel was found, and how often not."""

    hits: int = 0
    misses: int = 0


class SpyreCodeCache:
    """A directory of archives. Any number of processes may share it: files appear as a whole."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.statistics = Statistics()

    def path(self, key: str) -> Path:
        return self.directory / key[:2] / f"{key}{SUFFIX}"

    def load(self, key: str) -> SpyreCode | None:
        """What is kept under a key; None, with a warning where that is strange, if nothing is."""
        path = self.path(key)
        try:
            code = SpyreCode.read(path)
        except (FileNotFoundError, OtherVersionError):
            code = None
        except (SpyreCodeError, OSError) as error:
            _warn(f"{error}; the kernel is compiled again")
            code = None
        if code is None:
            self.statistics.misses += 1
        else:
            self.statistics.hits += 1
        return code

    def store(self, key: str, code: SpyreCode) -> None:
        """Keep a kernel; a disk that can't be written to costs time later, nothing else."""
        try:
            code.write(self.path(key))
        except OSError as error:
            _warn(f"the SpyreCode cache can't be written: {error}")


@functools.cache
def _cache_in(directory: str) -> SpyreCodeCache:
    return SpyreCodeCache(Path(directory))


def default_cache() -> SpyreCodeCache | None:
    """The cache under Inductor's directory; None if the user switched Inductor's caches off."""
    from torch._inductor import config
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    if config.force_disable_caches:
        return None
    return _cache_in(str(Path(cache_dir()) / "spyrecode"))


def _warn(message: str) -> None:
    warnings.warn(message, SpyreCodeCacheWarning, stacklevel=3)
