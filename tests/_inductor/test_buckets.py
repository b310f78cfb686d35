"""Caches that grow stay where they are: a call's result is in the bucket of the next one."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional

from torch_spyre import _C

WIDTH, ROOM = 64, 512


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, WIDTH).half().to("spyre").cpu()  # as the card holds them


def in_bucket(values: torch.Tensor, rest: float) -> torch.Tensor:
    """A cache as a kernel left it: in memory for 128 rows, with anything behind its own."""
    batch, heads, length, _ = values.shape
    bucket = torch.full((batch, heads, ROOM, WIDTH), rest).half()
    bucket[:, :, :length] = values
    bucket = bucket.to("spyre")
    layout = bucket.device_tensor_layout()
    own = dict(zip(bucket.stride(), values.stride(), strict=True))
    stride_map = [own.get(step, step) for step in layout.stride_map]
    return _C.from_bucket(bucket, values.shape, values.stride(), stride_map)


def append_and_attend(query, keys, values, row):
    keys, values = torch.cat([keys, row], 2), torch.cat([values, row * 2], 2)
    attend = functional.scaled_dot_product_attention
    return attend(query, keys, values, enable_gqa=True), keys, values


def test_a_step_writes_a_growing_cache_once():
    compiled = torch.compile(append_and_attend)
    cache, query, row = rows(1, 8, 100), rows(1, 16, 1).to("spyre"), rows(1, 8, 1).to("spyre")
    keys, values = cache.to("spyre"), cache.to("spyre")
    written = []
    for _ in range(6):
        torch.spyre.synchronize()
        before = torch.spyre.counters()["bytes_written"]
        _, keys, values = compiled(query, keys, values, row)
        torch.spyre.synchronize()
        written.append(torch.spyre.counters()["bytes_written"] - before)
    both = 2 * 8 * ROOM * WIDTH * 2
    assert both <= written[-1] < 1.1 * both
    assert keys.shape == (1, 8, 106, WIDTH) and keys.is_contiguous()
    assert torch.equal(keys.cpu()[:, :, :100], cache)


def test_the_cache_before_a_step_stays_as_it_was():
    compiled = torch.compile(append_and_attend)
    cache, query = rows(1, 2, 20), rows(1, 4, 1).to("spyre")
    keys = values = cache.to("spyre")
    _, keys, values = compiled(query, keys, values, rows(1, 2, 1).to("spyre"))
    _, keys, values = compiled(query, keys, values, rows(1, 2, 1).to("spyre"))
    before = keys.cpu()
    firsts, others = rows(1, 2, 1), rows(1, 2, 1)
    grown = [compiled(query, keys, values, row.to("spyre"))[1] for row in (firsts, others)]
    for row, result in zip((firsts, others), grown, strict=True):
        assert torch.equal(result.cpu(), torch.cat([before, row], 2))
    assert torch.equal(keys.cpu(), before)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("rest", [float("nan"), float("inf")])
def test_nobody_reads_what_lies_behind_the_rows(batch: int, rest: float):
    compiled = torch.compile(append_and_attend)
    for length in (20, 21, 22):
        query, row = rows(batch, 4, 1), rows(batch, 2, 1)
        keys, values = rows(batch, 2, length), rows(batch, 2, length)
        cards = [query.to("spyre"), in_bucket(keys, rest), in_bucket(values, rest), row.to("spyre")]
        got = compiled(*cards)
        want = append_and_attend(*(x.float() for x in (query, keys, values, row)))
        assert torch.equal(got[1].cpu().float(), want[1])
        assert torch.equal(got[2].cpu().float(), want[2])
        assert (got[0].cpu() - want[0]).abs().max() < 2**-8


def test_a_tensor_in_a_bucket_is_like_any_other():
    values = rows(2, 3, 20)
    x = in_bucket(values, float("nan"))
    assert torch.equal(x.cpu(), values)
    assert torch.equal((x * 2).cpu(), values * 2)
    assert torch.equal(x[:, 1, 3:].cpu(), values[:, 1, 3:])
    assert torch.equal(
        torch.cat([x, x[:, :, :2]], 2).cpu(), torch.cat([values, values[:, :, :2]], 2)
    )
    # Sums of 32 bits, rounded once: nine fraction bits on the card.
    once = {"rtol": 2**-9, "atol": 1e-4}
    torch.testing.assert_close(x.sum(2).cpu().float(), values.float().sum(2), **once)
    product = (x @ x.transpose(2, 3)).cpu().float()
    torch.testing.assert_close(product, values.float() @ values.float().mT, **once)
    x[:, :, 5] = 1
    values[:, :, 5] = 1
    assert torch.equal(x.clone().cpu(), values)


def test_an_input_in_a_bucket_may_be_mutated():
    def double(cache):
        cache.mul_(2)
        return cache.sum()

    compiled = torch.compile(double)
    for length in (20, 21, 22):
        values = rows(1, 2, length)
        for cache in (values.to("spyre"), in_bucket(values, 1.0)):
            compiled(cache)
            assert torch.equal(cache.cpu(), values * 2)


def test_places_are_never_taken_from_behind_the_last_one():
    """Numbers there may be out of range: an index is copied, with zeros behind it."""
    made = torch.compile(lambda x: x * 3 - 7, dynamic=True)
    taken = torch.compile(lambda table, places: table[places], dynamic=True)
    table = rows(30)
    for length in (2, 5, 9):
        places = made(torch.arange(3, 3 + length).to("spyre"))
        wanted = table[torch.arange(3, 3 + length) * 3 - 7]
        assert torch.equal(taken(table.to("spyre"), places).cpu(), wanted)


def test_growing_caches_warn_of_nothing():
    compiled = torch.compile(append_and_attend)
    keys = values = rows(1, 2, 20).to("spyre")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*alias.*")
        for _ in range(3):
            row = rows(1, 2, 1).to("spyre")
            _, keys, values = compiled(rows(1, 4, 1).to("spyre"), keys, values, row)
    assert keys._base is None


def test_memory_of_a_bucket_is_freed_with_the_last_tensor_in_it():
    before = torch.spyre.memory_allocated()
    x = in_bucket(rows(1, 2, 20), 0.0)
    assert torch.spyre.memory_allocated() > before
    view = x[:, 1]
    del x
    assert view.cpu().shape == (1, 20, WIDTH)
    del view
    assert torch.spyre.memory_allocated() == before
