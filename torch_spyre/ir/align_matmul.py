"""Iteration dimensions of a matmul: one runs through the lanes of B and C, one through those of A.

C[..., n] += A[..., k] · B[k, n] over shared loops: batches, rows, n and k, any number of each. They
are split as for every operation (see `align`). Then one digit of n, the *stick*, runs through the
lanes of B and C, along which A stands still; one digit of k, the *lane*, runs through the lanes of
A, and B takes one stick of n for each of its elements. Both are counted in sticks of B and may end
in a partial one: what lies behind the end of the lane digit is for the step to mask. Where A and C
have fewer elements per stick than B (16-bit rows, 8-bit columns), they take several at a time.
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

A, B, C = 0, 1, 2
_NONE = -1  # the variable of a dimension that stems from no loop


@dataclass(frozen=True)
class MatmulAligned:
    """An iteration in sticks of n and as many elements of k: `lanes`, those of a stick of B.

    Batches, rows and n come first, then the dimensions of k in the caller's order, `lane` last.
    Where n (or k) has one element, or each of its elements has a stick of its own, `stick` (`lane`)
    is a dimension of one iteration with one element.
    """

    extents: tuple[int, ...]
    stick: int
    lane: int
    reduced: tuple[int, ...]  # the dimensions of k
    lanes: int
    operands: tuple[Walk, Walk, Walk]  # A, B, C
    row_stride: int  # of B, from one element of the lane digit to the next
    n_length: int  # elements of the stick digit
    k_length: int  # elements of the lane digit
    # The caller's loop that each dimension stems from: the outermost of those that were joined.
    # None: a stick or lane dimension of one iteration that stems from none.
    variables: tuple[int | None, ...]


def align_matmul(
    extents: Sequence[int],
    a: Access,
    b: Access,
    c: Access,
    reduced: Sequence[int],
    *,
    merged: bool = True,
) -> MatmulAligned | NeedsCopy:
    """Find the dimensions of a matmul, or the access (0: A, 1: B, 2: C) that stands in the way.

    `reduced` are the loops of k. `merged` as for `align`. A copy of what is in the way is over the
    loops that the access moves along, with the sticks that `NeedsCopy.stick` names. A matmul with
    an empty loop has nothing to multiply: its result, if it has elements, is the caller's to fill.

    >>> a = Storage(device_size=(2, 5, 64), stride_map=(64, 100, 1), numel=500)
    >>> b = Storage(device_size=(4, 100, 64), stride_map=(64, 200, 1), numel=20000)
    >>> c = Storage(device_size=(4, 5, 64), stride_map=(64, 200, 1), numel=1000)
    >>> plan = align_matmul(
    ...     (5, 200, 100),
    ...     Access(a, 0, (100, 0, 1)),
    ...     Access(b, 0, (0, 1, 200)),
    ...     Access(c, 0, (200, 1, 0)),
    ...     reduced=(2,),
    ... )
    >>> plan.extents, plan.stick, plan.lane, plan.row_stride, plan.k_length
    ((4, 5, 2), 0, 2, 64, 100)
    """
    if 0 in extents:
        raise ValueError(f"a matmul over loop extents {tuple(extents)} has no iterations")
    accesses = (a, b, c)
    storages = storages_of(extents, accesses)
    check_stands_still("C", extents, c, reduced)
    per_stick = [storage.elems_per_stick for storage in storages]
    if max(per_stick) > per_stick[B]:
        raise ValueError(
            "no operand of a matmul has more elements per stick than B; "
            f"A, B and C have {per_stick}"
        )
    matmul = _Matmul(tuple(extents), accesses, storages, frozenset(reduced), merged)
    try:
        return matmul.plan(joined=True)
    except BlockedError:
        pass
    try:
        return matmul.plan(joined=False)
    except BlockedError as error:
        return matmul.name_the_obstacle(error.why)


class _Matmul(NamedTuple):
    extents: tuple[int, ...]
    accesses: tuple[Access, Access, Access]
    storages: tuple[Storage, ...]
    reduced: frozenset[int]
    merged: bool

    def plan(self, joined: bool) -> MatmulAligned:
        loops = loops_of(self.extents, self.accesses, self.reduced, joined)
        for index, storage in enumerate(self.storages):
            resolve(loops, index, storage, may_split=True)
        stick_loop = lane_loop(loops, C, self.storages[C].elems_per_stick)
        k_loop = lane_loop(loops, A, self.storages[A].elems_per_stick)
        stick, lane = _with_dimension(loops, stick_loop), _with_dimension(loops, k_loop)
        if loops.variables[stick] in self.reduced or _moves(loops, A, stick):
            raise BlockedError(
                C,
                f"loop variable {loops.variables[stick]} runs along the sticks of C, but A moves "
                "along it too: it is no loop of n",
                loops.variables[stick],
            )
        if loops.extents[lane] > 1 and loops.variables[lane] not in self.reduced:
            raise BlockedError(
                A,
                f"loop variable {loops.variables[lane]} runs along the sticks of A, but it is no "
                "loop of k",
                loops.variables[lane],
            )
        return self.ordered(loops, stick, lane, joined)

    def walks(self, loops: Loops, stick: int, lane: int) -> tuple[Walk, Walk, Walk, int]:
        """Of A, B, C in sticks of n and k; and B's stride per element of the lane digit."""
        lanes = self.storages[B].elems_per_stick
        n_length, k_length = loops.extents[stick], loops.extents[lane]
        offset, strides = whole_sticks(loops, A, self.storages[A], lane)
        walk_a = vector_walk(self.storages[A], offset, strides, lane, k_length, lanes)

        offset, strides = whole_sticks(loops, B, self.storages[B], stick)
        if n_length > 1 and not runs_along(loops, B, stick):
            raise _other_stick(loops, B, stick)
        row_stride = strides[lane]
        strides[lane] *= lanes
        walk_b = vector_walk(self.storages[B], offset, strides, stick, n_length, lanes)

        offset, strides = whole_sticks(loops, C, self.storages[C], stick)
        if n_length > 1 and not runs_along(loops, C, stick):
            raise _other_stick(loops, C, stick)
        check_padding(C, self.accesses[C], self.storages[C], self.extents, n_length)
        walk_c = vector_walk(self.storages[C], offset, strides, stick, n_length, lanes)
        return walk_a, walk_b, walk_c, row_stride

    def ordered(self, loops: Loops, stick: int, lane: int, joined: bool) -> MatmulAligned:
        """Put the dimensions in order, join what all operands walk as one."""
        lanes = self.storages[B].elems_per_stick
        *walks, row_stride = self.walks(loops, stick, lane)
        extents = list(loops.extents)
        for loop in (stick, lane):
            extents[loop] = -(-extents[loop] // lanes)
        is_k = [variable in self.reduced for variable in loops.variables]
        is_k[lane] = True
        of_k = [i for i in range(len(extents)) if is_k[i]]
        check_disjoint(C, extents, stick, walks[C], self.storages[C].elems_per_stick, of_k)

        rest = [i for i, extent in enumerate(extents) if i not in (stick, lane) and extent != 1]
        sizes, columns, origin = merge(
            [extents[i] for i in rest],
            [[walk.strides[i] for i in rest] for walk in walks],
            rest,
            [is_k[i] for i in rest],
        )
        if len(sizes) + 2 > MAX_RANK:
            raise BlockedError(
                A,
                f"together the operands need {len(sizes) + 2} dimensions, {MAX_RANK} is the most",
            )
        if not self.merged:
            sizes, origin = [extents[i] for i in rest], rest
            columns = [[walk.strides[i] for i in rest] for walk in walks]
        sizes += [extents[stick], extents[lane]]
        origin = [*origin, stick, lane]
        for column, walk in zip(columns, walks, strict=True):
            column += [walk.strides[stick], walk.strides[lane]]
        of_c = columns[C]
        order = sorted(
            range(len(sizes)), key=lambda i: (origin[i] == lane, is_k[origin[i]], -abs(of_c[i]))
        )
        dims = [origin[i] for i in order]
        a, b, c = (
            walk._replace(strides=tuple(column[i] for i in order))
            for walk, column in zip(walks, columns, strict=True)
        )
        names = loops.variables
        if joined:
            names = origins(loops, self.extents, self.accesses, self.reduced)
        return MatmulAligned(
            extents=tuple(sizes[i] for i in order),
            stick=dims.index(stick),
            lane=dims.index(lane),
            reduced=tuple(at for at, i in enumerate(dims) if is_k[i]),
            lanes=lanes,
            operands=(a, b, c),
            row_stride=row_stride,
            n_length=loops.extents[stick],
            k_length=loops.extents[lane],
            variables=tuple(None if names[i] == _NONE else names[i] for i in dims),
        )

    # ---- Which access to copy -------------------------------------------------------------------

    def name_the_obstacle(self, blocked: NeedsCopy) -> NeedsCopy:
        """The access to copy: one that its copy would be better than."""
        faults = [self.fault(index) for index in (A, B, C)]
        named = faults[blocked.access]
        if named is not None:
            return replace(blocked, stick=named.stick)
        # B and C share the sticks of n, so they rather disagree with each other than with A.
        return next((faults[i] for i in (C, B, A) if faults[i] is not None), None) or blocked

    def plain_loop(self, index: int) -> int | None:
        """The loop along the sticks of an access: the last of k, or of n, that it moves along."""
        a, b, c = (access.strides for access in self.accesses)
        if index == A:
            loops = [i for i in self.reduced if a[i]]
        else:
            loops = [i for i in range(len(c)) if b[i] and c[i] and not a[i]]
        return max((i for i in loops if self.extents[i] > 1), default=None)

    def fault(self, index: int) -> NeedsCopy | None:
        """What keeps the access from walking the plain loops."""
        stick = self.plain_loop(index)
        storage, access = self.storages[index], self.accesses[index]
        lanes = storage.elems_per_stick
        loops = loops_of(self.extents, [access], self.reduced, joined=False)
        hint = -1 if stick is None else stick
        try:
            resolve(loops, 0, storage, may_split=False)
            offset, strides = whole_sticks(loops, 0, storage, stick)
            if stick is not None and not runs_along(loops, 0, stick):
                raise _other_stick(loops, 0, stick)
            if index == C:
                length = 1 if stick is None else loops.extents[stick]
                check_padding(0, access, storage, self.extents, length)
                walk = vector_walk(storage, offset, strides, stick, length, lanes)
                extents = list(loops.extents)
                if stick is not None:
                    extents[stick] = -(-length // lanes)
                check_disjoint(0, extents, stick, walk, lanes, self.reduced)
        except BlockedError as error:
            return replace(error.why, access=index, stick=hint)
        return None


def _with_dimension(loops: Loops, loop: int | None) -> int:
    """The loop, or one of a single iteration in its stead."""
    if loop is not None:
        return loop
    loops.extents.append(1)
    loops.variables.append(_NONE)
    for column in loops.columns:
        column.append(0)
    return len(loops.extents) - 1


def _moves(loops: Loops, index: int, loop: int) -> bool:
    count = len(loops.columns) // 3
    return bool(loops.columns[count + index][loop] or loops.columns[2 * count + index][loop])


def _other_stick(loops: Loops, index: int, stick: int) -> BlockedError:
    variable = loops.variables[stick]
    return BlockedError(
        index, f"sticks run along loop variable {variable}, but not its own", variable
    )
