"""The mode under which a decomposition runs, and what it knows of the tensors that go by."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_spyre._inductor.graph import Buffer, SpyreGraph
from torch_spyre.ops.compute import Computation
from torch_spyre.ops.emitter import Emitter
from torch_spyre.ops.formats import LARGEST, Kind, card_format, kind_of
from torch_spyre.ops.inference import infer
from torch_spyre.ops.plan import Argument, Bind, ScalarMeta, TensorMeta, UnsupportedError
from torch_spyre.ops.registry import Pointwise, overloads
from torch_spyre.ops.trace.emitter import GraphEmitter, word_number
from torch_spyre.ops.views import Value, View, Word, constant

# How often an operation may be part of itself: `where` of `where`, but not for ever.
_MOST_NESTED = 6

# A leaf takes the tracer and the call's arguments, and returns what the operation returns.
Leaf = Callable[..., Any]

# Writes steps of the card program between the graph's kernels: given an emitter, and the views of
# tensors as they lie in memory.
Direct = Callable[[Emitter, Callable[[torch.Tensor], View]], None]


class Tracer(TorchDispatchMode):
    """Records operations on meta tensors. Storages of theirs stand for buffers of the graph."""

    def __init__(
        self,
        leaves: Mapping[str, Leaf],
        decompositions: Mapping[str, Leaf],
        may_gather_rows: bool = True,
    ) -> None:
        super().__init__()
        self.graph = SpyreGraph([], {}, name="eager")
        self.emitter = GraphEmitter(self.graph)
        self.direct: dict[int, Direct] = {}  # by segment
        self.touched: dict[int, list[tuple[Buffer, bool]]] = {}  # by direct steps; is it written?
        self.random_numbers = 0
        # Rows are sticks of their table: layouts may be such that only elements can be gathered.
        self.may_gather_rows = may_gather_rows
        self.gathers_rows = False
        self._leaves = leaves
        self._decompositions = decompositions
        self._sources: dict[int, Bind] = {}  # by storage
        self._written: set[int] = set()
        self._active: list[str] = []  # operations that are being taken apart
        self._kept: list[torch.Tensor] = []  # so that no storage's address is used again

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it PyTorch would import all of it; `eager` turns it off instead

    # ---- Tensors -------------------------------------------------------------------------------

    def argument(self, tensor: torch.Tensor, buffer: Buffer) -> None:
        """Let a tensor's storage stand for a buffer that exists."""
        key = _key(tensor)
        self._kept.append(tensor)
        self._sources[key] = self.emitter.add(buffer)
        self._written.add(key)

    def source(self, tensor: torch.Tensor) -> Bind:
        """The buffer behind a tensor; a new one if it is new."""
        key = _key(tensor)
        known = self._sources.get(key)
        if known is not None:
            return known
        size, stride, numel = _whole(tensor)
        try:
            card_format(tensor.dtype)
        except TypeError as error:  # the CPU says it, or does without
            raise UnsupportedError(str(error)) from error
        name = f"buf{len(self._sources)}"
        self._kept.append(tensor)
        source = self.emitter.add(Buffer(name, size, stride, tensor.dtype, numel))
        self._sources[key] = source
        return source

    def buffer(self, tensor: torch.Tensor) -> Buffer:
        return self.emitter.buffer(self.source(tensor))

    def view(self, tensor: torch.Tensor) -> View:
        """A tensor as an operand."""
        if tensor.numel() and not self.is_written(tensor):
            raise UnsupportedError("it reads a tensor that nothing was written to")
        return self._as_view(tensor)

    def _as_view(self, tensor: torch.Tensor) -> View:
        if tensor.device.type != "meta":
            raise UnsupportedError("a tensor of the host inside an operation")
        if tensor.is_complex() or tensor.is_neg() or tensor.is_sparse:
            raise UnsupportedError("a complex, negated or sparse tensor inside an operation")
        source = self.source(tensor)
        if self.emitter.buffer(source).dtype is not tensor.dtype:
            raise UnsupportedError("a view of another dtype inside an operation")
        return self.emitter.view(source, tensor)

    def result(self, tensor: torch.Tensor) -> View:
        """A new tensor that the caller is about to write, all of it."""
        self._written.add(_key(tensor))
        return self._as_view(tensor)

    def is_written(self, tensor: torch.Tensor) -> bool:
        """Has anything been written to its storage yet?"""
        return _key(tensor) in self._written

    # ---- Computing -----------------------------------------------------------------------------

    def pointwise(
        self, name: str, into: torch.Tensor, arguments: Mapping[str, Any]
    ) -> torch.Tensor:
        """Compute an entry of the table on tensors and numbers."""
        entry = overloads()[name].entry
        assert isinstance(entry, Pointwise)
        self.compute(arguments, self.result(into)).pointwise(entry)
        return into

    def compute(self, arguments: Mapping[str, Any], into: View) -> Computation:
        """A computation with these arguments, its numbers part of the program."""
        given, tensors = self._given(arguments)
        views = {index: self.view(tensor) for index, tensor in enumerate(tensors)}
        return _Baked(self.emitter, given, into, views)  # type: ignore[arg-type]

    def _given(
        self, arguments: Mapping[str, Any]
    ) -> tuple[dict[str, Argument], list[torch.Tensor]]:
        """Arguments as the planner has them; tensors are numbered."""
        given: dict[str, Argument] = {}
        tensors: list[torch.Tensor] = []
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() == 0:
                value = value.item()
            if isinstance(value, torch.Tensor):
                given[name] = _meta(value, len(tensors))
                tensors.append(value)
            elif isinstance(value, bool | int | float):
                given[name] = ScalarMeta(_number_dtype(value), -1, True, value)
            elif isinstance(value, complex):
                raise UnsupportedError("a complex number")
            else:
                given[name] = value
        return given, tensors

    def convert(self, source: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
        """Copy elements to a tensor of any dtype, broadcast to its shape."""
        target = self.result(into)
        self.compute({}, target).convert(self.view(source).broadcast(target.size), target)
        return into

    def as_dtype(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The tensor in another dtype."""
        if tensor.dtype is dtype:
            return tensor
        return self.convert(tensor, torch.empty(tensor.shape, dtype=dtype, device="meta"))

    def new(self, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(size), dtype=dtype, device="meta")

    def fill(self, into: torch.Tensor, number: float) -> torch.Tensor:
        return self.pointwise("aten::fill_.Scalar", into, {"self": into, "value": number})

    # ---- Steps of the card program -------------------------------------------------------------

    def write_directly(
        self, reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor], steps: Direct
    ) -> None:
        """Put steps between the operations before and those after."""
        self.emitter.segment += 1
        touched = [(self.buffer(tensor), False) for tensor in reads]
        touched += [(self.buffer(tensor), True) for tensor in writes]
        self._written.update(map(_key, writes))
        self.touched[self.emitter.segment] = touched
        self.direct[self.emitter.segment] = steps
        self.emitter.segment += 1

    # ---- Dispatch ------------------------------------------------------------------------------

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = func.name()
        if self._active.count(name) > _MOST_NESTED:
            raise UnsupportedError(f"{name} is made of itself")
        self._active.append(name)
        try:
            return self._dispatch(name, func, args, kwargs)
        finally:
            self._active.pop()

    def _dispatch(
        self, name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        leaf = self._leaves.get(name)
        if leaf is not None:
            return leaf(self, func, *args, **kwargs)
        known = overloads().get(name)
        if known is not None and known.written is None and isinstance(known.entry, Pointwise):
            return self._pointwise_call(func, args, kwargs)
        own = self._decompositions.get(name)
        if own is not None:
            with self:
                result = own(*args, **kwargs)
            if result is not NotImplemented:  # it has nothing to say about these arguments
                return result
        if _has_kernel(name, "CompositeImplicitAutograd"):
            with self:
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        if func.is_view or name in _META_ONLY:
            return func(*args, **kwargs)
        if any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments):
            with self:
                return write_results(func, args, kwargs, self.overwrite)
        return self._decomposed(func, args, kwargs)

    def _decomposed(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        from torch._decomp import decomposition_table

        name = func.name()
        found = decomposition_table.get(func)
        with self:
            if found is not None:
                result = found(*args, **kwargs)
                if result is not NotImplemented:
                    return result
            if _has_kernel(name, "CompositeExplicitAutograd"):
                return func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
        raise UnsupportedError(f"{name} has no form on the card")

    def _pointwise_call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        arguments: dict[str, Any] = {}  # in the order of the schema
        for position, argument in enumerate(func._schema.arguments):
            if position < len(args):
                arguments[argument.name] = args[position]
            else:
                arguments[argument.name] = kwargs.get(argument.name, argument.default_value)
        # Not `func` itself: most meta functions are Python's, and the first imports all of Dynamo.
        given, _ = self._given(arguments)
        found = infer(overloads()[func.name()], given)
        result = torch.empty_strided(found.size, found.stride, dtype=found.dtype, device="meta")
        return self.pointwise(func.name(), result, arguments)

    def overwrite(self, target: torch.Tensor, result: torch.Tensor) -> None:
        """Put a result where an operation in place says; views see it."""
        size, stride, _ = _whole(target)
        is_whole = (tuple(target.shape), tuple(target.stride())) == (size, stride)
        if is_whole and not self.is_written(target):
            self.convert(result, target)
            return
        self._as_view(target)
        source = result
        if _key(source) == _key(target):
            source = self.convert(result, self.new(result.shape, result.dtype))

        def steps(emitter: Emitter, view: Callable[[torch.Tensor], View]) -> None:
            into = view(target)
            Computation(emitter, {}, into).convert(view(source).broadcast(into.size), into)

        self.write_directly([source], [target], steps)


_has_kernel = functools.cache(torch._C._dispatch_has_kernel_for_dispatch_key)


# Operations that only ask, or make a tensor that nobody has written yet.
_META_ONLY = frozenset(
    [
        "aten::empty.memory_format",
        "aten::empty_strided",
        "aten::empty_like",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::empty_permuted",
        "prim::device",
        "aten::sym_size.int",
        "aten::is_same_size",
    ]
)


# New tensors: `out=` says of what dtype they are.
_MADE_LIKE_OUT = frozenset(["eye", "linspace", "logspace"])
# Sums on the way, too, are of the dtype of `out=`.
_COMPUTED_IN_OUT = frozenset(["cumsum", "cumprod"])
# Each of the list of tensors is cast to the dtype of `out=` by itself.
_GATHERED_IN_OUT = frozenset(["cat"])


def write_results(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    overwrite: Callable[[torch.Tensor, torch.Tensor], None],
) -> Any:
    """Run the functional form of an operation in place or with `out=`, and put the results where
    they belong. Must be called under the tracer."""
    results, targets = run_functional(func, args, kwargs)
    for target, result in zip(targets, results, strict=True):
        if target.shape != result.shape:
            raise UnsupportedError("a part that changes the shape of a tensor")
        overwrite(target, result)
    return targets[0] if len(targets) == 1 else tuple(targets)


def run_functional(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The results of the functional form, and the tensors they are meant for."""
    schema = func._schema
    packet = func._overloadpacket
    name = schema.name.removeprefix("aten::")
    kept = dict(kwargs)
    targets: list[torch.Tensor] = []
    positional = list(args)
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        if argument.is_out:
            value = kept.pop(argument.name)
        else:
            value = positional[position] if position < len(args) else kept[argument.name]
        targets += value if isinstance(value, list | tuple) else [value]
    if name.endswith("_") and not name.endswith("__"):
        packet = getattr(torch.ops.aten, name[:-1], None)
        if packet is None:
            raise UnsupportedError(f"{name} has no functional form")
    if name in _MADE_LIKE_OUT:
        kept.setdefault("dtype", targets[0].dtype)
    if name in _COMPUTED_IN_OUT and targets[0].dtype is not torch.bool:
        kept["dtype"] = kept.get("dtype") or targets[0].dtype
    if name in _GATHERED_IN_OUT:
        positional[0] = _cast(positional[0], targets[0].dtype)
    result = packet(*positional, **kept)
    results = list(result) if isinstance(result, list | tuple) else [result]
    return results[: len(targets)], targets


def _cast(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """Without the common dtype on the way, which may hold less than the last one."""
    common = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    if not torch.can_cast(common, dtype):
        raise UnsupportedError(f"`out=` of {dtype}, which {common} is not cast to")
    return [tensor.to(dtype) for tensor in tensors]


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _whole(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Size and strides of all that the storage holds, seen as the tensor if it is all of it."""
    numel = tensor.untyped_storage().nbytes() // tensor.itemsize
    size, stride = tuple(tensor.shape), tuple(tensor.stride())
    if tensor.storage_offset() == 0 and tensor.numel() == numel and is_dense(size, stride):
        return size, stride, numel
    return (numel,), (1,), numel


def is_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Does it name every element of its reach once?"""
    expected = 1
    for step, n in sorted((step, n) for n, step in zip(size, stride, strict=True) if n != 1):
        if step != expected:
            return False
        expected *= n
    return True


def _meta(tensor: torch.Tensor, index: int) -> TensorMeta:
    return TensorMeta(
        tuple(tensor.shape), tuple(tensor.stride()), 0, tensor.dtype, (), (), 0, index
    )


def _number_dtype(value: bool | int | float) -> torch.dtype:
    if isinstance(value, bool):
        return torch.bool
    return torch.int64 if isinstance(value, int) else torch.float64


class _Baked(Computation):
    """Numbers are constants of the program: the key of a traced plan has their values."""

    def number(
        self,
        argument: Argument,
        dtype: torch.dtype,
        is_modular: bool = False,
        must_fit: bool = False,
    ) -> Value:
        if not isinstance(argument, ScalarMeta):
            return super().number(argument, dtype, is_modular, must_fit)
        if kind_of(dtype) is not Kind.INT:
            return constant(_fp32(float(argument.value)), "F")
        return constant(int(argument.value), "I")

    def saturated(self, value: Value, dtype: torch.dtype) -> Value:
        largest = LARGEST.get(dtype)
        if largest is None or not isinstance(value, Word) or value.format.domain != "F":
            return value
        number = word_number(value)
        is_beyond = abs(number) > largest and abs(number) != float("inf")
        return constant(largest if number > 0 else -largest, "F") if is_beyond else value

    def truth(self, argument: Argument) -> Value:
        if isinstance(argument, ScalarMeta):
            argument = bool(argument.value)
        return super().truth(argument)


def _fp32(number: float) -> float:
    """Beyond the range of fp32 it is infinite there."""
    try:
        return float(torch.tensor(number, dtype=torch.float32, device="cpu"))
    except (OverflowError, RuntimeError):
        return float("inf") if number > 0 else float("-inf")
