"""Dynamic extents: a symbolic size is compiled for a bucket, its value is a launch argument.

All arithmetic is done as if the size were the bucket's: tensors have the bucket's shape, and what
lies beyond the valid length is padding, which masks keep out of reductions. Where that does not
hold (an offset that depends on the size, a flattened size at the graph's edge) the graph is
compiled for the one size that arrived.
"""

from __future__ import annotations

from typing import Any

import sympy
from torch._inductor.sizevars import SizeVarAllocator

from .graph import NeedsStaticSizesError

LEAST_BUCKET = 128


def bucket_of(length: int) -> int:
    """The next power of two, at least 128.

    Sizes 0 and 1 are compiled for themselves by Dynamo; with three buckets for 2 to 300 that
    makes four graphs.

    >>> [bucket_of(n) for n in (2, 128, 129, 300)]
    [128, 128, 256, 512]
    """
    return max(LEAST_BUCKET, 1 << (length - 1).bit_length())


class DynamicSizes:
    """The numbers behind a graph's sizes."""

    def __init__(self, sizevars: SizeVarAllocator, is_static: bool = False) -> None:
        self._sizevars = sizevars
        self._is_static = is_static
        self.buckets: dict[sympy.Symbol, int] = {}

    def number(self, expr: Any) -> int:
        """A size or stride: with buckets for what is symbolic."""
        if isinstance(expr, int | sympy.Integer):
            return int(expr)
        expr = self._plain(expr)
        if isinstance(expr, sympy.Integer):
            return int(expr)
        if self._is_static:
            return int(self._sizevars.guard_int(expr))
        values = {symbol: self._bucket(symbol) for symbol in expr.free_symbols}
        return int(expr.subs(values))

    def offset(self, expr: Any) -> int:
        """A number that counts as it is: a bucket can't stand for it."""
        if self.is_dynamic(expr):
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
        if not isinstance(expr, sympy.Symbol):
            raise NeedsStaticSizesError(f"the length {expr} is no size of its own")
        self._bucket(expr)
        return list(self.buckets).index(expr)

    def _plain(self, expr: Any) -> sympy.Expr:
        expr = self._sizevars.remove_precomputed_replacements(sympy.sympify(expr))
        return self._sizevars.simplify(expr)

    def _bucket(self, symbol: sympy.Symbol) -> int:
        if symbol not in self.buckets:
            hint = int(self._sizevars.guarding_hint_or_throw(symbol))
            bucket = bucket_of(hint)
            self._sizevars.check_leq(symbol, sympy.Integer(bucket))
            if bucket > LEAST_BUCKET:
                # A cache must not serve a short length with the kernels of a larger bucket: which
                # one it found would depend on what was compiled before.
                self._sizevars.check_lt(sympy.Integer(bucket // 2), symbol)
            self.buckets[symbol] = bucket
        return self.buckets[symbol]
