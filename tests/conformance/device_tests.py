"""Device-generic tests as templates over op_db; `device_tests.toml` says which ones run.

A template yields calls: a variant, and the inputs for it. Everything else is as for plain samples.
"""

from __future__ import annotations

import functools
import itertools
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch.testing import make_tensor
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo
from torch.utils import _pytree

from tests.conformance.samples import DTYPES, Inputs, dtypes_of, inputs_of, operations, spread
from tests.conformance.variants import Variant, functional, inplace_of

Calls = Iterator[tuple[Variant, Inputs]]

_FILE = Path(__file__).with_name("device_tests.toml")


# ---- Templates ----------------------------------------------------------------------------------


def _inside(tensor: torch.Tensor) -> torch.Tensor:
    """The same values amid a larger tensor."""
    around = tensor.new_ones([n + 3 for n in tensor.shape])
    inside = around[tuple(slice(1, n + 1) for n in tensor.shape)]
    return inside.copy_(tensor)


def _turned(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with the dimensions in reverse order in memory."""
    order = tuple(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def _viewed(view: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Inputs], Inputs]:
    def apply(value: Any) -> Any:
        is_dense = isinstance(value, torch.Tensor) and value.layout is torch.strided
        return view(value) if is_dense and value.dim() > 0 else value

    return lambda inputs: inputs.map(apply)


def _views(op: OpInfo, dtype: str, samples: int) -> Calls:
    """Arguments and in-place targets that are parts of larger tensors, or turned around."""
    for inputs in inputs_of(op.full_name, dtype, samples):
        for name, view in (("inside", _inside), ("turned", _turned)):
            yield Variant(name, functional(op), _viewed(view)), inputs
            if op.get_inplace() is not None:
                yield Variant(f"{name} in place", inplace_of(op), _viewed(view)), inputs


def _weights(result: torch.Tensor) -> torch.Tensor:
    """A gradient to start from that tells elements apart."""
    numbers = torch.linspace(0.5, 1.5, result.numel(), dtype=result.dtype)
    return numbers.reshape(result.shape).to(result.device)


def _gradients(op: OpInfo, dtype: str, samples: int) -> Calls:
    """The gradients of all differentiable arguments."""

    def call(inputs: Inputs, _: Any) -> Any:
        leaves = [tensor for tensor in inputs.tensors() if tensor.requires_grad]
        with torch.enable_grad():
            result = inputs.finish(op.op(*inputs.args, **inputs.kwargs))
            results = [x for x in _pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
            results = [x for x in results if x.requires_grad]
            starts = [_weights(each) for each in results]
            return torch.autograd.grad(results, leaves, starts, allow_unused=True)

    for inputs in inputs_of(op.full_name, dtype, samples, requires_grad=True):
        yield Variant("gradient", call), inputs


def clear_faults() -> None:
    """A fault of the card stays until a reset, and would be charged to the next call."""
    try:
        torch.spyre.synchronize()
    except Exception:
        torch.spyre.reset()


def _raised(call: Callable[[], Any], pattern: str) -> tuple[str, bool]:
    """The type of the exception that a call raises, and whether its text is as announced.

    An index out of range is a fault of the card, which the next synchronising call raises in words
    of its own.
    """
    try:
        call()
        torch.spyre.synchronize()
    except Exception as error:
        if re.search("out of (range|bounds)", str(error)):
            clear_faults()
            return "an index out of range", True
        return type(error).__name__, re.search(pattern, str(error)) is not None
    return "nothing", False


def _errors(op: OpInfo, dtype: str, samples: int) -> Calls:
    """Wrong calls raise what they raise on the CPU."""
    for wrong in spread(list(op.error_inputs("cpu")), samples):
        sample, pattern = wrong.sample_input, wrong.error_regex

        def call(inputs: Inputs, _: Any, pattern: str = pattern) -> Any:
            return _raised(lambda: op.op(*inputs.args, **inputs.kwargs), pattern)

        inputs = Inputs((sample.input, *sample.args), dict(sample.kwargs))
        if any(tensor.device.type != "cpu" for tensor in inputs.tensors()):
            continue  # about mixed devices
        for out in _pytree.tree_leaves(inputs.kwargs.get("out")):
            if isinstance(out, torch.Tensor):
                out.zero_()  # what an empty one holds may not fit 32 bits
        yield Variant("error", call), inputs


_PARTNERS = (*DTYPES.values(), torch.bfloat16, torch.int64, torch.int8, torch.uint8)


def _promotion(op: OpInfo, dtype: str, _: int) -> Calls:
    """Two operands of different dtypes; one of them a number or without dimensions."""
    first = make_tensor((3, 5), dtype=DTYPES[dtype], device="cpu", low=1, high=5)
    for partner in _PARTNERS:
        for shape in ((3, 5), ()):
            second = make_tensor(shape, dtype=partner, device="cpu", low=1, high=5)
            yield Variant(f"with {partner}", functional(op)), Inputs((first, second), {}).held()
            yield Variant(f"after {partner}", functional(op)), Inputs((second, first), {}).held()
    for number in (2, 2.5, True):
        yield Variant(f"with {number}", functional(op)), Inputs((first, number), {}).held()


_SHAPES = (
    ((5, 1), (6,)),
    ((1,), (4, 3)),
    ((2, 1, 3), (4, 1)),
    ((0, 3), (1, 3)),
    ((), (70,)),
    ((2, 70, 1), (1, 1, 65)),
)


def _broadcasting(op: OpInfo, dtype: str, samples: int) -> Calls:
    """Operands of different shapes, both ways round and in place."""
    pairs = itertools.chain(_SHAPES, (pair[::-1] for pair in _SHAPES))
    for shapes in itertools.islice(pairs, samples):
        operands = tuple(
            make_tensor(shape, dtype=DTYPES[dtype], device="cpu", low=1, high=5) for shape in shapes
        )
        yield Variant("broadcast", functional(op)), Inputs(operands, {}).held()
        if op.get_inplace() is not None:
            yield Variant("broadcast in place", inplace_of(op)), Inputs(operands, {}).held()


def _out_dtypes(op: OpInfo, dtype: str, samples: int) -> Calls:
    """`out=` of another dtype: converted, or refused as on the CPU."""

    def into(to: torch.dtype) -> Callable[[Inputs, Any], Any]:
        def call(inputs: Inputs, like: Any) -> Any:
            device = next((t.device for t in inputs.tensors()), torch.device("cpu"))
            out = torch.ones(like.shape, dtype=to).to(device)
            try:
                return op.op(*inputs.args, **inputs.kwargs, out=out)
            except RuntimeError:
                return "RuntimeError"

        return call

    for inputs in inputs_of(op.full_name, dtype, samples):
        for to in (torch.float32, torch.int64, torch.bool):
            yield Variant(f"out of {to}", into(to)), inputs


def _is_binary(op: OpInfo) -> bool:
    return isinstance(op, BinaryUfuncInfo)


@dataclass(frozen=True)
class Template:
    """The calls that it makes, and the entries that it makes sense for."""

    calls: Callable[[OpInfo, str, int], Calls]
    applies: Callable[[OpInfo], bool] = lambda _: True


TEMPLATES = {
    "views": Template(_views),
    "gradients": Template(_gradients, lambda op: op.supports_autograd),
    "errors": Template(_errors, lambda op: op.error_inputs_func is not None),
    "promotion": Template(_promotion, _is_binary),
    "broadcasting": Template(_broadcasting, _is_binary),
    "out_dtypes": Template(_out_dtypes, lambda op: op.supports_out),
}


# ---- The file -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeviceTest:
    """A template and where it runs."""

    template: str
    dtypes: tuple[str, ...]
    samples: int
    ops: tuple[str, ...] = ("*",)
    exceptions: dict[str, str] = field(default_factory=dict)  # entry: reason


@functools.cache
def device_tests() -> dict[str, DeviceTest]:
    """The file, read, by template."""
    made = {}
    for test in tomllib.loads(_FILE.read_text())["test"]:
        exceptions = {each["op"]: each["reason"] for each in test.get("except", [])}
        made[test["template"]] = DeviceTest(
            test["template"],
            tuple(test["dtypes"]),
            test["samples"],
            tuple(test.get("ops", ["*"])),
            exceptions,
        )
    return made


def _runs(test: DeviceTest, name: str) -> bool:
    is_named = any(fnmatchcase(name, op) for op in test.ops) and name not in test.exceptions
    return is_named and TEMPLATES[test.template].applies(operations()[name])


def columns_of(name: str) -> list[str]:
    """The columns of an entry beside those of its dtypes: "gradients float32"."""
    return [
        f"{test.template} {dtype}"
        for test in device_tests().values()
        if _runs(test, name)
        for dtype in test.dtypes
        if dtype in dtypes_of(name)
    ]


def calls(name: str, column: str) -> Calls:
    """The calls of such a column."""
    template, dtype = column.split()
    test = device_tests()[template]
    return TEMPLATES[template].calls(operations()[name], dtype, test.samples)
