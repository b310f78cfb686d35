"""A copy on one stream while kernels run on another, timed with events.

All times are the card's modelled ones: they are the same on every run and every machine.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

x = torch.ones(4096, 4096, dtype=torch.float16, device="spyre")
batch = torch.ones(4096, 4096, dtype=torch.float16).pin_memory()
target = torch.empty_like(x)
side = torch.spyre.Stream()


def modelled_ms(work: Callable[[], object]) -> float:
    """Milliseconds between two events on the current stream, around some work."""
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    torch.spyre.synchronize()
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def compute() -> None:
    y = x
    for _ in range(4):
        y = y * 0.5


def copy() -> None:
    target.copy_(batch, non_blocking=True)


def both() -> None:
    side.wait_stream(torch.spyre.current_stream())
    with torch.spyre.stream(side):
        copy()
    compute()
    torch.spyre.current_stream().wait_stream(side)


def one_after_the_other() -> None:
    copy()
    compute()


for name, work in {
    "four kernels": compute,
    "one copy to the card": copy,
    "one after the other": one_after_the_other,
    "at the same time": both,
}.items():
    print(f"{name:22}{modelled_ms(work):8.3f} ms, modelled")
