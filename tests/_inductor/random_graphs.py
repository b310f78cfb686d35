"""Random graphs of 2 to 12 operations, each a function of tensors with a float64 reference.

A graph is grown: an operation is chosen for values that are there, its reference is computed, and
it is kept if that stays in a range where the reference can tell right from wrong. `Graph.source`
prints it as a function, to be pasted when something is found.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import bounded
import torch
from bounded import Bounded
from torch.nn import functional as F  # noqa: N812

FLOATS = (torch.float16, torch.float32, torch.bfloat16)
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 31, 32, 33, 48, 63, 64, 65, 70, 96, 100, 128, 130)
LARGEST_NUMEL = 3000
LARGEST_VALUE = 500.0


@dataclass(frozen=True)
class Node:
    """`text` is Python over v0, v1, ...; `run` the same as a function of those operands."""

    operands: tuple[int, ...]
    text: str
    run: Callable[..., torch.Tensor]


@dataclass
class Graph:
    """Inputs v0.., then a value per node."""

    seed: int
    inputs: list[torch.Tensor] = field(default_factory=list)
    nodes: list[Node | int] = field(default_factory=list)  # an int: that input
    values: list[Bounded] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made: list[torch.Tensor] = []
        for node in self.nodes:
            if isinstance(node, int):
                made.append(inputs[node])
            else:
                made.append(node.run(*(made[i] for i in node.operands)))
        return tuple(made[i] for i in self.outputs)

    @property
    def source(self) -> str:
        lines = [f"# graph {self.seed}"]
        for i, node in enumerate(self.nodes):
            if isinstance(node, int):
                given = self.inputs[node]
                base = "" if given._base is None else f" of a {list(given._base.shape)}"
                what = f"{given.dtype} {list(given.shape)} stride {list(given.stride())}"
                lines.append(f"v{i} = input {node}: {what} offset {given.storage_offset()}{base}")
            else:
                shape = list(self.values[i].value.shape)
                dtype = str(self.values[i].dtype).removeprefix("torch.")
                lines.append(f"v{i} = {node.text}  # {dtype}{shape}")
        outputs = ", ".join(f"v{i}" for i in self.outputs)
        return "\n".join([*lines, f"return {outputs}"])


class Rejected(Exception):  # noqa: N818
    """The drawn operation does not fit the values; another is drawn."""


class Grower:
    """Draws one graph."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.torch = torch.Generator().manual_seed(seed)
        self.graph = Graph(seed)
        self.dtype = self.random.choice(FLOATS)
        self.has_mixed_dtypes = self.random.random() < 0.3

    def grow(self) -> Graph:
        graph = self.graph
        for _ in range(self.random.randint(1, 2)):
            self.input(self.shape())
        wanted = self.random.randint(2, 12)
        count = 0
        for _ in range(wanted * 10):
            try:
                self.random.choices(*ZOO)[0](self)
                count += 1
            except Rejected:
                continue
            if count == wanted:
                break
        used = {i for node in graph.nodes if isinstance(node, Node) for i in node.operands}
        computed = [i for i, node in enumerate(graph.nodes) if isinstance(node, Node)]
        graph.outputs = [i for i in computed if i not in used or self.random.random() < 0.1]
        return graph

    # ---- Values ---------------------------------------------------------------------------------

    def shape(self) -> tuple[int, ...]:
        shape: list[int] = []
        for _ in range(self.random.choices((1, 2, 3, 4), (1, 4, 4, 2))[0]):
            rest = LARGEST_NUMEL // max(math.prod(shape), 1)
            shape.append(self.random.choice([n for n in LENGTHS if n <= rest]))
        self.random.shuffle(shape)
        return tuple(shape)

    def input(self, shape: Sequence[int], dtype: torch.dtype | None = None, rows: int = 0) -> int:
        """A new input: contiguous, or a transposed or sliced part of something larger."""
        if dtype is None:
            dtype = self.random.choice(FLOATS) if self.has_mixed_dtypes else self.dtype
        order = list(range(len(shape)))
        if self.random.random() < 0.3:
            self.random.shuffle(order)
        base_shape = [shape[i] for i in order]
        start = [0] * len(shape)
        if self.random.random() < 0.25:
            start = [self.random.choice((0, 0, 1, 3)) for _ in shape]
            extra = [self.random.choice((0, 1, 5)) for _ in shape]
            grown = zip(base_shape, start, extra, strict=True)
            base_shape = [n + first + more for n, first, more in grown]
        base = self._noise(base_shape, dtype, rows)
        view = base[
            tuple(slice(first, first + shape[i]) for first, i in zip(start, order, strict=True))
        ]
        view = view.permute([order.index(i) for i in range(len(shape))]) if shape else base
        self.graph.inputs.append(view)
        self.graph.nodes.append(len(self.graph.inputs) - 1)
        self.graph.values.append(Bounded.of(view))
        return len(self.graph.nodes) - 1

    def _noise(self, shape: Sequence[int], dtype: torch.dtype, rows: int) -> torch.Tensor:
        if dtype is torch.bool:
            return torch.randint(0, 2, tuple(shape), generator=self.torch).bool()
        if not dtype.is_floating_point:
            low, high = (0, rows) if rows else (-9, 10)
            return torch.randint(low, high, tuple(shape), generator=self.torch).to(dtype)
        return torch.randn(tuple(shape), generator=self.torch).to(dtype)

    def pick(self, wanted: Callable[[Bounded], bool] = lambda _: True) -> int:
        """A value that is there, the newer the likelier."""
        fitting = [i for i, value in enumerate(self.graph.values) if wanted(value)]
        if not fitting:
            raise Rejected
        return self.random.choices(fitting, [1 + i for i in range(len(fitting))])[0]

    def float_value(self) -> int:
        return self.pick(lambda value: value.is_float)

    def value(self, index: int) -> Bounded:
        return self.graph.values[index]

    def size(self, index: int) -> tuple[int, ...]:
        return tuple(self.graph.values[index].value.shape)

    def partner(self, index: int) -> int:
        """A value that broadcasts with this one, there already or a new input."""
        size = self.size(index)
        if self.random.random() < 0.5:
            kind = self.value(index).is_float

            def fits(value: Bounded) -> bool:
                try:
                    shape = torch.broadcast_shapes(size, value.value.shape)
                except RuntimeError:
                    return False
                return value.is_float == kind and math.prod(shape) <= LARGEST_NUMEL

            return self.pick(fits)
        shape = [1 if self.random.random() < 0.2 else n for n in size]
        if self.random.random() < 0.3:
            shape = shape[self.random.randint(0, len(shape)) :]
        return self.input(shape, None if self.value(index).is_float else self.value(index).dtype)

    def dim(self, index: int) -> int:
        if not self.size(index):
            raise Rejected
        return self.random.randrange(len(self.size(index)))

    # ---- Nodes ----------------------------------------------------------------------------------

    def add(
        self, text: str, operands: Sequence[int], run: Callable[..., torch.Tensor], value: Bounded
    ) -> int:
        """Keep an operation whose reference can tell right from wrong."""
        size = value.value
        if size.numel() > LARGEST_NUMEL or size.numel() == 0 or size.dim() > 5:
            raise Rejected
        largest = float(size.abs().max())
        typical = float(size.abs().mean())
        if not largest <= LARGEST_VALUE or (
            value.dtype is not torch.bool and float(value.error.mean()) > 0.1 * typical + 1e-6
        ):
            raise Rejected
        names = [f"v{i}" for i in operands]
        self.graph.nodes.append(Node(tuple(operands), text.format(*names), run))
        self.graph.values.append(value)
        return len(self.graph.nodes) - 1


Draw = Callable[[Grower], Any]
_ZOO: list[tuple[Draw, float]] = []


def _draws(weight: float) -> Callable[[Draw], Draw]:
    def decorate(draw: Draw) -> Draw:
        _ZOO.append((draw, weight))
        return draw

    return decorate


def _one(x: torch.Tensor) -> torch.Tensor:
    return x.abs() + 1


UNARY: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[Bounded], Bounded]]] = {
    "-{0}": (torch.neg, lambda a: a.lipschitz(torch.neg, 1)),
    "{0}.abs()": (torch.abs, lambda a: a.lipschitz(torch.abs, 1)),
    "{0}.relu()": (torch.relu, lambda a: a.lipschitz(torch.relu, 1)),
    "{0}.tanh()": (torch.tanh, lambda a: a.lipschitz(torch.tanh, 1)),
    "{0}.sigmoid()": (torch.sigmoid, lambda a: a.lipschitz(torch.sigmoid, 0.25)),
    "F.gelu({0})": (F.gelu, lambda a: a.lipschitz(F.gelu, 1.13)),
    "F.silu({0})": (F.silu, lambda a: a.lipschitz(F.silu, 1.1)),
    "{0}.clamp(-1, 1)": (
        lambda x: x.clamp(-1, 1),
        lambda a: a.lipschitz(lambda x: x.clamp(-1, 1), 1),
    ),
    "{0}.clamp(-3, 3).exp()": (
        lambda x: x.clamp(-3, 3).exp(),
        lambda a: a.lipschitz(lambda x: x.clamp(-3, 3), 1).lipschitz(torch.exp, 20.2),
    ),
    "({0}.abs() + 1).sqrt()": (
        lambda x: _one(x).sqrt(),
        lambda a: bounded.of_positive(a, torch.sqrt),
    ),
    "({0}.abs() + 1).rsqrt()": (
        lambda x: _one(x).rsqrt(),
        lambda a: bounded.of_positive(a, torch.rsqrt),
    ),
    "({0}.abs() + 1).log()": (
        lambda x: _one(x).log(),
        lambda a: bounded.of_positive(a, torch.log),
    ),
    "({0}.abs() + 1).reciprocal()": (
        lambda x: _one(x).reciprocal(),
        lambda a: bounded.of_positive(a, torch.reciprocal),
    ),
    "{0} * 0.5 - 1": (
        lambda x: x * 0.5 - 1,
        lambda a: a.lipschitz(lambda x: x * 0.5, 0.5).lipschitz(lambda x: x - 1, 1),
    ),
}

BINARY: dict[str, tuple[Callable[..., torch.Tensor], Callable[[Bounded, Bounded], Bounded]]] = {
    "{0} + {1}": (torch.add, bounded.add),
    "{0} - {1}": (torch.sub, bounded.sub),
    "{0} * {1}": (torch.mul, bounded.mul),
    "torch.maximum({0}, {1})": (torch.maximum, bounded.maximum),
    "torch.minimum({0}, {1})": (torch.minimum, bounded.minimum),
}

REDUCTIONS: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., Bounded]]] = {
    "sum": (torch.sum, bounded.total),
    "mean": (torch.mean, bounded.mean),
    "amax": (torch.amax, bounded.largest),
    "amin": (torch.amin, bounded.smallest),
}


@_draws(3)
def unary(grower: Grower) -> None:
    x = grower.float_value()
    text = grower.random.choice(list(UNARY))
    run, model = UNARY[text]
    grower.add(text, [x], run, model(grower.value(x)))


@_draws(4)
def binary(grower: Grower) -> None:
    x = grower.pick(lambda value: value.dtype is not torch.bool)
    y = grower.partner(x)
    if grower.value(y).dtype is torch.bool:
        raise Rejected
    x, y = grower.random.sample((x, y), 2)
    text = grower.random.choice(list(BINARY))
    run, model = BINARY[text]
    grower.add(text, [x, y], run, model(grower.value(x), grower.value(y)))


@_draws(2)
def division(grower: Grower) -> None:
    x = grower.float_value()
    y = grower.partner(x)
    a, b = grower.value(x), grower.value(y)
    inverse = bounded.of_positive(b, torch.reciprocal)
    grower.add("{0} / ({1}.abs() + 1)", [x, y], lambda p, q: p / _one(q), bounded.mul(a, inverse))


@_draws(1.5)
def select(grower: Grower) -> None:
    x = grower.float_value()
    y = grower.partner(x)
    a, b = grower.value(x), grower.value(y)
    c = grower.add("{0} > {1}", [x, y], torch.gt, bounded.greater(a, b))
    z = grower.partner(x)
    try:
        value = bounded.where(grower.value(c), a, grower.value(z))
    except RuntimeError:  # each broadcasts with x, but not with the other
        raise Rejected from None
    grower.add("torch.where({0}, {1}, {2})", [c, x, z], torch.where, value)


@_draws(2.5)
def reduction(grower: Grower) -> None:
    x = grower.pick(lambda value: value.dtype is not torch.bool)
    size = grower.size(x)
    if not size:
        raise Rejected
    name = grower.random.choice(list(REDUCTIONS))
    if name == "mean" and not grower.value(x).is_float:
        raise Rejected
    count = grower.random.choice([1, 1, 1, len(size)])
    dims = tuple(sorted(grower.random.sample(range(len(size)), count)))
    keepdim = grower.random.random() < 0.6
    run, model = REDUCTIONS[name]
    grower.add(
        f"{{0}}.{name}({dims}, keepdim={keepdim})",
        [x],
        lambda p: run(p, dims, keepdim=keepdim),
        model(grower.value(x), dims, keepdim),
    )


@_draws(1)
def softmax(grower: Grower) -> None:
    x = grower.float_value()
    dim = grower.dim(x)
    value = bounded.softmax(grower.value(x), dim)
    grower.add(f"{{0}}.softmax({dim})", [x], lambda p: p.softmax(dim), value)


@_draws(2)
def matmul(grower: Grower) -> None:
    x = grower.pick(lambda value: value.is_float and value.value.dim() >= 2)
    *batch, m, k = grower.size(x)
    dtype = grower.value(x).dtype
    n = grower.random.choice(
        [n for n in LENGTHS if n * max(k, m) * math.prod(batch) <= LARGEST_NUMEL] or [1]
    )
    if grower.random.random() < 0.2:
        y = grower.input([n, k], dtype)
        transposed = grower.value(y).view(lambda t: t.mT)
        value = bounded.matmul(grower.value(x), transposed)
        grower.add("F.linear({0}, {1})", [x, y], F.linear, value)
        return
    if grower.random.random() < 0.25:
        value = bounded.matmul(grower.value(x), grower.value(x).view(lambda t: t.mT))
        grower.add("{0} @ {0}.mT", [x], lambda p: p @ p.mT, value)
        return
    shape = [*batch, k, n] if grower.random.random() < 0.7 else [k, n]
    y = grower.input(shape, dtype)
    value = bounded.matmul(grower.value(x), grower.value(y))
    grower.add("{0} @ {1}", [x, y], torch.matmul, value)


@_draws(1)
def cast(grower: Grower) -> None:
    x = grower.pick()
    dtype = grower.random.choice([*FLOATS, *FLOATS, torch.int32, torch.int64])
    name = str(dtype)
    value = bounded.convert(grower.value(x), dtype)
    grower.add(f"{{0}}.to({name})", [x], lambda p: p.to(dtype), value)


@_draws(1.5)
def concatenation(grower: Grower) -> None:
    x = grower.float_value()
    dim = grower.dim(x)
    size = list(grower.size(x))
    size[dim] = grower.random.choice((1, 2, 5, 64))
    y = x if grower.random.random() < 0.3 else grower.input(size, grower.value(x).dtype)
    pair = grower.random.sample((x, y), 2)
    value = bounded.cat([grower.value(i) for i in pair], dim)
    grower.add(f"torch.cat([{{0}}, {{1}}], {dim})", pair, lambda *p: torch.cat(p, dim), value)


@_draws(1)
def rows(grower: Grower) -> None:
    x = grower.float_value()
    dim = grower.dim(x)
    count = grower.random.choice((1, 2, 5, 40))
    kind = grower.random.choice((torch.int64, torch.int32))
    i = grower.input([count], kind, rows=grower.size(x)[dim])
    picked = grower.value(i).value.long()
    value = grower.value(x).view(lambda t: t.index_select(dim, picked))
    text = f"{{0}}.index_select({dim}, {{1}})"
    grower.add(text, [x, i], lambda p, q: p.index_select(dim, q), value)


# ---- Views --------------------------------------------------------------------------------------


def _view(
    grower: Grower, x: int, text: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    grower.add(text, [x], change, grower.value(x).view(change))


@_draws(2)
def permutation(grower: Grower) -> None:
    x = grower.pick(lambda value: value.value.dim() >= 2)
    order = list(range(len(grower.size(x))))
    grower.random.shuffle(order)
    _view(grower, x, f"{{0}}.permute({order})", lambda t: t.permute(order))


@_draws(2.5)
def reshape(grower: Grower) -> None:
    x = grower.pick()
    rest = math.prod(grower.size(x))
    shape = []
    while rest > 1 and len(shape) < 3:
        factors = [n for n in range(2, rest + 1) if rest % n == 0]
        shape.append(grower.random.choice(factors))
        rest //= shape[-1]
    shape.append(rest)
    grower.random.shuffle(shape)
    _view(grower, x, f"{{0}}.reshape({shape})", lambda t: t.reshape(shape))


@_draws(2)
def part(grower: Grower) -> None:
    x = grower.pick()
    dim = grower.dim(x)
    n = grower.size(x)[dim]
    start = grower.random.randrange(n)
    stop = grower.random.randint(start + 1, n)
    step = grower.random.choice((1, 1, 1, 2, 3))
    index = (slice(None),) * dim + (slice(start, stop, step),)
    text = ", ".join([":"] * dim + [f"{start}:{stop}:{step}"])
    _view(grower, x, f"{{0}}[{text}]", lambda t: t[index])


@_draws(1)
def expansion(grower: Grower) -> None:
    x = grower.pick()
    dim = grower.random.randint(0, len(grower.size(x)))
    n = grower.random.choice((1, 2, 3, 5))
    size = [*grower.size(x)]
    size.insert(dim, n)
    change = lambda t: t.unsqueeze(dim).expand(size)  # noqa: E731
    _view(grower, x, f"{{0}}.unsqueeze({dim}).expand({size})", change)


ZOO = ([draw for draw, _ in _ZOO], [weight for _, weight in _ZOO])


def random_graph(seed: int) -> Graph:
    """The graph of this seed; every seed has one."""
    return Grower(seed).grow()
