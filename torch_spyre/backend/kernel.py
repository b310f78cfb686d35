"""A kernel with the views of its arguments: as text for generated code, and ready to launch."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import msgspec
import torch

from torch_spyre import _C
from torch_spyre.backend.spyrecode import SpyreCode
from torch_spyre.ir.bundle import Bundle


class ArgView(msgspec.Struct, frozen=True):
    """What the compiler knew of a kernel's argument: a strided view from element 0 of a storage.

    Where a tensor really starts is found out at each launch. `nbytes` and `is_written` are those
    of the bundle's argument.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str  # "float16"
    device_size: tuple[int, ...]
    stride_map: tuple[int, ...]


class _Serialized(msgspec.Struct, frozen=True):
    bundle: bytes
    views: tuple[ArgView, ...]


def serialize_kernel(bundle: Bundle, views: Sequence[ArgView]) -> str:
    """A kernel as text for generated code: ASCII, without quotes or line breaks."""
    if len(views) != len(bundle.args):
        raise ValueError(f"{len(views)} views for a bundle of {len(bundle.args)} arguments")
    data = msgspec.msgpack.encode(_Serialized(bundle.pack(), tuple(views)))
    return base64.b85encode(data).decode()


def deserialize_kernel(serialized: str | bytes) -> tuple[Bundle, tuple[ArgView, ...]]:
    """The bundle and the views in a text of `serialize_kernel`."""
    data = msgspec.msgpack.decode(base64.b85decode(serialized), type=_Serialized)
    return Bundle.unpack(data.bundle), data.views


def make_kernel(code: SpyreCode, views: Sequence[ArgView], name: str) -> _C.Kernel:
    """A kernel that can be launched, of its SpyreCode."""
    manifest = code.manifest
    if len(views) != len(manifest.arguments):
        raise ValueError(
            f"kernel {name}: {len(views)} views for {len(manifest.arguments)} arguments"
        )
    return _C.Kernel(
        program=code.program,
        views=[
            _C.ArgView(
                size=view.size,
                stride=view.stride,
                dtype=getattr(torch, view.dtype),
                device_size=view.device_size,
                stride_map=view.stride_map,
                is_written=argument.is_written,
                nbytes=argument.nbytes,
            )
            for view, argument in zip(views, manifest.arguments, strict=True)
        ],
        pool_bytes=manifest.pool_bytes,
        extents=len(manifest.extents),
        name=name,
        steps=[(step.op, list(step.buffers), step.source) for step in manifest.steps],
    )
