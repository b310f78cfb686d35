"""The link between cards in the clock: bytes of a collective, against rings that are played."""

from __future__ import annotations

import math

import pytest
import torch  # noqa: F401  (loads the libraries that the extension links to)
from hypothesis import given
from hypothesis import strategies as st

from torch_spyre import _C

cost = _C._cost
Collective = cost.Collective
CARDS = st.integers(2, 8)


def ring_pass(pieces: list[list[int]]) -> list[int]:
    """Bytes that each card sends when every piece goes round to all cards but its first."""
    cards = len(pieces)
    sent = [0] * cards
    for first, own in enumerate(pieces):
        for hop in range(cards - 1):
            sent[(first + hop) % cards] += sum(own)
    return sent


@given(CARDS, st.integers(0, 2**30))
def test_gathering_and_reducing_pieces_is_once_round_the_ring(cards: int, piece: int) -> None:
    sent = ring_pass([[piece]] * cards)[0]
    whole = piece * cards
    for what in (Collective.AllGather, Collective.ReduceScatter, Collective.AllToAll):
        assert cost.link_traffic(what, whole, cards) == (sent, sent)
    assert cost.link_traffic(Collective.AllReduce, whole, cards) == (2 * sent, 2 * sent)


@given(CARDS, st.integers(0, 2**30), st.booleans())
def test_what_goes_from_one_to_all_goes_over_each_link_once(
    cards: int, size: int, is_root: bool
) -> None:
    assert sum(cost.link_traffic(Collective.Broadcast, size, cards, is_root)) == size
    assert sum(cost.link_traffic(Collective.Reduce, size, cards, is_root)) == size


@given(CARDS, st.integers(0, 2**30))
def test_a_root_gathers_everybody_elses_piece(cards: int, piece: int) -> None:
    whole = piece * cards
    assert cost.link_traffic(Collective.Gather, whole, cards, True) == (0, piece * (cards - 1))
    assert cost.link_traffic(Collective.Gather, whole, cards, False) == (piece, 0)
    assert cost.link_traffic(Collective.Scatter, whole, cards, True) == (piece * (cards - 1), 0)
    assert cost.link_traffic(Collective.Scatter, whole, cards, False) == (0, piece)


@given(CARDS, st.integers(0, 2**40))
def test_time_is_the_busier_direction_at_50_gb_per_second(cards: int, size: int) -> None:
    for what in Collective.__members__.values():
        traffic = cost.link_traffic(what, size, cards)
        expected = math.ceil(max(traffic) / 50)
        assert cost.collective_nanoseconds(what, size, cards) == expected


@pytest.mark.parametrize("what", Collective.__members__.values())
def test_a_card_alone_sends_nothing(what: object) -> None:
    assert cost.collective_nanoseconds(what, 2**20, 1) == 0


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes is -1"):
        cost.collective_nanoseconds(Collective.Send, -1, 2)
    with pytest.raises(ValueError, match="cards is 0"):
        cost.link_traffic(Collective.Send, 1, 0)
