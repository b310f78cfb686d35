"""Dynamic lengths: few graphs, right results, results of the size that was asked for."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn import functional

from torch_spyre._inductor.dynamic import least_bucket
from torch_spyre.tools.measure import compiled_kernels


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    counters.clear()


def project(x, w):
    return (x @ w).softmax(-1)


def reduce_both_ways(x, w):
    return x.mean(0), x.amax(1), (x * w[:, 0]).sum()


def attend(x, w):
    return functional.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True)


def gram(x, w):
    return x @ x.t()


def compare(function, compiled, length: int, weight: torch.Tensor) -> None:
    x = (torch.randn(length, 128) * 0.3).half()
    got = compiled(x.to("spyre"), weight.to("spyre"))
    want = function(x.double(), weight.double())
    if not isinstance(got, tuple):
        got, want = (got,), (want,)
    for result, reference in zip(got, want, strict=True):
        assert result.shape == reference.shape
        assert result.stride() == reference.stride()
        # Sums of 128 products of 16-bit numbers; a masked-out row too many would show at once.
        error = (result.cpu().double() - reference).abs().max().item()
        assert error <= 0.004 * max(1.0, reference.abs().max().item()), (length, error)


def test_lengths_1_to_300_compile_at_most_4_graphs():
    torch.manual_seed(0)
    weight = (torch.randn(128, 96) * 0.1).half()
    compiled = torch.compile(project)
    for length in range(1, 301):
        compare(project, compiled, length, weight)
    assert counters["stats"]["unique_graphs"] <= 4


@pytest.mark.parametrize("function", [reduce_both_ways, attend, gram])
def test_masks_keep_the_rest_of_a_bucket_out(function):
    torch.manual_seed(0)
    weight = (torch.randn(128, 96) * 0.1).half()
    compiled = torch.compile(function)
    for length in (1, 2, 3, 31, 64, 65, 127, 128, 129, 200, 256, 257, 300):
        compare(function, compiled, length, weight)
    assert counters["stats"]["unique_graphs"] <= 4


def embed(ids, table, w):
    rows = functional.embedding(ids, table)
    scores = (rows @ rows.transpose(1, 2)).softmax(-1)
    return functional.normalize((scores @ rows @ w).mean(1), dim=-1)


def test_batches_and_lengths_change_together():
    """A size that is multiplied by others has smaller buckets: 2 to 32, to 64, to 128."""
    torch.manual_seed(0)
    table, weight = (torch.randn(50, 64) * 0.3).half(), (torch.randn(64, 96) * 0.1).half()
    compiled = torch.compile(embed)
    on_card = table.to("spyre"), weight.to("spyre")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch, length in ((32, 40), (32, 20), (5, 9), (2, 32), (31, 2), (17, 33), (3, 64)):
            ids = torch.randint(0, 50, (batch, length), dtype=torch.int32)
            got = compiled(ids.to("spyre"), *on_card).cpu().double()
            want = embed(ids, *(x.cpu().double() for x in on_card))
            assert (got - want).abs().max() < 2**-8
    assert counters["stats"]["unique_graphs"] == 4  # 32 x 40, 32 x up to 32, then both


def test_a_batch_is_padded_to_no_more_than_it_needs():
    assert [least_bucket(others) for others in (1, 8, 32, 100, 4096)] == [128, 128, 32, 16, 8]
    compiled = torch.compile(lambda ids: ids * 2, dynamic=True)
    compiled(torch.ones(5, 7, dtype=torch.int32).to("spyre"))
    assert compiled_kernels()[-1].bytes_written == 32 * 32 * 4


def test_mark_dynamic_is_honoured():
    x = torch.randn(20, 64).half().to("spyre")
    torch._dynamo.mark_dynamic(x, 0)
    compiled = torch.compile(lambda x: x.sum(0))
    compiled(x)
    for length in (5, 90, 128):
        y = torch.randn(length, 64).half()
        torch.testing.assert_close(
            compiled(y.to("spyre")).cpu().float(), y.float().sum(0), rtol=2e-3, atol=2e-2
        )
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x, _: x[-1] * 2,
        lambda x, _: x[:, None][-1:] * 2,
        lambda x, w: x[-3:-1] @ w,
        lambda x, _: x.exp()[:, 0][x.size(0) - 2],
        lambda x, _: x[-1 - torch.arange(2, device=x.device)] + 1,
    ],
    ids=["row", "slice", "rows", "element", "indices"],
)
def test_rows_counted_from_the_end_are_those_of_the_length(function):
    torch.manual_seed(0)
    weight = (torch.randn(128, 96) * 0.1).half()
    compiled = torch.compile(function)
    for length in (3, 5, 9, 70, 127, 128, 129, 255):
        compare(function, compiled, length, weight)
    assert counters["stats"]["unique_graphs"] == 3


def test_an_offset_that_depends_on_the_length_is_compiled_for_that_length():
    compiled = torch.compile(lambda x: x[x.size(0) // 2 :] * 2, dynamic=True)
    for length in (4, 6, 10):
        x = torch.randn(length, 64).half()
        assert torch.equal(compiled(x.to("spyre")).cpu(), (x.to("spyre")[length // 2 :] * 2).cpu())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[1] * 2 - x[0],
        lambda x: torch.cat(x.chunk(3), -1) + 1,
        lambda x: x[1:].flip(0) + x[:1].amax(1, keepdim=True),
        lambda x: x.transpose(0, 1)[:, 2] * x[0],
    ],
    ids=["part", "parts", "turned", "transposed"],
)
def test_parts_of_a_tensor_with_dynamic_strides_need_no_graph_of_their_own(function):
    torch.manual_seed(0)
    compiled = torch.compile(function, fullgraph=True)
    for length in (5, 32, 48, 127):
        x = torch.randn(3, length, 96).half().to("spyre")
        torch._dynamo.mark_dynamic(x, 1)
        torch.testing.assert_close(compiled(x).cpu(), function(x).cpu(), rtol=0, atol=0)
    assert counters["stats"]["unique_graphs"] == 1


def test_a_part_of_a_longer_tensor_is_compiled_for_the_strides_that_it_has():
    """Its own size is fixed; Dynamo takes the stride of its heads for a length like any other."""
    compiled = torch.compile(lambda window: window * 2)
    for length in (20, 30, 40):
        window = torch.randn(1, 2, length, 32).half().to("spyre")[:, :, -15:]
        assert torch.equal(compiled(window).cpu(), (window * 2).cpu())


@pytest.mark.parametrize(("batch", "heads", "groups"), [(1, 4, 2), (2, 6, 3), (1, 4, 4)])
def test_heads_that_are_dynamic_too_find_their_keys(batch: int, heads: int, groups: int):
    """heads // groups is no length that a bucket could stand for."""

    def attend_in_groups(query, key):
        return functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)

    torch.manual_seed(0)
    query, key = torch.randn(batch, heads, 3, 64).half(), torch.randn(batch, groups, 20, 64).half()
    compiled = torch.compile(attend_in_groups, dynamic=True)
    got = compiled(query.to("spyre"), key.to("spyre")).cpu().float()
    assert (got - attend_in_groups(query.float(), key.float())).abs().max() < 2**-7


def test_places_behind_a_dynamic_length_are_not_looked_up():
    """Counts go on to the end of the bucket, where a table of fixed size has no rows."""
    compiled = torch.compile(lambda x, table: table[torch.arange(x.size(0), device=x.device)] + x)
    table = torch.randn(20, 64).half()
    for length in (7, 11, 20):
        x = torch.ones(length, 64).half()
        got = compiled(x.to("spyre"), table.to("spyre")).cpu()
        assert torch.equal(got, (table.to("spyre") + 1).cpu()[:length])
    assert counters["stats"]["unique_graphs"] == 2


def test_a_place_out_of_range_is_a_fault_where_the_length_is_dynamic_too():
    compiled = torch.compile(lambda x, table: table[torch.arange(x.size(0), device=x.device)] + x)
    table = torch.randn(20, 64).half().to("spyre")
    for length in (7, 11):
        compiled(torch.ones(length, 64).half().to("spyre"), table)
    with pytest.raises(IndexError, match="index 20 is out of range for a table of 20 rows"):
        compiled(torch.ones(21, 64).half().to("spyre"), table).cpu()
    torch.spyre.reset()


def test_a_place_between_a_dynamic_length_and_the_end_of_its_bucket_is_a_fault():
    compiled = torch.compile(lambda table, i: table.index_select(0, i))
    place = torch.tensor([0, 9, 3], device="spyre")
    for length in (11, 20, 10):
        table = torch.randn(length, 64, device="spyre")
        assert torch.equal(compiled(table, place).cpu(), table.cpu()[[0, 9, 3]])
    for length in (9, 5, 4):
        with pytest.raises(IndexError, match="an index is out of range"):
            compiled(torch.randn(length, 64, device="spyre"), place).cpu()
        torch.spyre.reset()


def test_a_part_of_dynamic_length_of_a_tensor_of_fixed_length():
    """The bucket is no longer than the tensor."""
    compiled = torch.compile(lambda x, rows: rows[: x.size(0)] * 2 + x)
    rows = torch.randn(41, 64).half()
    for length in (7, 11, 40):
        x = torch.ones(length, 64).half()
        got = compiled(x.to("spyre"), rows.to("spyre")).cpu()
        assert torch.equal(got, (rows.to("spyre") * 2 + 1).cpu()[:length])
    assert counters["stats"]["unique_graphs"] == 2


def test_flattened_lengths_leave_the_graph_in_their_own_dimensions():
    """Batch and length are one dimension of a linear layer, and sorting is done between kernels."""

    def rank(x, w):
        scores = functional.linear(x, w)
        return scores, scores.sort(-1).values

    torch.manual_seed(0)
    weight = torch.randn(70, 64).half().to("spyre")
    compiled = torch.compile(rank)
    for batch, length in ((3, 7), (3, 9), (5, 11), (8, 100)):
        x = torch.randn(batch, length, 64).half().to("spyre")
        wanted, _ = rank(x.cpu().float(), weight.cpu().float())
        scores, ranked = compiled(x, weight)
        assert scores.shape == ranked.shape == wanted.shape
        assert scores.stride() == wanted.stride()
        assert (scores.cpu().float() - wanted).abs().max() < 2**-4
        assert torch.equal(ranked.cpu(), scores.cpu().sort(-1).values)
    assert counters["stats"]["unique_graphs"] <= 4  # the first, with a dynamic length, with both


def test_concatenations_in_a_bucket_may_be_read_by_several_kernels():
    def model(x):
        pairs = torch.cat([x[..., 32:] * 2, x[..., :32]], -1)
        return pairs.cumsum(-1), pairs.exp()

    compiled = torch.compile(model)
    for length in (5, 9, 12):
        x = torch.rand(length, 64).half().to("spyre")
        for got, want in zip(compiled(x), model(x.cpu().float()), strict=True):
            torch.testing.assert_close(got.cpu().float(), want, rtol=2e-2, atol=2e-2)


def test_a_batch_of_caches_is_padded_to_the_next_power_of_two():
    compiled = torch.compile(lambda cache: cache * 2)
    for batch, padded in ((1, 1), (3, 4), (4, 4), (5, 8)):
        compiled(torch.ones(batch, 2, 200, 64).half().to("spyre"))
        assert compiled_kernels()[-1].bytes_written == padded * 2 * 200 * 64 * 2


def test_a_difference_of_lengths_is_compiled_for_the_lengths():
    compiled = torch.compile(lambda x, y: x[: x.size(0) - y.size(0)] * 2, dynamic=True)
    for lengths in ((9, 3), (9, 4), (70, 68)):
        x, y = (torch.ones(n, 64).half().to("spyre") for n in lengths)
        assert compiled(x, y).shape == (lengths[0] - lengths[1], 64)


def test_indices_in_the_rest_of_a_bucket_do_no_harm():
    table = torch.randn(50, 64).half()
    compiled = torch.compile(lambda index, table: functional.embedding(index, table) + 1)
    for length in (2, 7, 130):
        index = torch.randint(0, 50, (length,))
        got = compiled(index.to("spyre"), table.to("spyre")).cpu()
        want = (table.to("spyre") + 1).cpu()[index]
        assert torch.equal(got, want)


def test_a_cache_that_grows_compiles_a_graph_per_bucket():
    """Lengths 2 to 511, 512 to 1023: the first is no graph of its own."""

    def step(query, keys, values, row):
        keys, values = torch.cat([keys, row], 2), torch.cat([values, row * 2], 2)
        attend = functional.scaled_dot_product_attention
        return attend(query, keys, values, enable_gqa=True), keys, values

    def rows(*shape):
        return torch.randn(shape).half().to("spyre").cpu()  # as the card holds them

    torch.manual_seed(0)
    compiled = torch.compile(step)
    keys, values = rows(1, 2, 500, 64), rows(1, 2, 500, 64)
    on_card = keys.to("spyre"), values.to("spyre")
    for length in range(500, 524):
        query, row = rows(1, 4, 1, 64), rows(1, 2, 1, 64)
        got, *on_card = compiled(query.to("spyre"), *on_card, row.to("spyre"))
        want, keys, values = step(query, keys, values, row)
        assert [tuple(x.stride()) for x in on_card] == [keys.stride(), values.stride()]
        assert (got.cpu() - want).abs().max() < 2**-8, length
        assert all(x._base is None for x in on_card)  # Dynamo compiles anew for views
    assert torch.equal(on_card[0].cpu(), keys)
    assert torch.equal(on_card[1].cpu(), values)
    assert counters["stats"]["unique_graphs"] == 2


def graphs_of_steps(function, lengths, **settings) -> int:
    compiled = torch.compile(function, **settings)
    row = torch.ones(2, 1, 64).half()
    for length in lengths:
        cache = torch.ones(2, length, 64).half()
        grown = compiled(cache.to("spyre"), row.to("spyre"))
        assert torch.equal(grown.cpu(), function(cache, row))
    return counters["stats"]["unique_graphs"]


def test_only_what_leaves_the_graph_longer_is_expected_to_grow():
    assert graphs_of_steps(lambda cache, row: torch.cat([cache, row], 1), [20, 21, 22]) == 1
    assert graphs_of_steps(lambda cache, row: torch.cat([cache, row], 1)[:, -30:], [20, 21]) == 2
    assert graphs_of_steps(lambda cache, row: torch.cat([cache, row], 1).sum(1), [20]) == 3
    assert graphs_of_steps(lambda cache, row: torch.cat([row, cache], 1), [20]) == 4


def test_who_wants_fixed_sizes_gets_them_for_growing_caches_too():
    grow = lambda cache, row: torch.cat([cache, row], 1)  # noqa: E731
    assert graphs_of_steps(grow, [20, 21, 22], dynamic=False) == 3


def test_a_cache_of_one_row_is_compiled_for_itself():
    assert graphs_of_steps(lambda cache, row: torch.cat([cache, row], 1), [1, 2, 3, 4]) == 2


def test_a_cache_that_starts_empty_has_the_strides_of_eager_mode():
    def start(row):
        return torch.cat([torch.empty(0, dtype=row.dtype, device=row.device), row], -2)

    rows = torch.randn(1, 12, 2, 64).half().to("spyre").transpose(1, 2)
    started = torch.compile(start)(rows)
    assert started.stride() == start(rows).stride() == start(rows.cpu()).stride()
    assert torch.equal(started.cpu(), rows.cpu())


def test_a_cache_that_grows_by_several_rows_is_compiled_for_its_length():
    compiled = torch.compile(lambda cache, rows: torch.cat([cache, rows], 1))
    for length in (20, 21, 22):
        cache, rows = torch.ones(2, length, 64).half(), torch.zeros(2, 3, 64).half()
        result = compiled(cache.to("spyre"), rows.to("spyre")).cpu()
        assert torch.equal(result, torch.cat([cache, rows], 1))
