"""Runs one kernel alone, from the directory of its bundle, and checks it against the reference.

Arguments are handled as the card sees them: each is a run of sticks whose elements have no shape.
With random inputs every element is random, the padding too, so a kernel that lets padding into its
result does not pass. Where the directory also says how the model saw the arguments (`views.json`),
inputs may be given as tensors, and mismatches are named by their index in the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import torch

from torch_spyre import _C
from torch_spyre.backend.compile import compile_afresh
from torch_spyre.backend.kernel import ArgView, make_kernel
from torch_spyre.backend.reference import Memory, Reference
from torch_spyre.backend.reference_ops import RAW, SPACING, Array, narrow, widen
from torch_spyre.backend.spyrecode import SpyreCode
from torch_spyre.ir.bundle import Bundle, Execute, Node
from torch_spyre.ir.superdsc import FORMAT_BY_NUMBER, BundleError, DataFormat

VIEWS_FILE = "views.json"

# A dtype of the host in which a format's elements travel.
DTYPES = {
    DataFormat.SEN169_FP16: torch.float16,
    DataFormat.IEEE_FP32: torch.float32,
    DataFormat.SEN143_FP8: torch.float8_e4m3fn,
    DataFormat.SEN152_FP8: torch.float8_e5m2,
    DataFormat.SENINT8: torch.int8,
    DataFormat.SENINT16: torch.int16,
    DataFormat.IEEE_INT32: torch.int32,
    DataFormat.SENUINT32: torch.uint8,
}


class ReplayError(ValueError):
    """What was asked for can't be run: the message says why."""


# ---- What is run --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replay:
    """A bundle with its program, ready to run."""

    bundle: Bundle
    code: SpyreCode
    views: tuple[ArgView, ...] | None = None

    @classmethod
    def read(cls, directory: Path) -> Replay:
        """Compile the bundle of a directory, without any cache: it may have been edited."""
        if not directory.is_dir():
            raise ReplayError(f"{directory} is no directory; expected that of a bundle")
        bundle = Bundle.read(directory)
        views = read_views(directory)
        if views is not None and len(views) != len(bundle.args):
            raise BundleError(
                VIEWS_FILE, "", f"{len(views)} views for the {len(bundle.args)} arguments"
            )
        return cls(bundle, compile_afresh(bundle), views)

    def formats(self) -> list[DataFormat]:
        return [FORMAT_BY_NUMBER[arg.device_dtype] for arg in self.bundle.args]


def write_views(directory: Path, views: Sequence[ArgView]) -> None:
    """Put how the model sees the arguments beside a bundle."""
    text = msgspec.json.format(msgspec.json.encode(tuple(views)), indent=1)
    (directory / VIEWS_FILE).write_bytes(text + b"\n")


def read_views(directory: Path) -> tuple[ArgView, ...] | None:
    path = directory / VIEWS_FILE
    if not path.exists():
        return None
    try:
        views = msgspec.json.decode(path.read_bytes(), type=tuple[ArgView, ...])
    except msgspec.DecodeError as error:
        raise BundleError(VIEWS_FILE, "", str(error)) from None
    for number, view in enumerate(views):
        if not isinstance(getattr(torch, view.dtype, None), torch.dtype):
            raise BundleError(VIEWS_FILE, f"[{number}].dtype", f"'{view.dtype}' is no dtype")
    return views


# ---- Inputs -------------------------------------------------------------------------------------


def random_images(replay: Replay, seed: int) -> list[Array]:
    """The bytes of every argument, all elements random; indices name rows that exist."""
    generator = np.random.default_rng(seed)
    rows = dict(_index_arguments(replay.bundle))
    images = []
    for number, (arg, fmt) in enumerate(zip(replay.bundle.args, replay.formats(), strict=True)):
        count = arg.nbytes // fmt.nbytes
        if fmt.domain == "F":
            values: Array = generator.standard_normal(count)
        else:
            low, high = (0, rows[number]) if number in rows else (-8, 8)
            values = generator.integers(low, high, count)
        if fmt is DataFormat.SENUINT32:
            values = np.abs(values)
        images.append(narrow(values, fmt).view(np.uint8))
    return images


def _index_arguments(bundle: Bundle) -> Iterator[tuple[int, int]]:
    """Arguments that a gather takes as its index, with the rows of its table."""

    def executes(body: tuple[Node, ...]) -> Iterator[Execute]:
        for node in body:
            if isinstance(node, Execute):
                yield node
            else:
                yield from executes(node.body)

    for node in executes(bundle.body):
        dsc = bundle.sdscs[node.sdsc].dsc
        if dsc.computeOp_[0].opFuncName in ("gather", "gather_int"):
            (ranges,) = dsc.coordinateMasking_.values()
            address, rows = node.addresses[1], ranges[0].start_
            if address.base == "arg" and isinstance(rows, int):
                yield address.index, rows


_EXPECTED = "expected tensors by the names arg0, arg1, …, or a list of them"


def read_inputs(path: Path) -> dict[str, torch.Tensor]:
    """Tensors of a .pt or .npz file by name: arg0, arg1, … (a list counts from arg0)."""
    is_npz = path.suffix == ".npz"
    try:
        loaded = _read_npz(path) if is_npz else torch.load(path, "cpu", weights_only=True)
    except OSError as error:
        raise ReplayError(f"{path} can't be read: {error.strerror or first_line(error)}") from None
    except Exception as error:
        # Of torch only the kind: its message is a page that offers to trust the file.
        why = first_line(error) if is_npz else f"torch.load raises {type(error).__name__}"
        raise ReplayError(f"{path} holds no inputs: {why}; {_EXPECTED}") from None
    if isinstance(loaded, list | tuple):
        loaded = {f"arg{number}": value for number, value in enumerate(loaded)}
    if not isinstance(loaded, Mapping):
        kind = type(loaded).__name__
        raise ReplayError(f"{path} holds no inputs, but one object of type {kind}; {_EXPECTED}")
    for name, value in loaded.items():
        if not (isinstance(name, str) and isinstance(value, torch.Tensor)):
            kind = type(value).__name__
            raise ReplayError(f"{path} holds {name!r}, of type {kind}; {_EXPECTED}")
    return dict(loaded)


def _read_npz(path: Path) -> dict[str, torch.Tensor]:
    with np.load(path) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def first_line(error: BaseException) -> str:
    """Of another library's message; its name, if there is none."""
    return (str(error).splitlines() or [""])[0].rstrip(". ") or type(error).__name__


def put_inputs(replay: Replay, images: list[Array], inputs: Mapping[str, torch.Tensor]) -> None:
    """Write given tensors over the random bytes of their arguments."""
    for name, tensor in inputs.items():
        number = int(name[3:]) if name.startswith("arg") and name[3:].isdecimal() else -1
        if not 0 <= number < len(images):
            raise ReplayError(
                f"input '{name}': the kernel has arguments arg0 to arg{len(images) - 1}"
            )
        fmt = replay.formats()[number]
        raw = images[number].view(RAW[fmt])
        values = _values(name, tensor, torch.float64 if fmt.domain == "F" else torch.int64)
        if replay.views is None:
            if values.size != raw.size:
                raise ReplayError(
                    f"input '{name}' has {values.size} elements, the argument {raw.size} on the "
                    f"card, padding included; there is no {VIEWS_FILE} that tells its shape"
                )
            raw[:] = narrow(values.reshape(-1), fmt)
            continue
        view = replay.views[number]
        if tuple(values.shape) != view.size:
            raise ReplayError(f"input '{name}' is {tuple(values.shape)}, expected {view.size}")
        raw[device_offsets(view)] = narrow(values, fmt)


def _values(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> Array:
    try:
        return tensor.detach().to(dtype).numpy()
    except (RuntimeError, TypeError) as error:  # sparse, quantised, without memory
        raise ReplayError(f"input '{name}' is no plain tensor: {first_line(error)}") from None


def device_offsets(view: ArgView) -> Array:
    """Where each element of a view is, in elements of its argument; of the view's shape."""
    layout = _C.SpyreTensorLayout(
        view.device_size, view.stride_map, _C.get_device_dtype(getattr(torch, view.dtype))
    )
    host: Array = np.zeros([1] * len(view.size), np.int64)
    for dim, (size, stride) in enumerate(zip(view.size, view.stride, strict=True)):
        shape = [1] * len(view.size)
        shape[dim] = size
        host = host + (np.arange(size) * stride).reshape(shape)
    places = sorted(
        (
            (stride, step)
            for stride, size, step in zip(
                layout.stride_map, layout.device_size, layout.device_strides, strict=True
            )
            if stride > 0 and size > 1
        ),
        reverse=True,
    )
    device = np.zeros_like(host)
    for stride, step in places:
        device, host = device + host // stride * step, host % stride
    return device


# ---- Runs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What came of a run on the card: the arguments after it, and its figures."""

    tensors: list[torch.Tensor]  # flat, in the order of the card
    nanoseconds: int  # of one launch, on the card's clock
    bytes_read: int
    bytes_written: int


def run_on_card(
    replay: Replay, images: Sequence[Array], extents: Sequence[int], repeat: int = 1
) -> Run:
    """Launch the kernel on fresh memory; repeated launches each start from the same bytes."""
    kernel = make_kernel(replay.code, _flat_views(replay), "replay")
    tensors = [_flat_tensor(i, fmt) for i, fmt in zip(images, replay.formats(), strict=True)]
    originals = [tensor.clone() for tensor in tensors] if repeat > 1 else []
    _C.synchronize(-1)
    for round_ in range(repeat):
        for tensor, original in zip(tensors, originals, strict=False):
            if round_:
                tensor.copy_(original)
        _C.synchronize(-1)
        start, before = _C.now(0), _C.counters(0)
        kernel.launch(tensors, extents)
        _C.synchronize(-1)
        after, elapsed = _C.counters(0), _C.now(0) - start
    return Run(
        tensors,
        elapsed,
        after["bytes_read"] - before["bytes_read"],
        after["bytes_written"] - before["bytes_written"],
    )


def _flat_views(replay: Replay) -> list[ArgView]:
    views = []
    for arg, fmt in zip(replay.bundle.args, replay.formats(), strict=True):
        count = arg.nbytes // fmt.nbytes
        dtype = str(DTYPES[fmt]).removeprefix("torch.")
        views.append(
            ArgView((count,), (1,), dtype, (count // fmt.lanes, fmt.lanes), (fmt.lanes, 1))
        )
    return views


def _flat_tensor(image: Array, fmt: DataFormat) -> torch.Tensor:
    """A vector whose elements lie on the card in the order of the image."""
    values = torch.from_numpy(widen(image.view(RAW[fmt]), fmt))
    count = values.numel()
    tensor = _C.empty_strided_with_layout(
        (count,), (1,), DTYPES[fmt], 0, (count // fmt.lanes, fmt.lanes), (fmt.lanes, 1)
    )
    # Converted on the card: on the way from the host, float16 would lose bits of small numbers.
    tensor.copy_(values.to(torch.float32 if fmt.domain == "F" else torch.int32).to("spyre"))
    return tensor


def read_back(tensor: torch.Tensor, fmt: DataFormat, wanted: Array) -> Array:
    """The elements of a flat tensor in double precision or int64; zeros where none are wanted.

    Lanes that nobody wants may hold nothing, and a checked card objects to reading those: sticks
    in a row that are filled alike are read together, and no further than they are filled.
    """
    sticks = tensor.to(torch.float32 if fmt.domain == "F" else torch.int32).view(-1, fmt.lanes)
    lanes = wanted.reshape(-1, fmt.lanes)
    filled = np.where(lanes, np.arange(1, fmt.lanes + 1), 0).max(axis=1, initial=0)
    values = np.zeros(lanes.shape, np.float64 if fmt.domain == "F" else np.int64)
    starts = np.flatnonzero(np.diff(filled, prepend=-1))
    for start, end in pairwise((*starts.tolist(), len(filled))):
        if count := int(filled[start]):
            values[start:end, :count] = sticks[start:end, :count].cpu().numpy()
    return values.reshape(-1)


def run_reference(replay: Replay, images: Sequence[Array], extents: Sequence[int]) -> Reference:
    """The same in numpy."""
    reference = Reference(replay.bundle, [Memory.of(image) for image in images], extents)
    reference.run()
    return reference


# ---- Comparison ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """An argument after both runs. `worst` counts spacings of the format's numbers."""

    argument: int
    elements: int  # that the kernel wrote
    mismatches: int
    worst: float
    first: str  # the first mismatch, for people


def compare(replay: Replay, run: Run, reference: Reference, tolerance: float) -> list[Comparison]:
    """Every argument that is written, where the reference wrote it.

    Integers must be equal. A float may be off by `tolerance` spacings of its format, of a number as
    large as the expected one or as is typical of the argument: an order of summation, an elementary
    function may round another way. Infinity and NaN are one symbol on the card.
    """
    found = []
    for number, (arg, fmt) in enumerate(zip(replay.bundle.args, replay.formats(), strict=True)):
        if not arg.is_written:
            continue
        memory = reference.arguments[number]
        written = memory.is_written.reshape(-1, fmt.nbytes)[:, 0]
        wanted = widen(memory.data.view(RAW[fmt]), fmt)
        got = read_back(run.tensors[number], fmt, written)
        units = _distance(got, wanted, written, fmt)
        wrong = units > (tolerance if fmt.domain == "F" else 0)
        first = ""
        if wrong.any():
            at = int(np.argmax(wrong))
            first = f"{_place(replay, number, at)}: {got[at]:.6g}, expected {wanted[at]:.6g}"
        worst = float(units.max(initial=0.0))
        found.append(Comparison(number, int(written.sum()), int(wrong.sum()), worst, first))
    return found


def _distance(got: Array, wanted: Array, written: Array, fmt: DataFormat) -> Array:
    if fmt.domain == "I":
        return np.where(written & (got != wanted), np.inf, 0.0)
    is_number = written & np.isfinite(wanted) & np.isfinite(got)
    typical = float(np.median(np.abs(wanted[is_number]))) if is_number.any() else 0.0
    # Sums in float32 differ by their order: by more than a spacing, if that is the result's own.
    slack = 64.0 if fmt is DataFormat.IEEE_FP32 else 1.0
    scale = np.maximum(np.abs(wanted), typical) * SPACING[fmt] * slack
    with np.errstate(invalid="ignore", divide="ignore"):
        units = np.where(got == wanted, 0.0, np.abs(got - wanted) / np.maximum(scale, 1e-45))
    is_symbol = np.where(np.isfinite(got) == np.isfinite(wanted), 0.0, np.inf)
    return np.where(written, np.where(is_number, units, is_symbol), 0.0)


def _place(replay: Replay, number: int, element: int) -> str:
    if replay.views is not None:
        found = np.argwhere(device_offsets(replay.views[number]) == element)
        if found.size:
            return f"arg{number}[{', '.join(map(str, found[0]))}]"
    fmt = replay.formats()[number]
    return f"arg{number}, stick {element // fmt.lanes}, lane {element % fmt.lanes}"
