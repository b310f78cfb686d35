"""SpyreCode: what the back end makes of a bundle, and what a card loads.

One archive per kernel, a zip file with two members that any tool opens:

| member | holds |
|---|---|
| `manifest.json` | versions, the bundle's hash, arguments, pool, extents, constants, steps |
| `program.bin` | the card program (`csrc/card/program.h`) |

The same bundle always gives the same bytes. A file of another version is recompiled, a damaged one
is an error that names it: the two have exceptions of their own.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from pathlib import Path

import msgspec

from torch_spyre.backend import program as card_program

VERSION = 1

_MANIFEST = "manifest.json"
_PROGRAM = "program.bin"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first date that a zip file knows: bytes must not tell the time


class SpyreCodeError(ValueError):
    """A file is no SpyreCode, or is damaged."""


class OtherVersionError(SpyreCodeError):
    """A SpyreCode of another version of torch_spyre: compile the bundle again."""


class Argument(msgspec.Struct, frozen=True):
    """A tensor that a launch binds: the bytes from its address on that the program relies on."""

    format: str  # a name of DataFormats
    nbytes: int
    is_written: bool


class StepInfo(msgspec.Struct, frozen=True):
    """A step of the program for people: its operation, and where that comes from."""

    op: str
    file: str = ""  # of the bundle: sdsc_3.json
    source: str = ""  # of the model: "model.py:41  y = x.relu()"
    buffers: tuple[str, ...] = ()  # names of its operands, in order, where they have any


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What has to be known to launch the program, and to talk about it."""

    version: int
    program_version: int
    program_sha256: str
    bundle: str  # content hash of what it was made from
    arguments: tuple[Argument, ...]
    pool_bytes: int
    extents: tuple[int, ...]  # the largest value of each
    constants: tuple[int, ...]  # 32-bit words
    steps: tuple[StepInfo, ...]


class SpyreCode(msgspec.Struct, frozen=True):
    """A compiled kernel: manifest and program."""

    manifest: Manifest
    program: bytes

    def encode(self) -> bytes:
        """The archive."""
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in (
                (_MANIFEST, msgspec.json.format(msgspec.json.encode(self.manifest), indent=1)),
                (_PROGRAM, self.program),
            ):
                entry = zipfile.ZipInfo(name, _EPOCH)
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, data, zipfile.ZIP_DEFLATED, compresslevel=1)
        return stream.getvalue()

    @classmethod
    def decode(cls, data: bytes, name: str = "SpyreCode") -> SpyreCode:
        """Reads an archive back; errors start with `name`."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                manifest = _read_manifest(archive.read(_MANIFEST), name)
                program = archive.read(_PROGRAM)
        except SpyreCodeError:
            raise
        except Exception as error:  # zipfile, zlib, struct and msgspec each have their own
            raise SpyreCodeError(f"{name} is damaged: {error}") from error
        if _sha256(program) != manifest.program_sha256:
            raise SpyreCodeError(f"{name} is damaged: {_PROGRAM} is not the one that was written")
        return cls(manifest, program)

    def write(self, path: Path) -> None:
        """Writes the archive; a reader sees the whole of it or nothing."""
        write_atomically(path, self.encode())

    @classmethod
    def read(cls, path: Path) -> SpyreCode:
        """Reads an archive; errors name the file."""
        return cls.decode(path.read_bytes(), str(path))


def make(
    program: card_program.Program,
    *,
    bundle: str,
    arguments: tuple[Argument, ...],
    pool_bytes: int,
    extents: tuple[int, ...],
    steps: tuple[StepInfo, ...],
) -> SpyreCode:
    """The SpyreCode of a lowered program; `bundle` is the hash of what it was lowered from."""
    encoded = card_program.encode(program)
    manifest = Manifest(
        version=VERSION,
        program_version=card_program.VERSION,
        program_sha256=_sha256(encoded),
        bundle=bundle,
        arguments=arguments,
        pool_bytes=pool_bytes,
        extents=extents,
        constants=program.constants,
        steps=steps,
    )
    return SpyreCode(manifest, encoded)


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file that others may read at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


class _Versions(msgspec.Struct):
    """The part of a manifest that all versions have."""

    version: int
    program_version: int


def _read_manifest(data: bytes, name: str) -> Manifest:
    versions = msgspec.json.decode(data, type=_Versions)
    if (versions.version, versions.program_version) != (VERSION, card_program.VERSION):
        raise OtherVersionError(
            f"{name} is SpyreCode {versions.version} with a program of version "
            f"{versions.program_version}; this is {VERSION} with {card_program.VERSION}: "
            "compile its bundle again"
        )
    return msgspec.json.decode(data, type=Manifest)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
