"""What an operation would return, and which errors it would raise, without data.

PyTorch's meta tensors would answer the same, but since most meta functions are Python, the first
one costs a second: it imports Dynamo. So shapes and strides follow PyTorch's rules here, and
dtypes and errors come from its CPU kernels, run on tensors without elements.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from torch_spyre.ops.formats import Kind, kind_of
from torch_spyre.ops.plan import Argument, ScalarMeta, Sizes, TensorMeta
from torch_spyre.ops.promotion import common_dtype
from torch_spyre.ops.registry import Generated, Overload, Pointwise
from torch_spyre.ops.views import contiguous_strides

# Operations that may write an expanded tensor.
_WRITES_REPEATED = ("fill", "zero", "masked_fill")


@dataclass(frozen=True)
class Result:
    """The tensor that an operation gives; for one that writes an argument, what that must be."""

    size: Sizes
    stride: Sizes
    dtype: torch.dtype


def infer(overload: Overload, arguments: Mapping[str, Argument]) -> Result:
    """The result of a call; raises what PyTorch would raise."""
    written = arguments[overload.written] if overload.written else None
    may_repeat = overload.entry.name in _WRITES_REPEATED
    if isinstance(written, TensorMeta) and has_repeats(written) and not may_repeat:
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            "single memory location. Please clone() the tensor before performing the operation."
        )
    if overload.entry.name == "arange":
        assert isinstance(written, TensorMeta)
        bounds = (arguments[name] for name in ("start", "end", "step"))
        length = _arange_length(written.dtype, *bounds)
        return Result((length,), (1,), written.dtype)

    is_in_place = overload.written == overload.arguments[0]
    inputs = [
        argument
        for name, argument in arguments.items()
        if isinstance(argument, TensorMeta) and (is_in_place or name != overload.written)
    ]
    size = broadcast([tensor.size for tensor in inputs])
    # So may `out=` not be resized if it is an operand, too.
    is_kept = is_in_place or any(_is_same(tensor, written) for tensor in inputs)
    if is_kept and isinstance(written, TensorMeta) and written.size != size:
        raise RuntimeError(
            f"output with shape {list(written.size)} doesn't match the broadcast shape {list(size)}"
        )
    dtype = _probe(overload, arguments, len(size)).dtype
    return Result(size, elementwise_strides(size, inputs), dtype)


def _is_same(tensor: TensorMeta, written: Argument) -> bool:
    """Whether an operand is the very view that is written."""
    if not isinstance(written, TensorMeta) or (tensor.alias, tensor.distance) != (
        written.alias,
        written.distance,
    ):
        return False
    return written.alias >= 0 and (tensor.size, tensor.stride) == (written.size, written.stride)


def has_repeats(tensor: TensorMeta) -> bool:
    """Whether one place in memory is several elements of the tensor."""
    dims = zip(tensor.size, tensor.stride, strict=True)
    return math.prod(tensor.size) > 0 and any(n > 1 and step == 0 for n, step in dims)


def broadcast(sizes: Sequence[Sizes]) -> Sizes:
    """The common shape, with PyTorch's words if there is none."""
    common: Sizes = ()
    for size in sizes:
        if size == common:
            continue
        rank = max(len(common), len(size))
        a = (1,) * (rank - len(common)) + common
        b = (1,) * (rank - len(size)) + size
        for dim, (m, n) in enumerate(zip(a, b, strict=True)):
            if m != n and m != 1 and n != 1:
                raise RuntimeError(
                    f"The size of tensor a ({m}) must match the size of tensor b ({n}) at "
                    f"non-singleton dimension {dim}"
                )
        common = tuple(n if m == 1 else m for m, n in zip(a, b, strict=True))
    return common


def elementwise_strides(size: Sizes, inputs: Sequence[TensorMeta]) -> Sizes:
    """Dense strides in the order of dimensions that the inputs have, the first one first.

    Inputs of one shape that are all contiguous keep what they are, whatever the strides of
    dimensions of one element. Else as TensorIterator orders them: from the innermost out, a
    dimension moves inwards past those that some input strides over in larger steps.
    """
    rank = len(size)
    if all(tensor.size == size and _is_contiguous(tensor) for tensor in inputs):
        return contiguous_strides(size)
    strides = []
    for tensor in inputs:
        missing = rank - len(tensor.size)
        padded = zip((1,) * missing + tensor.size, (0,) * missing + tensor.stride, strict=True)
        strides.append(
            tuple(
                step if n == wanted else 0 for (n, step), wanted in zip(padded, size, strict=True)
            )
        )

    def order(inner: int, outer: int) -> int:
        """1: the dimensions must change places; -1: they are in order; 0: nobody minds."""
        for stride in strides:
            if stride[inner] == 0 or stride[outer] == 0:
                continue
            if stride[inner] != stride[outer]:
                return 1 if stride[inner] > stride[outer] else -1
            if size[inner] > size[outer]:
                return 1
        return 0

    dims = list(reversed(range(rank)))  # innermost first
    for i in range(1, rank):
        moving = i
        for other in reversed(range(i)):
            comparison = order(dims[other], dims[moving])
            if comparison > 0:
                dims[other], dims[moving] = dims[moving], dims[other]
                moving = other
            elif comparison < 0:
                break
    return contiguous_strides(size, list(reversed(dims)))


def _is_contiguous(tensor: TensorMeta) -> bool:
    steps = zip(tensor.size, tensor.stride, contiguous_strides(tensor.size), strict=True)
    return all(n == 1 or step == dense for n, step, dense in steps)


# ---- The operation on no elements ---------------------------------------------------------------


@functools.cache
def _operation(name: str) -> torch._ops.OpOverload:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


@functools.cache
def _generator() -> torch.Generator:
    """A generator of our own: that of the CPU must not move."""
    return torch.Generator()


def _probe(overload: Overload, arguments: Mapping[str, Argument], rank: int) -> torch.Tensor:
    """Run the operation on CPU tensors that keep dtypes and 0-dimness, and have no elements.

    Random operations refuse dtypes only if they have an element to make.
    """
    number_dtype = None
    is_generated = isinstance(overload.entry, Generated)
    if isinstance(overload.entry, Pointwise):
        promoted = [arguments.get(name) for name in overload.entry.promoted]
        if any(argument is not None for argument in promoted):
            number_dtype = common_dtype(promoted)
    positional = []
    keywords = {}
    for name, argument in arguments.items():
        is_single = (
            is_generated
            or rank == 0
            or (isinstance(argument, TensorMeta) and not argument.size and name != overload.written)
        )
        if isinstance(argument, ScalarMeta) and name not in overload.entry.by_value:
            # The plan serves all values, so whether there is one must not depend on this one.
            argument = replace(argument, value=type(argument.value)(1))
        value = _probe_value(argument, name in overload.tensors, is_single, number_dtype)
        if name == "generator":
            value = _generator()
        if name in overload.keyword_only:
            keywords[name] = value
        else:
            positional.append(value)
    result: torch.Tensor = _operation(overload.name)(*positional, **keywords)
    return result


def _probe_value(
    argument: Argument, is_tensor: bool, is_single: bool, number_dtype: torch.dtype | None
) -> object:
    if isinstance(argument, TensorMeta):
        if is_single:
            return torch.ones((), dtype=torch.float32, device="cpu").to(argument.dtype)
        return torch.empty((0,), dtype=argument.dtype, device="cpu")
    if isinstance(argument, ScalarMeta):
        if not is_tensor:
            return argument.value
        # Python can't make the tensor of a wrapped number. With the dtype that all operands have
        # in common the stand-in doesn't change what they have in common; neither does a bool.
        is_kept = argument.dtype is torch.bool or not argument.is_wrapped
        dtype = argument.dtype if is_kept or number_dtype is None else number_dtype
        return torch.tensor(argument.value, dtype=dtype, device="cpu")
    return argument


def _arange_length(dtype: torch.dtype, start: Argument, end: Argument, step: Argument) -> int:
    first, last, by = (
        argument.value if isinstance(argument, ScalarMeta) else argument
        for argument in (start, end, step)
    )
    assert isinstance(first, int | float)
    assert isinstance(last, int | float)
    assert isinstance(by, int | float)
    if dtype is torch.bool:
        raise NotImplementedError("\"arange_cpu\" not implemented for 'Bool'")
    if not (by > 0 or by < 0):
        raise RuntimeError("step must be nonzero")
    if not (math.isfinite(first) and math.isfinite(last)):
        raise RuntimeError(f"unsupported range: {first} -> {last}")
    if (last - first) * by < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    if kind_of(dtype) is Kind.INT and math.isinf(by):
        raise RuntimeError("value cannot be converted to type int64_t without overflow")
    if dtype is torch.int64:
        first, last, by = int(first), int(last), int(by)
        if by == 0:
            raise ValueError("step must be nonzero")
    if not all(isinstance(number, int) for number in (first, last, by)):
        return math.ceil((last - first) / by)
    length = int(-((first - last) // by))
    if dtype is torch.int64 and length and not _fit_the_card(first, first + (length - 1) * by):
        raise OverflowError(
            f"arange from {first} to {last}: the card holds integers in 32 bits, "
            f"from {-(1 << 31)} to {(1 << 31) - 1}"
        )
    return length


def _fit_the_card(*numbers: float) -> bool:
    return all(-(1 << 31) <= number < 1 << 31 for number in numbers)
