"""Beyond the table: rounding, strides, async, sub-groups, wrong use, streams and the clock."""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

from tests.distributed.cases import Case, World, all_gather_means, check, on, same, value
from torch_spyre import _C
from torch_spyre.tools.trace.analyse import Analysis
from torch_spyre.tools.trace.read import read_trace

CASES: dict[str, Case] = {}
LARGE = (257, 300)  # beyond what every rank reduces alone
# For calls that shall fail. Not for the group: on a busy machine it takes longer to connect.
SOON = datetime.timedelta(seconds=2)


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def raises(call: Callable[[], object], *words: str) -> None:
    """The call fails, and its message has these words."""
    with pytest.raises((RuntimeError, ValueError)) as caught:
        call()
    missing = [word for word in words if not re.search(word, str(caught.value))]
    assert not missing, f"{missing} not in: {caught.value}"


def noise(rank: int, shape: tuple[int, ...] = LARGE) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank))


# ---- Values -------------------------------------------------------------------------------------


@case
def a_sum_of_16_bit_floats_is_rounded_once(world: World) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        parts = [noise(rank).to(dtype).to("spyre") for rank in world.ranks]
        total = parts[0].float()
        for part in parts[1:]:
            total = total + part.float()
        found = parts[world.rank].clone()
        dist.all_reduce(found)
        same(found.float(), total.to(dtype).float())


@case
def all_reduce_is_reduce_scatter_and_all_gather_bit_for_bit(world: World) -> None:
    rows = 40 * world.size
    for shape in ((rows, 7), (rows, 300)):  # reduced everywhere, and in shares
        own = noise(world.rank, shape).to("spyre")
        whole = own.clone()
        dist.all_reduce(whole)
        share = torch.empty(40, shape[1], device="spyre")
        dist.reduce_scatter_single(share, own)
        gathered = torch.empty(shape, device="spyre")
        dist.all_gather_single(gathered, share)
        same(whole, gathered)
        rooted = own.clone()
        dist.reduce(rooted, dst=0)
        if world.rank == 0:
            same(rooted, whole)


@case
def values_beyond_the_hosts_bfloat16_arrive_as_they_are(world: World) -> None:
    # 9 fraction bits on the card, 7 on the host.
    own = torch.full((5,), 1.0, dtype=torch.bfloat16, device="spyre") + 3 / 512
    moved = own.clone() if world.rank == 0 else torch.zeros_like(own)
    dist.broadcast(moved, src=0)
    assert (moved == own).all()


@case
def nan_is_not_lost_in_a_minimum(world: World) -> None:
    own = torch.full((4,), float(world.rank), device="spyre")
    if world.rank == world.size - 1:
        own[1] = float("nan")
    dist.all_reduce(own, dist.ReduceOp.MIN)
    assert own.isnan().tolist() == [False, True, False, False]


@case
def an_average_does_not_overflow_on_the_way(world: World) -> None:
    for dtype, largest in ((torch.uint8, 200), (torch.int8, 100), (torch.int32, 2_000_000_000)):
        own = torch.full((4,), largest, dtype=dtype, device="spyre")
        own[1] = -3 if dtype.is_signed else 3
        dist.all_reduce(own, dist.ReduceOp.AVG)
        assert own[0].item() == largest and abs(own[1].item()) == 3, (dtype, own)


@case
def infinities_and_nan_come_through_reductions(world: World) -> None:
    values = torch.tensor([float("nan"), float("-inf"), 1.0, 2.0e9])
    for op, expected in (
        (dist.ReduceOp.MAX, [float("nan"), float(world.size - 1), 1.0, 2.0e9]),
        (dist.ReduceOp.SUM, [float("nan"), float("-inf"), float(world.size), 2.0e9 * world.size]),
    ):
        own = values.to("spyre")
        if op == dist.ReduceOp.MAX and world.rank > 0:
            own[0], own[1] = 0.0, float(world.rank)
        dist.all_reduce(own, op)
        torch.testing.assert_close(own.cpu(), torch.tensor(expected), equal_nan=True)


@case
def bits_are_combined_for_integers_and_bool(world: World) -> None:
    own = torch.tensor([1 << world.rank, 7, 0], dtype=torch.int32)
    everybodys = (1 << world.size) - 1
    odd = 7 * (world.size % 2)
    for op, expected in (
        (dist.ReduceOp.BOR, [everybodys, 7, 0]),
        (dist.ReduceOp.BAND, [0, 7, 0]),
        (dist.ReduceOp.BXOR, [everybodys, odd, 0]),
    ):
        tensor = own.to("spyre")
        dist.all_reduce(tensor, op)
        assert tensor.tolist() == expected
        truth = torch.tensor([world.rank == 0, True, False], device="spyre")
        dist.all_reduce(truth, op)
        assert truth.tolist() == [op != dist.ReduceOp.BAND, bool(expected[1]), False]


# ---- Tensors of all kinds -----------------------------------------------------------------------


@case
def strided_inputs_and_outputs_are_taken_as_they_are(world: World) -> None:
    own = value(torch.float32, world.rank, shape=(6, 8)).to("spyre").t()[1:7:2]
    output = torch.zeros(8, 3 * world.size, device="spyre").t()
    dist.all_gather_single(output[: 3 * world.size, ::2][:, :4].contiguous(), own[:, :4])
    pieces = [torch.zeros(6, 3, device="spyre").t() for _ in world.ranks]
    dist.all_gather(pieces, own)
    check(
        pieces,
        [value(torch.float32, rank, shape=(6, 8)).t()[1:7:2] for rank in world.ranks],
    )


@case
def a_slice_of_a_tensor_is_reduced_in_place(world: World) -> None:
    whole = torch.zeros(4, 10, device="spyre")
    whole[1:3, 2:5] = float(world.rank + 1)
    dist.all_reduce(whole[1:3, 2:5])
    expected = torch.zeros(4, 10)
    expected[1:3, 2:5] = float(sum(rank + 1 for rank in world.ranks))
    same(whole, expected)


@case
def lists_may_have_tensors_of_different_lengths(world: World) -> None:
    pieces = [torch.zeros(rank + 1, device="spyre") for rank in world.ranks]
    dist.all_gather(pieces, torch.full((world.rank + 1,), float(world.rank), device="spyre"))
    check(pieces, [torch.full((rank + 1,), float(rank)) for rank in world.ranks])
    output = torch.zeros(world.rank + 1, device="spyre")
    dist.reduce_scatter(output, [torch.ones(rank + 1, device="spyre") for rank in world.ranks])
    same(output, torch.full((world.rank + 1,), float(world.size)))


@case
def an_all_to_all_may_have_split_sizes(world: World) -> None:
    own = torch.cat([value(torch.int32, world.rank, to, (to + 1, 3)) for to in world.ranks])
    output = torch.zeros((world.rank + 1) * world.size, 3, dtype=torch.int32, device="spyre")
    dist.all_to_all_single(
        output,
        own.to("spyre"),
        [world.rank + 1] * world.size,
        [to + 1 for to in world.ranks],
    )
    shape = (world.rank + 1, 3)
    same(
        output,
        torch.cat([value(torch.int32, rank, world.rank, shape) for rank in world.ranks]),
    )


@case
def empty_tensors_and_scalars_travel(world: World) -> None:
    dist.all_reduce(torch.empty(0, 3, device="spyre"))
    dist.broadcast(torch.empty(0, device="spyre"), src=0)
    scalar = torch.tensor(2.0, device="spyre")
    dist.all_reduce(scalar)
    assert scalar.item() == 2 * world.size and scalar.shape == ()


@case
def a_view_of_another_dtype_may_be_sent(world: World) -> None:
    own = torch.arange(4.0).to("spyre")
    outputs = [torch.empty(4, dtype=torch.int32, device="spyre") for _ in world.ranks]
    dist.all_gather(outputs, own.view(torch.int32))
    check(outputs, [torch.arange(4.0).view(torch.int32)] * world.size)


@case
def large_tensors_are_reduced_in_shares(world: World) -> None:
    own = torch.full((1000, 333), float(world.rank + 1), dtype=torch.float16, device="spyre")
    dist.all_reduce(own)
    same(own, torch.full((1000, 333), float(sum(r + 1 for r in world.ranks))).half())


# ---- Objects, groups, meshes --------------------------------------------------------------------


@case
def objects_are_gathered_broadcast_and_scattered(world: World) -> None:
    group = dist.new_group(backend="spyreccl")
    found: list[object] = [None] * world.size
    dist.all_gather_object(found, {"rank": world.rank}, group=group)
    assert found == [{"rank": rank} for rank in world.ranks]
    things = ["one", 2, None] if world.rank == 0 else [None] * 3
    dist.broadcast_object_list(things, src=0, group=group)
    assert things == ["one", 2, None]
    dist.barrier(group=group)
    dist.destroy_process_group(group)


@case
def a_sub_group_is_its_members_affair(world: World) -> None:
    halves = [list(world.ranks)[: world.size // 2], list(world.ranks)[world.size // 2 :]]
    groups = [dist.new_group(ranks) for ranks in halves]
    mine = 0 if world.rank in halves[0] else 1
    own = torch.full((3,), float(world.rank), device="spyre")
    dist.all_reduce(own, group=groups[mine])
    same(own, torch.full((3,), float(sum(halves[mine]))))
    first = torch.full((2,), float(world.rank), device="spyre")
    dist.broadcast(first, src=halves[mine][-1], group=groups[mine])
    same(first, torch.full((2,), float(halves[mine][-1])))
    for group in groups:
        dist.destroy_process_group(group)


@case
def a_device_mesh_has_groups_for_its_dimensions(world: World) -> None:
    mesh = dist.init_device_mesh("spyre", (world.size // 2, 2), mesh_dim_names=("dp", "tp"))
    own = torch.full((3,), float(world.rank), device="spyre")
    dist.all_reduce(own, group=mesh.get_group("tp"))
    first = world.rank // 2 * 2
    same(own, torch.full((3,), float(2 * first + 1)))
    assert mesh["dp"].size() == world.size // 2


@case
def a_group_that_is_bound_to_its_card_can_be_split(world: World) -> None:
    default = dist.group.WORLD
    default.bound_device_id = torch.device("spyre", world.rank)
    try:
        halves = [list(world.ranks)[::2], list(world.ranks)[1::2]]
        whole = dist.new_group(backend="spyreccl")
        group = dist.split_group(whole, split_ranks=halves)
        own = torch.full((3,), float(world.rank), device="spyre")
        dist.all_reduce(own, group=group)
        same(own, torch.full((3,), float(sum(halves[world.rank % 2]))))
        assert dist.get_world_size(group) == world.size // 2
    finally:
        default.bound_device_id = None


@case
def a_group_of_one_leaves_values_as_they_are(world: World) -> None:
    group = dist.new_group([0])
    if world.rank != 0:
        assert dist.get_rank(group) == -1
        return
    own, output = noise(0, (4, 5)).to("spyre"), torch.zeros(4, 5, device="spyre")
    for call in (
        lambda: dist.all_reduce(output.copy_(own), group=group),
        lambda: dist.all_gather_single(output, own, group=group),
        lambda: dist.reduce_scatter_single(output, own, group=group),
        lambda: dist.all_to_all_single(output, own, group=group),
        lambda: dist.gather(own, [output], dst=0, group=group),
        lambda: dist.scatter(output, [own], src=0, group=group),
        lambda: dist.broadcast(output.copy_(own), src=0, group=group),
    ):
        output.zero_()
        call()
        same(output, own)


@case
def a_group_that_was_destroyed_is_unknown(world: World) -> None:
    group = dist.new_group()
    dist.destroy_process_group(group)
    raises(lambda: dist.all_reduce(torch.ones(3, device="spyre"), group=group), "group")


# ---- Async --------------------------------------------------------------------------------------


@case
def async_calls_may_be_waited_for_in_any_order(world: World) -> None:
    tensors = [value(torch.float32, world.rank, k).to("spyre") for k in range(6)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    assert all(work.is_completed() and work.is_success() for work in works)
    for k, tensor in enumerate(tensors):
        same(tensor, sum(value(torch.float32, rank, k) for rank in world.ranks))


@case
def a_wait_is_for_the_current_stream(world: World) -> None:
    side = torch.spyre.Stream()
    own = torch.ones(500, 500, device="spyre")
    work = dist.all_reduce(own, async_op=True)
    with torch.spyre.stream(side):
        work.wait()
        doubled = own * 2
    torch.spyre.current_stream().wait_stream(side)
    same(doubled, torch.full((500, 500), 2.0 * world.size))


@case
def a_future_has_the_result_and_runs_what_follows(world: World) -> None:
    own = torch.full((3,), float(world.rank), device="spyre")
    future = dist.all_reduce(own, async_op=True).get_future()
    halved = future.then(lambda done: done.value()[0] / 2).wait()
    same(halved, torch.full((3,), sum(world.ranks) / 2))


@case
def every_collective_may_be_async(world: World) -> None:
    own = torch.full((world.size,), float(world.rank), device="spyre")
    output, share = torch.zeros(world.size**2, device="spyre"), torch.zeros(1, device="spyre")
    root = world.rank == 0
    parts = [torch.zeros(world.size, device="spyre") for _ in world.ranks]
    pieces = [torch.zeros(1, device="spyre") for _ in world.ranks]
    copies = [own.clone() for _ in range(3)]
    works = [
        dist.broadcast(copies[0], src=0, async_op=True),
        dist.reduce(copies[1], dst=0, async_op=True),
        dist.all_gather(parts, own, async_op=True),
        dist.all_gather_single(output, own, async_op=True),
        dist.reduce_scatter(share, list(own.chunk(world.size)), async_op=True),
        dist.all_to_all(pieces, list(own.chunk(world.size)), async_op=True),
        dist.gather(own, [torch.zeros_like(own) for _ in parts] if root else None, async_op=True),
        dist.scatter(copies[2], parts if root else None, src=0, async_op=True),
        dist.barrier(async_op=True),
    ]
    for work in works:
        work.wait()
    total = float(sum(world.ranks))
    assert copies[0].tolist() == [0.0] * world.size
    assert not root or copies[1].tolist() == [total] * world.size
    assert [part[0].item() for part in parts] == list(world.ranks)
    assert output.view(world.size, -1)[:, 0].tolist() == list(world.ranks)
    assert share.tolist() == [total]
    assert [piece.item() for piece in pieces] == list(world.ranks)


@case
def what_hangs_on_a_future_may_wait_for_another_collective(world: World) -> None:
    """As PowerSGD's communication hook does."""

    def add_again(done: torch.futures.Future) -> torch.Tensor:
        (tensor,) = done.value()
        dist.all_reduce(tensor, async_op=True).get_future().wait()
        return tensor

    for _ in range(5):
        own = torch.ones(3, device="spyre")
        future = dist.all_reduce(own, async_op=True).get_future().then(add_again)
        same(future.wait(), torch.full((3,), float(world.size**2)))


@case
def a_wait_may_have_a_limit_of_its_own(world: World) -> None:
    group = dist.new_group(backend="spyreccl")
    if world.rank == 0:
        work = dist.all_reduce(torch.ones(3, device="spyre"), group=group, async_op=True)
        raises(lambda: work.wait(datetime.timedelta(milliseconds=100)), "within 100 ms")
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        dist.all_reduce(torch.ones(3, device="spyre"), group=group)


@case
def a_tensor_keeps_its_memory_while_it_is_exchanged(world: World) -> None:
    group = dist.new_group(backend="spyreccl")
    own = torch.ones(64, 64, device="spyre")
    if world.rank == 0:
        work = dist.all_reduce(own, group=group, async_op=True)
        raises(lambda: own.untyped_storage().resize_(0), "under way", "wait")
        dist.barrier()
        work.wait()
        own.untyped_storage().resize_(0)
    else:
        dist.barrier()
        dist.all_reduce(own, group=group)


@case
def aborted_receives_write_nothing_later(world: World) -> None:
    """Whether or not the receiver was listening already: if not, the sender has a time-out."""
    group = dist.new_group(backend="spyreccl")
    dist.barrier(group=group)
    group.set_timeout(SOON)
    if world.rank == 0:
        output = torch.zeros(3, device="spyre")
        work = dist.irecv(output, 1, group=group)
        group._get_backend(torch.device("spyre")).abort()
        raises(work.wait, "recv")
    dist.barrier()
    if world.rank == 1:
        with contextlib.suppress(dist.DistBackendError):
            dist.send(torch.ones(3, device="spyre"), 0, group=group)
    dist.barrier()
    if world.rank == 0:
        assert output.tolist() == [0.0] * 3


@case
def many_sends_and_receives_may_be_under_way_in_any_order(world: World) -> None:
    to, source = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    outputs = [torch.zeros(3, device="spyre") for _ in range(4)]
    works = [dist.irecv(outputs[tag], source, tag=tag) for tag in (2, 0, 3, 1)]
    works += [
        dist.isend(torch.full((3,), 10.0 * world.rank + tag, device="spyre"), to, tag=tag)
        for tag in (3, 1, 0, 2)
    ]
    for work in works:
        work.wait()
    check(outputs, [torch.full((3,), 10.0 * source + tag) for tag in range(4)])


@case
def a_receive_may_take_what_comes_from_anybody(world: World) -> None:
    if world.rank == 0:
        found = {}
        for _ in range(world.size - 1):
            output = torch.zeros(2, device="spyre")
            source = dist.recv(output)
            found[source] = output.tolist()
        assert found == {rank: [float(rank)] * 2 for rank in range(1, world.size)}
    else:
        dist.send(torch.full((2,), float(world.rank), device="spyre"), 0)
    dist.barrier()


@case
def members_of_a_sub_group_send_to_each_other(world: World) -> None:
    group = dist.new_group([0, world.size - 1])
    if world.rank == 0:
        dist.send(torch.full((3,), 5.0, device="spyre"), world.size - 1, group=group)
    elif world.rank == world.size - 1:
        output = torch.zeros(3, device="spyre")
        dist.recv(output, 0, group=group)
        assert output.tolist() == [5.0] * 3
    dist.barrier()


@case
def coalesced_calls_are_one_work(world: World) -> None:
    from torch.distributed.distributed_c10d import _coalescing_manager

    tensors = [value(dtype, world.rank, 7).to("spyre") for dtype in (torch.float32, torch.int32)]
    with _coalescing_manager(device=torch.device("spyre"), async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor in tensors:
        same(tensor, sum(value(tensor.dtype, rank, 7) for rank in world.ranks))
    outputs = [torch.empty(world.size * 3, 70, device="spyre") for _ in range(2)]
    with _coalescing_manager(device=torch.device("spyre")):
        for k, output in enumerate(outputs):
            dist.all_gather_single(output, value(torch.float32, world.rank, k).to("spyre"))
    for k, output in enumerate(outputs):
        same(output, torch.cat([value(torch.float32, rank, k) for rank in world.ranks]))


# ---- Wrong use ----------------------------------------------------------------------------------


@case
def ranks_that_disagree_are_told_and_the_group_stays_usable(world: World) -> None:
    last = world.rank == world.size - 1
    raises(
        lambda: dist.all_reduce(torch.ones(3 + last, device="spyre")),
        "all_reduce #\\d+",
        "gives 3 elements",
        "expects 4",
    )
    dtype = torch.float16 if last else torch.float32
    raises(
        lambda: dist.all_reduce(torch.ones(3, dtype=dtype, device="spyre")),
        "rank 0 called all_reduce",
        "Float",
        "Half",
    )
    op = dist.ReduceOp.MAX if last else dist.ReduceOp.SUM
    raises(lambda: dist.all_reduce(torch.ones(3, device="spyre"), op), "SUM", "MAX")
    raises(lambda: dist.broadcast(torch.ones(3, device="spyre"), src=int(last)), "root 0", "root 1")
    if last:
        raises(lambda: dist.broadcast(torch.ones(3, device="spyre"), src=0), "all_reduce", "broad")
    else:
        raises(lambda: dist.all_reduce(torch.ones(3, device="spyre")), "all_reduce", "broadcast")
    fine = torch.ones(3, device="spyre")
    dist.all_reduce(fine)
    same(fine, torch.full((3,), float(world.size)))


@case
def a_receiver_of_the_wrong_size_or_dtype_is_told(world: World) -> None:
    if world.rank == 0:
        dist.send(torch.ones(4, device="spyre"), 1)
        dist.send(torch.ones(4, device="spyre"), 1)
    elif world.rank == 1:
        raises(lambda: dist.recv(torch.ones(3, device="spyre"), 0), "sent 4", "expects 3")
        raises(
            lambda: dist.recv(torch.ones(4, device="spyre", dtype=torch.int32), 0), "Float", "Int"
        )
    dist.barrier()


@case
def mistakes_of_one_rank_alone_raise_at_once(world: World) -> None:
    group = dist.new_group(backend="spyreccl")
    raises(lambda: dist.all_reduce(torch.ones(3), group=group), "cpu")
    dist.all_reduce(torch.ones(3, device="spyre"), group=group)
    other = f"spyre:{(world.rank + 1) % world.size}"
    raises(lambda: dist.all_reduce(torch.ones(3, device=other), group=group), other, "one card")
    raises(
        lambda: dist.all_gather(
            [torch.ones(3, device="spyre")] * (world.size + 1), torch.ones(3, device="spyre")
        ),
        "each of the|invalid",
    )
    expanded = torch.ones(1, device="spyre").expand(5)
    raises(lambda: dist.all_reduce(expanded), "single memory location")
    raises(
        lambda: dist.all_reduce(torch.ones(3, device="spyre", dtype=torch.bool), dist.ReduceOp.AVG),
        "average of bool",
    )
    raises(lambda: dist.all_reduce(torch.ones(3, device="spyre"), dist.ReduceOp.BAND), "bitwise")
    raises(
        lambda: dist.all_reduce(torch.ones(3, device="spyre"), dist._make_nccl_premul_sum(2.0)),
        "PREMUL_SUM",
    )
    raises(
        lambda: dist.all_to_all_single(
            torch.ones(4, device="spyre"),
            torch.ones(4, device="spyre"),
            [1] * world.size,
            [9] * world.size,
        ),
        "split sizes",
    )
    raises(lambda: dist.broadcast(torch.ones(3, device="spyre"), src=world.size), "rank|src")
    dist.barrier()


@case
def a_mistake_that_a_rank_sees_alone_leaves_the_group_usable(world: World) -> None:
    group = dist.new_group(backend="spyreccl")
    dist.all_reduce(torch.ones(3, device="spyre"), group=group)
    if world.rank == 0:
        raises(lambda: dist.all_reduce(torch.ones(3, device="spyre:1"), group=group), "one card")
        raises(
            lambda: dist.all_gather(
                [torch.ones(world.size, device="spyre")], torch.ones(1, device="spyre"), group=group
            ),
            "each of the|invalid",
        )
    own = torch.ones(3, device="spyre")
    dist.all_reduce(own, group=group)
    same(own, torch.full((3,), float(world.size)))


@case
def a_rank_that_does_not_come_is_named_within_the_time_out(world: World) -> None:
    group = dist.new_group(backend="spyreccl")
    dist.all_reduce(torch.ones(3, device="spyre"), group=group)
    group.set_timeout(SOON)
    if world.rank != 0:
        raises(
            lambda: dist.all_reduce(torch.ones(3, device="spyre"), group=group),
            "all_reduce #2",
            f"on rank {world.rank}",
            "rank 0 did not arrive .its last call: all_reduce #1",
            "2000 ms",
        )
        raises(lambda: dist.barrier(group=group), "failed before")
    dist.barrier()


# ---- The clock ----------------------------------------------------------------------------------


def span(call: Callable[[], object]) -> int:
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    torch.spyre.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return round(start.elapsed_time(end) * 1e6)


@case
def a_collective_takes_the_time_of_its_law(world: World) -> None:
    n = world.size
    own = torch.ones(n * 4096, dtype=torch.float16, device="spyre")
    share = torch.empty(4096, dtype=torch.float16, device="spyre")
    kind = _C._cost.Collective
    size = 2 * own.numel()
    others = size * (n - 1) // n
    assert span(lambda: dist.all_reduce(own)) == -(-2 * others // 50)
    assert span(lambda: dist.reduce_scatter_single(share, own)) == -(-others // 50)
    assert span(lambda: dist.all_gather_single(own, share)) == -(-others // 50)
    assert span(lambda: dist.broadcast(own, src=0)) == -(-size // 50)
    assert _C._cost.collective_nanoseconds(kind.AllReduce, size, n) == -(-2 * others // 50)


@case
def an_uneven_exchange_takes_the_time_of_its_bytes(world: World) -> None:
    """All ranks give all to rank 0, which gives nothing away."""
    rows = 50_000
    splits = [rows] + [0] * (world.size - 1)
    own = torch.ones(rows, dtype=torch.float16, device="spyre")
    everything = world.size * rows if world.rank == 0 else 0
    output = torch.empty(everything, dtype=torch.float16, device="spyre")
    taken = [rows if world.rank == 0 else 0] * world.size
    took = span(lambda: dist.all_to_all_single(output, own, taken, splits))
    others = 2 * rows * (world.size - 1)
    assert took == (others if world.rank == 0 else 2 * rows) // 50


@case
def the_host_link_is_not_used(world: World) -> None:
    own = torch.ones(1000, device="spyre")
    before = _C.counters(own.get_device())
    dist.all_reduce(own)
    after = _C.counters(own.get_device())
    assert after["transfers"] == before["transfers"]
    assert after["exchanges"] == before["exchanges"] + 1
    sent = 4000 - 4000 // world.size
    assert after["bytes_out"] - before["bytes_out"] == 2 * sent


@case
def an_exchange_hides_behind_kernels(world: World) -> None:
    a = torch.ones(1024, 1024, dtype=torch.float16, device="spyre")
    b = torch.ones(1024, 1024, dtype=torch.float16, device="spyre")

    def kernels() -> None:
        for _ in range(4):
            a.mul_(1.0)

    def both() -> None:
        work = dist.all_reduce(b, async_op=True)
        kernels()
        work.wait()

    kernels()
    compute, link = span(kernels), span(lambda: dist.all_reduce(b))
    assert span(both) == max(compute, link)


@case
def the_profiler_shows_bytes_and_ranks(world: World) -> None:
    own = torch.ones(64, 64, dtype=torch.float16, device="spyre")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.PrivateUse1]
    with torch.profiler.profile(activities=activities) as profile:
        dist.all_reduce(own)
        torch.spyre.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
        analysis = Analysis(read_trace(trace))
    shown = [
        event["args"]
        for event in events
        if event.get("cat") == "kernel" and event["name"] == "spyreccl:all_reduce"
    ]
    assert len(shown) == 1
    sent = 2 * (8192 - 8192 // world.size)
    assert shown[0]["bytes out"] == sent and shown[0]["modelled ns"] == -(-sent // 50)
    assert shown[0]["ranks"] == " ".join(map(str, world.ranks))
    (card,) = analysis.cards
    assert (card.exchanges, card.linked) == (1, shown[0]["modelled ns"])
    assert not [kernel.name for kernel in analysis.kernels if "spyreccl" in kernel.name]


@case
def results_are_the_same_from_run_to_run(world: World) -> None:
    own = noise(world.rank).to("spyre")
    first, second = own.clone(), own.clone()
    dist.all_reduce(first)
    dist.all_reduce(second)
    same(first, second)
    assert all_gather_means(world, on("cpu", torch.float32))
