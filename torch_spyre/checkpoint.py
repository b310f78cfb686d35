"""Checkpoints in safetensors files, mapped: their tensors take no memory until they are read."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
# What the format allows at most: a longer header is none.
_LARGEST_HEADER = 100_000_000

AnyPath = str | os.PathLike[str]


class CheckpointError(RuntimeError):
    """A checkpoint can't be loaded. The message says what, where, why, and what to try."""

    def __init__(self, what: str, where: object, why: str, way_out: str) -> None:
        super().__init__(f"{what}\n  in  {where}\n  why {why}\n  try {way_out}")
        self.what, self.why, self.way_out = what, why, way_out


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint: a mapping of its file, and which file that is."""

    tensor: torch.Tensor
    file: Path


def open_checkpoint(path: AnyPath) -> dict[str, Stored]:
    """Map all tensors of a file, or of a directory as HuggingFace writes it, by name."""
    return {
        name: Stored(tensor, file)
        for file in checkpoint_files(Path(path))
        for name, tensor in _mapped(file).items()
    }


def _mapped(file: Path) -> dict[str, torch.Tensor]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError(
            "safetensors files are read with the package safetensors, which is not installed: "
            "pip install torch-spyre[models]"
        ) from error
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise _unreadable(file, str(error)) from None


# ---- Which files --------------------------------------------------------------------------------


def checkpoint_files(path: Path) -> list[Path]:
    """The safetensors files that a path stands for: itself, the shards of an index, or what a
    directory holds."""
    if path.is_dir():
        path = _in_directory(path)
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {path}; a checkpoint is a .safetensors file or a directory with one. "
            f"A model of a hub has to be downloaded first, or use "
            f'from_pretrained(..., device_map="spyre")'
        )
    return _shards(path) if path.suffix == ".json" else [path]


def _in_directory(directory: Path) -> Path:
    for name in (WHOLE, INDEX):
        if (directory / name).exists():
            return directory / name
    found = sorted(directory.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    if found:
        raise CheckpointError(
            "the directory holds several safetensors files and no index of them",
            directory,
            f"it is not clear which are meant: {_some(file.name for file in found)}",
            f"pass one of the files, or write {INDEX}",
        )
    there = _some(sorted(file.name for file in directory.iterdir())) or "nothing"
    raise FileNotFoundError(
        f"there is no {WHOLE} or {INDEX} in {directory}, which holds {there}; other formats can be "
        f'loaded with from_pretrained(..., device_map="spyre") or '
        f'torch.load(..., map_location="spyre")'
    )


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            "the index of a checkpoint can't be read",
            index,
            f"it is no JSON object with a 'weight_map' from tensors to files ({error})",
            "download or write the checkpoint again, or pass its .safetensors files one by one",
        ) from None
    files = [index.parent / name for name in names]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise FileNotFoundError(
            f"{index} names {len(files)} files, of which {len(missing)} are not there: "
            f"{_some(missing)}; download the checkpoint again"
        )
    return files


def _some(names: Any, most: int = 5) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")


# ---- Files that can't be read -------------------------------------------------------------------

# What a file begins with, what it then is, and what to do.
_KINDS: Sequence[tuple[bytes, str, str]] = (
    (
        b"version https://git-lfs",
        "it is a pointer of Git LFS, not the file it stands for",
        "git lfs pull, in the directory of the checkpoint",
    ),
    (
        b"PK\x03\x04",
        "it is a file of torch.save",
        'torch.load(path, map_location="spyre"), which loads it as it is',
    ),
    (b"GGUF", "it is a GGUF file", "from_pretrained(..., gguf_file=...) of transformers"),
)


def _unreadable(file: Path, reason: str) -> CheckpointError:
    """Why safetensors could not read a file, from a look at it."""
    with file.open("rb") as opened:
        start = opened.read(64)
        length = int.from_bytes(start[:8], "little")
        opened.seek(8)
        header = opened.read(length) if length <= _LARGEST_HEADER else b""
    for magic, kind, way_out in _KINDS:
        if start.startswith(magic):
            return CheckpointError("not a safetensors file", file, kind, way_out)
    again = "download or write the file again"
    size = file.stat().st_size
    if length > _LARGEST_HEADER:
        why = f"it begins with {start[:8]!r}, which is no length of a header"
        return CheckpointError("not a safetensors file", file, why, again)
    wanted = 8 + (_end_of_data(header) if len(header) == length else length)
    if size < wanted:
        why = f"it is truncated: it has {size:,} bytes, and its start speaks of {wanted:,} or more"
        return CheckpointError("a safetensors file is incomplete", file, why, again)
    return CheckpointError("a safetensors file can't be read", file, reason, again)


def _end_of_data(header: bytes) -> int:
    """Bytes of header and tensors, as the header tells; the header's alone if it is damaged."""
    try:
        entries = json.loads(header)
        ends = [entry["data_offsets"][1] for name, entry in entries.items() if name[:2] != "__"]
        return len(header) + max(ends, default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return len(header)
