"""Records what the body of one of Inductor's loops computes, as an expression graph."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch._inductor.ops_handler import DefaultHandler

from .body import BitcastError, IndexReader, Position, UnevenIndexError, Value

_COUNTERS = frozenset({torch.int32, torch.int64})
_INDEX_ARITHMETIC = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_LOGICAL = frozenset({"logical_and", "logical_or", "logical_xor", "logical_not", "isnan", "isinf"})


class Recorder(DefaultHandler):
    """An ops handler that builds the expression graph of a body; equal nodes are one node."""

    def __init__(
        self,
        reader: IndexReader,
        dtype_of: Callable[[str], torch.dtype],
        offset_in: Callable[[str, sympy.Expr], int],
        materialize: Callable[[str, sympy.Expr, UnevenIndexError], tuple[str, sympy.Expr]],
        size_buffer: Callable[[sympy.Expr], str | None],
        lengths: Mapping[int, sympy.Expr],
        has_zeros_behind: Callable[[str], bool],
    ) -> None:
        self.lengths = lengths  # of dynamic loops
        self.has_zeros_behind = has_zeros_behind
        self.reader = reader
        self.dtype_of = dtype_of
        self.offset_in = offset_in  # a buffer, of a part of it
        self.materialize = materialize
        self.size_buffer = size_buffer
        self._nodes: dict[Any, Value] = {}
        self._expressions: dict[Value, sympy.Expr] = {}  # of the indices among them

    def _node(self, key: Any, make: Callable[[], Value]) -> Value:
        if key not in self._nodes:
            self._nodes[key] = make()
        return self._nodes[key]

    def loads(self) -> Iterator[Value]:
        """All that was read."""
        return (value for value in self._nodes.values() if value.op == "load")

    def load(self, name: str, index: sympy.Expr) -> Value:
        try:
            position = self._position(name, index)
            self.reader.check_even(position)
        except UnevenIndexError as error:
            name, index = self.materialize(name, index, error)
            position = self._position(name, index)
        return self._node(
            ("load", name, position),
            lambda: Value(
                "load",
                self.dtype_of(name),
                name=name,
                position=position,
                variables=position.variables,
            ),
        )

    def _position(self, name: str, index: sympy.Expr) -> Position:
        offsets = functools.partial(self.offset_in, name)
        return replace(self.reader, offsets=offsets).position(index)

    def constant(self, value: float | int | bool, dtype: torch.dtype) -> Value:
        return self._node(
            ("constant", repr(value), dtype), lambda: Value("constant", dtype, number=value)
        )

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> Value:
        expr = sympy.sympify(expr)
        if expr.free_symbols & self.reader.indirect.keys():
            return self._of_indices(expr, dtype)
        buffer = self.size_buffer(expr)
        if buffer is not None:
            return self.to_dtype(self.load(buffer, sympy.Integer(0)), dtype)
        if expr.is_Float:  # the divisor of a variance with a correction
            return self.constant(float(expr), dtype)
        position = self.reader.position(expr)
        value = self._node(
            ("index", position, dtype),
            lambda: Value("index", dtype, position=position, variables=position.variables),
        )
        self._expressions.setdefault(value, expr)
        return value

    def _of_indices(self, expr: sympy.Expr, dtype: torch.dtype) -> Value:
        """A number made of values that are indices as well: arithmetic with those values."""
        symbols = sorted(expr.free_symbols & self.reader.indirect.keys(), key=str)
        rest = expr.subs(dict.fromkeys(symbols, 0))
        total = self.index_expr(rest, torch.int64)
        for symbol in symbols:
            step = expr.coeff(symbol)
            if step.free_symbols or expr.diff(symbol) != step:
                raise UnevenIndexError(expr)
            value, _ = self.reader.indirect[symbol]
            part = self._apply("mul", (value, self.constant(int(step), value.dtype)))
            total = self._apply("add", (total, part))
        return self.to_dtype(total, dtype)

    def indirect_indexing(
        self, index: Value, size: sympy.Expr, check: bool = True, wrap_neg: bool = True
    ) -> sympy.Expr:
        rows = self.reader.sizes(size)
        counted = self._counted(index, size, rows, wrap_neg)
        if counted is not None:
            return counted
        is_padded = self._is_padded(index)
        if wrap_neg:
            zero = self.constant(0, index.dtype)
            length = self.index_expr(size, index.dtype)  # not that of a bucket
            is_negative = self._apply("lt", (index, zero))
            index = self._apply("where", (is_negative, self._apply("add", (index, length)), index))
        if check and self.size_buffer(sympy.sympify(size)) is not None:
            index = self._within_size(index, size)
        symbol = sympy.Symbol(f"indirect{len(self.reader.indirect)}", integer=True)
        index = index if is_padded else self._within_lengths(index)
        self.reader.indirect[symbol] = (index, rows)
        return symbol

    def _within_size(self, index: Value, size: sympy.Expr) -> Value:
        """The index, but -1 behind the rows that there are: the card knows those of the bucket."""
        is_inside = self._apply("lt", (index, self.index_expr(size, index.dtype)))
        return self._apply("where", (is_inside, index, self.constant(-1, index.dtype)))

    def _is_padded(self, index: Value) -> bool:
        """Is it 0 behind dynamic lengths as it comes?"""
        while index.op == "to_dtype":
            (index,) = index.args
        return index.op == "load" and self.has_zeros_behind(index.name)

    def _within_lengths(self, index: Value) -> Value:
        """The index, but 0 behind dynamic lengths, where it may be no place of the table."""
        for symbol, variable in self.reader.variables.items():
            if variable in self.lengths and variable in index.variables:
                place = self.index_expr(symbol, torch.int32)
                length = self.index_expr(self.lengths[variable], torch.int32)
                is_valid = self._apply("lt", (place, length))
                index = self._apply("where", (is_valid, index, self.constant(0, index.dtype)))
        return index

    def _counted(
        self, index: Value, size: sympy.Expr, rows: int, wrap_neg: bool
    ) -> sympy.Expr | None:
        """An index that counts along the loops (from `arange`), which needs no gather: a view.

        From the end of a dynamic length it can't be one.
        """
        expr = self._as_index(index)
        if expr is None:
            return None
        try:
            low, high = self.reader.bounds(expr)
        except UnevenIndexError:
            return None
        if wrap_neg and high < 0 and self.size_buffer(sympy.sympify(size)) is None:
            expr, low, high = expr + rows, low + rows, high + rows
        return expr if low >= 0 and high < rows else None

    def _as_index(self, value: Value) -> sympy.Expr | None:
        """The value as an index expression, if it is an integer made of loop counters."""
        if value.dtype not in _COUNTERS:
            return None
        if value.op == "constant":
            return sympy.Integer(int(value.number))
        if value in self._expressions:
            return self._expressions[value]
        if value.op == "to_dtype":
            return self._as_index(value.args[0])
        if value.op not in _INDEX_ARITHMETIC:
            return None
        a, b = (self._as_index(arg) for arg in value.args)
        return None if a is None or b is None else _INDEX_ARITHMETIC[value.op](a, b)

    def to_dtype(
        self,
        x: Value,
        dtype: torch.dtype,
        src_dtype: torch.dtype | None = None,
        use_compute_types: bool = True,
    ) -> Value:
        del src_dtype, use_compute_types
        if x.dtype is dtype:
            return x
        return self._node(
            ("to", x, dtype), lambda: Value("to_dtype", dtype, (x,), variables=x.variables)
        )

    def to_dtype_bitcast(self, x: Value, dtype: torch.dtype, src_dtype: torch.dtype) -> Value:
        del x
        raise BitcastError(
            f"the bits of {src_dtype} on the card are not PyTorch's, "
            f"so to_dtype_bitcast to {dtype} has no meaning there"
        )

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        return self._apply("add", (self._apply("mul", (x, y)), z))

    def masked(self, mask: Value, body: Callable[[], Value], other: Any) -> Value:
        del mask, body, other
        raise NotImplementedError("a padded or masked read has no card operation yet")

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs or not all(isinstance(arg, Value) for arg in args):
            raise NotImplementedError(f"the loop operation {name} has no card operation")
        return self._apply(name, args)

    def _apply(self, name: str, args: tuple[Value, ...]) -> Value:
        return self._node(
            (name, args),
            lambda: Value(
                name,
                _result_dtype(name, args),
                args,
                variables=frozenset().union(*(arg.variables for arg in args)),
            ),
        )


def _result_dtype(name: str, args: tuple[Value, ...]) -> torch.dtype:
    if name in _COMPARISONS or name in _LOGICAL:
        return torch.bool
    typed = args[1:] if name == "where" else args
    tensors = [arg.dtype for arg in typed if arg.op != "constant"] or [a.dtype for a in typed]
    dtype = tensors[0]
    for other in tensors[1:]:
        dtype = torch.promote_types(dtype, other)
    constants = [arg.dtype for arg in typed if arg.op == "constant"]
    if not dtype.is_floating_point and any(c.is_floating_point for c in constants):
        return torch.promote_types(dtype, torch.float32)
    return dtype
