"""From two readings of a card to what people want to know: utilisation, bandwidth, power.

Everything here is on the card's clock, which is modelled and does not count the time in which the
host leaves the card idle. A share is of that clock: PT at 40 % means that the matrix unit was busy
for 40 % of the time that the work took on the card. How long the software card needs to play it on
this machine says nothing about the card, so nothing is divided by wall time.
"""

from __future__ import annotations

from dataclasses import dataclass

from spyre_smi.pages import Reading

# Ours, until somebody measures: a card that does nothing takes a fifth of its 75 W, and each unit
# adds its part in proportion to the time it is busy. With all of them busy that makes 75 W.
IDLE_WATTS = 15.0
PT_WATTS, SFP_WATTS, LX_WATTS, LPDDR5_WATTS, PCIE_WATTS = 30.0, 8.0, 6.0, 12.0, 4.0


@dataclass(frozen=True)
class Figures:
    """What a card did between two readings. Shares are 0 to 1; None: nothing was launched."""

    kernels: int
    transfers: int
    seconds: float  # from here on modelled
    pt: float | None
    sfp: float | None
    lpddr5: float | None
    lx: float | None
    pcie_to_card: float | None
    pcie_to_host: float | None
    lpddr5_rate: float | None  # GB/s
    pcie_rate: float | None  # GB/s, both directions together
    watts: float


def figures(before: Reading, after: Reading) -> Figures:
    """What happened from one reading to a later one; `Reading()` stands for the card's opening."""
    clock = after.clock - before.clock

    def change(*counters: str) -> int:
        return max(0, sum(getattr(after, name) - getattr(before, name) for name in counters))

    def share(counter: str) -> float | None:
        # A launch is counted a moment before it is on the clock; a reading may fall between.
        return min(1.0, change(counter) / clock) if clock > 0 else None

    def rate(*counters: str) -> float | None:
        return change(*counters) / clock if clock > 0 else None  # 1 byte per ns is 1 GB/s

    units = {
        "pt": share("pt_busy"),
        "sfp": share("sfp_busy"),
        "lpddr5": share("memory_busy"),
        "lx": share("lx_busy"),
        "pcie_to_card": share("to_card_busy"),
        "pcie_to_host": share("to_host_busy"),
    }
    return Figures(
        kernels=change("launches"),
        transfers=change("transfers"),
        seconds=max(0, clock) / 1e9,
        **units,
        lpddr5_rate=rate("bytes_read", "bytes_written"),
        pcie_rate=rate("bytes_to_card", "bytes_to_host"),
        watts=_watts(**units),
    )


def _watts(
    pt: float | None,
    sfp: float | None,
    lpddr5: float | None,
    lx: float | None,
    pcie_to_card: float | None,
    pcie_to_host: float | None,
) -> float:
    pcie = ((pcie_to_card or 0) + (pcie_to_host or 0)) / 2
    return (
        IDLE_WATTS
        + PT_WATTS * (pt or 0)
        + SFP_WATTS * (sfp or 0)
        + LX_WATTS * (lx or 0)
        + LPDDR5_WATTS * (lpddr5 or 0)
        + PCIE_WATTS * pcie
    )
