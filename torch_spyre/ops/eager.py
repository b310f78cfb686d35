"""Eager execution: how an aten operation reaches the card.

1. The runtime registers one boxed C++ kernel for every name in `registry.overload_names()`.
2. A call is reduced to a key: operation, and per argument its shape, strides, layout and dtype, or
   its dtype alone for a number. A known key launches at once; Python is not entered.
3. For a new key the kernel calls `plan_for_cpp` with metas of the arguments. The plan names the
   outputs to make, the program, and what each of its symbols is bound to; it is kept.
4. `UnsupportedError` sends the call to the CPU fallback (`torch_spyre.ops.fallbacks`).

Numbers are read anew at each launch. Those at `value_keys(name)` shape the program (the bounds of
`arange`) or make a call fail (a negative integer exponent), so their values belong into the key.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch._C._dynamo.eval_frame import set_eval_frame

from torch_spyre.ops.plan import (
    Argument,
    Bind,
    OutputSpec,
    Plan,
    ScalarMeta,
    TensorMeta,
    UnsupportedError,
)
from torch_spyre.ops.planner import plan
from torch_spyre.ops.registry import overload_names, value_keys


def plan_for_cpp(name: str, args: Sequence[Argument]) -> Plan:
    """Plan a call for the runtime: the operation's full name, its arguments in schema order."""
    # Dynamo looks at every Python function that is called while it traces: this is no part of it.
    before = set_eval_frame(None)
    try:
        return plan(name, args)
    finally:
        set_eval_frame(before)


__all__ = [
    "Bind",
    "OutputSpec",
    "Plan",
    "ScalarMeta",
    "TensorMeta",
    "UnsupportedError",
    "overload_names",
    "plan_for_cpp",
    "value_keys",
]
