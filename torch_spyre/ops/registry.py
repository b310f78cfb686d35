"""The table of operations that run on the card by a formula.

An entry (`entries`) says how an aten operation is written in the card's own operations, once per
compute domain: floats (fp32 once widened), ints (int32), bools (floats 1.0 and 0.0). It names
arguments as aten's schemas do, and covers every overload that has its operands and no argument
that it doesn't know: functional, in place, `out=`, Tensor and Scalar. An overload that PyTorch
itself composes of others (`square`) is left alone.

The runtime registers its boxed kernel for `overload_names()`, so importing this module has to
stay cheap: nothing but torch is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from torch_spyre.ops.entries import Entry, Expression, Formula, Generated, Pointwise
from torch_spyre.ops.table import ARITHMETIC, MAXIMUM, MINIMUM
from torch_spyre.ops.table_generated import GENERATED
from torch_spyre.ops.table_gradients import GRADIENTS
from torch_spyre.ops.table_special import SPECIAL

__all__ = [
    "TABLE",
    "Entry",
    "Expression",
    "Formula",
    "Generated",
    "Overload",
    "Pointwise",
    "formula_for",
    "overload_names",
    "overloads",
    "value_keys",
]

TABLE: tuple[Entry, ...] = (*ARITHMETIC, *SPECIAL, *GRADIENTS, *GENERATED)


@dataclass(frozen=True)
class Overload:
    """One overload of an entry, with what the planner has to know of its schema."""

    name: str  # "aten::add.Tensor"
    entry: Entry
    arguments: tuple[str, ...]
    keyword_only: frozenset[str]
    tensors: frozenset[str]  # arguments that are tensors by schema
    written: str | None  # the argument that the overload writes; None: it returns a new tensor
    value_keys: tuple[int, ...]  # arguments whose value, not only type, shapes the plan


def formula_for(
    entry: Pointwise, constants: Mapping[str, object]
) -> tuple[Formula, tuple[str, ...]]:
    """The formula for these constant arguments, and the operands that are present."""
    if entry.name == "clamp":
        bounds = [name for name in ("min", "max") if constants.get(name, 0) is not None]
        if bounds == ["min"]:
            return MAXIMUM, ("self", "min")
        if bounds == ["max"]:
            return MINIMUM, ("self", "max")
    if entry.choice is None:
        return entry.formula, entry.operands
    chosen = constants.get(entry.choice, None)
    return entry.formulas[chosen if chosen is None else str(chosen)], entry.operands


def _schemas(name: str) -> Iterable[torch.FunctionSchema]:
    return torch._C._jit_get_schemas_for_operator(f"aten::{name}")


def _full_name(schema: torch.FunctionSchema) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def _is_composed(name: str) -> bool:
    """PyTorch builds it of other operations; a kernel of ours would cut off its gradient."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


def _exists(schema: torch.FunctionSchema, name: str) -> bool:
    # TorchScript adds overloads for Python numbers that no dispatcher knows.
    try:
        found = torch._C._get_schema(schema.name, schema.overload_name)
        torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
    except RuntimeError:
        return False
    return found is not None


def _overload(entry: Entry, schema: torch.FunctionSchema) -> Overload:
    arguments = schema.arguments
    written = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    tensors = [a.name for a in arguments if str(a.type) in ("Tensor", "Optional[Tensor]")]
    by_value = [name for name in entry.by_value if name not in tensors]
    return Overload(
        name=_full_name(schema),
        entry=entry,
        arguments=tuple(argument.name for argument in arguments),
        keyword_only=frozenset(argument.name for argument in arguments if argument.kwarg_only),
        tensors=frozenset(tensors),
        written=written[0] if written else None,
        value_keys=tuple(i for i, argument in enumerate(arguments) if argument.name in by_value),
    )


def _covers(entry: Pointwise, schema: torch.FunctionSchema) -> bool:
    names = {argument.name for argument in schema.arguments} - {"out"}
    written = {
        a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
    }
    is_known = names - written - {"self"} <= entry.arguments
    return is_known and names >= set(entry.operands) and len(schema.returns) == 1


def _overloads_of(entry: Entry) -> Iterator[Overload]:
    names: tuple[str, ...] = (entry.name,)
    if isinstance(entry, Pointwise) and not entry.name.endswith("__"):
        names = (entry.name, f"{entry.name}_")
    for name in names:
        for schema in _schemas(name):
            full = _full_name(schema)
            if isinstance(entry, Pointwise):
                wanted = _covers(entry, schema)
            else:
                wanted = full.removeprefix("aten::") in entry.overloads
            if wanted and _exists(schema, full) and not _is_composed(full):
                yield _overload(entry, schema)


@functools.cache
def overloads() -> dict[str, Overload]:
    """Every overload that the card runs, by its full name."""
    return {overload.name: overload for entry in TABLE for overload in _overloads_of(entry)}


def overload_names() -> tuple[str, ...]:
    """The names ("aten::add.Tensor") for which the runtime registers its boxed kernel."""
    return tuple(overloads())


def value_keys(name: str) -> tuple[int, ...]:
    """Positions of the scalar arguments whose values belong into the key of a cached plan."""
    return overloads()[name].value_keys
