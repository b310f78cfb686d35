"""Which graphs of a function count against Dynamo's limit, and what to say when it is reached.

Dynamo keeps `torch._dynamo.config.recompile_limit` graphs of a function, 8 of them. One that asks
for more is taken for one that will never stop asking, and runs eagerly. Buckets do stop: each is
twice as large as the one before. So graphs for different buckets do not add up: those that count
are the most that have the same ones. All graphs for fixed sizes have the same ones, none.

    lengths to 128, to 256, to 512       one counts
    lengths 5, 6 and 7, taken for fixed  all three count
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch._dynamo.cache_size import CacheSizeRelevantForFrame
from torch._guards import CompileContext, CompileId, TracingContext
from torch.utils._sympy.numbers import int_oo

from .weights import is_of_module

Buckets = frozenset[tuple[str, int]]  # names of sizes, and the largest that each may be
SizesOfInputs = dict[str, tuple[int, ...]]

_MOST_SIZES = 4  # that a warning names


class RecompileLimitWarning(UserWarning):
    """A function has as many graphs as Dynamo keeps; calls that fit none of them run eagerly."""


class Known(NamedTuple):
    """A graph for Spyre, from its compile on."""

    id: CompileId  # ids are given again after a reset: this very object is meant
    buckets: Buckets
    sizes: SizesOfInputs


_known: dict[CompileId, Known] = {}


def remember(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Note which buckets the graph that Dynamo is compiling was compiled for, and when."""
    number, context = CompileContext.current_compile_id(), TracingContext.try_get()
    if number is not None and context is not None and context.fake_mode is not None:
        buckets = frozenset(_buckets(context.fake_mode.shape_env))
        _known[number] = Known(number, buckets, dict(_sizes(gm, inputs)))


def _buckets(shapes: Any) -> Iterator[tuple[str, int]]:
    """Of what guards allow, so that it does not matter whether a graph comes from a cache."""
    for symbol in shapes.var_to_range:
        bounds = shapes.bound_sympy(symbol)
        if symbol not in shapes.replacements and bounds.lower < bounds.upper < int_oo:
            yield symbol.name, int(bounds.upper)


def _sizes(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True):
        argument = node.meta.get("grapharg")
        is_given = isinstance(value, torch.Tensor) and not is_of_module(node, value)
        if is_given and argument is not None:
            sizes = tuple(value.shape)
            if not any(isinstance(size, torch.SymInt) for size in sizes):
                yield argument.source.name, sizes


def _graph_of(entry: Any) -> Known | None:
    known = _known.get(entry.compile_id)
    return known if known is not None and known.id is entry.compile_id else None


@dataclass
class CacheSize(CacheSizeRelevantForFrame):
    """How many graphs a function has, some of them for Spyre."""

    graphs: list[Known] = field(default_factory=list)


def cache_size(
    original: Callable[..., CacheSizeRelevantForFrame],
    frame: Any,
    entries: Sequence[Any],
    *total: int,
) -> CacheSizeRelevantForFrame:
    """Dynamo's answer, with those graphs that count."""
    size = original(frame, entries, *total)
    groups: defaultdict[Buckets, list[Any]] = defaultdict(list)
    graphs = []
    for entry in entries:
        graph = _graph_of(entry)
        graphs += [graph] if graph else []
        groups[graph.buckets if graph else frozenset()].append(entry)
    if not graphs:
        return size
    most = max(
        original(frame, group, *total).num_cache_entries_with_same_id_matched_objs
        for group in groups.values()
    )
    return CacheSize(size.num_cache_entries, most, size.total_cache_entries_all_regions, graphs)


def exceeds_limit(
    original: Callable[..., tuple[bool, str]], size: CacheSizeRelevantForFrame, number: CompileId
) -> tuple[bool, str]:
    """Dynamo's answer: is there a graph too many, and by which limit? With a warning."""
    is_exceeded, limit = original(size, number)
    if is_exceeded and isinstance(size, CacheSize):
        _warn(limit, list(_changed(graph.sizes for graph in size.graphs)))
    return is_exceeded, limit


def _warn(limit: str, changed: Sequence[str]) -> None:
    """Say which sizes changed, and what to do. Dynamo has its own warning, with the function."""
    more = len(changed) - _MOST_SIZES
    lines = [*changed[:_MOST_SIZES], *([f"and {more} more"] if more > 0 else [])]
    found = (
        "Between its graphs, these sizes differ:\n" + "".join(f"  {line}\n" for line in lines)
        if changed
        else "Its graphs do not differ in sizes: something else is fixed in each.\n"
    )
    warnings.warn(
        f"a function has as many graphs as torch._dynamo.config.{limit} allows: calls on the card "
        f"that fit none of them run eagerly from now on, which is slower.\n{found}"
        "Graphs for other buckets do not count, so sizes are fixed where they could be dynamic, or "
        "the function is called in many ways. Pad what varies to a few sizes; mark it with "
        "torch._dynamo.mark_dynamic(tensor, dim) before the first call; or let the function have "
        "more graphs: torch.compile(..., recompile_limit=32). "
        "TORCH_LOGS=recompiles says why each was made.",
        RecompileLimitWarning,
        stacklevel=2,
    )


def _changed(graphs: Iterable[SizesOfInputs]) -> Iterator[str]:
    """Lines like "dimension 1 of L['tokens']: 5, 7, 12"."""
    seen: defaultdict[tuple[str, int], dict[int, None]] = defaultdict(dict)
    for sizes in graphs:
        for name, shape in sizes.items():
            for dim, size in enumerate(shape):
                seen[name, dim][size] = None
    for (name, dim), values in seen.items():
        if len(values) > 1:
            yield f"dimension {dim} of {name}: {', '.join(map(str, values))}"
