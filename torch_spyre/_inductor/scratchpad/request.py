"""What a layout solver is asked: buffers with sizes and lifetimes, and what it answers.

Time is counted in operations. A buffer takes its bytes from the operation that writes it to the
last one that reads it, both included; buffers that live at the same time lie apart. The one
exception is in-place: an operation may write its result over an operand that nobody reads later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch_spyre.ir import STICK_BYTES

Addresses = dict[str, int]


@dataclass(frozen=True)
class Request:
    """A buffer of `nbytes` (per core, in LX), live from operation `first` to `last` inclusive.

    `over` names operands of operation `first` that die there and that it may overwrite: as large
    as this buffer, and walked in the same order. `benefit` is the LPDDR5 traffic in bytes that
    keeping the buffer saves; unknown, it is taken to be in proportion to the size.
    """

    name: str
    nbytes: int
    first: int
    last: int
    over: tuple[str, ...] = ()
    benefit: int | None = None

    @property
    def size(self) -> int:
        """The bytes it takes: whole sticks."""
        return round_up_to_stick(self.nbytes)

    @property
    def worth(self) -> int:
        """What is lost when the buffer is spilled."""
        return self.size if self.benefit is None else self.benefit

    @property
    def footprint(self) -> int:
        """Bytes times operations: how much of the scratchpad it denies to others."""
        return self.size * (self.last - self.first + 1)


class LayoutSolver(Protocol):
    """Gives addresses to buffers.

    Addresses are multiples of 128 bytes, and every buffer ends within `capacity`. A name that is
    missing from the result did not fit: that buffer is spilled to LPDDR5. The result depends on
    the set of requests alone, not on their order.
    """

    def solve(self, requests: Sequence[Request], capacity: int) -> Addresses: ...


def round_up_to_stick(nbytes: int) -> int:
    """The next multiple of a stick.

    >>> round_up_to_stick(129)
    256
    """
    return -(-nbytes // STICK_BYTES) * STICK_BYTES


def peak_bytes(requests: Sequence[Request]) -> int:
    """A bound that no plan of all these buffers can beat: the most bytes live at one time.

    A result that may overwrite an operand is counted as if it did.
    """
    known = {request.name for request in requests}
    change: dict[int, int] = {}
    for request in requests:
        # Over an operand, it takes no bytes of its own until that operand is gone.
        start = request.first + (not known.isdisjoint(request.over))
        if start <= request.last:
            change[start] = change.get(start, 0) + request.size
            change[request.last + 1] = change.get(request.last + 1, 0) - request.size
    live = peak = 0
    for operation in sorted(change):
        live += change[operation]
        peak = max(peak, live)
    return peak


def check_requests(requests: Sequence[Request]) -> None:
    """Refuse requests that contradict themselves or each other."""
    by_name = {request.name: request for request in requests}
    if len(by_name) != len(requests):
        names = [request.name for request in requests]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"buffers requested more than once: {', '.join(twice)}")
    for request in requests:
        if request.nbytes < 1 or request.first > request.last:
            raise ValueError(
                f"buffer {request.name}: {request.nbytes} bytes from operation {request.first} to "
                f"{request.last}; it needs at least one byte and one operation"
            )
        for name in request.over:
            # An operand that is not here lies elsewhere, in LPDDR5 say: nothing to share.
            operand = by_name.get(name)
            if operand is not None:
                _check_in_place(request, operand)


def _check_in_place(request: Request, operand: Request) -> None:
    if not operand.first < operand.last == request.first:
        raise ValueError(
            f"buffer {request.name}, written by operation {request.first}, can't overwrite "
            f"{operand.name}, which lives from {operand.first} to {operand.last}: only an operand "
            f"that is written earlier and read for the last time there can be overwritten"
        )
    if request.size != operand.size:
        raise ValueError(
            f"buffer {request.name} of {request.nbytes} bytes can't overwrite {operand.name} of "
            f"{operand.nbytes} bytes: in-place needs the same size"
        )
