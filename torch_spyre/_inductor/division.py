"""Work division: into how many slices the cores cut each dimension of an operation.

Three steps, each a pure function: `span_slices` says how many slices the address range of a core
demands; `matmul_division` prices the divisions of a matmul with the card's clock and takes the
cheapest; `work_division` divides everything else by the amount of work. Stick dimensions count
whole sticks, so that every cut falls between sticks. A dimension of extent n in s slices gives
each core ceil(n / s), the last one what is left. Where what is accumulated is cut, cores form
rings, whose partners are neighbours (`ring_order`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product, takewhile
from math import prod
from typing import Any, NamedTuple

from torch_spyre import _C
from torch_spyre.ir.splits import SPAN_LIMIT, Span, divide, fewest_slices, useful_slices

Slices = tuple[int, ...]


# ---- Everything but matmul --------------------------------------------------------------------


def span_slices(
    extents: Sequence[int],
    spans: Sequence[Span],
    cores: int,
    limit: int = SPAN_LIMIT,
    splittable: Sequence[bool] | None = None,
) -> Slices | None:
    """The fewest slices with which no core spans more than `limit` bytes of any operand.

    None if all cores together do not suffice: the operation then needs coarse tiles. Dimensions
    that are not `splittable` stay whole.

    >>> span_slices((4, 1000), [Span((200 << 20, 128))], 32)
    (2, 1)
    """
    dims = _chosen(extents, splittable)
    folded = [_without_whole_dims(span, extents, dims) for span in spans]
    fewest = fewest_slices([extents[d] for d in dims], cores, folded, limit)
    return None if fewest is None else _spread(fewest, dims, len(extents))


def work_division(
    extents: Sequence[int],
    splittable: Sequence[bool] | None,
    cores: int,
    minimum: Sequence[int] | None = None,
) -> Slices:
    """Slices that leave the busiest core the least work, larger dimensions first.

    Where no divisor fits, the last slice is shorter. `minimum` is what the span limit asks for.

    >>> work_division((4, 1024), None, 32)
    (1, 32)
    >>> work_division((33, 4), (True, False), 32)
    (17, 1)
    """
    dims = _chosen(extents, splittable)
    least = [1] * len(extents) if minimum is None else list(minimum)
    for d, slices in enumerate(least):
        if slices > 1 and d not in dims:
            raise ValueError(
                f"the span limit asks for {slices} slices of dimension {d} of {tuple(extents)}, "
                f"which can't be split; use coarse tiles along another dimension"
            )
    if prod(least) > cores:
        raise ValueError(
            f"the span limit asks for {tuple(least)} slices of {tuple(extents)}, more than the "
            f"{cores} cores; use coarse tiles"
        )
    chosen = divide([extents[d] for d in dims], cores, [least[d] for d in dims])
    return _spread(chosen, dims, len(extents))


def ring_order(slices: Sequence[int], reduced: Sequence[int]) -> Slices:
    """An order in which cores count through slices that makes the partners of a ring neighbours.

    Empty where the dimensions' own order does.

    >>> ring_order((4, 2, 3), (0,)), ring_order((4, 2, 3), (2,))
    ((1, 2), ())
    """
    kept = tuple(d for d, count in enumerate(slices) if count > 1 and d not in reduced)
    return () if are_partners_neighbours(slices, (), reduced) else kept


def are_partners_neighbours(
    slices: Sequence[int], order: Sequence[int], reduced: Sequence[int]
) -> bool:
    """Do cores that count in this order come to a result's slices one after the other?"""
    dims = (*order, *(d for d in range(len(slices)) if d not in order))
    cut = [d for d in dims if slices[d] > 1]
    rings = sorted(d for d in cut if d in reduced)
    return cut[len(cut) - len(rings) :] == rings


def _chosen(extents: Sequence[int], splittable: Sequence[bool] | None) -> list[int]:
    """The dimensions that may be split."""
    if splittable is None:
        return list(range(len(extents)))
    return [d for d, (_, may) in enumerate(zip(extents, splittable, strict=True)) if may]


def _without_whole_dims(span: Span, extents: Sequence[int], dims: Sequence[int]) -> Span:
    """The same reach over the splittable dimensions alone; each iteration spans the others."""
    whole = [d for d in range(len(extents)) if d not in dims]
    inner = sum(abs(span.strides[d]) * (extents[d] - 1) for d in whole)
    return Span(tuple(span.strides[d] for d in dims), span.size + inner)


def _spread(slices: Slices, dims: Sequence[int], rank: int) -> Slices:
    """Slices of the chosen dimensions among all of them; the others stay whole."""
    spread = [1] * rank
    for d, count in zip(dims, slices, strict=True):
        spread[d] = count
    return tuple(spread)


# ---- Matmul -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class MatmulShape:
    """C[batch, m, n] = A[batch, m, k] @ B[batch, k, n], as the clock sees it.

    Batch and rows may be several iteration dimensions each (heads and images, say), or none: a
    core split must fall on one of them, not on their product. n is counted in sticks of C, k in
    elements. The bytes are those in LPDDR5, of all cores together and each operand once: 0 for an
    operand that is in LX.
    """

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n_sticks: int
    k: int
    a_bytes: int
    b_bytes: int
    c_bytes: int
    bits: int = 16  # of the operands: sets the rate of the array
    n_lanes: int = 64  # elements in a stick of C
    k_lanes: int = 64  # elements in a stick of A: a K split cuts between these
    m_unit: int = 1  # the innermost m dimension is cut between groups of so many rows
    a_batched: bool = True  # False: one A for all of the batch
    b_batched: bool = True  # False: one B for all of the batch, as with a weight


@dataclass(frozen=True)
class MatmulSplit:
    """Slices per dimension of a matmul."""

    batch: Slices = ()
    m: Slices = ()
    n: int = 1
    k: int = 1

    @property
    def cores(self) -> int:
        return prod(self.batch) * prod(self.m) * self.n * self.k


@lru_cache(maxsize=4096)
def matmul_division(
    shape: MatmulShape,
    cores: int,
    minimum: MatmulSplit | None = None,
    k_slices: tuple[int, ...] = (1,),
    most_n: int = 1 << 30,
) -> MatmulSplit:
    """The division that takes the least time by the card's clock.

    Many divisions of a matmul that waits for LPDDR5, or for the array, take the same time. Among
    those that cut k the least the one with the least time on the array wins, then on LPDDR5: the
    unit that does not bind now is the next bound, and relieving it costs nothing. Then fewer cores,
    as more would not help. Then slices of batch before m before n: cores with matrices of their own
    share no operand, and an output divided by rows can stay in the scratchpad for row-wise
    neighbours (norms, softmax).

    `minimum` is what the span limit asks for, `most_n` a limit for slices of n. `k_slices` lists
    how often k may be cut: the cores of a cut add up their partial sums over the ring, which takes
    time, so k is cut where nothing else offers enough work for the array.

    >>> weight = dict(a_bytes=2**23, b_bytes=2**23, c_bytes=2**23)
    >>> matmul_division(MatmulShape((), (2048,), 32, 2048, **weight), 32)
    MatmulSplit(batch=(), m=(8,), n=4, k=1)
    """
    if cores < 1:
        raise ValueError(f"{cores} cores can't do anything")
    least = minimum or MatmulSplit((1,) * len(shape.batch), (1,) * len(shape.m))
    step = _cost_step(shape)
    lowest = _lower_bound(shape, cores)
    fastest, equals = None, list[_Division]()
    for division in _divisions(shape, cores, least, k_slices, most_n):
        if fastest is not None and fastest <= lowest and division.k != equals[0].k:
            break  # those to come cut k more often, for nothing
        division.describe(step, shape)
        time = _C._cost.nanoseconds(step)
        if fastest is None or time < fastest:
            fastest, equals = time, [division]
        elif time == fastest:
            equals.append(division)
    if not equals:
        raise ValueError(
            f"no division of {shape} among {cores} cores has at least the slices of {least}; use "
            f"coarse tiles"
        )
    return min(equals, key=lambda division: _preference(division, step, shape)).split


class _Cut(NamedTuple):
    """A way to cut one of batch, m, n, k: the busiest core's share, and how many cores it takes."""

    share: int
    cores: int
    slices: Slices


class _Division(NamedTuple):
    """A candidate."""

    batch: _Cut
    m: _Cut
    n: _Cut
    k: _Cut

    @property
    def cores(self) -> int:
        return self.batch.cores * self.m.cores * self.n.cores * self.k.cores

    @property
    def split(self) -> MatmulSplit:
        return MatmulSplit(self.batch.slices, self.m.slices, self.n.cores, self.k.cores)

    def describe(self, step: Any, shape: MatmulShape) -> None:
        """Fill in what the clock needs to know about the busiest core, and who shares operands."""
        batch, m, n, k = self
        step.cores = self.cores
        step.batch = batch.share
        step.m = m.share
        step.n = n.share * shape.n_lanes
        step.k = k.share
        step.a_broadcast = n.cores if shape.a_batched else n.cores * batch.cores
        step.b_broadcast = m.cores if shape.b_batched else m.cores * batch.cores
        if k.cores > 1:
            step.output_elements = batch.share * m.share * n.share * shape.n_lanes
        step.k_split = k.cores


def _cost_step(shape: MatmulShape) -> Any:
    """The part of the step that all divisions have in common.

    They share one step: building it takes longer than pricing it.
    """
    return _C._cost.Step(
        traffic=_C._cost.Traffic.Matmul,
        bits=shape.bits,
        bytes_read=shape.a_bytes + shape.b_bytes,
        bytes_written=shape.c_bytes,
        a_bytes=shape.a_bytes,
        b_bytes=shape.b_bytes,
    )


def _lower_bound(shape: MatmulShape, cores: int) -> int:
    """No division takes less time: the array is busy on all cores, and no operand is shared."""
    step = _cost_step(shape)
    rows = 64  # fill the array
    columns = shape.n_sticks * shape.n_lanes
    macs = prod(shape.batch) * prod(shape.m) * columns * shape.k
    step.m, step.n, step.k = rows, 1, macs // (rows * cores)
    return int(_C._cost.nanoseconds(step))


def _preference(division: _Division, step: Any, shape: MatmulShape) -> tuple[float, ...]:
    """The order among divisions that take the same time, the best first; see `matmul_division`."""
    division.describe(step, shape)
    batch, m, n, k = division
    units = _C._cost.breakdown(step)
    return k.cores, units.pt, units.memory, division.cores, -batch.cores, -m.cores, -n.cores


def _divisions(
    shape: MatmulShape, cores: int, least: MatmulSplit, k_slices: tuple[int, ...], most_n: int
) -> Iterator[_Division]:
    """Divisions worth pricing."""
    depths = _cuts((shape.k,), cores, (least.k,), shape.k_lanes)
    batches = _cuts(shape.batch, cores, least.batch)
    rows = _cuts(shape.m, cores, least.m, shape.m_unit)
    columns = _cuts((shape.n_sticks,), cores, (least.n,))
    for k in (cut for cut in depths if cut.cores in k_slices):
        for batch in _affordable(batches, cores // k.cores):
            available = cores // (k.cores * batch.cores)
            for m in _affordable(rows, available):
                for n in _affordable(columns, min(available // m.cores, most_n)):
                    yield _Division(batch, m, n, k)


def _affordable(cuts: list[_Cut], cores: int) -> Iterator[_Cut]:
    """Those that need no more cores; cuts are sorted by that."""
    return takewhile(lambda cut: cut.cores <= cores, cuts)


def _cuts(extents: Slices, cores: int, least: Slices, unit: int = 1) -> list[_Cut]:
    """Ways to cut a group of dimensions; none that takes more cores for no smaller a share.

    The innermost dimension is cut between units (sticks, say), the last of which may be partial.
    Among cuts with equal share and cores the larger dimension has more slices, as `divide` does.
    """
    units = [1] * (len(extents) - 1) + [unit] * bool(extents)
    counts = [-(-extent // size) for extent, size in zip(extents, units, strict=True)]
    options = [useful_slices(count, cores, low) for count, low in zip(counts, least, strict=True)]
    by_size = sorted(range(len(extents)), key=lambda d: -counts[d])
    cuts = []
    for slices in product(*options):
        used = prod(slices)
        if used <= cores:
            dims = zip(extents, counts, units, slices, strict=True)
            share = prod(min(-(-count // s) * size, extent) for extent, count, size, s in dims)
            cuts.append(_Cut(share, used, slices))
    cuts.sort(key=lambda cut: (cut.cores, cut.share, *(-cut.slices[d] for d in by_size)))
    useful: list[_Cut] = []
    for cut in cuts:
        if not useful or cut.share < useful[-1].share:
            useful.append(cut)
    return useful
