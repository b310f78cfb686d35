"""Beyond the table: rounding, tensors of all kinds, objects and groups."""

from __future__ import annotations

import torch
from torch import distributed as dist

from tests.distributed.cases import Case, World, check, into, noise, raises, same, value

CASES: dict[str, Case] = {}
case = into(CASES)


# ---- Values --------------------------------------------------------------------------------------


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


@case
def results_are_the_same_from_run_to_run(world: World) -> None:
    own = noise(world.rank).to("spyre")
    first, second = own.clone(), own.clone()
    dist.all_reduce(first)
    dist.all_reduce(second)
    same(first, second)


# ---- Tensors of all kinds ------------------------------------------------------------------------


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


# ---- Objects, groups, meshes ---------------------------------------------------------------------


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
