"""Dynamic extents: a symbolic size is compiled for a bucket, its value is a launch argument.

All arithmetic is done as if the size were the bucket's: tensors have the bucket's shape, and what
lies beyond the valid length is padding, which masks keep out of reductions. Where that does not
hold (an offset that depends on the size, a flattened size at the graph's edge) the graph is
compiled for the one size that arrived.

A cache that grows has a length s before a step and s + 1 after it. What is a power of two is the
room for the longest of such lengths, so that all of them move to the next bucket at the same step.
They do so one row before it is full: at the step at which windows are, whose sizes are powers of
two as well.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence, Set
from math import prod
from typing import Any, NamedTuple

import sympy
from torch._inductor import ir as inductor_ir
from torch._inductor.graph import GraphLowering
from torch._inductor.sizevars import SizeVarAllocator

from .graph import NeedsStaticSizesError

LEAST_BUCKET = 128
LEAST_ROOM = 512  # of what grows
# What a size is multiplied with counts, too: a batch of 32 texts need not have 128 words each.
LEAST_POSITIONS, SMALLEST_BUCKET, ANY_SIZE = 1024, 8, 32


def bucket_of(length: int, least: int = LEAST_BUCKET) -> int:
    """The next power of two, at least 128.

    Sizes 0 and 1 are compiled for themselves by Dynamo; with three buckets for 2 to 300 that
    makes four graphs.

    >>> [bucket_of(n) for n in (2, 128, 129, 300)]
    [128, 128, 256, 512]
    """
    return max(least, 1 << (length - 1).bit_length())


def least_bucket(others: int) -> int:
    """The smallest bucket of a size, of which each position is computed for that many others.

    Large ones save graphs, small ones work: 128, or what makes 1024 positions in all.

    >>> [least_bucket(others) for others in (1, 8, 16, 32, 512)]
    [128, 128, 64, 32, 8]
    """
    wanted = bucket_of(max(LEAST_POSITIONS // others, 1), 1)
    return min(max(wanted, SMALLEST_BUCKET), LEAST_BUCKET)


def sizes_of(graph: GraphLowering) -> Iterator[Any]:
    """The lengths of all tensors of a graph."""
    boxes = (box for box in graph.graph_inputs.values() if isinstance(box, inductor_ir.TensorBox))
    buffers = (buffer for operation in graph.operations for buffer in operation.get_outputs())
    for tensor in (*boxes, *buffers):
        if isinstance(tensor.maybe_get_layout(), inductor_ir.Layout):
            yield from tensor.get_size()


class InputShape(NamedTuple):
    """The sizes of a graph's input; of floats all but the last one, which counts features."""

    positions: Sequence[Any]
    is_float: bool
    others: Set[sympy.Symbol]  # lengths that its strides depend on and its sizes do not

    @property
    def is_batch_first(self) -> bool:
        """A cache, or hidden states: floats in three dimensions or more."""
        return self.is_float and len(self.positions) > 1

    @property
    def is_mask(self) -> bool:
        """Numbers or flags for places that are counted by the last dimension."""
        return not self.is_float and len(self.positions) > 1


def input_shapes(graph: GraphLowering) -> Iterator[InputShape]:
    for box in graph.graph_inputs.values():
        if isinstance(box, inductor_ir.TensorBox):
            size = box.get_size()
            is_float = box.get_dtype().is_floating_point
            others = _symbols(box.get_stride()) - _symbols(size)
            yield InputShape(size[:-1] if is_float else size, is_float, others)


def _symbols(numbers: Iterable[Any]) -> set[sympy.Symbol]:
    return {symbol for number in numbers for symbol in sympy.sympify(number).free_symbols}


class DynamicSizes:
    """The numbers behind a graph's sizes."""

    def __init__(
        self,
        sizevars: SizeVarAllocator,
        sizes: Iterable[Any] = (),
        inputs: Iterable[InputShape] = (),
        is_static: bool = False,
    ) -> None:
        """`sizes` are all that the graph has."""
        self._sizevars = sizevars
        self._is_static = is_static
        self._numbers: dict[sympy.Symbol, int] = {}
        self._longer: dict[sympy.Symbol, int] = {}  # the largest c of lengths s + c
        self._others: dict[sympy.Symbol, int] = {}  # that each position is computed for, at least
        self._batches: set[sympy.Symbol] = set()  # that count whole caches, or other large things
        self._masks: set[sympy.Symbol] = set()  # lengths of masks of what grows
        self.lengths: dict[sympy.Expr, int] = {}  # that launches take, with the longest they may be
        inputs = () if is_static else tuple(inputs)
        for symbol in {symbol for shape in inputs for symbol in shape.others}:
            # The input is a part of something larger, which a bucket does not make any larger.
            sizevars.guard_int(symbol)
        for size in () if is_static else sizes:
            symbol, more = _and_more(self._plain(size))
            if symbol is not None:
                self._longer[symbol] = max(more, self._longer.get(symbol, 0))
        if any(self._longer.values()):
            self._masks = _symbols(self._plain(s.positions[-1]) for s in inputs if s.is_mask)
        for shape in inputs:
            self._count_others([self._plain(size) for size in shape.positions])
            if shape.is_batch_first:
                self._batches |= self._plain(shape.positions[0]).free_symbols

    def number(self, expr: Any) -> int:
        """A size or stride: with buckets for what is symbolic."""
        if isinstance(expr, int | sympy.Integer):
            return int(expr)
        expr = self._plain(expr)
        if isinstance(expr, sympy.Integer):
            return int(expr)
        if self._is_static:
            return int(self._sizevars.guard_int(expr))
        if not _only_grows(expr):
            raise NeedsStaticSizesError(f"{expr} is not largest for the longest lengths")
        values = {symbol: self._number(symbol) for symbol in expr.free_symbols}
        return int(expr.subs(values))

    def room(self, size: Any) -> int:
        """The longest of the lengths s + c that a bucket has, for any of them."""
        symbol, more = _and_more(self._plain(size)) if self.is_dynamic(size) else (None, 0)
        return self.number(size) + (self._longer.get(symbol, 0) - more if symbol else 0)

    def offset(self, expr: Any, steps: Iterable[Any] = ()) -> int:
        """A number that counts as it is: a bucket can't stand for it.

        But where a tensor's own strides depend on lengths, so do the places of its parts: x[1] of
        (2, s, 256) starts at 256·s, and in its bucket at 256·128.
        """
        if self.is_dynamic(expr) and not any(
            self.is_dynamic(step) and isinstance(self._plain(expr / step), sympy.Integer)
            for step in steps
        ):
            raise NeedsStaticSizesError(f"an offset depends on {expr}")
        return self.number(expr)

    def is_dynamic(self, expr: Any) -> bool:
        if self._is_static or isinstance(expr, int | sympy.Integer):
            return False
        return bool(self._plain(expr).free_symbols)

    def symbol(self, expr: Any) -> int | None:
        """The number of the extent argument that a size is; None for a fixed size."""
        if not self.is_dynamic(expr):
            return None
        expr = self._plain(expr)
        if _and_more(expr)[0] is None:
            raise NeedsStaticSizesError(f"the length {expr} is no size of its own")
        self.lengths.setdefault(expr, self.number(expr))
        return list(self.lengths).index(expr)

    def _plain(self, expr: Any) -> sympy.Expr:
        expr = self._sizevars.remove_precomputed_replacements(sympy.sympify(expr))
        return self._sizevars.simplify(expr)

    def _count_others(self, shape: Sequence[sympy.Expr]) -> None:
        counts = [self._count(n) for n in shape]
        for dim, size in enumerate(shape):
            others = prod(counts[:dim] + counts[dim + 1 :])
            for symbol in size.free_symbols:
                self._others[symbol] = min(others, self._others.get(symbol, others))

    def _count(self, size: sympy.Expr) -> int:
        """How many positions a size stands for, as far as it can be told for all graphs."""
        if isinstance(size, sympy.Integer):
            return int(size)
        least = LEAST_ROOM if size.free_symbols & self._masks else LEAST_BUCKET
        bucket = bucket_of(int(self._sizevars.guarding_hint_or_throw(size)), least)
        return bucket if bucket > LEAST_BUCKET else ANY_SIZE

    def _least(self, symbol: sympy.Symbol) -> int:
        """What grows goes through all of its buckets, so they are few: a cache begins with room for
        an answer, and its mask as well. A batch of caches has none that it does not need."""
        if self._grows(symbol):
            return LEAST_ROOM
        if symbol in self._batches:
            return 1
        return least_bucket(max(self._others.get(symbol, 1), 1))

    def _grows(self, symbol: sympy.Symbol) -> bool:
        return self._longer.get(symbol, 0) > 0 or symbol in self._masks

    def _number(self, symbol: sympy.Symbol) -> int:
        if symbol not in self._numbers:
            more = self._longer.get(symbol, 0)
            spare = 1 if self._grows(symbol) else 0
            least = self._least(symbol)
            hint = int(self._sizevars.guarding_hint_or_throw(symbol))
            bucket = bucket_of(hint + more + spare, least)
            if bucket > least:
                # A cache must not serve a short length with the kernels of a larger bucket: which
                # one it found would depend on what was compiled before.
                self._sizevars.check_lt(sympy.Integer(bucket // 2 - more - spare), symbol)
            most = self._most(symbol)
            self._numbers[symbol] = bucket - more if most is None else min(bucket - more, most)
            longest = min(self._numbers[symbol], bucket - more - spare)
            self._sizevars.check_leq(symbol, sympy.Integer(longest))
        return self._numbers[symbol]

    def _most(self, symbol: sympy.Symbol) -> int | None:
        """What a size can't exceed: the length of what it is a slice of."""
        upper = self._sizevars.shape_env.bound_sympy(symbol).upper
        return int(upper) if isinstance(upper, int | sympy.Integer) else None


@functools.lru_cache(maxsize=1024)
def _only_grows(expr: sympy.Expr) -> bool:
    """Is it a sum of products of lengths? Buckets keep no other relation between them."""
    for term in sympy.Add.make_args(sympy.expand(expr)):
        factor, lengths = term.as_coeff_Mul()
        if lengths.free_symbols and not (factor > 0 and lengths.is_polynomial()):
            return False
    return True


def _and_more(expr: sympy.Expr) -> tuple[sympy.Symbol | None, int]:
    """The s and the c of a length s + c."""
    (*symbols,) = expr.free_symbols
    more = expr - symbols[0] if len(symbols) == 1 else None
    if not isinstance(more, sympy.Integer):
        return None, 0
    return symbols[0], int(more)
