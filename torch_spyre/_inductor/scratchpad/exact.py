"""The best plan of all, for groups of buffers that are small enough to search.

Two searches, one inside the other. The outer one decides which buffers stay, by branch and bound
on the traffic that they save; the inner one finds addresses for such a set, or that there are none.
Effort is counted in buffers looked at, not in time, so the plan is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from .request import Addresses, LayoutSolver, Request, check_requests, peak_bytes

_EFFORT = 200_000  # buffers looked at: a fraction of a second
_QUICK_SOLVE = 32  # times that the quick solvers look at each buffer


class _ExhaustedError(Exception):
    """The search has used up its budget."""


class _Budget:
    def __init__(self, effort: int) -> None:
        self._left = effort

    def spend(self, effort: int) -> None:
        if effort > self._left:
            raise _ExhaustedError
        self._left -= effort


class ExactLayoutSolver:
    """Saves as much LPDDR5 traffic as any plan can; never less than the solvers it starts from.

    Buffers whose lives are not connected are planned apart. Each such group has an equal part of
    the effort; one that uses it up keeps the best plan found until then.
    """

    def __init__(self, others: Sequence[LayoutSolver], effort: int = _EFFORT) -> None:
        self._others = others
        self._effort = effort

    def solve(self, requests: Sequence[Request], capacity: int) -> Addresses:
        check_requests(requests)
        groups = list(_groups(requests))
        plan: Addresses = {}
        for group in groups:
            plan |= self._solve_group(group, capacity, _Budget(self._effort // len(groups)))
        return plan

    def _solve_group(self, group: list[Request], capacity: int, budget: _Budget) -> Addresses:
        plans = [other.solve(group, capacity) for other in self._others]
        best = max(plans, key=lambda plan: _saved(group, plan))
        if len(best) == len(group):
            return best
        search = _Choice(group, capacity, self._others, best, budget)
        with suppress(_ExhaustedError):
            search.extend(0, [], 0)
        return search.best


def _saved(group: Sequence[Request], plan: Addresses) -> int:
    """The traffic that a plan saves."""
    return sum(request.worth for request in group if request.name in plan)


def _groups(requests: Sequence[Request]) -> Iterator[list[Request]]:
    """Buffers whose lives hang together, in order of time."""
    group: list[Request] = []
    end = -1
    for request in sorted(requests, key=lambda request: (request.first, request.name)):
        if group and request.first > end:
            yield group
            group = []
        end = max(end, request.last) if group else request.last
        group.append(request)
    if group:
        yield group


# ---- Which buffers stay -------------------------------------------------------------------------


class _Choice:
    """Branch and bound: each buffer stays or is spilled, the most worth first."""

    def __init__(
        self,
        group: Sequence[Request],
        capacity: int,
        others: Sequence[LayoutSolver],
        best: Addresses,
        budget: _Budget,
    ) -> None:
        self.best = best
        self._most = _saved(group, best)
        self._capacity = capacity
        self._others = others
        self._budget = budget
        self._ordered = sorted(group, key=lambda r: (-r.worth, r.footprint, r.first, r.name))
        self._left = [sum(r.worth for r in self._ordered[i:]) for i in range(len(group) + 1)]

    def extend(self, index: int, kept: list[Request], saved: int) -> None:
        """Decide about the buffers from `index` on, with these kept so far."""
        if saved + self._left[index] <= self._most:
            return
        self._budget.spend(1 + len(kept))
        if index == len(self._ordered):
            plan = self._addresses(kept)
            if plan is not None:
                self.best, self._most = plan, saved
            return
        request = self._ordered[index]
        with_it = [*kept, request]
        if peak_bytes(with_it) <= self._capacity:
            self.extend(index + 1, with_it, saved + request.worth)
        self.extend(index + 1, kept, saved)

    def _addresses(self, kept: Sequence[Request]) -> Addresses | None:
        """A place for each of them; the quick solvers mostly find one where there is one."""
        for other in self._others:
            self._budget.spend(_QUICK_SOLVE * len(kept))
            plan = other.solve(kept, self._capacity)
            if len(plan) == len(kept):
                return plan
        return _Packing(kept, self._capacity, self._budget).find()


# ---- Where they lie -----------------------------------------------------------------------------


class _Packing:
    """All plans that place every buffer, up to moving buffers down to where they rest.

    In a plan in which nothing can be moved down, each buffer lies at 0, at the end of another one,
    or where one lies that it overwrites. So buffers are placed in order of their addresses (equal
    ones by number), each at such a place.
    """

    def __init__(self, requests: Sequence[Request], capacity: int, budget: _Budget) -> None:
        self._requests = requests
        self._capacity = capacity
        self._budget = budget
        names = [request.name for request in requests]
        number = {name: i for i, name in enumerate(names)}
        self._partners: list[set[int]] = [set() for _ in names]
        for i, request in enumerate(requests):
            for other in (number[name] for name in request.over if name in number):
                self._partners[i].add(other)
                self._partners[other].add(i)
        self._apart = [
            [
                j
                for j, other in enumerate(requests)
                if j != i
                and j not in self._partners[i]
                and other.first <= request.last
                and request.first <= other.last
            ]
            for i, request in enumerate(requests)
        ]
        self._address: dict[int, int] = {}

    def find(self) -> Addresses | None:
        """Addresses of all buffers; None if there are none."""
        if not self._place((0, -1)):
            return None
        return {self._requests[i].name: address for i, address in self._address.items()}

    def _place(self, last: tuple[int, int]) -> bool:
        """Place the rest at or above the last place, an address and the number of its buffer."""
        self._budget.spend(len(self._requests))
        rest = [i for i in range(len(self._requests)) if i not in self._address]
        if not rest:
            return True
        floors = {i: self._floor(i) for i in rest}
        if any(floors[i] + self._requests[i].size > self._capacity for i in rest):
            return False
        for i in rest:
            for address in self._places(i, floors[i], last[0]):
                if (address, i) <= last or not self._is_free(i, address):
                    continue
                self._address[i] = address
                if self._place((address, i)):
                    return True
                del self._address[i]
        return False

    def _end(self, i: int) -> int:
        return self._address[i] + self._requests[i].size

    def _floor(self, i: int) -> int:
        """All that lies already lies at or below what comes: a buffer can only be above it."""
        return max((self._end(j) for j in self._apart[i] if j in self._address), default=0)

    def _places(self, i: int, floor: int, last: int) -> list[int]:
        """Where the buffer may rest, lowest first."""
        if not self._partners[i]:
            return [floor]
        # It may lie where a partner rests that is still to come.
        ends = {self._end(j) for j in self._address}
        return sorted(place for place in {floor, last, *ends} if place >= max(floor, last))

    def _is_free(self, i: int, address: int) -> bool:
        """Is it apart from its partners, or exactly over them?"""
        end = address + self._requests[i].size
        return end <= self._capacity and all(
            address == self._address[j] or address >= self._end(j)
            for j in self._partners[i]
            if j in self._address
        )
