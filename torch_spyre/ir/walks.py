"""What the alignments share: walks of operands, and how loops are split until walks exist.

While an operation is being aligned, its `Loops` have three columns per access: the host offset
still to be resolved, the device offset found so far, and the position along the stick dimension
(tile and lane together, in elements).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .loops import Carry, Loops, join, merge, take_digit
from .storage import Access, Storage

MAX_RANK = 8


class Walk(NamedTuple):
    """How an operand goes along the iteration dimensions, in elements of its own storage.

    "vector": the sticks of an iteration hold its lanes in order, `tiles` sticks `tile_stride`
    apart where the format has fewer elements per stick than the widest operand. In the last
    iteration of the stick dimension only `tail_tiles` of them belong to the operand (0: all).
    "first": lane 0 of one stick serves all lanes; the result of a reduction over the stick
    dimension has its values there.
    "element": one element per iteration, wherever it lies.
    """

    offset: int
    strides: tuple[int, ...]
    lanes: Literal["vector", "first", "element"]
    tiles: int
    tile_stride: int
    tail_tiles: int


@dataclass(frozen=True)
class NeedsCopy:
    """An access that cannot be walked in whole sticks together with the others.

    A copy over the loop extents can (a result: over those that it moves along, the others of
    size 1). Its sticks run along loop variable `stick`, or it is sparse if that is -1; None stands
    for the default layout. Doing that for each access named, one after the other, always ends
    with a plan.
    """

    access: int
    reason: str
    variable: int | None = None  # the loop variable and the host stride at which it breaks
    break_point: int | None = None
    stick: int | None = None


class BlockedError(Exception):
    """An attempt to align failed; `why` names the access in the way."""

    def __init__(
        self, access: int, reason: str, variable: int | None = None, place: int | None = None
    ) -> None:
        super().__init__(reason)
        self.why = NeedsCopy(access, reason, variable, place)


def storages_of(extents: Sequence[int], accesses: Sequence[Access]) -> tuple[Storage, ...]:
    """The storages of accesses that stay inside them."""
    storages: list[Storage] = []
    for access in accesses:
        access.check(extents)
        if access.storage is None:
            raise ValueError("an operand on the card has a storage")
        storages.append(access.storage)
    return tuple(storages)


def check_stands_still(
    name: str, extents: Sequence[int], access: Access, loops: Collection[int]
) -> None:
    """Raise ValueError if an access moves along loops that it has no part in."""
    for loop in loops:
        if extents[loop] > 1 and access.strides[loop]:
            raise ValueError(
                f"{name} moves by {access.strides[loop]} along loop variable {loop}, which is "
                "reduced: results stand still there"
            )


def loops_of(
    extents: Sequence[int], accesses: Sequence[Access], reduced: Collection[int], joined: bool
) -> Loops:
    """Three columns per access: host offset, device offset, position along the stick.

    The last column is the weight of each digit in the (joined) loop that it is taken from.
    """
    columns: list[list[int]] = [list(access.strides) for access in accesses]
    sizes = list(extents)
    variables = list(range(len(sizes)))
    if joined:
        kinds = [loop in reduced for loop in variables]
        sizes, columns, variables = merge(sizes, columns, variables, kinds)
    starts = [access.offset for access in accesses]
    zeros = [[0] * len(sizes) for _ in range(2 * len(starts))]
    weights = [1] * len(sizes)
    return Loops(sizes, [*columns, *zeros, weights], [*starts, *[0] * (len(zeros) + 1)], variables)


def origins(
    loops: Loops, extents: Sequence[int], accesses: Sequence[Access], reduced: Collection[int]
) -> list[int]:
    """The caller's loop that each digit of joined loops stems from: the outermost, if several."""
    groups = join(
        extents,
        [access.strides for access in accesses],
        [loop in reduced for loop in range(len(extents))],
    )
    members = {group[0]: group for group in groups}
    result = []
    for variable, weight, extent in zip(
        loops.variables, loops.columns[-1], loops.extents, strict=True
    ):
        covered = 1
        for member in reversed(members.get(variable, ())):
            covered *= extents[member]
            variable = member
            if weight * extent <= covered:
                break
        result.append(variable)
    return result


def resolve(
    loops: Loops, index: int, storage: Storage, may_split: bool, by_element: bool = False
) -> None:
    """Split loops until each device coordinate of the access is affine in them.

    Tile and lane together are the position along the stick, so the tile is left out of the
    places; unless the access goes element by element: then both are ordinary device dimensions.
    """
    count = len(loops.columns) // 3
    stick_stride = storage.stride_map[-1]
    level = 0
    tile = None if by_element else storage.tile
    places = [place for place in storage.places if place is not tile]
    while level < len(places):
        place = places[level]
        digit = take_digit(loops.extents, loops.columns[index], loops.starts[index], place.stride)
        if isinstance(digit, Carry):
            extent = loops.extents[digit.loop]
            if not may_split or extent <= digit.period or extent % digit.period:
                raise BlockedError(
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
        is_stick = not by_element and place.stride == stick_stride and place.device_stride == 1
        target = 2 * count + index if is_stick else count + index
        unit = 1 if is_stick else place.device_stride
        loops.starts[target] += digit.quotient_start * unit
        column = loops.columns[target]
        for i, steps in enumerate(digit.quotient):
            column[i] += steps * unit
        level += 1


def lane_loop(loops: Loops, index: int, lanes: int) -> int | None:
    """The loop that runs through the lanes of an access, one by one; None if no loop does."""
    position = loops.columns[2 * (len(loops.columns) // 3) + index]
    moving = [
        i
        for i, (extent, step) in enumerate(zip(loops.extents, position, strict=True))
        if extent > 1 and step % lanes
    ]
    if not moving:
        return None
    if len(moving) > 1:
        names = [loops.variables[i] for i in moving]
        raise BlockedError(index, f"loop variables {names} meet inside its sticks", names[1])
    if position[moving[0]] != 1:
        raise BlockedError(
            index,
            f"it takes every {position[moving[0]]}th lane of its sticks",
            loops.variables[moving[0]],
        )
    return moving[0]


def runs_along(loops: Loops, index: int, loop: int | None) -> bool:
    """Does the loop move the access from lane to lane, and nowhere else?"""
    count = len(loops.columns) // 3
    device, position = loops.columns[count + index], loops.columns[2 * count + index]
    return loop is not None and position[loop] == 1 and device[loop] == 0


def whole_sticks(
    loops: Loops, index: int, storage: Storage, lane: int | None
) -> tuple[int, list[int]]:
    """Device offset and strides of an access that moves by whole sticks, but along `lane`.

    Along `lane` the stride is that of a device offset without the position: 0 where the access
    runs through its lanes.
    """
    count = len(loops.columns) // 3
    lanes = storage.elems_per_stick
    device, position = loops.columns[count + index], loops.columns[2 * count + index]
    start = loops.starts[2 * count + index]
    if start % lanes:
        raise BlockedError(index, f"it starts inside a stick, at lane {start % lanes}")
    for i, (extent, step) in enumerate(zip(loops.extents, position, strict=True)):
        if i != lane and extent > 1 and step % lanes:
            raise BlockedError(
                index,
                f"loop variable {loops.variables[i]} moves inside its sticks",
                loops.variables[i],
                storage.stride_map[-1],
            )
    tile_stride = storage.tile.device_stride if storage.tile else 0
    offset = loops.starts[count + index] + start // lanes * tile_stride
    strides = [
        step + place // lanes * tile_stride for step, place in zip(device, position, strict=True)
    ]
    return offset, strides


def vector_walk(
    storage: Storage, offset: int, strides: list[int], stick: int | None, length: int, lanes: int
) -> Walk:
    """A walk in which iterations of `lanes` elements follow each other along `stick`."""
    tiles = lanes // storage.elems_per_stick
    tile_stride = storage.tile.device_stride if storage.tile else 0
    if stick is not None:
        strides[stick] = tiles * tile_stride
    tail = -(-(length % lanes) // storage.elems_per_stick) % tiles
    return Walk(offset, tuple(strides), "vector", tiles, tile_stride if tiles > 1 else 0, tail)


def check_padding(
    index: int, access: Access, storage: Storage, extents: Sequence[int], length: int
) -> None:
    """The lanes behind the end of a result's stick variable must not be anybody's elements."""
    lanes, stride = storage.elems_per_stick, storage.stride_map[-1]
    if length % lanes == 0 or stride <= 0:
        return
    # If the one behind the lowest point isn't, none is: both bounds of a digit are upper ones.
    lowest, _ = access.bounds(extents)
    behind = lowest + length * stride
    tile_stride = storage.tile.device_stride if storage.tile else 0
    lane_behind = storage.device_offset(lowest) + length // lanes * tile_stride + length % lanes
    if behind < storage.numel and storage.device_offset(behind) == lane_behind:
        raise BlockedError(index, "it ends inside a stick whose other lanes hold elements too")


def check_disjoint(
    index: int,
    extents: Sequence[int],
    stick: int | None,
    walk: Walk,
    lanes: int,
    reduced: Collection[int] = (),
) -> None:
    """A result is written once: the sticks of its iterations must not meet."""
    steps = []
    for i, (stride, extent) in enumerate(zip(walk.strides, extents, strict=True)):
        if i in reduced:
            continue
        if i == stick:
            # The sticks along the stick variable, those that the last iteration lacks left out.
            sticks = (extent - 1) * walk.tiles + (walk.tail_tiles or walk.tiles)
            steps.append((abs(stride) // walk.tiles, sticks))
        else:
            steps.append((abs(stride), extent))
    reach = lanes
    for stride, extent in sorted(steps):
        if extent > 1:
            if stride < reach:
                raise BlockedError(index, "iterations of the result would write the same stick")
            reach += stride * (extent - 1)
