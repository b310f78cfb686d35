"""Transfers between a host tensor and a view of a card storage, as DMA loop nests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .pieces import padding, pieces
from .storage import Access, Storage


class Transfer(NamedTuple):
    """One loop nest of a transfer, outermost loop first; all counted in elements."""

    range: tuple[int, ...]
    device_strides: tuple[int, ...]
    host_strides: tuple[int, ...]
    device_offset: int
    host_offset: int
    is_padding: bool  # zeros for the card; there is no host side


def copy_plan(
    storage: Storage,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int,
    host_strides: Sequence[int],
    whole: bool,
) -> list[Transfer]:
    """Nests that move each element of a view (sizes, strides, offset in the storage) once.

    With `whole` the view is all of its storage and the copy goes to the card: the padding is
    filled with zeros too. For a default (5, 200) fp16 tensor that is the body, the tail of each
    row, and the padding behind it.
    """
    view = Access(storage, offset, tuple(strides))
    plan = [
        Transfer(nest.extents, card, host, card_offset, host_offset, is_padding=False)
        for nest in pieces(sizes, [view, Access(None, 0, tuple(host_strides))])
        for (card, host), (card_offset, host_offset) in [(nest.strides, nest.offsets)]
    ]
    if whole:
        for nest in padding(storage):
            no_host = (0,) * len(nest.extents)
            plan.append(
                Transfer(
                    nest.extents, nest.strides[0], no_host, nest.offsets[0], 0, is_padding=True
                )
            )
    return plan
