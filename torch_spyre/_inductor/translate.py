"""From Inductor's lowered operations to loop nests of ours.

Requires lowered operations whose layouts are decided. Leaves `Nest`s in program order, and a
`Buffer` for everything they read or write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import sympy
import torch
from torch._inductor import ir as inductor_ir
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import sympy_index_symbol
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torch_spyre.ir import Term
from torch_spyre.ir.spec import Origin
from torch_spyre.ops.formats import card_format

from .body import BitcastError, IndexReader, Position, UnevenIndexError, Value
from .dynamic import DynamicSizes
from .errors import Unsupported
from .graph import Buffer, NeedsStaticSizesError, Sizes, WishedLoop, dense
from .origins import origin_of, tensors_of
from .recorder import Recorder

REDUCTIONS = {
    "sum": "sum",
    "max": "amax",
    "min": "amin",
    "prod": "prod",
    "any": "amax",
    "batchmatmul": "batchmatmul",
}


@dataclass(eq=False)
class Nest:
    """Loops around an expression: what one Inductor operation stores where.

    The last `len(extents) - outer` loops are reduced. A matmul has two values.
    """

    node: str
    extents: Sizes
    outer: int
    values: tuple[Value, ...]
    reduction: str | None
    target: Buffer
    position: Position
    origin: Origin
    dtype: torch.dtype
    symbols: tuple[int | None, ...] = ()  # of the reduced loops: extent arguments
    segment: int = 0  # grows where operations that are not ours to run lie between
    wishes: tuple[WishedLoop, ...] = ()  # over its loops


@dataclass(eq=False)
class Translation:
    """The nests of a graph in order, and the buffers that they touch."""

    nests: list[Nest] = field(default_factory=list)
    segments: int = 0
    buffers: dict[str, Buffer] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)  # results that live in other buffers
    sizes: dict[str, sympy.Expr] = field(default_factory=dict)  # buffers that hold a size

    def root(self, name: str) -> str:
        """The buffer that a result lives in."""
        while name in self.aliases:
            name = self.aliases[name]
        return name

    def add(self, nest: Nest) -> None:
        nest.segment = self.segments
        self.nests.append(nest)


class Translator:
    """Walks `graph.operations` once."""

    def __init__(self, graph: GraphLowering, dynamic: DynamicSizes) -> None:
        self.graph = graph
        self.dynamic = dynamic
        self.done = Translation()
        self._device: torch.device | None = None

    def run(self) -> Translation:
        for name, box in self.graph.graph_inputs.items():
            if isinstance(box, inductor_ir.TensorBox):
                self._add_buffer(name, box.get_layout(), is_input=True)
        for name, tensor in self.graph.constants.items():
            if tensor.device.type == "spyre":
                size, stride = tuple(tensor.size()), tuple(tensor.stride())
                self.add(name, size, stride, tensor.dtype, is_input=True)
        for operation in self.graph.operations:
            self._operation(operation)
        return self.done

    # ---- Buffers -------------------------------------------------------------------------------

    def size(self, expr: Any) -> int:
        """A size or a stride as a number."""
        return self.dynamic.number(expr)

    def sizes(self, exprs: Sequence[Any]) -> Sizes:
        return tuple(self.size(expr) for expr in exprs)

    def add(
        self, name: str, size: Sizes, stride: Sizes, dtype: torch.dtype, is_input: bool = False
    ) -> Buffer:
        reach = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True) if n)
        numel = 0 if 0 in size else reach
        buffer = Buffer(name, size, stride, dtype, numel, is_input=is_input)
        self.done.buffers[name] = buffer
        return buffer

    def _add_buffer(self, name: str, layout: Any, is_input: bool = False) -> Buffer | None:
        if layout.device.type != "spyre":
            return None
        self._check_device(layout.device)
        size, stride = self.sizes(layout.size), self.sizes(layout.stride)
        buffer = self.add(name, size, stride, layout.dtype, is_input)
        buffer.shape, buffer.steps = tuple(layout.size), tuple(layout.stride)
        buffer.is_dynamic = any(self.dynamic.is_dynamic(n) for n in layout.size)
        return buffer

    def _check_device(self, device: torch.device) -> None:
        self._device = self._device or device
        if device != self._device:
            raise Unsupported(
                f"one graph on {self._device} and {device}",
                "the kernels of a compiled graph run on one card",
                way_out="compile the part for each card by itself, and copy between the two",
            )

    def _size_buffer(self, variables: Collection[sympy.Symbol]) -> Callable[[Any], str | None]:
        """A tensor with one element for a number that depends on sizes alone, not on loops."""

        def named(expr: sympy.Expr) -> str | None:
            if expr.free_symbols & set(variables) or not self.dynamic.is_dynamic(expr):
                return None
            return self._named_size(expr)

        return named

    def _named_size(self, expr: sympy.Expr) -> str:
        for name, known in self.done.sizes.items():
            if known == expr:
                return name
        name = f"size{len(self.done.sizes)}"
        self.add(name, (), (), torch.int32, is_input=True)
        self.done.sizes[name] = expr
        return name

    def resolve(self, name: str) -> Buffer:
        return self.done.buffers[self.done.root(name)]

    # ---- Operations ----------------------------------------------------------------------------

    def _operation(self, operation: Any) -> None:
        device = operation.get_device()
        is_ours = device is not None and device.type == "spyre"
        if isinstance(operation, inductor_ir.ComputedBuffer) and is_ours:
            self._computed(operation)
            return
        for buffer in operation.get_outputs():
            layout, name = buffer.layout, buffer.get_name()
            is_new = name not in self.done.buffers  # parts of a concatenation came before
            if is_new and isinstance(layout, inductor_ir.Layout) and layout.device is not None:
                if layout.device.type == "spyre":
                    _check_dtype(operation, layout.dtype)
                self._add_buffer(name, layout)
        if not isinstance(operation, inductor_ir.NopKernel):
            self.done.segments += 1

    def _computed(self, operation: inductor_ir.ComputedBuffer) -> None:
        data = operation.data
        origin = origin_of(operation)
        if not isinstance(data, inductor_ir.Pointwise | inductor_ir.Reduction) or isinstance(
            data, inductor_ir.Scatter
        ):
            raise Unsupported(
                f"{type(data).__name__.lower()} ({origin.aten or operation.get_name()})",
                "this kind of loop has no card operation",
                origin=origin,
                tensors=tensors_of(operation),
                way_out="run this part on the CPU: move its inputs with .cpu() and back",
                is_loop=True,
            )
        reduction_ranges = getattr(data, "reduction_ranges", ())
        symbols = [sympy_index_symbol(f"q{i}") for i in range(len(data.ranges))]
        reduced = [sympy_index_symbol(f"r{i}") for i in range(len(reduction_ranges))]
        extents = self.sizes(data.ranges) + self.sizes(reduction_ranges)
        variables = {symbol: i for i, symbol in enumerate([*symbols, *reduced])}
        reader = IndexReader(variables, extents, sizes=self.size, offsets=self.dynamic.offset)
        known = variables.keys()
        lengths = {
            i: n
            for i, n in enumerate([*data.ranges, *reduction_ranges])
            if self.dynamic.is_dynamic(n)
        }
        recorder = Recorder(
            reader,
            self._dtype,
            self._offset,
            _Materializer(self, operation.get_operation_name(), reader, origin),
            self._size_buffer(known),
            lengths,
            self._has_zeros_behind,
        )
        index = (symbols, reduced) if reduction_ranges else (symbols,)
        kind = getattr(data, "reduction_type", None)
        try:
            with V.set_ops_handler(recorder):
                result = data.inner_fn(*index)
            target, position = self._target(operation, symbols, reader)
        except (NotImplementedError, UnevenIndexError, BitcastError) as error:
            raise Unsupported(
                f"{origin.aten or operation.get_name()}",
                str(error),
                origin=origin,
                tensors=tensors_of(operation),
                way_out=_way_out(error),
                is_loop=not isinstance(error, BitcastError),
            ) from error
        if kind is not None and kind not in REDUCTIONS:
            raise Unsupported(
                f"the reduction {kind}",
                "it has no card operation",
                origin=origin,
                tensors=tensors_of(operation),
                way_out="run this part on the CPU",
                is_loop=True,
            )
        if lengths:
            self._check_reach(recorder)
        values = result if isinstance(result, tuple | list) else (result,)
        self.done.add(
            Nest(
                operation.get_operation_name(),
                extents,
                len(symbols),
                tuple(_unwrapped(value) for value in values),
                kind,
                target,
                position,
                origin,
                data.dtype,
                tuple(self.dynamic.symbol(n) for n in reduction_ranges),
            )
        )

    def _dtype(self, name: str) -> torch.dtype:
        return self.resolve(name).dtype

    def _offset(self, name: str, expr: sympy.Expr) -> int:
        """Where a part of a tensor starts in it."""
        return self.dynamic.offset(expr, self.resolve(name).steps)

    def _has_zeros_behind(self, name: str) -> bool:
        """Does a tensor come from outside, with zeros in the rest of its bucket?"""
        buffer = self.resolve(name)
        return buffer.is_input and not buffer.is_mutated and not buffer.dtype.is_floating_point

    def _check_reach(self, recorder: Recorder) -> None:
        """A part of dynamic length of a tensor that has no room for the bucket."""
        for value in recorder.loads():
            if recorder.reader.last(value.position) >= max(self.resolve(value.name).numel, 1):
                raise NeedsStaticSizesError(f"{value.name} is shorter than a bucket")

    def _target(
        self, operation: inductor_ir.ComputedBuffer, symbols: Sequence[Any], reader: IndexReader
    ) -> tuple[Buffer, Position]:
        layout = operation.layout
        name = operation.get_name()
        if isinstance(layout, inductor_ir.MutationLayoutSHOULDREMOVE):
            target = self.resolve(layout.get_buffer().get_name())
            target.is_mutated = True
            self.done.aliases[name] = target.name
        elif isinstance(layout, inductor_ir.NonOwningLayout):
            target_name = layout.view.get_name()
            if target_name not in self.done.buffers:
                self._add_buffer(target_name, layout.view.unwrap_view().get_layout())
            target = self.resolve(target_name)
            self.done.aliases[name] = target.name
            layout = layout.view.get_layout()  # the view knows where the part starts
            # Parts behind one of dynamic length lie where its bucket ends (see `_lower_cat`).
            reader = replace(reader, offsets=self.size)
        else:
            added = self._add_buffer(name, layout)
            assert added is not None
            target = added
        assert isinstance(layout, inductor_ir.Layout)
        return target, reader.position(layout.make_indexer()(list(symbols)))


@dataclass
class _Materializer:
    """Puts a view that divides several loops together into a buffer of its own.

    `(3i + j) mod 4` can't be split into digits of i and j, but a copy over p = 3i + j can, and the
    reader then finds its element at 3i + j of the copy.
    """

    translator: Translator
    node: str
    reader: IndexReader
    origin: Origin
    depth: int = 0

    def __call__(
        self, name: str, index: sympy.Expr, error: UnevenIndexError
    ) -> tuple[str, sympy.Expr]:
        whole = sympy.Symbol(f"whole{self.depth}", integer=True, nonnegative=True)
        base, replaced = self._in_terms_of(whole, index, error)
        own = sorted(replaced.free_symbols & self.reader.variables.keys(), key=str)
        lengths = (*(self._extent(symbol) for symbol in own), self._length(base))
        source = self.translator.resolve(name)
        if prod(lengths) > _MOST_REPEATED * max(prod(self.reader.extents), source.numel):
            raise error  # a copy of that size is no way out
        variables = {symbol: i for i, symbol in enumerate([*own, whole])}
        reader = replace(self.reader, variables=variables, extents=lengths, indirect={})
        try:
            position = reader.position(replaced)
        except UnevenIndexError as inner:
            nested = replace(self, reader=reader, depth=self.depth + 1)
            if inner.base == whole:
                raise
            name, replaced = nested(name, replaced, inner)
            position = reader.position(replaced)
        extents = _evened(lengths, position, self.translator.resolve(name).numel)
        copy = self._copy(name, extents, position)
        steps = zip(own, dense(extents), strict=False)
        return copy, sum((symbol * step for symbol, step in steps), base)

    def _in_terms_of(
        self, whole: sympy.Symbol, index: sympy.Expr, error: UnevenIndexError
    ) -> tuple[sympy.Expr, sympy.Expr]:
        """What `whole` stands for, and the index with it in place.

        Sympy reduces (84i + 2j + k) // 336 to (42i + j) // 168, and (84i + 2j + k) mod 7 to
        (2j + k) mod 7; the base that serves for most divisions is taken.
        """
        nodes = sorted(index.atoms(FloorDiv, ModularIndexing), key=str)
        bases = [node.args[0] for node in nodes if len(node.args[0].free_symbols) > 1]
        best: tuple[sympy.Expr, dict[sympy.Expr, sympy.Expr]] = (error.base, {})
        for base in dict.fromkeys([error.base, *bases]):
            found = {node: self._of_whole(node, base, whole) for node in nodes}
            kept = {node: value for node, value in found.items() if value is not None}
            if len(kept) > len(best[1]):
                best = base, kept
        if not best[1]:
            raise error
        return best[0], index.xreplace(best[1])

    def _of_whole(
        self, node: sympy.Expr, base: sympy.Expr, whole: sympy.Symbol
    ) -> sympy.Expr | None:
        """A division as one of `whole`, which stands for the base; None if it is not one."""
        other, *by = node.args
        if other == base:
            return node.func(whole, *by)
        if isinstance(node, ModularIndexing) and all(number.is_Integer for number in by):
            apart = sympy.expand(base - other)
            if apart.is_polynomial() and all(
                c.is_Integer and c % (by[0] * by[1]) == 0 for c in _coefficients(apart)
            ):
                return node.func(whole, *by)
        ratio = self._ratio(base, other)
        return None if ratio is None else node.func(FloorDiv(whole, ratio), *by)

    def _ratio(self, base: sympy.Expr, other: sympy.Expr) -> int | None:
        """c, if base = c * other + rest with 0 <= rest < c whatever the loops."""
        if not (base.is_polynomial() and other.is_polynomial() and other.free_symbols):
            return None
        symbol = min(other.free_symbols, key=str)
        below = other.coeff(symbol)
        if not below.is_Integer or below == 0:
            return None
        ratio = base.coeff(symbol) / below
        if not ratio.is_Integer or ratio < 2:
            return None
        rest = sympy.expand(base - ratio * other)
        if rest.free_symbols - self.reader.variables.keys() or not rest.is_polynomial():
            return None
        if (
            any(rest.coeff(s) < 0 for s in rest.free_symbols)
            or rest.subs(dict.fromkeys(rest.free_symbols, 0)) < 0
        ):
            return None
        return int(ratio) if self._length(rest) <= ratio else None

    def _copy(self, name: str, extents: Sizes, position: Position) -> str:
        done = self.translator.done
        source = self.translator.resolve(name)
        target = self.translator.add(
            f"{self.node}_view{len(done.nests)}", extents, dense(extents), source.dtype
        )
        terms = tuple(Term(i, step) for i, step in enumerate(target.stride))
        value = Value(
            "load", source.dtype, name=name, position=position, variables=position.variables
        )
        done.add(
            Nest(
                self.node,
                extents,
                len(extents),
                (value,),
                None,
                target,
                Position(0, terms),
                self.origin,
                source.dtype,
            )
        )
        return target.name

    def _extent(self, symbol: sympy.Symbol) -> int:
        return self.reader.extents[self.reader.variables[symbol]]

    def _length(self, base: sympy.Expr) -> int:
        return self.reader.bounds(base)[1] + 1


def _evened(lengths: Sizes, position: Position, numel: int) -> Sizes:
    """Lengths at which every division of a loop comes out even, if the source reaches that far."""
    extents = list(lengths)
    for term in position.terms:
        whole = term.floordiv * (term.modulo or 1)
        extents[term.variable] = -(-extents[term.variable] // whole) * whole
    last = position.offset
    for term in position.terms:
        count = (extents[term.variable] - 1) // term.floordiv
        last += term.coefficient * min(count, (term.modulo or count + 1) - 1)
    return tuple(extents) if last < numel else lengths


def _coefficients(expr: sympy.Expr) -> list[sympy.Expr]:
    """Of a sum of multiples of symbols; the constant too."""
    return list(sympy.Poly(expr, *expr.free_symbols).coeffs()) if expr.free_symbols else [expr]


def _check_dtype(operation: Any, dtype: torch.dtype) -> None:
    """Refuse what an operation of the host would return in a dtype that no card holds."""
    try:
        card_format(dtype)
    except TypeError as error:
        origin = origin_of(operation)
        raise Unsupported(
            f"{origin.aten or operation.get_name()}",
            str(error),
            origin=origin,
            tensors=tensors_of(operation),
            way_out="compute with real and imaginary parts"
            if dtype.is_complex
            else "compute it in float32, or on the CPU",
        ) from error


def _way_out(error: Exception) -> str:
    if isinstance(error, UnevenIndexError):
        return "call .contiguous() on its input, or run this part on the CPU"
    return "run this part on the CPU: move its inputs with .cpu() and back"


def _unwrapped(value: Any) -> Value:
    """Inductor wraps what an ops handler returns, for arithmetic on it."""
    found = getattr(value, "value", value)
    assert isinstance(found, Value)
    return found


# How many times larger than the loops (or the tensor) the copy of an uneven view may be.
_MOST_REPEATED = 8
