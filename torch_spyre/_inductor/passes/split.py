"""Split multi-op bodies: one card operation per buffer."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from torch_spyre import ir
from torch_spyre.backend import opcodes
from torch_spyre.ir import Term
from torch_spyre.ir.spec import Kind, Mask
from torch_spyre.ops import formats
from torch_spyre.ops.formats import LARGEST, card_format, kind_of, matmul_opcode

from ..body import Position, Value
from ..conversions import is_widening
from ..errors import Unsupported
from ..graph import (
    Buffer,
    Constant,
    Index,
    NeedsStaticSizesError,
    Op,
    Operand,
    Read,
    Sizes,
    SpyreGraph,
    dense,
)
from ..translate import REDUCTIONS, Nest
from .hints import refine_for_tiles

# Inductor's name where it is not the card's.
_NAMES = {
    "truediv": "div",
    "div_rn": "div",  # every division of the card rounds to nearest
    "mul_rn": "mul",
    "floordiv": "div_floor",
    "truncdiv": "div_trunc",
    "mod": "fmod",
    "bitwise_left_shift": "shift_left",
    "bitwise_right_shift": "shift_right",
    "identity": "identity",
}
_ON_TRUTHS = {"bitwise_and": "logical_and", "bitwise_or": "logical_or"}
_ON_TRUTHS |= {"bitwise_xor": "logical_xor", "bitwise_not": "logical_not"}
_KEEPS_BYTES = frozenset({"bitwise_and", "bitwise_or", "bitwise_xor", "maximum", "minimum"})
# A finite number beyond the range of the result stays finite where it is only passed on.
_PASSES_ON = frozenset({"identity", "where"})


def split_multi_op_bodies(nests: Sequence[Nest], graph: SpyreGraph) -> None:
    """Take loop bodies apart into operations of the card.

    Needs: nests in program order.  Leaves: `graph.ops`, each with one opcode and one result; a
    subexpression that depends on few loops is computed over those only.
    """
    for nest in nests:
        first = len(graph.ops)
        try:
            _Splitter(nest, graph).run()
        except TypeError as error:  # a dtype that the card does not hold
            raise Unsupported(
                nest.origin.aten or nest.node,
                str(error),
                origin=nest.origin,
                way_out="compute it in float32, or on the CPU",
            ) from error
        for op in graph.ops[first:]:
            op.kernel = nest.segment


@dataclass(frozen=True)
class _Place:
    """A tensor as a function of the nest's loops."""

    buffer: Buffer
    position: Position


_Source = _Place | Constant


@dataclass
class _Splitter:
    nest: Nest
    graph: SpyreGraph
    _done: dict[Value, _Source] = field(default_factory=dict)
    _uses: Counter[Value] = field(default_factory=Counter)

    def run(self) -> None:
        nest = self.nest
        if 0 in nest.extents[: nest.outer]:
            return
        for value in nest.values:
            self._count(value)
        target = _Place(nest.target, nest.position)
        loops = tuple(range(len(nest.extents)))
        if nest.reduction == "batchmatmul":
            *_, row, column, inner = loops
            a = self._matrix(nest.values[0], frozenset((row, inner)))
            b = self._matrix(nest.values[1], frozenset((inner, column)))
            opcode = matmul_opcode(nest.values[1].dtype)
            self._emit(opcode, "matmul", loops, [a, b], target, reduced=(inner,))
        elif nest.reduction is not None:
            self._reduce(loops, target)
        else:
            self._store(nest.values[0], loops, target)

    def _count(self, value: Value) -> None:
        self._uses[value] += 1
        if self._uses[value] == 1:
            for arg in value.args:
                self._count(arg)
            for index, _, _ in value.position.indirect:
                self._count(index)

    def _reduce(self, loops: Sizes, target: _Place) -> None:
        nest = self.nest
        (value,) = nest.values
        reduced = tuple(i for i in loops[nest.outer :] if nest.extents[i] != 1)
        if not reduced:
            self._store(value, loops[: nest.outer], target)
            return
        opcode = REDUCTIONS[nest.reduction or ""]
        squared = _squared(value) if opcode == "sum" else None
        if squared is not None:
            # The square is taken on the way in: no buffer for it, no rounding in between.
            value, opcode = squared, "sum_squares"
        source = self._source(value)
        if kind_of(value.dtype) is formats.Kind.INT:
            opcode += "_int"
        self._emit(opcode, "reduction", loops, [self._tensor(source, value)], target, reduced)

    def _matrix(self, value: Value, loops: frozenset[int]) -> _Source:
        """A factor of a matmul; one that is the same everywhere as a tensor over these loops."""
        source = self._source(value)
        if isinstance(source, Constant):
            into = self._temporary(loops, value.dtype)
            self._convert(source, value.dtype, tuple(sorted(loops)), into)
            source = into
        return source

    def _masks(self, digits: dict[int, tuple[tuple[int, int], ...]]) -> Iterator[Mask]:
        """Reduced loops of a dynamic length end at the length that a launch gives."""
        for loop, symbol in enumerate(self.nest.symbols, self.nest.outer):
            if symbol is None or loop not in digits:
                continue
            if len(digits[loop]) > 1:
                raise NeedsStaticSizesError("a view divides a reduced dimension of dynamic length")
            ((digit, _),) = digits[loop]
            yield Mask(digit, symbol, is_symbol=True)

    # ---- Values --------------------------------------------------------------------------------

    def _store(self, value: Value, loops: Sizes, target: _Place) -> None:
        """Compute a value into the nest's target, over all its loops."""
        dtype = target.buffer.dtype
        value = _without_conversion(value, dtype)
        if value.op in ("load", "constant", "index") or value in self._done:
            self._convert(self._source(value), value.dtype, loops, target)
        elif value.op == "to_dtype":
            source = value.args[0]
            self._convert(self._source(source), source.dtype, loops, target)
        elif card_format(value.dtype) == card_format(dtype) or _is_narrowing(value.dtype, dtype):
            self._apply(value, loops, target)
        else:
            self._convert(self._source(value), value.dtype, loops, target)

    def _source(self, value: Value) -> _Source:
        """The value as an operand: a buffer that holds it, or a constant."""
        value = _widened(value)
        if value not in self._done:
            self._done[value] = self._compute(value)
        return self._done[value]

    def _compute(self, value: Value) -> _Source:
        if value.op == "constant":
            return Constant(value.number, kind_of(value.dtype).domain)
        if value.op == "load" and not value.position.indirect:
            return _Place(self.graph.buffers[value.name], value.position)
        if value.op == "index":
            return self._index(value)
        into = self._temporary(value.variables, value.dtype)
        loops = tuple(sorted(value.variables))
        if value.op == "load":
            self._gather(value, loops, into)
        elif value.op == "to_dtype":
            inner = value.args[0]
            if _is_narrowing(inner.dtype, value.dtype) and self._is_private(inner):
                self._apply(inner, loops, into)
            else:
                self._convert(self._source(inner), inner.dtype, loops, into)
        else:
            self._apply(value, loops, into)
        return into

    def _is_private(self, value: Value) -> bool:
        is_computed = value.op not in ("load", "constant", "index", "to_dtype")
        return is_computed and self._uses[value] == 1 and value not in self._done

    def _apply(self, value: Value, loops: Sizes, into: _Place) -> None:
        name = value.op.removeprefix("spyre_")
        name = _NAMES.get(name, name)
        dtype = functools.reduce(torch.promote_types, [_typed(arg) for arg in value.args])
        if name == "where":  # also of two constants
            dtype = value.dtype
        kind = kind_of(dtype)
        if kind is formats.Kind.BOOL:
            name = _ON_TRUTHS.get(name, name)
        opcode = f"{name}_int" if kind is formats.Kind.INT else name
        known = opcodes.by_name()
        opcode = name if opcode not in known and name in known else opcode
        if opcode not in known or len(known[opcode].operands) != len(value.args):
            raise Unsupported(
                f"the operation {value.op} on {str(dtype).removeprefix('torch.')}",
                "the card has no such operation",
                origin=self.nest.origin,
                way_out="move this part to the CPU",
                is_loop=True,
            )
        sources = [
            self._operand(arg, domain, opcode, into.buffer.dtype)
            for arg, domain in zip(value.args, known[opcode].operands, strict=True)
        ]
        if into.buffer.dtype is torch.uint8 and name not in _KEEPS_BYTES:
            wide = self._temporary(frozenset(loops), torch.int32)
            self._emit(opcode, "pointwise", loops, sources, wide)
            self._emit("bitwise_and", "pointwise", loops, [wide, Constant(255, "I")], into)
        else:
            self._emit(opcode, "pointwise", loops, sources, into)

    def _operand(self, value: Value, domain: str, opcode: str, dtype: torch.dtype) -> _Source:
        """A value in the domain that the operation wants."""
        source = self._source(value)
        if isinstance(source, Constant):
            number = source.value
            if domain == "F" and opcode in _PASSES_ON and dtype in LARGEST:
                number = _saturated(float(number), LARGEST[dtype])
            return Constant(number, domain)
        if source.buffer.format.domain == domain:
            return source
        to = torch.float32 if domain == "F" else torch.int32
        loops = tuple(sorted(value.variables))
        into = self._temporary(value.variables, to)
        self._convert(source, value.dtype, loops, into)
        return into

    def _tensor(self, source: _Source, value: Value) -> _Place:
        if isinstance(source, _Place):
            return source
        into = self._temporary(frozenset(), value.dtype)
        self._convert(source, value.dtype, (), into)
        return into

    def _convert(self, source: _Source, dtype: torch.dtype, loops: Sizes, into: _Place) -> None:
        """Copy a value to where it goes, in another dtype if that is another."""
        to = into.buffer.dtype
        if isinstance(source, Constant):
            domain = kind_of(to).domain
            number = source.value
            if kind_of(to) is formats.Kind.BOOL:
                number = bool(number)
            elif domain == "I":
                number = int(number)
                number = number & 255 if to is torch.uint8 else number
            elif to in LARGEST:
                number = _saturated(float(number), LARGEST[to])
            source = Constant(number, domain)
            self._emit(
                "identity_int" if domain == "I" else "identity", "pointwise", loops, [source], into
            )
            return
        if to is torch.uint8 and dtype not in (torch.uint8, torch.bool):
            if kind_of(dtype) is formats.Kind.FLOAT:
                wide = self._temporary(frozenset(loops), torch.int32)
                self._emit("float_to_int", "pointwise", loops, [source], wide)
                source = wide
            self._emit("bitwise_and", "pointwise", loops, [source, Constant(255, "I")], into)
            return
        self._emit(_conversion(dtype, to), "pointwise", loops, [source], into)

    # ---- Indices -------------------------------------------------------------------------------

    def _index(self, value: Value) -> _Source:
        """The loop position as a tensor: one count per loop, added up."""
        position = value.position
        if not position.terms:
            return Constant(position.offset, "I")
        total: _Place | None = None
        variables: frozenset[int] = frozenset()
        for number, term in enumerate(position.terms):
            offset = position.offset if number == 0 else 0
            part = self._count_along(term, offset)
            variables |= {term.variable}
            if total is None:
                total = part
                continue
            into = self._temporary(variables, torch.int32)
            self._emit("add_int", "pointwise", tuple(sorted(variables)), [total, part], into)
            total = into
        assert total is not None
        if kind_of(value.dtype) is formats.Kind.FLOAT:
            into = self._temporary(variables, torch.float32)
            self._emit("int_to_float", "pointwise", tuple(sorted(variables)), [total], into)
            total = into
        return total

    def _count_along(self, term: Term, offset: int) -> _Place:
        """offset + coefficient · ((v // floordiv) mod modulo), as a vector of its values."""
        length = -(-self.nest.extents[term.variable] // term.floordiv)
        if term.modulo is not None:
            length = min(length, term.modulo)
        buffer = self.graph.temporary((length,), torch.int32)
        self.graph.ops.append(
            Op(
                "identity_int",
                "pointwise",
                (length,),
                [Index(offset, (term.coefficient,))],
                Read(buffer, 0, (1,)),
                origin=self.nest.origin,
                node=self.nest.node,
            )
        )
        return _Place(buffer, Position(0, (term._replace(coefficient=1),)))

    def _gather(self, value: Value, loops: Sizes, into: _Place) -> None:
        if len(value.position.indirect) != 1:
            raise Unsupported(
                "indexing with several index tensors",
                "a gather of the card takes one index",
                origin=self.nest.origin,
                way_out="index one dimension after the other",
                is_loop=True,
            )
        ((index, step, rows),) = value.position.indirect
        source = self._source(index)
        if isinstance(source, Constant):
            place = self._tensor(source, index)
        else:
            place = source
        if place.buffer.format.value != formats.INT32.value:
            wide = self._temporary(index.variables, torch.int32)
            self._convert(place, index.dtype, tuple(sorted(index.variables)), wide)
            place = wide
        table = _Place(
            self.graph.buffers[value.name], Position(value.position.offset, value.position.terms)
        )
        opcode = "gather_int" if kind_of(value.dtype) is formats.Kind.INT else "gather"
        op = self._emit(opcode, "gather", loops, [table, place], into)
        op.rows, op.gathered = rows, step

    # ---- Operations ----------------------------------------------------------------------------

    def _temporary(self, variables: frozenset[int], dtype: torch.dtype) -> _Place:
        """A buffer over these loops of the nest."""
        loops = sorted(variables)
        size = tuple(self.nest.extents[i] for i in loops)
        buffer = self.graph.temporary(size, dtype)
        terms = tuple(Term(i, step) for i, step in zip(loops, dense(size), strict=True))
        return _Place(buffer, Position(0, terms))

    def _emit(
        self,
        opcode: str,
        kind: Kind,
        loops: Sizes,
        sources: Sequence[_Source],
        into: _Place,
        reduced: Sizes = (),
    ) -> Op:
        """One operation over loops of the nest; loops that a view divides become digits."""
        loops = tuple(i for i in loops if self.nest.extents[i] != 1)
        places = [source for source in sources if isinstance(source, _Place)] + [into]
        number = {loop: i for i, loop in enumerate(loops)}
        expressions = [
            ir.Expression(
                None,
                place.position.offset,
                tuple(
                    term._replace(variable=number[term.variable])
                    for term in place.position.terms
                    if term.variable in number
                ),
            )
            for place in places
        ]
        try:
            refined, wishes = refine_for_tiles(
                [self.nest.extents[i] for i in loops], expressions, self.nest.wishes, number
            )
        except ir.UnevenSplitError as error:
            raise Unsupported(
                f"the view that {self.nest.origin.aten or opcode} reads",
                str(error),
                origin=self.nest.origin,
                tensors=tuple(place.buffer.describe() for place in places),
                way_out="call .contiguous() on the viewed tensor first",
                is_loop=True,
            ) from error
        accesses = iter(refined.accesses)
        reads: list[Operand] = []
        for source in sources:
            if isinstance(source, Constant):
                reads.append(source)
            else:
                access = next(accesses)
                reads.append(Read(source.buffer, access.offset, access.strides))
        access = next(accesses)
        digits = {i: refined.digits[number[i]] for i in reduced if i in number}
        op = Op(
            opcode,
            kind,
            refined.extents,
            reads,
            Read(into.buffer, access.offset, access.strides),
            reduced=tuple(digit for group in digits.values() for digit, _ in group),
            masks=tuple(self._masks(digits)),
            origin=self.nest.origin,
            node=self.nest.node,
            wishes=wishes,
        )
        self.graph.ops.append(op)
        return op


def _squared(value: Value) -> Value | None:
    """x, if the value is x · x in floats."""
    value = _widened(value)
    if kind_of(value.dtype) is not formats.Kind.FLOAT:
        return None
    if value.op == "square":
        return value.args[0]
    if value.op == "mul" and _widened(value.args[0]) is _widened(value.args[1]):
        return value.args[0]
    return None


def _typed(value: Value) -> torch.dtype:
    """The dtype that counts for choosing the operation: constants follow the others."""
    if value.op == "constant" and kind_of(value.dtype) is not formats.Kind.FLOAT:
        return torch.bool
    return torch.float16 if value.op == "constant" else value.dtype


def _is_narrowing(source: torch.dtype, to: torch.dtype) -> bool:
    """Is storing a result of `source` as `to` the same as converting it afterwards?

    The unit computes in 32 bits and rounds (or wraps) once, when it stores.
    """
    kinds = kind_of(source), kind_of(to)
    if kinds == (formats.Kind.FLOAT, formats.Kind.FLOAT):
        return source is torch.float32 or card_format(source) == card_format(to)
    is_whole = source in (torch.int32, torch.int64)
    return kinds == (formats.Kind.INT, formats.Kind.INT) and is_whole and to is not torch.uint8


def _widened(value: Value) -> Value:
    """The value without conversions that every step makes by itself."""
    while value.op == "to_dtype" and is_widening(value.args[0].dtype, value.dtype):
        value = value.args[0]
    return value


def _without_conversion(value: Value, dtype: torch.dtype) -> Value:
    """The value to compute where a result of `dtype` is stored."""
    while value.op == "to_dtype":
        inner = value.args[0]
        is_same = card_format(value.dtype) == card_format(dtype)
        if not is_same or not _is_narrowing(inner.dtype, value.dtype):
            break
        if inner.op in ("load", "constant", "index"):
            break
        value = inner
    return value


def _conversion(source: torch.dtype, to: torch.dtype) -> str:
    int_, bool_ = formats.Kind.INT, formats.Kind.BOOL
    if kind_of(to) is bool_ and kind_of(source) is not bool_:
        return "int_to_bool" if kind_of(source) is int_ else "float_to_bool"
    if kind_of(source) is int_:
        return "identity_int" if kind_of(to) is int_ else "int_to_float"
    return "float_to_int" if kind_of(to) is int_ else "identity"


def _saturated(number: float, largest: float) -> float:
    if number in (float("inf"), float("-inf")) or number != number:
        return number
    return max(-largest, min(largest, number))
