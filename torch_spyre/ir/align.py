"""Algorithm 1: iteration dimensions in which every operand of an operation walks whole sticks.

The loop variables of an operation are split into digits wherever a device dimension of some
operand begins, evenly and without cuts; then each operand's place in its storage is affine in
them, and what remains is to look at lanes. One digit, the *stick variable*, runs through the lanes
of the result; an operand runs through its own lanes along with it, or does not move along it and
repeats one lane over all. Everything else needs a copy to a layout in which it does.

A position along the stick dimension (tile and lane together) is kept as one digit, so that the
last stick may be partial: the variable is iterated in whole sticks, and the lanes beyond its end
are padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .loops import Carry, Loops, merge, take_digit
from .storage import Access, Storage

MAX_RANK = 8


class Walk(NamedTuple):
    """How an operand goes along the iteration dimensions, in elements of its own storage.

    "vector": the sticks of an iteration hold its lanes in order, `tiles` sticks `tile_stride`
    apart where the format has fewer elements per stick than the widest operand. In the last
    iteration of the stick dimension only `tail_tiles` of them belong to the operand (0: all).
    "first": lane 0 of one stick serves all lanes.
    """

    offset: int
    strides: tuple[int, ...]
    lanes: Literal["vector", "first"]
    tiles: int
    tile_stride: int
    tail_tiles: int


@dataclass(frozen=True)
class Aligned:
    """An iteration in whole sticks: `lanes` elements for each point of `extents`."""

    extents: tuple[int, ...]  # outermost first; the lanes are not among them
    stick_dim: int | None  # the dimension that counts sticks; None: one element per iteration
    lanes: int  # elements per stick of the widest operand that is walked as a vector
    operands: tuple[Walk, ...]


@dataclass(frozen=True)
class NeedsCopy:
    """An access that cannot be walked in whole sticks together with the others.

    A copy in the default layout of the loop extents can. Doing that for each access named, one
    after the other, always ends with `Aligned`.
    """

    access: int
    reason: str
    variable: int | None = None  # the loop variable and the host stride at which it breaks
    break_point: int | None = None


def align(
    extents: Sequence[int], accesses: Sequence[Access], outputs: Sequence[int] = (0,)
) -> Aligned | NeedsCopy:
    """Find common iteration dimensions, or the access that stands in the way.

    >>> rows = Storage(device_size=(4, 5, 64), stride_map=(64, 200, 1), numel=1000)
    >>> column = Storage(device_size=(1, 5, 64), stride_map=(-1, 1, -1), numel=5)
    >>> plan = align((5, 200), [Access(rows, 0, (200, 1)), Access(column, 0, (1, 0))])
    >>> plan.extents, plan.stick_dim
    ((4, 5), 0)
    >>> plan.operands[1]
    Walk(offset=0, strides=(0, 64), lanes='first', tiles=1, tile_stride=0, tail_tiles=0)
    """
    storages: list[Storage] = []
    for access in accesses:
        access.check(extents)
        if access.storage is None:
            raise ValueError("an operand on the card has a storage")
        storages.append(access.storage)
    operation = _Operation(tuple(extents), tuple(accesses), tuple(storages), tuple(outputs))
    if 0 in extents:
        return operation.empty()
    # Joining loops first saves needless digits; without it, operands in their default layouts
    # are certain to agree, and what is in the way has the caller's names.
    try:
        return operation.plan(joined=True)
    except _BlockedError:
        pass
    try:
        return operation.plan(joined=False)
    except _BlockedError as error:
        return operation.name_the_obstacle(error.why)


class _BlockedError(Exception):
    def __init__(
        self, access: int, reason: str, variable: int | None = None, place: int | None = None
    ) -> None:
        super().__init__(reason)
        self.why = NeedsCopy(access, reason, variable, place)


class _Operation(NamedTuple):
    extents: tuple[int, ...]
    accesses: tuple[Access, ...]
    storages: tuple[Storage, ...]
    outputs: tuple[int, ...]

    def empty(self) -> Aligned:
        lanes = self.storages[self.outputs[0]].elems_per_stick
        walk = Walk(0, (0,), "vector", 1, 0, 0)
        return Aligned((0,), None, lanes, (walk,) * len(self.accesses))

    def plan(self, joined: bool) -> Aligned:
        loops = self.loops(joined)
        for index in range(len(self.accesses)):
            _resolve(loops, index, self.storages[index], may_split=True)
        stick = self.stick_variable(loops)
        lanes = self.lanes(loops, stick)
        walks = [self.walk(loops, index, stick, lanes) for index in range(len(self.accesses))]
        extents = list(loops.extents)
        if stick is not None:
            extents[stick] = -(-extents[stick] // lanes)
        elif any(walk.tail_tiles for walk in walks):
            # `tail_tiles` counts in the last iteration of the stick dimension, so there is one.
            stick = len(extents)
            extents.append(1)
            walks = [walk._replace(strides=(*walk.strides, 0)) for walk in walks]
        for index in self.outputs:
            _check_disjoint(
                index, extents, stick, walks[index], self.storages[index].elems_per_stick
            )
        return self.ordered(extents, stick, lanes, walks)

    def loops(self, joined: bool) -> Loops:
        """Three columns per access: host offset, device offset, position along the stick."""
        columns: list[list[int]] = [list(access.strides) for access in self.accesses]
        sizes = list(self.extents)
        variables = list(range(len(sizes)))
        if joined:
            sizes, columns, variables = merge(sizes, columns, variables)
        starts = [access.offset for access in self.accesses]
        zeros = [[0] * len(sizes) for _ in range(2 * len(starts))]
        return Loops(sizes, columns + zeros, starts + [0] * len(zeros), variables)

    def stick_variable(self, loops: Loops) -> int | None:
        """The loop that runs through the lanes of the first result."""
        index = self.outputs[0]
        lanes = self.storages[index].elems_per_stick
        position = loops.columns[2 * len(self.accesses) + index]
        moving = [
            i
            for i, (extent, step) in enumerate(zip(loops.extents, position, strict=True))
            if extent > 1 and step % lanes
        ]
        if not moving:
            return None
        if len(moving) > 1:
            names = [loops.variables[i] for i in moving]
            raise _BlockedError(index, f"loop variables {names} meet inside its sticks", names[1])
        if position[moving[0]] != 1:
            raise _BlockedError(
                index,
                f"it takes every {position[moving[0]]}th lane of its sticks",
                loops.variables[moving[0]],
            )
        return moving[0]

    def runs_along(self, loops: Loops, index: int, stick: int | None) -> bool:
        """Does the stick variable move the access from lane to lane, and nowhere else?"""
        count = len(self.accesses)
        device, position = loops.columns[count + index], loops.columns[2 * count + index]
        return stick is not None and position[stick] == 1 and device[stick] == 0

    def lanes(self, loops: Loops, stick: int | None) -> int:
        return max(
            storage.elems_per_stick
            for index, storage in enumerate(self.storages)
            if index in self.outputs or self.runs_along(loops, index, stick)
        )

    def walk(self, loops: Loops, index: int, stick: int | None, most_lanes: int) -> Walk:
        """The access along the loops, given which of them is the stick variable."""
        count = len(self.accesses)
        storage = self.storages[index]
        lanes = storage.elems_per_stick
        device, position = loops.columns[count + index], loops.columns[2 * count + index]
        start = loops.starts[2 * count + index]
        if start % lanes:
            raise _BlockedError(index, f"it starts inside a stick, at lane {start % lanes}")
        for i, (extent, step) in enumerate(zip(loops.extents, position, strict=True)):
            if i != stick and extent > 1 and step % lanes:
                raise _BlockedError(
                    index,
                    f"loop variable {loops.variables[i]} moves inside its sticks",
                    loops.variables[i],
                    storage.stride_map[-1],
                )
        moves = self.runs_along(loops, index, stick)
        if stick is not None and not moves and (position[stick] or device[stick]):
            raise _BlockedError(
                index,
                f"loop variable {loops.variables[stick]} runs along the sticks of the result, "
                "but not along its own",
                loops.variables[stick],
            )

        tile_stride = storage.tile.device_stride if storage.tile else 0
        offset = loops.starts[count + index] + start // lanes * tile_stride
        strides = [
            step + place // lanes * tile_stride
            for step, place in zip(device, position, strict=True)
        ]
        is_output = index in self.outputs
        if is_output and stick is not None and not moves:
            raise _BlockedError(index, "the result does not run along the stick variable")
        if not moves and not is_output:
            if stick is not None:
                strides[stick] = 0
            return Walk(offset, tuple(strides), "first", 1, 0, 0)
        length = 1 if stick is None else loops.extents[stick]
        if is_output:
            self.check_padding(index, length)
        tiles = most_lanes // lanes
        if stick is not None:
            strides[stick] = tiles * tile_stride
        tail = -(-(length % most_lanes) // lanes) % tiles
        return Walk(offset, tuple(strides), "vector", tiles, tile_stride if tiles > 1 else 0, tail)

    def check_padding(self, index: int, length: int) -> None:
        """The lanes behind the end of the stick variable must not be anybody's elements."""
        storage = self.storages[index]
        lanes, stride = storage.elems_per_stick, storage.stride_map[-1]
        if length % lanes == 0 or stride <= 0:
            return
        # If the one behind the lowest point isn't, none is: both bounds of a digit are upper ones.
        lowest, _ = self.accesses[index].bounds(self.extents)
        behind = lowest + length * stride
        tile_stride = storage.tile.device_stride if storage.tile else 0
        lane_behind = storage.device_offset(lowest) + length // lanes * tile_stride + length % lanes
        if behind < storage.numel and storage.device_offset(behind) == lane_behind:
            raise _BlockedError(index, "it ends inside a stick whose other lanes hold elements too")

    def ordered(
        self, extents: list[int], stick: int | None, lanes: int, walks: list[Walk]
    ) -> Aligned:
        """Sort the dimensions by the result's strides, join what all operands walk as one."""
        rest = [i for i in range(len(extents)) if i != stick]
        sizes, columns, origin = merge(
            [extents[i] for i in rest],
            [[walk.strides[i] for i in rest] for walk in walks],
            rest,
        )
        if stick is not None:
            sizes.append(extents[stick])
            origin.append(stick)
            for column, walk in zip(columns, walks, strict=True):
                column.append(walk.strides[stick])
        first = columns[self.outputs[0]]
        order = sorted(range(len(sizes)), key=lambda i: -abs(first[i]))
        if len(order) > MAX_RANK:
            raise _BlockedError(
                self.inputs_first()[0],
                f"together the operands need {len(order)} dimensions, {MAX_RANK} is the most",
            )
        return Aligned(
            tuple(sizes[i] for i in order),
            None if stick is None else order.index(len(sizes) - 1),
            lanes,
            tuple(
                walk._replace(strides=tuple(column[i] for i in order))
                for walk, column in zip(walks, columns, strict=True)
            ),
        )

    def inputs_first(self) -> list[int]:
        indices = range(len(self.accesses))
        return sorted(indices, key=lambda index: index in self.outputs)

    def name_the_obstacle(self, blocked: NeedsCopy) -> NeedsCopy:
        """The access to copy: never one that is as good as its copy would be.

        Two accesses that disagree are both at fault; were the one named that lies in its default
        layout already, copying it would change nothing.
        """
        faults = {index: self.fault(index) for index in self.inputs_first()}
        faulty = [index for index, fault in faults.items() if fault is not None]
        if blocked.access in faulty and blocked.access not in self.outputs:
            return blocked
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

    def fault(self, index: int) -> NeedsCopy | None:
        """What keeps the access from walking the plain loops with the last one as stick."""
        alone = self._replace(
            accesses=(self.accesses[index],),
            storages=(self.storages[index],),
            outputs=(0,) if index in self.outputs else (),
        )
        loops = alone.loops(joined=False)
        stick = len(self.extents) - 1 if self.extents and self.extents[-1] > 1 else None
        try:
            _resolve(loops, 0, self.storages[index], may_split=False)
            lanes = self.storages[index].elems_per_stick
            walk = alone.walk(loops, 0, stick, lanes)
            if index in self.outputs:
                extents = list(loops.extents)
                if stick is not None:
                    extents[stick] = -(-extents[stick] // lanes)
                _check_disjoint(0, extents, stick, walk, lanes)
        except _BlockedError as error:
            return NeedsCopy(index, error.why.reason, error.why.variable, error.why.break_point)
        return None


def _resolve(loops: Loops, index: int, storage: Storage, may_split: bool) -> None:
    """Split loops until each device coordinate of the access is affine in them.

    The tile is left out of the places: tile and lane together are the position along the stick.
    """
    count = len(loops.columns) // 3
    stick_stride = storage.stride_map[-1]
    level = 0
    places = [place for place in storage.places if place is not storage.tile]
    while level < len(places):
        place = places[level]
        digit = take_digit(loops.extents, loops.columns[index], loops.starts[index], place.stride)
        if isinstance(digit, Carry):
            extent = loops.extents[digit.loop]
            if not may_split or extent <= digit.period or extent % digit.period:
                raise _BlockedError(
                    index,
                    f"loop variable {loops.variables[digit.loop]} does not divide evenly at host "
                    f"stride {place.stride}, where a dimension of its storage begins",
                    loops.variables[digit.loop],
                    place.stride,
                )
            loops.split(digit.loop, digit.period)
            continue
        loops.columns[index] = digit.remainder
        loops.starts[index] = digit.remainder_start
        is_stick = place.stride == stick_stride and place.device_stride == 1
        target = 2 * count + index if is_stick else count + index
        unit = 1 if is_stick else place.device_stride
        loops.starts[target] += digit.quotient_start * unit
        column = loops.columns[target]
        for i, steps in enumerate(digit.quotient):
            column[i] += steps * unit
        level += 1


def _check_disjoint(
    index: int, extents: Sequence[int], stick: int | None, walk: Walk, lanes: int
) -> None:
    """A result is written once: the sticks of its iterations must not meet."""
    steps = [(abs(stride), extent) for stride, extent in zip(walk.strides, extents, strict=True)]
    if stick is not None:
        # The sticks along the stick variable, those that the last iteration lacks left out.
        stride, extent = steps.pop(stick)
        sticks = (extent - 1) * walk.tiles + (walk.tail_tiles or walk.tiles)
        steps.append((stride // walk.tiles, sticks))
    reach = lanes
    for stride, extent in sorted(steps):
        if extent > 1:
            if stride < reach:
                raise _BlockedError(index, "iterations of the result would write the same stick")
            reach += stride * (extent - 1)
