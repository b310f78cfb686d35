"""The search for hints prices what the card would run, and finds hints that beat a bad plan."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch

from torch_spyre._inductor import config
from torch_spyre.tools.measure import measure

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def hint_search(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import hint_search

    return hint_search


SMALL = {
    "softmax": lambda search: search.softmax(512, 256),
    "mlp": lambda search: search.mlp(128, 128, 256),
    "prefill": lambda search: search.attention(4, 128, 128, 64, is_causal=True)[0],
    "prefill by hand": lambda search: search.attention(4, 128, 128, 64, is_causal=True)[1],
    "decode": lambda search: search.attention(4, 1, 256, 64, is_causal=False)[0],
    "decode by hand": lambda search: search.attention(4, 1, 256, 64, is_causal=False)[1],
}
QUICK = ("softmax", "mlp")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in SMALL],
)
def test_random_hints_are_followed_and_change_no_result(hint_search, name):
    workload = SMALL[name](hint_search)
    found = hint_search.search(workload, draws=2, seed=1, is_checking=True)
    assert len(found.legal) == 2
    assert all(price.has_loops_of(scopes) for scopes, price in found.legal.items())


def test_a_seed_gives_the_same_table(hint_search):
    workload = hint_search.softmax(512, 256)
    first, second = (hint_search.search(workload, draws=2, seed=3) for _ in range(2))
    assert first.row() == second.row()


def test_the_price_of_a_plan_is_what_the_card_counts(hint_search):
    workload = hint_search.softmax(512, 256)
    bench = hint_search.Bench(workload, is_checking=False)
    scopes = (hint_search.Scope(0, 4, "M", 4),)
    price = bench.price(workload.parts, scopes)
    torch._dynamo.reset()
    model = torch.compile(hint_search.Model(workload, workload.parts, scopes, {}), dynamic=False)
    _, cost = measure(model, *bench.inputs)
    assert len(price.launches) == cost.launches
    assert price.microseconds == round(cost.microseconds, 3)


def test_hints_that_are_faster_than_a_bad_plan_are_found(hint_search):
    # Scores of 16 MiB, which a plan without loops keeps only if hints make it.
    _, workload = hint_search.attention(8, 1024, 1024, 64, is_causal=False)
    with config.patch(dxp_lx_frac_avail=0.6):
        best = hint_search.search(workload, draws=3, seed=0).best[1]
        with config.patch(plan="basic"):
            basic = hint_search.Bench(workload, is_checking=False).price(workload.parts)
    found = hint_search.Found(workload, basic, {(): best})
    assert found.is_beaten and found.row()[-1] == "slower"


def test_scopes_are_nested_as_they_lie(hint_search):
    scope = hint_search.Scope
    outer, inner, after = scope(0, 3, "M", 2), scope(1, 2, "N", 4), scope(3, 4, "M", 8)
    (first, second) = hint_search.nested([after, inner, outer])
    assert (first.inner, second) == ((inner,), after)
    assert hint_search.nested([scope(0, 2, "M", 2), scope(1, 3, "M", 2)]) is None
    parts = hint_search.softmax(64, 64).parts
    assert (
        hint_search.text([first], parts)
        == "M: 2 around largest … total, in it N: 4 around exponentials"
    )


def test_tiles_that_are_drawn_divide(hint_search):
    workload = hint_search.mlp(96, 128, 192)
    for seed in range(50):
        for scope in workload.draw(Random(seed), list(workload.sizes)):
            assert workload.sizes[scope.dim] % scope.tiles == 0 and scope.tiles > 1
            assert 0 <= scope.first < scope.end <= len(workload.parts)
