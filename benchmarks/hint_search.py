"""Random legal hints against the automatic plan, by modelled time.

A set of hints is one to three scopes, beside or within each other, each around some consecutive
parts of a workload and with a random number of tiles of a random dimension. Sets that the compiler
refuses are drawn again, and dimensions that it can't tile at all are left out. All times are the
card's clock, so a seed gives the same table everywhere.

Nothing runs, unless `--check` asks for it: the kernels that the generated code would launch are
compiled and priced.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from unittest import mock

import torch
from _report import Report, median
from torch import nn
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch.nn import functional

from torch_spyre import name_tensor_dims, spyre_hint
from torch_spyre._inductor import runtime
from torch_spyre._inductor.errors import Unsupported
from torch_spyre.device.diagnostics import counters
from torch_spyre.tools.measure import KernelCost, StepCost, kernel_cost

MOST_SCOPES = 3
MOST_TILES = 256
MOST_REFUSED = 50  # for each legal set that is wanted: then the workload has too few of them
ERROR = 2**-7  # of the largest value, that --check lets pass: sums and weights in fp16

Tensors = dict[str, torch.Tensor]
Part = Callable[[Tensors], None]  # takes tensors by name, and adds its result to them


# ---- Hints --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scope:
    """A hint around parts `first` to `end` of a workload, with those inside of it."""

    first: int
    end: int
    dim: str
    tiles: int
    inner: tuple[Scope, ...] = ()


def run_parts(
    parts: Sequence[Part], scopes: Sequence[Scope], tensors: Tensors, first: int, end: int
) -> None:
    """Call parts `first` to `end`, in scopes that are beside each other."""
    at = first
    for scope in scopes:
        for part in parts[at : scope.first]:
            part(tensors)
        with spyre_hint(num_tiles_per_dim={scope.dim: scope.tiles}):
            run_parts(parts, scope.inner, tensors, scope.first, scope.end)
        at = scope.end
    for part in parts[at:end]:
        part(tensors)


def nested(scopes: Sequence[Scope]) -> tuple[Scope, ...] | None:
    """Scopes within those that are around them; None if two of them overlap otherwise."""
    if not scopes:
        return ()
    first, *rest = sorted(scopes, key=lambda scope: (scope.first, -scope.end))
    within = [scope for scope in rest if scope.end <= first.end]
    beside = [scope for scope in rest if scope.first >= first.end]
    inner, others = nested(within), nested(beside)
    if inner is None or others is None or len(within) + len(beside) < len(rest):
        return None
    return replace(first, inner=inner), *others


def text(scopes: Sequence[Scope], parts: Sequence[Part]) -> str:
    """Scopes with what they are around: `Q: 4 {scores … weights} {K: 2 {scores}}`."""

    def of(scope: Scope) -> str:
        names = [part.__name__ for part in parts[scope.first : scope.end]]
        around = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
        inside = "".join(f", in it {of(inner)}" for inner in scope.inner)
        return f"{scope.dim}: {scope.tiles} around {around}{inside}"

    return "; ".join(map(of, scopes)) or "none"


# ---- Workloads ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Sizes of a tensor, with a name for each."""

    dims: dict[str, int]
    is_weight: bool = False


@dataclass(frozen=True)
class Workload:
    """Parts in a row, the last of which makes `y`; and what the automatic plan is made for."""

    name: str
    tensors: dict[str, Shape]
    parts: tuple[Part, ...]
    automatic: tuple[Part, ...] = ()  # the same without scopes in mind; the parts if there are none

    @property
    def sizes(self) -> dict[str, int]:
        """Of dimensions by their names; those that have any parts."""
        shapes = self.tensors.values()
        return {dim: n for shape in shapes for dim, n in shape.dims.items() if n > 1}

    def around_all(self, dim: str) -> tuple[Scope, ...]:
        """As few tiles of a dimension as there can be, around everything."""
        return (Scope(0, len(self.parts), dim, _divisors(self.sizes[dim])[0]),)

    def draw(self, random: Random, dims: Sequence[str]) -> tuple[Scope, ...]:
        """A set of hints for these dimensions, legal or not."""
        while True:
            count = random.randint(1, MOST_SCOPES)
            scopes = nested([self._draw_scope(random, random.choice(dims)) for _ in range(count)])
            if scopes is not None:
                return scopes

    def _draw_scope(self, random: Random, dim: str) -> Scope:
        first, end = 0, len(self.parts)
        if random.random() < 0.5:
            first, last = sorted(random.randrange(end) for _ in range(2))
            end = last + 1
        return Scope(first, end, dim, random.choice(_divisors(self.sizes[dim])))


def _divisors(size: int) -> list[int]:
    return [n for n in range(2, size + 1) if size % n == 0 and (n <= MOST_TILES or n == size)]


class Model(nn.Module):
    """A workload in scopes; its weights are parameters, which the compiler may lay out anew."""

    def __init__(
        self,
        workload: Workload,
        parts: Sequence[Part],
        scopes: Sequence[Scope],
        weights: Mapping[str, nn.Parameter],
    ) -> None:
        super().__init__()
        self.shapes = workload.tensors
        self.parts, self.scopes = tuple(parts), tuple(scopes)
        for name, weight in weights.items():
            self.register_parameter(name, weight)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        names = [name for name, shape in self.shapes.items() if not shape.is_weight]
        tensors = dict(zip(names, inputs, strict=True))
        tensors.update(self.named_parameters())
        for name, shape in self.shapes.items():
            name_tensor_dims(tensors[name], list(shape.dims))
        run_parts(self.parts, self.scopes, tensors, 0, len(self.parts))
        return tensors["y"]


def largest(t: Tensors) -> None:
    t["largest"] = t["x"].amax(-1, keepdim=True)


def exponentials(t: Tensors) -> None:
    t["e"] = torch.exp(t["x"] - t["largest"])


def total(t: Tensors) -> None:
    t["total"] = t["e"].sum(-1, keepdim=True)


def quotient(t: Tensors) -> None:
    t["y"] = t["e"] * t["total"].reciprocal()


def whole_softmax(t: Tensors) -> None:
    t["y"] = functional.softmax(t["x"], -1)


def softmax(rows: int, columns: int) -> Workload:
    return Workload(
        f"softmax {rows}x{columns}",
        {"x": Shape({"M": rows, "N": columns})},
        (largest, exponentials, total, quotient),
        (whole_softmax,),
    )


def gate(t: Tensors) -> None:
    t["gated"] = functional.silu(functional.linear(t["x"], t["gate_weight"]))


def up(t: Tensors) -> None:
    t["upper"] = functional.linear(t["x"], t["up_weight"])


def product(t: Tensors) -> None:
    t["inner"] = t["gated"] * t["upper"]


def down(t: Tensors) -> None:
    t["y"] = functional.linear(t["inner"], t["down_weight"])


def mlp(rows: int, hidden: int, inner: int) -> Workload:
    return Workload(
        f"SwiGLU MLP {rows}x{hidden}x{inner}",
        {
            "x": Shape({"M": rows, "K": hidden}),
            "gate_weight": Shape({"I": inner, "K": hidden}, is_weight=True),
            "up_weight": Shape({"I": inner, "K": hidden}, is_weight=True),
            "down_weight": Shape({"N": hidden, "I": inner}, is_weight=True),
        },
        (gate, up, product, down),
    )


def scores(t: Tensors) -> None:
    width = t["q"].shape[-1]
    t["x"] = t["q"] @ t["k"].transpose(-2, -1) * (1 / math.sqrt(width))


def mask(t: Tensors) -> None:
    queries, keys = t["x"].shape[-2:]
    rows = torch.arange(queries, device=t["x"].device)
    columns = torch.arange(keys, device=t["x"].device)
    t["x"] = torch.where(columns <= rows[:, None], t["x"], -math.inf)


def weights(t: Tensors) -> None:
    t["w"] = t["e"] * t["total"].reciprocal()


def weighted(t: Tensors) -> None:
    t["y"] = t["w"] @ t["v"]


def attend(t: Tensors) -> None:
    t["y"] = functional.scaled_dot_product_attention(t["q"], t["k"], t["v"])


def attend_causally(t: Tensors) -> None:
    t["y"] = functional.scaled_dot_product_attention(t["q"], t["k"], t["v"], is_causal=True)


def attention(
    heads: int, queries: int, keys: int, width: int, *, is_causal: bool
) -> tuple[Workload, Workload]:
    """One call, which hints can only be put around; and by hand, against the same call."""
    tensors = {
        "q": Shape({"B": 1, "H": heads, "Q": queries, "D": width}),
        "k": Shape({"B": 1, "H": heads, "K": keys, "D": width}),
        "v": Shape({"B": 1, "H": heads, "K": keys, "E": width}),
    }
    kind = f"1x{heads}x{queries}x{width} causal" if is_causal else f"{queries} to {keys} keys"
    call: Part = attend_causally if is_causal else attend
    steps = (scores, *[mask] * is_causal, largest, exponentials, total, weights, weighted)
    return (
        Workload(f"attention {kind}", tensors, (call,)),
        Workload(f"attention {kind} by hand", tensors, steps, (call,)),
    )


WORKLOADS = (
    softmax(4096, 4096),
    mlp(512, 4096, 12800),
    *attention(32, 2048, 2048, 128, is_causal=True),
    *attention(32, 1, 8192, 128, is_causal=False),
)


# ---- Prices -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Price:
    """What one call of a compiled model costs on the card."""

    launches: tuple[KernelCost, ...]

    @property
    def microseconds(self) -> float:
        """The clock counts whole nanoseconds, sums of fractions don't."""
        return round(sum(kernel.microseconds for kernel in self.launches), 3)

    @property
    def steps(self) -> list[StepCost]:
        return [step for kernel in self.launches for step in kernel.steps]

    def has_loops_of(self, scopes: Sequence[Scope], around: int = 1) -> bool:
        """Did every scope become a loop, within those of the scopes around it?"""
        return all(
            any(step.visits % (around * scope.tiles) == 0 for step in self.steps)
            and self.has_loops_of(scope.inner, around * scope.tiles)
            for scope in scopes
        )


class _Priced:
    """A kernel that is priced where it would be launched."""

    def __init__(self, kernel: runtime.SpyreKernel, launches: list[KernelCost]) -> None:
        self.kernel = kernel
        self.launches = launches

    def launch(self, *_: Any) -> None:
        self.launches.append(kernel_cost(self.kernel.wait()))


@contextmanager
def launches_priced() -> Iterator[list[KernelCost]]:
    """Code that is generated in here launches nothing; what it would have is listed."""
    launches: list[KernelCost] = []
    make = runtime.spyre_kernel

    def spyre_kernel(serialized: str | bytes, name: str) -> Any:
        return _Priced(make(serialized, name), launches)

    with mock.patch.object(runtime, "spyre_kernel", spyre_kernel):
        yield launches


class Bench:
    """A workload with tensors to compile it for, the same for all sets of hints."""

    def __init__(self, workload: Workload, is_checking: bool) -> None:
        self.workload = workload
        self.is_checking = is_checking
        torch.manual_seed(0)
        host = {name: self._tensor(shape) for name, shape in workload.tensors.items()}
        card = {name: tensor.to("spyre", torch.float16) for name, tensor in host.items()}
        self.weights, self.inputs = self._taken_apart(card)
        self.wanted: torch.Tensor | None = None
        if is_checking:
            parameters, inputs = self._taken_apart(host)
            self.wanted = Model(workload, workload.parts, (), parameters)(*inputs)

    def _tensor(self, shape: Shape) -> torch.Tensor:
        sizes = list(shape.dims.values())
        if not self.is_checking:
            return torch.empty(sizes)
        return torch.randn(sizes) / (math.sqrt(sizes[-1]) if shape.is_weight else 1)

    def _taken_apart(
        self, tensors: Tensors
    ) -> tuple[dict[str, nn.Parameter], tuple[torch.Tensor, ...]]:
        shapes = self.workload.tensors
        parameters = {
            name: nn.Parameter(tensor, requires_grad=False)
            for name, tensor in tensors.items()
            if shapes[name].is_weight
        }
        return parameters, tuple(t for name, t in tensors.items() if name not in parameters)

    def price(self, parts: Sequence[Part], scopes: Sequence[Scope] = ()) -> Price:
        """Compile; raises `Unsupported` if hints are refused."""
        compiled = self._compiled(parts, scopes)
        with launches_priced() as launches:
            compiled(*self.inputs)  # compiles
            launches.clear()
            before = counters()["launches"]
            compiled(*self.inputs)
        if counters()["launches"] != before:
            raise RuntimeError("work ran on the card that is no kernel of the compiled graph")
        if self.is_checking:
            self._check(parts, scopes)
        return Price(tuple(launches))

    def _compiled(self, parts: Sequence[Part], scopes: Sequence[Scope]) -> Callable[..., Any]:
        torch._dynamo.reset()
        runtime.reset()
        model = Model(self.workload, parts, scopes, self.weights)
        return torch.compile(model, dynamic=False, fullgraph=True)

    def _check(self, parts: Sequence[Part], scopes: Sequence[Scope]) -> None:
        assert self.wanted is not None
        result = self._compiled(parts, scopes)(*self.inputs).cpu().float()
        error = float((result - self.wanted).abs().max() / self.wanted.abs().max())
        if not error < ERROR:
            hints = text(scopes, parts)
            raise RuntimeError(f"{self.workload.name} is wrong by {error:.1e} with hints {hints}")


# ---- Search -------------------------------------------------------------------------------------


@dataclass
class Found:
    """What a search came to."""

    workload: Workload
    automatic: Price
    legal: dict[tuple[Scope, ...], Price] = field(default_factory=dict)
    refused: int = 0  # or without the loops they ask for

    @property
    def best(self) -> tuple[tuple[Scope, ...], Price]:
        return min(self.legal.items(), key=lambda item: item[1].microseconds)

    @property
    def is_beaten(self) -> bool:
        """Is some set of hints faster than the automatic plan?"""
        return self.best[1].microseconds < self.automatic.microseconds

    def row(self) -> list[Any]:
        times = [price.microseconds for price in self.legal.values()]
        automatic, best = self.automatic.microseconds, self.best[1].microseconds
        return [
            self.workload.name,
            automatic,
            best,
            median(times),
            max(times),
            len(times),
            self.refused,
            "slower" if self.is_beaten else "not slower",
        ]


@torch.no_grad()
@inductor_config.patch(fx_graph_cache=False)
@functorch_config.patch(enable_autograd_cache=False)
def search(workload: Workload, draws: int, seed: int, *, is_checking: bool = False) -> Found:
    """Draw until there are so many different legal sets of hints."""
    bench = Bench(workload, is_checking)
    found = Found(workload, bench.price(workload.automatic or workload.parts))
    random = Random(f"{seed} {workload.name}")
    # Some names no hint can follow: those that are only summed over, say.
    dims = [dim for dim in workload.sizes if _price_if_legal(bench, workload.around_all(dim))]
    seen: set[tuple[Scope, ...]] = set()
    while len(found.legal) < draws:
        scopes = workload.draw(random, dims)
        if scopes in seen:
            continue
        seen.add(scopes)
        price = _price_if_legal(bench, scopes)
        if price is None:
            found.refused += 1
            if found.refused > MOST_REFUSED * draws:
                raise RuntimeError(f"{workload.name}: {found.refused} sets were refused")
        else:
            found.legal[scopes] = price
            hints = text(scopes, workload.parts)
            print(f"  {price.microseconds:10.1f} us  {hints}", file=sys.stderr)
    return found


def _price_if_legal(bench: Bench, scopes: Sequence[Scope]) -> Price | None:
    """None if the compiler refuses a hint, or does without the loop that it asks for."""
    try:
        price = bench.price(bench.workload.parts, scopes)
    except Unsupported:
        return None
    return price if price.has_loops_of(scopes) else None


def steps_text(price: Price, most: int = 12) -> Iterator[list[Any]]:
    """The steps that take the longest."""
    for step in sorted(price.steps, key=lambda step: -step.microseconds)[:most]:
        moved = [n / 2**20 for n in (step.bytes_read, step.bytes_written)]
        yield [step.operation, step.microseconds, step.cores, step.visits, *moved, step.bound]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=20, help="legal sets for each workload")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", default="", help="only those whose name holds one of these, a,b")
    parser.add_argument("--check", action="store_true", help="run each plan, compare with float32")
    parser.add_argument("--json", default="hint_search", help="name of the file in results")
    options = parser.parse_args()
    wanted = options.rows.split(",")
    report = Report(options.json, "Random legal hints against the automatic plan")
    found = []
    for workload in WORKLOADS:
        if any(name in workload.name for name in wanted):
            print(workload.name, file=sys.stderr)
            found.append(search(workload, options.draws, options.seed, is_checking=options.check))
    show(report, found)
    report.write()


def show(report: Report, found: Sequence[Found]) -> None:
    report.table(
        "microseconds on the card's clock",
        [
            "workload",
            "automatic",
            "best of hints",
            "median",
            "worst",
            "legal",
            "refused",
            "the automatic plan is",
        ],
        [each.row() for each in found],
    )
    report.table(
        "the best sets",
        ["workload", "hints"],
        [[each.workload.name, text(each.best[0], each.workload.parts)] for each in found],
    )
    columns = ["step", "us", "cores", "visits", "MiB read", "MiB written", "bound by"]
    for each in found:
        if each.is_beaten:
            for kind, price in ("automatic", each.automatic), ("hints", each.best[1]):
                report.table(f"{each.workload.name}, {kind}", columns, steps_text(price))
    beaten = [each.workload.name for each in found if each.is_beaten]
    report.remark(f"Beaten: {', '.join(beaten)}." if beaten else "No set of hints is faster.")


if __name__ == "__main__":
    main()
