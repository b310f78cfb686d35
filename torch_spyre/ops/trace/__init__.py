"""Eager operations beyond the pointwise table: traced once, compiled, and then only launched.

An operation's decomposition runs on tensors of PyTorch's meta device, under a mode that writes down
what it is made of (`tracer`): operations of the compiler's loop-level graph where there are such
(`leaves`), steps of the card program where elements go where their indices say (`indexing`). The
compiler's own passes and back end turn the graph into programs (`launches`). So an operation has
one form, eager and compiled, and the same bits. The result is a plan that the runtime keeps: later
calls do not enter Python.
"""

from torch_spyre.ops.trace.planning import plan_traced

__all__ = ["plan_traced"]
