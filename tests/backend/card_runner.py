"""Runs a program on a card of its own, with raw bytes in and out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torch_spyre._C import _card
from torch_spyre.backend.program import Program, SymbolKind, encode

_INT32 = 12


def run_on_card(
    program: Program, buffers: Sequence[np.ndarray], extents: Sequence[int] = (), threads: int = 2
) -> list[np.ndarray]:
    """What the buffers (one per address symbol) hold afterwards."""
    card = _card.Card(memory_bytes=1 << 26, threads=threads)
    addresses = []
    for buffer in buffers:
        address = card.allocate(max(buffer.size, 128))
        card.copy_to_card(address, _raw(buffer.size), buffer.view(np.int32))
        addresses.append((address, buffer.size))
    bindings = [*addresses, *((extent, 4) for extent in extents)]
    assert len(bindings) == len(program.symbols)
    assert [s.kind is SymbolKind.EXTENT for s in program.symbols].count(True) == len(extents)
    card.launch(card.load(encode(program)), bindings)
    results = []
    for buffer, (address, _) in zip(buffers, addresses, strict=True):
        result = np.empty_like(buffer)
        card.wait(card.copy_to_host(address, _raw(buffer.size), result.view(np.int32)))
        results.append(result)
    return results


def _raw(nbytes: int) -> object:
    """Copies words as they are."""
    nest = _card.DmaNest([nbytes // 4], [1], [1])
    int32 = _card.host_formats["int32"]
    return _card.DmaDescriptor(_INT32, int32, [nest], nbytes, nbytes)
