"""Algorithm 1: iteration dimensions in which every operand of an operation walks whole sticks.

The loop variables of an operation are split into digits wherever a device dimension of some
operand begins, evenly and without cuts; then each operand's place in its storage is affine in
them, and what remains is to look at lanes. One digit, the *stick variable*, runs through the lanes
of the result; an operand runs through its own lanes along with it, or does not move along it and
repeats one lane over all. Everything else needs a copy to a layout in which it does.

A position along the stick dimension (tile and lane together) is kept as one digit, so that the
last stick may be partial: the variable is iterated in whole sticks, and the lanes beyond its end
are padding.

A reduction is the same with loops along which the result stands still. There the input leads: its
lanes define the stick variable. If that is itself reduced, the result has one value per stick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from .loops import Loops, merge
from .storage import Access, Storage
from .walks import (
    MAX_RANK,
    BlockedError,
    NeedsCopy,
    Walk,
    check_disjoint,
    check_padding,
    check_stands_still,
    lane_loop,
    loops_of,
    origins,
    resolve,
    runs_along,
    storages_of,
    vector_walk,
    whole_sticks,
)

SPARSE = -1  # as the last entry of a layout's order: one element per stick


@dataclass(frozen=True)
class Aligned:
    """An iteration in whole sticks: `lanes` elements for each point of `extents`."""

    extents: tuple[int, ...]  # outermost first; the lanes are not among them
    stick_dim: int | None  # the dimension that counts sticks; None: one element per iteration
    lanes: int  # elements per stick of the widest operand that is walked as a vector
    operands: tuple[Walk, ...]
    reduced: tuple[int, ...] = ()  # dimensions along which the results stand still
    length: int | None = None  # elements of the stick variable; None if there is no stick_dim
    # The caller's loop that each dimension stems from: the outermost of those that were joined.
    # None: a stick dimension of one iteration that stems from none.
    variables: tuple[int | None, ...] = ()


def align(
    extents: Sequence[int],
    accesses: Sequence[Access],
    outputs: Sequence[int] = (0,),
    *,
    lead: int | None = None,
    reduced: Sequence[int] = (),
    elements: Sequence[int] = (),
    merged: bool = True,
) -> Aligned | NeedsCopy:
    """Find common iteration dimensions, or the access that stands in the way.

    The stick variable is the one that runs through the lanes of access `lead`: the first result,
    unless the caller names another; for a reduction, the input. Along the loops in `reduced` the
    results stand still; if the stick variable is among them, results are walked "first". Accesses
    in `elements` are walked element by element and must not move along the stick variable.

    With `merged` False each dimension stays within one device dimension of every operand, so that
    `coordinates` of the walks exist.

    An operation with an empty loop has no iterations: the result of a reduction over nothing is
    the caller's to fill.

    >>> rows = Storage(device_size=(4, 5, 64), stride_map=(64, 200, 1), numel=1000)
    >>> column = Storage(device_size=(1, 5, 64), stride_map=(-1, 1, -1), numel=5)
    >>> plan = align((5, 200), [Access(rows, 0, (200, 1)), Access(column, 0, (1, 0))])
    >>> plan.extents, plan.stick_dim
    ((4, 5), 0)
    >>> plan.operands[1]
    Walk(offset=0, strides=(0, 64), lanes='first', tiles=1, tile_stride=0, tail_tiles=0)
    >>> total = align(
    ...     (5, 200),
    ...     [Access(rows, 0, (200, 1)), Access(column, 0, (1, 0))],
    ...     outputs=(1,),
    ...     lead=0,
    ...     reduced=(1,),
    ... )
    >>> total.extents, total.stick_dim, total.reduced, total.length
    ((5, 4), 1, (1,), 200)
    """
    storages = storages_of(extents, accesses)
    for index in outputs:
        check_stands_still(f"result {index}", extents, accesses[index], reduced)
    operation = _Operation(
        tuple(extents),
        tuple(accesses),
        storages,
        tuple(outputs),
        outputs[0] if lead is None else lead,
        frozenset(reduced),
        frozenset(elements),
        merged,
    )
    if 0 in extents:
        return operation.empty()
    # Joining loops first saves needless digits; without it, operands in their default layouts
    # are certain to agree, and what is in the way has the caller's names.
    try:
        return operation.plan(joined=True)
    except BlockedError:
        pass
    try:
        return operation.plan(joined=False)
    except BlockedError as error:
        return operation.name_the_obstacle(error.why)


class _Operation(NamedTuple):
    extents: tuple[int, ...]
    accesses: tuple[Access, ...]
    storages: tuple[Storage, ...]
    outputs: tuple[int, ...]
    lead: int
    reduced: frozenset[int]
    elements: frozenset[int]
    merged: bool

    def empty(self) -> Aligned:
        lanes = self.storages[self.lead].elems_per_stick
        walk = Walk(0, (0,), "vector", 1, 0, 0)
        return Aligned(
            (0,), None, lanes, (walk,) * len(self.accesses), variables=(self.extents.index(0),)
        )

    def plan(self, joined: bool) -> Aligned:
        loops = loops_of(self.extents, self.accesses, self.reduced, joined)
        for index, storage in enumerate(self.storages):
            resolve(loops, index, storage, may_split=True, by_element=index in self.elements)
        stick = self.stick_variable(loops)
        lanes = self.lanes(loops, stick)
        walks = [self.walk(loops, index, stick, lanes) for index in range(len(self.accesses))]
        extents = list(loops.extents)
        variables: list[int | None] = list(loops.variables)
        if joined:
            variables = [*origins(loops, self.extents, self.accesses, self.reduced)]
        length = None
        if stick is not None:
            length = extents[stick]
            extents[stick] = -(-length // lanes)
        elif any(walk.tail_tiles for walk in walks):
            # `tail_tiles` counts in the last iteration of the stick dimension, so there is one.
            stick, length = len(extents), 1
            extents.append(1)
            variables.append(None)
            walks = [walk._replace(strides=(*walk.strides, 0)) for walk in walks]
        reduced = [i for i, variable in enumerate(variables) if variable in self.reduced]
        for index in self.outputs:
            lanes_of_it = self.storages[index].elems_per_stick
            check_disjoint(index, extents, stick, walks[index], lanes_of_it, reduced)
        plan = Aligned(
            tuple(extents), stick, lanes, tuple(walks), tuple(reduced), length, tuple(variables)
        )
        return self.ordered(plan)

    def stick_variable(self, loops: Loops) -> int | None:
        """The loop that runs through the lanes of the lead, or else through those of the result.

        An input that is repeated along the result's lanes has none of its own.
        """
        stick = lane_loop(loops, self.lead, self.storages[self.lead].elems_per_stick)
        if stick is None and self.outputs and self.outputs[0] != self.lead:
            index = self.outputs[0]
            stick = lane_loop(loops, index, self.storages[index].elems_per_stick)
        return stick

    def is_reduced(self, loops: Loops, stick: int | None) -> bool:
        return stick is not None and loops.variables[stick] in self.reduced

    def lanes(self, loops: Loops, stick: int | None) -> int:
        writes_vectors = () if self.is_reduced(loops, stick) else self.outputs
        lanes = [
            storage.elems_per_stick
            for index, storage in enumerate(self.storages)
            if index in writes_vectors or runs_along(loops, index, stick)
        ]
        if not lanes:  # a diagonal: the lead moves on to another stick with every lane
            assert stick is not None
            raise BlockedError(
                self.lead, "it changes stick and lane at once", loops.variables[stick]
            )
        return max(lanes)

    def walk(self, loops: Loops, index: int, stick: int | None, most_lanes: int) -> Walk:
        """The access along the loops, given which of them is the stick variable."""
        storage = self.storages[index]
        offset, strides = whole_sticks(loops, index, storage, stick)
        is_output = index in self.outputs
        moves = runs_along(loops, index, stick)
        if stick is not None and not moves:
            count = len(self.accesses)
            if loops.columns[count + index][stick] or loops.columns[2 * count + index][stick]:
                raise BlockedError(
                    index,
                    f"sticks run along loop variable {loops.variables[stick]}, but not its own",
                    loops.variables[stick],
                )
            strides[stick] = 0
            if is_output and not self.is_reduced(loops, stick):
                raise BlockedError(index, "the result does not run along the stick variable")
        if index in self.elements:
            return Walk(offset, tuple(strides), "element", 1, 0, 0)
        length = loops.extents[stick] if moves and stick is not None else 1
        if is_output:
            check_padding(index, self.accesses[index], storage, self.extents, length)
        if moves or (is_output and stick is None):
            return vector_walk(storage, offset, strides, stick, length, most_lanes)
        return Walk(offset, tuple(strides), "first", 1, 0, 0)

    def ordered(self, plan: Aligned) -> Aligned:
        """Sort the dimensions by the result's strides, join what all operands walk as one."""
        stick, walks = plan.stick_dim, plan.operands
        rest = [i for i, extent in enumerate(plan.extents) if i != stick and extent != 1]
        sizes, columns, origin = merge(
            [plan.extents[i] for i in rest],
            [[walk.strides[i] for i in rest] for walk in walks],
            rest,
            [i in plan.reduced for i in rest],
        )
        rank = len(sizes) + (stick is not None)
        if rank > MAX_RANK:
            raise BlockedError(
                self.inputs_first()[0],
                f"together the operands need {rank} dimensions, {MAX_RANK} is the most",
            )
        if not self.merged:
            sizes, origin = [plan.extents[i] for i in rest], rest
            columns = [[walk.strides[i] for i in rest] for walk in walks]
        if stick is not None:
            sizes.append(plan.extents[stick])
            origin.append(stick)
            for column, walk in zip(columns, walks, strict=True):
                column.append(walk.strides[stick])
        first, lead = columns[self.outputs[0]], columns[self.lead]
        order = sorted(range(len(sizes)), key=lambda i: (-abs(first[i]), -abs(lead[i])))
        return replace(
            plan,
            extents=tuple(sizes[i] for i in order),
            stick_dim=None if stick is None else order.index(len(sizes) - 1),
            operands=tuple(
                walk._replace(strides=tuple(column[i] for i in order))
                for walk, column in zip(walks, columns, strict=True)
            ),
            reduced=tuple(at for at, i in enumerate(order) if origin[i] in plan.reduced),
            variables=tuple(plan.variables[origin[i]] for i in order),
        )

    # ---- Which access to copy -------------------------------------------------------------------

    def inputs_first(self) -> list[int]:
        indices = range(len(self.accesses))
        return sorted(indices, key=lambda index: index in self.outputs)

    def name_the_obstacle(self, blocked: NeedsCopy) -> NeedsCopy:
        """The access to copy: never one that is as good as its copy would be.

        Two accesses that disagree are both at fault; were the one named that lies in its default
        layout already, copying it would change nothing.
        """
        stick = self.plain_stick()
        faults = {index: self.fault(index, stick) for index in self.inputs_first()}
        faulty = [index for index, fault in faults.items() if fault is not None]
        if blocked.access in faulty and blocked.access not in self.outputs:
            return replace(blocked, stick=self.stick_of_copy(blocked.access, stick))
        if faulty:
            return faults[faulty[0]] or blocked
        # All would agree but for the rank: broadcasts and permutations keep dimensions apart.
        dense = [1] * len(self.extents)
        for i in range(len(dense) - 1, 0, -1):
            dense[i - 1] = dense[i] * self.extents[i]
        for index in self.inputs_first():
            strides = zip(self.extents, self.accesses[index].strides, dense, strict=True)
            if any(extent > 1 and stride != plain for extent, stride, plain in strides):
                return NeedsCopy(index, blocked.reason)
        return blocked

    def plain_stick(self) -> int | None:
        """The caller's loop that sticks run along when all goes plainly: the last one, or that of
        the lead where there are loops that not all results or inputs have a part in."""
        last = len(self.extents) - 1 if self.extents and self.extents[-1] > 1 else None
        if self.leads_by_default():
            return last
        lead = self.alone(self.lead)
        loops = loops_of(self.extents, lead.accesses, self.reduced, joined=False)
        try:
            resolve(loops, 0, lead.storages[0], may_split=False)
            stick = lane_loop(loops, 0, lead.storages[0].elems_per_stick)
            lead.walk(loops, 0, stick, lead.storages[0].elems_per_stick)
        except BlockedError:
            return last
        return stick

    def leads_by_default(self) -> bool:
        """A pointwise operation: a copy in the default layout serves everyone."""
        return self.lead in self.outputs and not self.reduced

    def stick_of_copy(self, index: int, stick: int | None) -> int | None:
        """What `NeedsCopy.stick` tells the caller."""
        if index in self.elements:
            return SPARSE
        if self.leads_by_default():
            return None
        return SPARSE if stick is None else stick

    def alone(self, index: int) -> _Operation:
        return self._replace(
            accesses=(self.accesses[index],),
            storages=(self.storages[index],),
            outputs=(0,) if index in self.outputs else (),
            lead=0 if index == self.lead else -1,
            elements=frozenset((0,) if index in self.elements else ()),
        )

    def fault(self, index: int, stick: int | None) -> NeedsCopy | None:
        """What keeps the access from walking the plain loops with `stick` running along sticks."""
        alone = self.alone(index)
        storage = self.storages[index]
        loops = loops_of(self.extents, alone.accesses, self.reduced, joined=False)
        try:
            resolve(loops, 0, storage, may_split=False, by_element=index in self.elements)
            lanes = storage.elems_per_stick
            walk = alone.walk(loops, 0, stick, lanes)
            if index in self.outputs:
                extents = list(loops.extents)
                if stick is not None:
                    extents[stick] = -(-extents[stick] // lanes)
                check_disjoint(0, extents, stick, walk, lanes, self.reduced)
        except BlockedError as error:
            return replace(error.why, access=index, stick=self.stick_of_copy(index, stick))
        return None
