"""Which dimension of which tensor in an FX graph carries which name.

Names start at the tensors that the model named and follow dataflow, never sizes: through views,
pointwise operations, matmuls and reductions. A dimension is a sequence of parts, outermost first,
so that views which merge or split dimensions lose nothing:

    x                 [B 2] [M 1024] [K]
    x.view(2048, K)   [B 2, M 1024]  [K]
    .view(2, 8, 128)  [B 2] [M 8, steps of 128] [M 128] ...

At an operation without a rule names end, and a line of the log says so.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

import sympy
import torch
from torch._inductor import inductor_prims  # noqa: F401  defines torch.ops.prims.fma

from .debug import log
from .fx import custom_ops  # noqa: F401  defines torch.ops.spyre

aten, prims = torch.ops.aten, torch.ops.prims

Size: TypeAlias = int | sympy.Expr


class Part(NamedTuple):
    """The digit (name // step) mod size of a named dimension; without a name, of any."""

    size: Size
    name: str = ""
    step: Size = 1
    whole: Size = 0  # the size of the named dimension

    @property
    def is_outermost(self) -> bool:
        """Are equal shares of it contiguous shares of the named dimension?"""
        return bool(self.name) and self.size * self.step == self.whole


Dim: TypeAlias = tuple[Part, ...]  # outermost first; none for a dimension of size 1
Dims: TypeAlias = tuple[Dim, ...]


class Named(NamedTuple):
    """The dimensions of a node's results, and those that it reduces."""

    results: tuple[Dims, ...]
    reduced: Dims = ()

    @property
    def is_empty(self) -> bool:
        dims = [*self.reduced, *(dim for result in self.results for dim in result)]
        return not any(part.name for dim in dims for part in dim)


def size_of(n: int | torch.SymInt) -> Size:
    """A size without asking a symbol for its number."""
    return n.node.expr if isinstance(n, torch.SymInt) else int(n)


def plain(shape: Sequence[Any]) -> Dims:
    """Dimensions without names."""
    return tuple(() if size_of(n) == 1 else (Part(size_of(n)),) for n in shape)


def named(shape: Sequence[Any], names: Sequence[str]) -> Dims:
    """Dimensions with names; an empty one stands for none."""
    sizes = [size_of(n) for n in shape]
    return tuple(
        (Part(n, name, 1, n),) if name and n != 1 else plain([n])[0]
        for n, name in zip(sizes, names, strict=True)
    )


def is_named(dim: Dim) -> bool:
    return any(part.name for part in dim)


def span_of(dim: Dim, name: str, tiles: int) -> int:
    """The stretch of a dimension whose equal shares are tiles of a name; 0 if there is none.

    Of [B 2, M 1024] that is 1024 for M, twice over, and 2048 for B.
    """
    for at, part in enumerate(dim):
        if part.name == name and part.is_outermost and part.size % tiles == 0:
            return int(prod(inner.size for inner in dim[at:]))
    return 0


# ---- Views --------------------------------------------------------------------------------------


def viewed(dims: Dims, shape: Sequence[Any]) -> Dims:
    """The same elements in another shape.

    A dimension that a view splits keeps its name at the outermost part; what the inner parts are
    of it is remembered, for a view that merges them again.
    """
    left = [part for dim in dims for part in dim]
    if any(part.size == 0 for part in left):
        return plain(shape)
    result = []
    for n in shape:
        taken: list[Part] = []
        need = size_of(n)
        while need != 1:
            part, need = _take(left, need)
            taken.append(part)
        result.append(_joined(taken))
    return tuple(result)


def _take(left: list[Part], need: Size) -> tuple[Part, Size]:
    """The next outermost part of at most this size, and the size that is still missing."""
    if not left:
        return Part(need), 1  # symbols that do not divide: from here on without names
    part = left.pop(0)
    if part.size == need:
        return part, 1
    if not isinstance(part.size, int) or not isinstance(need, int):
        left.clear()
        return Part(need), 1
    if need % part.size == 0:
        return part, need // part.size
    if part.size % need == 0:
        inner = part.size // need
        left.insert(0, part._replace(size=inner))
        return part._replace(size=need, step=part.step * inner), 1
    # Digits of both shapes overlap: what they share has no name.
    following = left.pop(0).size if left else 1
    if isinstance(following, int) and following > 1:
        left.insert(0, Part(part.size * following))
    else:
        left.clear()
    return _take(left, need)


def _joined(parts: Sequence[Part]) -> Dim:
    """Neighbouring digits of one dimension as one."""
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else Part(1)
        if part.name and last.name == part.name and last.step == part.size * part.step:
            result[-1] = part._replace(size=last.size * part.size)
        else:
            result.append(part)
    return tuple(result)


def together(*all_dims: Dims) -> Dims:
    """Dimensions of a result whose operands are broadcast against each other.

    Where operands have different names for one loop, the first one's holds.
    """
    rank = max(map(len, all_dims), default=0)
    aligned = [((),) * (rank - len(dims)) + dims for dims in all_dims]
    return tuple(_agreed(candidates) for candidates in zip(*aligned, strict=True))


def _agreed(candidates: Sequence[Dim]) -> Dim:
    known = [dim for dim in candidates if is_named(dim)] or [dim for dim in candidates if dim]
    if len(set(known)) > 1 and is_named(known[0]):
        names = [" and ".join(part.name or "?" for part in dim) for dim in dict.fromkeys(known)]
        log.info("one loop has the names %s; the first one counts", ", ".join(names))
    return known[0] if known else ()


# ---- Rules --------------------------------------------------------------------------------------


class Call:
    """A call of an operation, with its arguments by name and the names of their dimensions."""

    def __init__(self, node: torch.fx.Node, known: Callable[[torch.fx.Node], Named | None]) -> None:
        self.node = node
        self._known = known
        self.args: dict[str, Any] = {}
        if isinstance(node.target, torch._ops.OpOverload):
            schema = node.target._schema.arguments
            self.args = {a.name: a.default_value for a in schema if a.has_default_value()}
            self.args |= {a.name: value for a, value in zip(schema, node.args, strict=False)}
        self.args |= node.kwargs

    def dims(self, source: Any) -> Dims:
        """Of an operand; a number has none."""
        if not isinstance(source, torch.fx.Node):
            return ()
        value = source.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return ()
        found = self._known(source)
        return found.results[0] if found else plain(value.shape)

    @property
    def first(self) -> Dims:
        return self.dims(self.node.args[0])

    @property
    def tensors(self) -> list[Dims]:
        return [
            self.dims(source)
            for source in self.node.all_input_nodes
            if isinstance(source.meta.get("val"), torch.Tensor)
        ]

    def positions(self, name: str, rank: int) -> list[int]:
        """An argument that is one or several dimensions; all of them if it is not given."""
        value = self.args.get(name)
        if value is None or value == []:
            return list(range(rank))
        given = value if isinstance(value, list | tuple) else [value]
        return sorted(n % max(rank, 1) for n in given)

    @property
    def shape(self) -> Sequence[Any]:
        """Of the (first) result."""
        value = self.node.meta["val"]
        return (value[0] if isinstance(value, list | tuple) else value).shape


def _same(call: Call) -> Named:
    """One result, shaped like the first operand."""
    return Named((call.first,))


def _pointwise(call: Call) -> Named:
    return Named((together(*call.tensors),))


def _view(call: Call) -> Named:
    return Named((viewed(call.first, call.shape),))


def _permute(call: Call) -> Named:
    dims = call.first
    return Named((tuple(dims[n] for n in call.args["dims"]),))


def _transpose(call: Call) -> Named:
    dims = list(call.first)
    a, b = call.args["dim0"], call.args["dim1"]
    dims[a], dims[b] = dims[b], dims[a]
    return Named((tuple(dims),))


def _t(call: Call) -> Named:
    return Named((call.first[::-1],))


def _expand(call: Call) -> Named:
    """Dimensions that repeat have no name; those in front are new."""
    dims = call.first
    aligned = ((),) * (len(call.shape) - len(dims)) + dims
    return Named((tuple(dim or new for dim, new in zip(aligned, plain(call.shape), strict=True)),))


def _slice(call: Call) -> Named:
    return Named((_where_whole(call.first, call.shape),))


def _where_whole(dims: Dims, shape: Sequence[Any]) -> Dims:
    """Of a part of the tensor: a dimension of which nothing is missing keeps its name."""
    return tuple(
        dim if prod(part.size for part in dim) == size_of(n) else new
        for dim, n, new in zip(dims, shape, plain(shape), strict=True)
    )


def _pad(call: Call) -> Named:
    dims, padding = call.first, call.args["pad"]
    padded = {len(dims) - 1 - i // 2 for i, n in enumerate(padding) if n != 0}
    new = plain(call.shape)
    return Named((tuple(new[i] if i in padded else dim for i, dim in enumerate(dims)),))


def _repeat(call: Call) -> Named:
    dims, times = call.first, call.args["repeats"]
    aligned = ((),) * (len(times) - len(dims)) + dims
    choices = zip(aligned, times, plain(call.shape), strict=True)
    return Named((tuple(dim if n == 1 else new for dim, n, new in choices),))


def _select(call: Call) -> Named:
    dims = call.first
    (at,) = call.positions("dim", len(dims))
    return Named((dims[:at] + dims[at + 1 :],))


def _split(call: Call) -> Named:
    dims = call.first
    return Named(tuple(_where_whole(dims, part.shape) for part in call.node.meta["val"]))


def _unbind(call: Call) -> Named:
    one = _select(call).results
    return Named(one * len(call.node.meta["val"]))


def _getitem(call: Call) -> Named:
    source, number = call.node.args
    assert isinstance(source, torch.fx.Node) and isinstance(number, int)
    found = call._known(source)
    value = call.node.meta["val"]
    return Named((found.results[number] if found else plain(value.shape),))


def _cat(call: Call) -> Named:
    dims = together(*(d for d in call.tensors if len(d) == len(call.shape)))
    (at,) = call.positions("dim", len(dims))
    return Named(((*dims[:at], plain(call.shape)[at], *dims[at + 1 :]),))


def _stack(call: Call) -> Named:
    dims = together(*call.tensors)
    (at,) = call.positions("dim", len(dims) + 1)
    return Named(((*dims[:at], plain(call.shape)[at], *dims[at:]),))


def _embedding(call: Call) -> Named:
    weight, indices = call.dims(call.args["weight"]), call.dims(call.args["indices"])
    return Named(((*indices, weight[1]),))


def _gather(call: Call) -> Named:
    return Named((call.dims(call.args["index"]),))


def _index(call: Call) -> Named | None:
    """One index tensor; the places that several ones' dimensions take are not followed."""
    dims, indices = call.first, call.args["indices"]
    used = [at for at, index in enumerate(indices) if index is not None]
    if len(used) != 1:
        return None
    (at,) = used
    return Named(((*dims[:at], *call.dims(indices[at]), *dims[at + 1 :]),))


def _index_select(call: Call) -> Named:
    dims, index = call.first, call.dims(call.args["index"])
    (at,) = call.positions("dim", len(dims))
    return Named(((*dims[:at], *index, *dims[at + 1 :]),))


def _matmul(call: Call) -> Named:
    """The last two arguments that are tensors are multiplied, one before them is added."""
    *added, a, b = (call.dims(arg) for arg in call.node.args)
    batch = together(a[:-2], b[:-2])
    (reduced,) = together(a[-1:], b[-2:-1])
    return Named((together((*batch, a[-2], b[-1]), *added),), (reduced,))


def _mv(call: Call) -> Named:
    a, b = (call.dims(arg) for arg in call.node.args)
    return Named((a[:1],), together(a[1:], b))


def _dot(call: Call) -> Named:
    return Named(((),), together(*call.tensors))


def _reduce(call: Call) -> Named:
    dims = call.first
    gone = call.positions("dim", len(dims))
    # Without the argument: dimensions that are left are all there are.
    keep = bool(call.args.get("keepdim"))
    kept = tuple(() if at in gone else dim for at, dim in enumerate(dims) if keep or at not in gone)
    value = call.node.meta["val"]
    count = len(value) if isinstance(value, list | tuple) else 1
    return Named((kept,) * count, tuple(dims[at] for at in gone))


def _layer_norm(call: Call) -> Named:
    dims = call.first
    return Named((dims, *(plain(value.shape) for value in call.node.meta["val"][1:])))


_RULES: dict[Callable[[Call], Named | None], tuple[Any, ...]] = {
    _same: (
        aten.alias,
        aten.clone,
        aten.detach,
        aten.lift_fresh_copy,
        aten._to_copy,
        aten._softmax,
        aten._log_softmax,
        aten.tril,
        aten.triu,
        aten.full_like,
        aten.zeros_like,
        aten.ones_like,
        aten.empty_like,
        aten.rand_like,
        aten.randn_like,
        aten.bernoulli,
        aten.slice_scatter,
        aten.select_scatter,
        prims.convert_element_type,
        prims.device_put,
        torch.ops.spyre.require_layout,
    ),
    _pointwise: (prims.fma, aten.masked_fill, aten.where),
    _view: (
        aten.view,
        aten._unsafe_view,
        aten.reshape,
        aten._reshape_alias,
        aten.unsqueeze,
        aten.squeeze,
    ),
    _permute: (aten.permute,),
    _transpose: (aten.transpose,),
    _t: (aten.t,),
    _expand: (aten.expand,),
    _slice: (aten.slice,),
    _pad: (aten.constant_pad_nd,),
    _repeat: (aten.repeat,),
    _select: (aten.select,),
    _split: (aten.split, aten.split_with_sizes, aten.chunk),
    _unbind: (aten.unbind,),
    _getitem: (operator.getitem,),
    _cat: (aten.cat,),
    _stack: (aten.stack,),
    _embedding: (aten.embedding,),
    _index_select: (aten.index_select,),
    _index: (aten.index, aten._unsafe_index),
    _gather: (aten.gather,),
    _matmul: (aten.mm, aten.bmm, aten.addmm, aten.baddbmm, torch.ops.spyre.bmm_to_float),
    _mv: (aten.mv,),
    _dot: (aten.dot,),
    _reduce: (
        aten.sum,
        aten.mean,
        aten.amax,
        aten.amin,
        aten.max,
        aten.min,
        aten.prod,
        aten.any,
        aten.all,
        aten.argmax,
        aten.argmin,
        aten.logsumexp,
        aten.var,
        aten.var_mean,
    ),
    _layer_norm: (aten.native_layer_norm,),
}
_RULE_OF = {target: rule for rule, targets in _RULES.items() for target in targets}

# Views have no loops of their own.
VIEWS = frozenset(
    target
    for rule in (_view, _permute, _transpose, _t, _expand, _slice, _select, _split, _unbind)
    for target in _RULES[rule]
) | {aten.alias, aten.detach, operator.getitem}


def operation_of(node: torch.fx.Node) -> Any:
    """The operation whatever the overload."""
    return getattr(node.target, "overloadpacket", node.target)


def follow(node: torch.fx.Node, known: Callable[[torch.fx.Node], Named | None]) -> Named | None:
    """The names of a node's dimensions, from those of its operands; None if there are none."""
    if node.op != "call_function" or "val" not in node.meta:
        return None
    if all(known(source) is None for source in node.all_input_nodes):
        return None
    is_pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
    rule = _pointwise if is_pointwise else _RULE_OF.get(operation_of(node))
    result = rule(Call(node, known)) if rule is not None else None
    if result is None:
        log.info("names of dimensions end at %s, an operation without a rule for them", node)
        return None
    _check_sizes(node, result)
    return None if result.is_empty else result


def _check_sizes(node: torch.fx.Node, result: Named) -> None:
    """A rule that makes a mistake is found here rather than in a plan."""
    value = node.meta["val"]
    values = value if isinstance(value, list | tuple) else [value]
    for dims, tensor in zip(result.results, values, strict=True):
        sizes = tuple(prod(part.size for part in dim) for dim in dims)
        expected = tuple(size_of(n) for n in tensor.shape)
        assert sizes == expected, f"{node.format_node()}: {sizes} for {expected}"
