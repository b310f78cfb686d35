"""The bundle: everything that crosses from the compiler to the back end.

SuperDSCs, the loop program that runs them, and what a launch binds. In memory it is these structs;
on disk a directory:

    sdsc_<n>.json   one operation each
    bundle.mlir     arguments, loops, and the addresses that each operation is given
    debug.json      where the operations come from; no part of the bundle's identity

`Bundle.read(directory)` after `bundle.write(directory)` gives an equal bundle, so a directory
edited by hand can be run in place of the compiler's.
"""

from __future__ import annotations

import functools
import hashlib
import zlib
from pathlib import Path, PurePath
from typing import Literal, TypeAlias

import msgspec

from .spec import KernelArg, Origin
from .superdsc import BundleError, SuperDSC, from_json, to_json

MLIR_FILE = "bundle.mlir"
DEBUG_FILE = "debug.json"


class Address(msgspec.Struct, frozen=True):
    """What the start addresses of one tensor are relative to, for an iteration of the loops.

    `arg`: the kernel argument `index`; `pool`: the pool; `lx`: each core's own scratchpad.
    """

    base: Literal["arg", "pool", "lx"]
    index: int = 0
    loop_bytes: tuple[int, ...] = ()  # one per enclosing loop, outermost first


class Execute(msgspec.Struct, frozen=True, tag="execute"):
    """Run a SuperDSC with an address for each of its tensors, in the order of `labeledDs_`."""

    sdsc: int
    addresses: tuple[Address, ...]


class For(msgspec.Struct, frozen=True, tag="for"):
    """Run a body `count` times."""

    count: int
    body: tuple[Execute | For, ...]


Node: TypeAlias = Execute | For


class _Identity(msgspec.Struct, frozen=True):
    """What makes two bundles the same kernel."""

    sdscs: tuple[SuperDSC, ...]
    body: tuple[Node, ...]
    args: tuple[KernelArg, ...]
    pool_bytes: int
    extents: tuple[int, ...]


class _Packed(msgspec.Struct, frozen=True):
    identity: _Identity
    origins: tuple[Origin, ...]


class Bundle(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A kernel. Equal if it does the same; origins (one per SuperDSC) do not count."""

    sdscs: tuple[SuperDSC, ...]
    body: tuple[Node, ...]
    args: tuple[KernelArg, ...]
    pool_bytes: int = 0
    extents: tuple[int, ...] = ()
    origins: tuple[Origin, ...] = ()

    @functools.cached_property
    def _content(self) -> bytes:
        return msgspec.msgpack.encode(self._identity)

    @property
    def _identity(self) -> _Identity:
        return _Identity(self.sdscs, self.body, self.args, self.pool_bytes, self.extents)

    @functools.cached_property
    def content_hash(self) -> str:
        """Hexadecimal; equal for equal bundles, in every process."""
        return hashlib.sha256(self._content).hexdigest()

    def __eq__(self, other: object) -> bool:
        return self._content == other._content if isinstance(other, Bundle) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._content)

    def origin(self, sdsc: int) -> Origin:
        """Where an operation comes from; an empty Origin if nothing is known."""
        return self.origins[sdsc] if sdsc < len(self.origins) else Origin()

    # ---- One string, for generated code ----------------------------------------------------------

    def pack(self) -> bytes:
        """The bundle and its origins in one compressed string."""
        return zlib.compress(msgspec.msgpack.encode(_Packed(self._identity, self.origins)), 6)

    @classmethod
    def unpack(cls, data: bytes) -> Bundle:
        try:
            packed = msgspec.msgpack.decode(zlib.decompress(data), type=_Packed)
        except (zlib.error, msgspec.DecodeError) as error:
            raise BundleError("packed bundle", "", f"damaged: {error}") from None
        same = packed.identity
        return cls(same.sdscs, same.body, same.args, same.pool_bytes, same.extents, packed.origins)

    # ---- A directory, for people -----------------------------------------------------------------

    def write(self, directory: str | Path) -> None:
        """Write the files; the directory is made if there is none."""
        from .bundle_mlir import print_bundle

        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        handles = [debug_handle(self.origin(i)) for i in range(len(self.sdscs))]
        for i, (sdsc, handle) in enumerate(zip(self.sdscs, handles, strict=True)):
            named = msgspec.structs.replace(sdsc, debug_handle_=handle)
            (folder / sdsc_file(i)).write_bytes(to_json(named))
        (folder / MLIR_FILE).write_text(print_bundle(self))
        table = {
            str(handle): _without_folders(self.origin(i))
            for i, handle in enumerate(handles)
            if handle
        }
        text = msgspec.json.format(msgspec.json.encode(table, order="sorted"), indent=2)
        (folder / DEBUG_FILE).write_bytes(text + b"\n")

    @classmethod
    def read(cls, directory: str | Path) -> Bundle:
        """Read a directory; raises BundleError that names the file and the place in it."""
        from .bundle_mlir import parse_bundle

        folder = Path(directory)
        program = parse_bundle(_bytes(folder, MLIR_FILE).decode(errors="replace"))
        origins = _read_origins(folder)
        sdscs, found = [], []
        for i in range(program.sdscs):
            sdsc = from_json(_bytes(folder, sdsc_file(i)), sdsc_file(i))
            found.append(origins.get(str(sdsc.debug_handle_), Origin()))
            sdscs.append(msgspec.structs.replace(sdsc, debug_handle_=0))
        return cls(
            tuple(sdscs),
            program.body,
            program.args,
            program.pool_bytes,
            program.extents,
            tuple(found),
        )


def sdsc_file(number: int) -> str:
    """The name of the file that holds a SuperDSC."""
    return f"sdsc_{number}.json"


def debug_handle(origin: Origin) -> int:
    """A stable number for an origin, which does not depend on where a source tree lies; 0: none."""
    if origin == Origin():
        return 0
    digest = hashlib.sha256(msgspec.json.encode(_without_folders(origin))).digest()
    return int.from_bytes(digest[:6], "little") | 1


def _without_folders(origin: Origin) -> Origin:
    """No absolute path: it would tell about the machine, and differ between two of them."""
    path = PurePath(origin.file)
    name = path.name if path.is_absolute() else origin.file
    return msgspec.structs.replace(origin, file=name)


def _bytes(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise BundleError(
            name, "", f"can't be read: {error.strerror}; is {folder} the directory of a bundle?"
        ) from None


def _read_origins(folder: Path) -> dict[str, Origin]:
    """An absent side file costs nothing but the origins."""
    if not (folder / DEBUG_FILE).exists():
        return {}
    try:
        return msgspec.json.decode(_bytes(folder, DEBUG_FILE), type=dict[str, Origin])
    except msgspec.DecodeError as error:
        raise BundleError(DEBUG_FILE, "", str(error)) from None
