"""Where buffers with lifetimes lie in one address space: the scratchpad, or the LPDDR5 pool.

All cores use the same addresses, so one plan serves the scratchpads of all of them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from .exact import ExactLayoutSolver
from .request import (
    Addresses,
    LayoutSolver,
    Request,
    check_requests,
    peak_bytes,
    round_up_to_stick,
)

__all__ = [
    "Addresses",
    "BestFitLayoutSolver",
    "ExactLayoutSolver",
    "FirstFitLayoutSolver",
    "GreedyLayoutSolver",
    "LayoutSolver",
    "Request",
    "extent_of",
    "lx_capacity",
    "peak_bytes",
    "plan_pool",
    "round_up_to_stick",
    "solver",
]

LX_BYTES = 2 * 1024 * 1024
LX_RESERVED = 64 * 1024  # program and debug


def lx_capacity(fraction: float) -> int:
    """Bytes of a core's scratchpad that are left to the planner.

    The back end keeps `fraction` (DXP_LX_FRAC_AVAIL) of what is not reserved.

    >>> lx_capacity(0.2)
    1625344
    """
    if not 0 <= fraction <= 1:
        raise ValueError(
            f"the back end can't keep {fraction} of the scratchpad: DXP_LX_FRAC_AVAIL is a "
            f"fraction from 0 to 1"
        )
    return round_up_to_stick(int((LX_BYTES - LX_RESERVED) * (1 - fraction)))


# ---- The address space ------------------------------------------------------------------------


class _Placed(NamedTuple):
    """A buffer with its address; sorts by address."""

    start: int
    end: int
    first: int
    last: int
    name: str


class _Gap(NamedTuple):
    start: int
    end: int


class _Space:
    """Buffers placed so far, by address.

    They are kept per epoch of operations, so that a request looks only at buffers of its own time
    and a graph of many layers is planned in time in proportion to its length.
    """

    _EPOCH = 32

    def __init__(self, requests: Sequence[Request], capacity: int) -> None:
        self.capacity = capacity
        self.addresses: Addresses = {}
        self._epochs: dict[int, list[_Placed]] = {}
        # For each buffer those it may share an address with: operands and in-place readers.
        self._partners: dict[str, list[str]] = {request.name: [] for request in requests}
        for request in sorted(requests, key=lambda request: request.name):
            for operand in request.over:
                if operand in self._partners:
                    self._partners[request.name].append(operand)
                    self._partners[operand].append(request.name)

    def put(self, request: Request, address: int) -> None:
        self.addresses[request.name] = address
        placed = _Placed(address, address + request.size, request.first, request.last, request.name)
        for epoch in self._epochs_of(request):
            insort(self._epochs.setdefault(epoch, []), placed)

    def gaps(self, request: Request) -> Iterator[_Gap]:
        """Where the buffer would lie apart from all that are live with it, lowest first.

        The last one ends at the capacity; gaps that are too small are left out.
        """
        cursor, size = 0, request.size
        for placed in self._live_with(request):
            if placed.start - cursor >= size:
                yield _Gap(cursor, placed.start)
            cursor = max(cursor, placed.end)
        if self.capacity - cursor >= size:
            yield _Gap(cursor, self.capacity)

    def in_place(self, request: Request) -> int | None:
        """The address of a partner that the buffer can share with it; None if there is none."""
        for partner in self._partners[request.name]:
            address = self.addresses.get(partner)
            if address is not None and self._can_share(request, address):
                return address
        return None

    def _can_share(self, request: Request, address: int) -> bool:
        partners = self._partners[request.name]
        return all(
            placed.start == address and placed.name in partners
            for placed in self._live_with(request)
            if placed.start < address + request.size and address < placed.end
        )

    def _epochs_of(self, request: Request) -> range:
        return range(request.first // self._EPOCH, request.last // self._EPOCH + 1)

    def _live_with(self, request: Request) -> list[_Placed]:
        """The buffers that are live during the life of the request, by address."""
        first, last = request.first, request.last
        epochs = [self._epochs.get(epoch, []) for epoch in self._epochs_of(request)]
        near = epochs[0] if len(epochs) == 1 else sorted(set().union(*epochs))
        return [placed for placed in near if placed.first <= last and first <= placed.last]


_Fit = Callable[[Iterable[_Gap], int], _Gap | None]


def _first_fit(gaps: Iterable[_Gap], _capacity: int) -> _Gap | None:
    """The lowest gap."""
    return next(iter(gaps), None)


def _best_fit(gaps: Iterable[_Gap], capacity: int) -> _Gap | None:
    """The tightest gap between buffers; the free end of the space only if there is no other."""
    return min(gaps, key=lambda gap: (gap.end == capacity, gap.end - gap.start), default=None)


_FITS: tuple[_Fit, ...] = (_best_fit, _first_fit)


def _place(requests: Sequence[Request], capacity: int, fit: _Fit) -> Addresses:
    """Place the buffers one after the other; in-place where possible, else in a gap."""
    space = _Space(requests, capacity)
    for request in requests:
        address = space.in_place(request)
        if address is None:
            gap = fit(space.gaps(request), capacity)
            address = None if gap is None else gap.start
        if address is not None:
            space.put(request, address)
    return space.addresses


def _plans(
    requests: Sequence[Request],
    capacity: int,
    fit: _Fit,
    blame: Callable[[Addresses], Container[str]],
    rounds: int,
) -> Iterator[Addresses]:
    """Plans in which the buffers that spoiled the one before come earlier and earlier.

    Known as squeaky wheel optimisation. One order of placement can be unlucky with a few buffers;
    each round moves those to half their position.
    """
    ordered = list(requests)
    for _ in range(rounds):
        plan = _place(ordered, capacity, fit)
        yield plan
        blamed = blame(plan)
        keys = [
            (position // 2, False, position) if request.name in blamed else (position, True, 0)
            for position, request in enumerate(ordered)
        ]
        ordered = [ordered[i] for i in sorted(range(len(keys)), key=keys.__getitem__)]


def _rounds(requests: Sequence[Request], most: int) -> int:
    """How often to try: large graphs less, as the time of the compiler counts too."""
    return min(most, 1 + 2000 // max(len(requests), 1))


# ---- Orders -----------------------------------------------------------------------------------


def _by_time(request: Request) -> tuple[object, ...]:
    return request.first, -request.size, request.name


def _by_size(request: Request) -> tuple[object, ...]:
    return -request.size, request.first, request.name


def _by_footprint(request: Request) -> tuple[object, ...]:
    return -request.footprint, request.first, request.name


def _by_lifetime(request: Request) -> tuple[object, ...]:
    return request.first - request.last, -request.size, request.first, request.name


def _by_density(request: Request) -> tuple[object, ...]:
    """Traffic saved per byte and operation; an exact ratio would change nothing but ties."""
    return -request.worth / request.footprint, -request.size, request.first, request.name


def _by_worth(request: Request) -> tuple[object, ...]:
    return -request.worth, request.footprint, request.first, request.name


# ---- Solvers ----------------------------------------------------------------------------------


class GreedyLayoutSolver:
    """In time order: reuses a dying operand's address, else the lowest gap; what died is free.

    Never looks ahead, so a buffer that comes late is spilled however much it would save.
    """

    def solve(self, requests: Sequence[Request], capacity: int) -> Addresses:
        check_requests(requests)
        return _place(sorted(requests, key=_by_time), capacity, _first_fit)


class _UpFrontSolver:
    """All buffers are known before the first is placed.

    Largest first packs best. Where that spills something, other orders are tried, among them the
    buffers first that save the most LPDDR5 bytes per byte and operation; in each, what was spilled
    is then moved forward for a few rounds. The plan that saves most is taken.
    """

    _fit: _Fit

    def solve(self, requests: Sequence[Request], capacity: int) -> Addresses:
        check_requests(requests)
        worth = {request.name: request.worth for request in requests}
        best: Addresses = {}
        most = -1
        rounds = _rounds(requests, 4)

        def spilled(plan: Addresses) -> Container[str]:
            return worth.keys() - plan.keys()

        for order in (_by_size, _by_density, _by_worth, _by_footprint):
            ordered = sorted(requests, key=order)
            for plan in _plans(ordered, capacity, type(self)._fit, spilled, rounds):
                if len(plan) == len(worth):
                    return plan
                saved = sum(worth[name] for name in plan)
                if saved > most:
                    best, most = plan, saved
        return best


class FirstFitLayoutSolver(_UpFrontSolver):
    """All buffers up front, each at the lowest address that is free for its whole life."""

    _fit = staticmethod(_first_fit)


class BestFitLayoutSolver(_UpFrontSolver):
    """All buffers up front, each in the tightest gap that is free for its whole life."""

    _fit = staticmethod(_best_fit)


_SOLVERS: dict[str, Callable[[], LayoutSolver]] = {
    "greedy": GreedyLayoutSolver,
    "firstfit": FirstFitLayoutSolver,
    "bestfit": BestFitLayoutSolver,
    "exact": lambda: ExactLayoutSolver((BestFitLayoutSolver(), FirstFitLayoutSolver())),
}


def solver(name: str) -> LayoutSolver:
    """The solver that LAYOUT_SOLVER names: greedy, firstfit, bestfit or exact."""
    if name not in _SOLVERS:
        raise ValueError(
            f"LAYOUT_SOLVER={name!r} is no layout solver; legal values: {', '.join(_SOLVERS)}"
        )
    return _SOLVERS[name]()


def plan_pool(requests: Sequence[Request]) -> tuple[Addresses, int]:
    """Offsets of all buffers in one LPDDR5 pool, and how large it must be.

    Packing lifetimes optimally is NP-hard. Best fit and first fit are tried in several orders, in
    each of which the buffers that end at the top are then moved forward for a few rounds, and the
    smallest pool is taken. The search ends early when no pool can be smaller.
    """
    check_requests(requests)
    bound = peak_bytes(requests)
    unlimited = sum(request.size for request in requests)
    rounds = _rounds(requests, 8)

    def at_the_top(plan: Addresses) -> Container[str]:
        top = extent_of(requests, plan)
        return {request.name for request in requests if plan[request.name] + request.size == top}

    best: Addresses = {}
    least = unlimited + 1
    for order, fit in product((_by_size, _by_footprint, _by_lifetime, _by_time), _FITS):
        for plan in _plans(sorted(requests, key=order), unlimited, fit, at_the_top, rounds):
            total = extent_of(requests, plan)
            if total < least:
                best, least = plan, total
            if least == bound:
                return best, least
    return best, least


def extent_of(requests: Iterable[Request], addresses: Addresses) -> int:
    """Where the last of the placed buffers ends."""
    return max(
        (
            addresses[request.name] + request.size
            for request in requests
            if request.name in addresses
        ),
        default=0,
    )
