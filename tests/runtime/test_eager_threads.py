"""Eager operations of many threads at once, each on a stream of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

DEVICE = "spyre"
THREADS, ROUNDS = 8, 12

Work = Callable[[torch.Tensor], torch.Tensor]

# By how an operation gets onto the card.
WORKS: dict[str, Work] = {
    "formulas": lambda x: (x * 2 + 1).relu().sub_(0.5),
    "traced": lambda x: F.layer_norm(x, x.shape[-1:]).softmax(-1) @ x.t(),
    "direct steps": lambda x: x.sort(-1).values.cumsum(0).index_select(1, x.argmax(1) % 7),
    "as large as the data says": lambda x: x[x > 0].sum() + (x > 1).nonzero().sum(),
    "on the CPU": lambda x: torch.linalg.inv(x[:, : x.shape[0]] + 9 * torch.eye(x.shape[0]).to(x)),
}


def run_together(work: Callable[[int], None]) -> None:
    """Every thread starts at once; the first exception is raised."""
    gate = threading.Barrier(THREADS)

    def start(number: int) -> None:
        gate.wait()
        work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(start, number) for number in range(THREADS)]:
            done.result()


def inputs_of(number: int) -> torch.Tensor:
    """Some shapes are those of other threads, some are nobody else's."""
    generator = torch.Generator().manual_seed(number)
    return torch.randn(5 + number // 2, 70 + number % 3, generator=generator)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", WORKS)
def test_threads_on_their_own_streams_get_their_own_results(name: str) -> None:
    def work(number: int) -> None:
        host = inputs_of(number)
        wanted = WORKS[name](host)
        with torch.spyre.stream(torch.spyre.Stream()):
            x = host.to(DEVICE)
            for _ in range(ROUNDS):
                found = WORKS[name](x.clone())
                torch.testing.assert_close(found.cpu(), wanted, rtol=2e-4, atol=2e-4)

    run_together(work)


def test_threads_that_plan_the_same_call_at_once_get_the_same_bits() -> None:
    found: list[torch.Tensor | None] = [None] * THREADS
    x = torch.randn(9, 131).to(DEVICE)
    torch.spyre.synchronize()

    def work(number: int) -> None:
        with torch.spyre.stream(torch.spyre.Stream()):
            found[number] = F.gelu(F.rms_norm(x, (131,)).softmax(0)).var(1).cpu()

    run_together(work)
    assert all(torch.equal(each, found[0]) for each in found)


def test_a_tensor_goes_from_thread_to_thread_by_events() -> None:
    """Each stream waits for the one before it, and adds its number."""
    x = torch.zeros(3, 200, device=DEVICE)
    torch.spyre.synchronize()
    turns = [threading.Event() for _ in range(THREADS + 1)]
    turns[0].set()
    events = [torch.spyre.Event() for _ in range(THREADS)]

    def work(number: int) -> None:
        stream = torch.spyre.Stream()
        assert turns[number].wait(60)
        with torch.spyre.stream(stream):
            if number:
                events[number - 1].wait(stream)
            x.add_(x.sum(0, keepdim=True) + number)
            events[number].record(stream)
        turns[number + 1].set()

    run_together(work)
    torch.spyre.synchronize()
    wanted = torch.zeros(3, 200)
    for number in range(THREADS):
        wanted += wanted.sum(0, keepdim=True) + number
    assert torch.equal(x.cpu(), wanted)
