"""What steps mean for each other: barriers, chains, results that need not be stored.

Cores run independently between barriers, so a barrier stands before each step that touches what
another core may have touched since the last one. A chain is a run of pointwise steps that a core
may take block by block. Both are found on the steps as the SuperDSCs describe them; then iteration
dimensions are joined, for the steps of a chain alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from torch_spyre.backend.footprint import Footprint, footprint
from torch_spyre.backend.join import join_dimensions
from torch_spyre.backend.program import (
    CORES,
    STEP_RANK,
    Lanes,
    Loop,
    Operand,
    Space,
    Step,
    StepFlags,
    StepKind,
    Symbol,
)
from torch_spyre.ir.superdsc import FORMAT_BY_NUMBER, BundleError

LX_BYTES = 2 * 1024 * 1024 - 64 * 1024
_MEMORY = (Space.DEVICE, Space.LX, Space.RING)


@dataclass(eq=False)
class Item:
    """A step on its way into the program."""

    step: Step
    lanes: int
    counts: tuple[int, ...]  # of the enclosing loops, outermost first
    file: str
    reads: list[Footprint] = field(default_factory=list)
    write: Footprint | None = None
    flags: StepFlags = StepFlags.NONE


@dataclass(eq=False)
class Nest:
    """A loop on its way into the program."""

    count: int
    body: list[Item | Nest]


def schedule(body: list[Item | Nest], symbols: Sequence[Symbol]) -> tuple[Step | Loop, ...]:
    """Order, chain and simplify the steps of a program."""
    for item in _items(body):
        _measure(item, symbols)
    _Barriers().visit(body, ())
    _chain(body)
    _discard(body)
    # The card takes rows through a reduction and its neighbours, which must have rows to take.
    joins = not any(item.step.kind is StepKind.REDUCTION for item in _items(body))
    return _finished(body, joins)


def _items(body: Sequence[Item | Nest]) -> Iterator[Item]:
    for node in body:
        if isinstance(node, Item):
            yield node
        else:
            yield from _items(node.body)


# ---- What steps touch ----------------------------------------------------------------------------


def _measure(item: Item, symbols: Sequence[Symbol]) -> None:
    step = item.step
    for position, operand in enumerate((*step.inputs, *step.outputs)):
        if operand.space not in _MEMORY:
            continue
        is_write = position == len(step.inputs)
        nbytes = FORMAT_BY_NUMBER[operand.format].nbytes
        who, walk = _storing(step) if is_write else (step, operand)
        touched = footprint(
            who,
            walk,
            item.lanes,
            nbytes,
            item.counts,
            is_write,
            _rows(item, operand, position, symbols),
        )
        _check_bounds(item, position, operand, touched, symbols)
        if operand.space is Space.RING:  # LX as well, if of other cores
            touched = replace(touched, space=Space.LX)
        if is_write:
            item.write = touched
        else:
            item.reads.append(touched)


def _storing(step: Step) -> tuple[Step, Operand]:
    """The result, and the step on the cores that store it: in device memory the first of each ring.

    All partners name the place, but those who read it there wait for that core.
    """
    (output,) = step.outputs
    if not step.ring or output.space is Space.LX:
        return step, output
    cores = [core for core in range(CORES) if step.cores >> core & 1][:: step.ring]
    rows = step.extents[:: step.ring] if len(step.extents) > 1 else step.extents
    bases = output.bases[:: step.ring] if len(output.bases) > 1 else output.bases
    first = replace(step, cores=sum(1 << core for core in cores), extents=rows)
    return first, replace(output, bases=bases)


def _rows(
    item: Item, operand: Operand, position: int, symbols: Sequence[Symbol]
) -> tuple[int, int]:
    """The rows behind one iteration of a matmul's second operand or a gather's table."""
    step = item.step
    if step.kind is StepKind.MATMUL and position == 1:
        last = [m.valid for m in step.masks if m.dim == step.lane_dim and not m.is_symbol]
        extent = max(row[step.lane_dim] for row in step.extents)
        if extent == 1 and last and not any(step.masks[0].loop_strides):
            return operand.tile_stride, min(min(last), item.lanes)
        return operand.tile_stride, item.lanes
    if step.kind is StepKind.GATHER and position == 0:
        rows = step.masks[0]
        return operand.tile_stride, symbols[rows.valid].nbytes if rows.is_symbol else rows.valid
    return 0, 1


def _check_bounds(
    item: Item, position: int, operand: Operand, touched: Footprint, symbols: Sequence[Symbol]
) -> None:
    """Refuse here what the card would refuse at load, while the file is known by name."""
    if operand.space in (Space.LX, Space.RING):
        limit, what = LX_BYTES, "the scratchpad"
    else:
        symbol = symbols[operand.symbol]
        limit, what = symbol.nbytes, f"symbol {operand.symbol}"
        if touched.is_write and not symbol.is_written:
            raise BundleError(item.file, "", f"it writes {what}, an argument that is only read")
    # Tails and masked rows make the true reach shorter; the card's own check is exact.
    may_be_shorter = operand.tail_tiles or item.step.kind is StepKind.MATMUL
    if touched.low < 0 or (touched.high > limit and not may_be_shorter):
        raise BundleError(
            item.file,
            "",
            f"operand {position} of {item.step.opcode} reaches bytes {touched.low} to "
            f"{touched.high} of {what}, which has {limit}",
        )


# ---- Barriers ------------------------------------------------------------------------------------


class _Barriers:
    """Walks the program in the order of execution and keeps what was touched since a barrier.

    A loop's body is walked twice: the second time its steps also meet those of the iteration
    before. Footprints remember which iteration they stand for.
    """

    def __init__(self) -> None:
        self.since: dict[int, list[Footprint]] = {}
        self.visits = 0

    def visit(self, body: Sequence[Item | Nest], loops: tuple[int, ...]) -> None:
        for node in body:
            if isinstance(node, Item):
                self.meet(node, loops)
                continue
            for _ in range(2 if node.count > 1 else 1):
                self.visits += 1
                self.visit(node.body, (*loops, self.visits))

    def meet(self, item: Item, loops: tuple[int, ...]) -> None:
        touched = [*item.reads, item.write] if item.write else item.reads
        own = [
            replace(print_, loops=loops) if loops else print_
            for print_ in touched
            if print_.space is Space.DEVICE
        ]
        if any(map(self.depends, own)):
            item.flags |= StepFlags.BARRIER_BEFORE
            self.since.clear()
        for print_ in own:
            self.since.setdefault(print_.symbol, []).append(print_)

    def depends(self, later: Footprint) -> bool:
        return any(
            (earlier.is_write or later.is_write)
            and later.overlaps(earlier)
            and not later.stays_on_its_cores(earlier)
            for earlier in self.since.get(later.symbol, ())
        )


# ---- Chains --------------------------------------------------------------------------------------


def _chain(body: Sequence[Item | Nest]) -> None:
    chain: list[Item] = []
    for node in body:
        if isinstance(node, Nest):
            chain = []
            _chain(node.body)
        elif chain and _may_follow(node, chain):
            node.flags |= StepFlags.CHAINED
            chain.append(node)
        else:
            chain = [node]


def _may_follow(item: Item, chain: Sequence[Item]) -> bool:
    """Same iterations, uses a result of the chain, and meets nothing at another iteration."""
    step, first = item.step, chain[0].step
    if (
        step.kind is not StepKind.POINTWISE
        or first.kind is not StepKind.POINTWISE
        or item.flags & StepFlags.BARRIER_BEFORE
        or (step.cores, step.extents, step.stick_dim, step.tail_cores)
        != (first.cores, first.extents, first.stick_dim, first.tail_cores)
        or item.lanes != chain[0].lanes
    ):
        return False
    uses = False
    for member in chain:
        result = member.step.outputs[0]
        for operand in step.inputs:
            if not _meet(operand, result, item, member):
                continue
            if not _same_walk(operand, result):
                return False
            uses = uses or result.space is Space.LX
        for operand in (*member.step.inputs, result):
            if _meet(operand, step.outputs[0], member, item) and not _same_walk(
                operand, step.outputs[0]
            ):
                return False
    return uses


def _meet(a: Operand, b: Operand, item_of_a: Item, item_of_b: Item) -> bool:
    if a.space not in _MEMORY or a.space is not b.space:
        return False
    return _footprint_of(a, item_of_a).overlaps(_footprint_of(b, item_of_b))


def _footprint_of(operand: Operand, item: Item) -> Footprint:
    if operand is item.step.outputs[0]:
        assert item.write is not None
        return item.write
    inputs = [o for o in item.step.inputs if o.space in _MEMORY]
    return item.reads[next(i for i, o in enumerate(inputs) if o is operand)]


def _same_walk(a: Operand, b: Operand) -> bool:
    """The same bytes at the same iteration, on each core."""
    return a.lanes is Lanes.VECTOR and (
        a.symbol,
        a.format,
        a.lanes,
        a.bases,
        a.strides,
        a.tile_stride,
        a.tail_tiles,
        a.loop_strides,
    ) == (
        b.symbol,
        b.format,
        b.lanes,
        b.bases,
        b.strides,
        b.tile_stride,
        b.tail_tiles,
        b.loop_strides,
    )


# ---- Results that nobody else reads --------------------------------------------------------------


def _discard(body: Sequence[Item | Nest]) -> None:
    """Mark results in LX whose only readers are later steps of the same chain."""
    order = _Order(body)
    for item in order.items:
        if item.write is not None and item.write.space is Space.LX and _is_private(item, order):
            item.flags |= StepFlags.DISCARDED


class _Order:
    """The steps in program order, with the loops that they are in."""

    def __init__(self, body: Sequence[Item | Nest]) -> None:
        self.items: list[Item] = []
        self.loops: dict[Item, list[tuple[int, int]]] = {}  # first and last step of each loop
        self._collect(body, [])

    def _collect(self, body: Sequence[Item | Nest], loops: list[tuple[int, int]]) -> None:
        for node in body:
            if isinstance(node, Item):
                self.loops[node] = loops
                self.items.append(node)
            else:
                first = len(self.items)
                span = (first, first + sum(1 for _ in _items(node.body)))
                self._collect(node.body, [*loops, span])

    def after(self, start: int) -> Iterator[int]:
        """Steps that may run after `start`, nearest first: the rest of each loop and its next
        iteration, from the innermost loop out, then the rest of the program."""
        at = start + 1
        for first, end in reversed(self.loops[self.items[start]]):
            yield from range(at, end)
            yield from range(first, start + 1)
            at = end
        yield from range(at, len(self.items))


def _is_private(item: Item, order: _Order) -> bool:
    start = order.items.index(item)
    end = start + 1
    while end < len(order.items) and order.items[end].flags & StepFlags.CHAINED:
        end += 1
    if end == start + 1:
        return False
    result = item.write
    assert result is not None
    for i in order.after(start):
        other = order.items[i]
        if not start < i < end and any(read.overlaps(result) for read in other.reads):
            return False
        if other.write is not None and _covers(other.write, result) and i != start:
            return True
    return True


def _covers(later: Footprint, earlier: Footprint) -> bool:
    """Does the later write replace every byte of the earlier one, on each of its cores?"""
    return (
        later.space is Space.LX
        and later.cores & earlier.cores == earlier.cores
        and len(later.bases) == len(later.boxes) == 1
        and len(later.boxes[0]) == 1
        and not any(later.loop_strides)
        and later.low <= earlier.low
        and earlier.high <= later.high
    )


# ---- The finished program ------------------------------------------------------------------------


def _finished(body: Sequence[Item | Nest], joins: bool) -> tuple[Step | Loop, ...]:
    nodes: list[Step | Loop] = []
    chain: list[Item] = []
    for node in body:
        is_chained = isinstance(node, Item) and node.flags & StepFlags.CHAINED
        if chain and not is_chained:
            nodes += _joined(chain, joins)
            chain = []
        if isinstance(node, Item):
            chain.append(node)
        else:
            nodes.append(Loop(node.count, _finished(node.body, joins)))
    nodes += _joined(chain, joins)
    return tuple(nodes)


def _joined(chain: Sequence[Item], joins: bool) -> list[Step]:
    steps = [item.step for item in chain]
    if not steps:
        return []
    if joins or not 0 < steps[0].rank <= STEP_RANK:
        steps = join_dimensions(steps)
    for item, step in zip(chain, steps, strict=True):
        if step.rank > STEP_RANK:
            raise BundleError(
                item.file,
                "",
                f"{step.opcode} has {step.rank} iteration dimensions that can't be joined; "
                f"{STEP_RANK} is the most",
            )
    return [
        replace(step, flags=item.flags) if item.flags else step
        for item, step in zip(chain, steps, strict=True)
    ]
