"""What a call may do and what it must not: async, wrong use, ranks that don't come."""

from __future__ import annotations

import contextlib
import datetime

import torch
from torch import distributed as dist

from tests.distributed.cases import Case, World, check, into, raises, same, value

CASES: dict[str, Case] = {}
case = into(CASES)
# For calls that shall fail. Not for the group: on a busy machine it takes longer to connect.
SOON = datetime.timedelta(seconds=2)


# ---- Async ---------------------------------------------------------------------------------------


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


# ---- Wrong use -----------------------------------------------------------------------------------


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
