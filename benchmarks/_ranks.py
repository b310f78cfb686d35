"""Several processes with a card each, as torchrun would start them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence


def run_ranks(cards: int, script: str, arguments: Sequence[str]) -> None:
    """Run the script once per card, and end this process if one of them fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    sizes = {"WORLD_SIZE": str(cards), "LOCAL_WORLD_SIZE": str(cards), "SPYRE_CARD_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, *arguments],
            env={**os.environ, **shared, **sizes, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(cards)
    ]
    if sum(rank.wait() != 0 for rank in ranks):
        sys.exit(f"a rank of {cards} failed; see above")
