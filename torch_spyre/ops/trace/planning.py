"""From an operation and the metas of its arguments to a plan, by tracing it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch

from torch_spyre import ir
from torch_spyre._inductor.graph import Buffer
from torch_spyre.ops.formats import card_format
from torch_spyre.ops.plan import (
    Argument,
    Bind,
    OutputSpec,
    Plan,
    ScalarMeta,
    Sizes,
    TensorMeta,
    UnsupportedError,
)
from torch_spyre.ops.trace import (  # noqa: F401 (they register)
    grid_sampling,
    indexing,
    launches,
    order,
    random_numbers,
    resampling,
    synchronised_norm,
    windows,
)
from torch_spyre.ops.trace.decompositions import DECOMPOSITIONS
from torch_spyre.ops.trace.leaves import LEAVES
from torch_spyre.ops.trace.tracer import Tracer, run_functional
from torch_spyre.ops.views import layout


def plan_traced(name: str, args: Sequence[Argument]) -> Plan:
    """Plan any aten operation ("aten::sum.dim_IntList") that has a form on the card."""
    # Whatever modes and defaults the caller has set: this is nobody's computation. Not by
    # torch.no_grad(): an interruption inside its __enter__ would leave gradients off for good.
    had_gradients = torch.is_grad_enabled()
    with torch._C.DisableTorchFunction():
        try:
            torch._C._set_grad_enabled(False)
            return _plan_with_or_without_rows(name, args)
        finally:
            torch._C._set_grad_enabled(had_gradients)


def _plan_with_or_without_rows(name: str, args: Sequence[Argument]) -> Plan:
    """Gather rows where that helps; plan once more without where it can't be done so."""
    planner = _Planner(name, args, may_gather_rows=True)
    try:
        return planner.plan()
    except RuntimeError as error:
        if not _is_unsupported(error):
            raise
        if not planner.tracer.gathers_rows:
            raise UnsupportedError(str(error)) from error
    try:
        return _Planner(name, args, may_gather_rows=False).plan()
    except RuntimeError as error:
        if _is_unsupported(error):
            raise UnsupportedError(str(error)) from error
        raise


def _is_unsupported(error: RuntimeError) -> bool:
    """Did a pass of the compiler give up? Its exception is only imported where it is raised."""
    module = sys.modules.get("torch_spyre._inductor.errors")
    return module is not None and isinstance(error, module.Unsupported)


@functools.cache
def operation(name: str) -> Any:
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


class _Planner:
    def __init__(self, name: str, args: Sequence[Argument], *, may_gather_rows: bool) -> None:
        self.func = operation(name)
        self.given = args
        self.tracer = Tracer(LEAVES, DECOMPOSITIONS, may_gather_rows)
        self.inputs: dict[int, tuple[TensorMeta, torch.Tensor]] = {}  # by argument number
        self.numbers: list[tuple[torch.Tensor, ScalarMeta]] = []
        self.read: set[int] = set()  # arguments that are not merely written

    def plan(self) -> Plan:
        schema = self.func._schema
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for argument, value in zip(schema.arguments, self.given, strict=True):
            made = self._value(argument, value)
            if isinstance(value, TensorMeta) and not argument.is_out:
                self.read.add(value.index)
            if argument.kwarg_only:
                keywords[argument.name] = made
            else:
                positional.append(made)
        is_writing = any(
            a.alias_info is not None and a.alias_info.is_write for a in schema.arguments
        )
        if is_writing:
            return self._plan_writing(positional, keywords)
        expected = self._expected(positional, keywords)
        with self.tracer:
            self._fill_numbers()
            results = self.func(*positional, **keywords)
        return self._finished(_flat(results), _flat(expected) if expected is not None else None)

    # ---- Arguments -----------------------------------------------------------------------------

    def _value(self, argument: Any, value: Any) -> Any:
        if isinstance(value, TensorMeta):
            return self._tensor(value)
        if isinstance(value, ScalarMeta):
            is_tensor = "Tensor" in str(argument.type)
            return self._number(value) if is_tensor else value.value
        if isinstance(value, tuple):
            return [self._value(argument, item) for item in value]
        if argument.name == "device":
            return torch.device("meta")
        if argument.name in ("pin_memory", "generator", "layout"):
            return None
        return value

    def _tensor(self, meta: TensorMeta) -> torch.Tensor:
        root = self.inputs.get(meta.alias if meta.alias >= 0 else meta.index)
        if root is not None and _is_same_view(root[0], meta):
            self.inputs[meta.index] = (root[0], root[1])
            return root[1]
        reach = (
            meta.offset
            + 1
            + sum((n - 1) * step for n, step in zip(meta.size, meta.stride, strict=True))
        )
        numel = max(meta.storage_numel, reach, 1)
        storage = torch.empty(numel, dtype=meta.dtype, device="meta")
        tensor = storage.as_strided(meta.size, meta.stride, meta.offset)
        is_first = meta.offset == 0 and all(step > 0 for step in meta.stride)
        buffer = Buffer(
            f"arg{meta.index}",
            meta.size if is_first else (numel,),
            meta.stride if is_first else (1,),
            meta.dtype,
            numel,
            is_input=True,
            storage=ir.Storage(meta.device_size, meta.stride_map, meta.storage_numel),
        )
        self.tracer.argument(tensor, buffer)
        self.inputs[meta.index] = (meta, tensor)
        return tensor

    def _number(self, meta: ScalarMeta) -> torch.Tensor:
        """A number where the schema has a tensor: one element, filled in the program."""
        dtype = torch.float32 if meta.dtype is torch.float64 else meta.dtype
        if meta.is_wrapped and meta.dtype.is_floating_point:
            dtype = torch.get_default_dtype()
        tensor = torch.empty((), dtype=dtype, device="meta")
        self.numbers.append((tensor, meta))
        return tensor

    def _fill_numbers(self) -> None:
        for tensor, meta in self.numbers:
            self.tracer.fill(tensor, meta.value)

    def _expected(self, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """What PyTorch says the results look like; None if it can't without data."""
        if self.func.name() in _FOREIGN:
            return None
        try:
            return self.func(*positional, **keywords)
        except NotImplementedError:
            return None
        except Exception as error:
            # The CPU gives PyTorch's own error, or knows better.
            raise UnsupportedError(str(error)) from error

    # ---- Results -------------------------------------------------------------------------------

    def _plan_writing(self, positional: list[Any], keywords: dict[str, Any]) -> Plan:
        """An operation in place, or with `out=`."""
        with self.tracer:
            self._fill_numbers()
            results, targets = run_functional(self.func, positional, keywords)
        is_out = any(argument.is_out for argument in self.func._schema.arguments)
        if is_out and any(a.dtype is not b.dtype for a, b in zip(results, targets, strict=True)):
            # Some operations cast to it, others compute in it, others refuse.
            raise UnsupportedError("`out=` of another dtype than the result")
        numbers = [self._argument_number(target) for target in targets]
        resizes = tuple(
            (number, tuple(result.shape))
            for number, target, result in zip(numbers, targets, results, strict=True)
            if result.shape != target.shape
        )
        if resizes:
            if not any(argument.is_out for argument in self.func._schema.arguments):
                raise UnsupportedError("a result of another shape than the tensor it replaces")
            return Plan((), tuple(numbers), resize=resizes)
        placed: dict[int, Bind] = {}
        for result, target, number in zip(results, targets, numbers, strict=True):
            if not torch.can_cast(result.dtype, target.dtype):
                raise UnsupportedError("a result that can't be cast to where it goes")
            if self._is_place_of(result, target, number) and id(result) not in placed:
                buffer = self.tracer.buffer(result)
                buffer.storage = self.tracer.buffer(target).storage
                buffer.is_laid_out = buffer.is_output = True
                placed[id(buffer)] = Bind("arg", number)
            elif target.numel() and result is not target:
                with self.tracer:
                    self.tracer.overwrite(target, result)
        return launches.finish(self.tracer, placed, tuple(numbers))

    def _is_place_of(self, result: torch.Tensor, target: torch.Tensor, number: int) -> bool:
        """Can the result be computed where it goes? Not if that is read, or seen otherwise."""
        meta = self.inputs[number][0]
        buffer = self.tracer.buffer(result)
        is_read = any(
            meta.index != other.index and _share(meta, other) for other, _ in self.inputs.values()
        )
        return (
            number not in self.read
            and not is_read
            and not buffer.is_input
            and buffer.dtype is target.dtype
            and (buffer.size, buffer.stride) == (tuple(target.shape), tuple(target.stride()))
            and tuple(result.stride()) == tuple(target.stride())
            and meta.offset == 0
            and meta.storage_numel == target.numel()
            and self.tracer.is_written(result)
        )

    def _argument_number(self, tensor: torch.Tensor) -> int:
        return min(index for index, (_, known) in self.inputs.items() if known is tensor)

    def _finished(
        self, results: Sequence[torch.Tensor | None], expected: Sequence[Any] | None
    ) -> Plan:
        outputs: list[OutputSpec | int | None] = []
        places: dict[int, Bind] = {}  # by the buffer's id
        for position, result in enumerate(results):
            if result is None:
                outputs.append(None)
                continue
            like = expected[position] if expected is not None else None
            final = self._own(result, like, places)
            buffer = self.tracer.buffer(final)
            buffer.is_output = True
            places[id(buffer)] = Bind("out", len(places))
            outputs.append(_output(buffer, tuple(final.shape), tuple(final.stride())))
        return launches.finish(self.tracer, places, tuple(outputs))

    def _own(
        self, result: torch.Tensor, like: torch.Tensor | None, made: dict[int, Bind]
    ) -> torch.Tensor:
        """The result as a tensor of its own, with the strides that PyTorch promises."""
        stride = tuple(like.stride()) if like is not None else tuple(result.stride())
        buffer = self.tracer.buffer(result)
        is_whole = (buffer.size, buffer.stride) == (tuple(result.shape), tuple(result.stride()))
        is_same = like is None or (like.dtype == result.dtype and stride == result.stride())
        if is_whole and is_same and not buffer.is_input and id(buffer) not in made:
            if not self.tracer.is_written(result):
                self.tracer.fill(result, 0)
            return result
        dtype = like.dtype if like is not None else result.dtype
        own = torch.empty_strided(result.shape, stride, dtype=dtype, device="meta")
        if own.untyped_storage().nbytes() != own.numel() * own.itemsize:
            own = torch.empty(result.shape, dtype=dtype, device="meta")
        return self.tracer.convert(result, own)


# What PyTorch says of their results is for CUDA, with its rules for strides and sizes.
_FOREIGN = frozenset(["aten::_scaled_mm", "aten::_scaled_mm_v2"])


def _output(buffer: Buffer, size: Sizes, stride: Sizes) -> OutputSpec:
    device_size, stride_map = layout(size, stride, buffer.dtype, tuple(range(len(size))))
    buffer.storage = ir.Storage(device_size, stride_map, max(buffer.numel, 1))
    buffer.is_laid_out = True
    return OutputSpec(
        size, stride, buffer.dtype, device_size, stride_map, card_format(buffer.dtype).value
    )


def _is_same_view(a: TensorMeta, b: TensorMeta) -> bool:
    return (a.size, a.stride, b.distance) == (b.size, b.stride, 0) and a.dtype is b.dtype


def _share(a: TensorMeta, b: TensorMeta) -> bool:
    roots = [meta.alias if meta.alias >= 0 else meta.index for meta in (a, b)]
    return roots[0] == roots[1]


def _flat(results: Any) -> list[Any]:
    return list(results) if isinstance(results, list | tuple) else [results]
