"""What holds for every collective: run by all ranks of `worker`, one case after the other.

A case is a function of the `World`; it raises if its claim does not hold. Inputs of all ranks are
known to every rank, so that the expected result is plain arithmetic on the CPU. Where Gloo can do
the same on CPU tensors, it must agree too.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import distributed as dist

DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
)
SHAPE = (3, 70)  # two sticks of 16-bit elements a row, the second one with padding
LARGE = (41, 130)  # beyond what travels in one message
NOISE_SHAPE = (257, 300)  # beyond what every rank reduces alone
LARGE_DTYPES = (torch.float32, torch.float16, torch.uint8)


@dataclasses.dataclass(frozen=True)
class World:
    rank: int
    size: int

    @property
    def ranks(self) -> range:
        return range(self.size)


Case = Callable[[World], None]
Tensors = list[torch.Tensor]
# From the inputs of a rank, made on a device by their number, to what the collective gives.
Make = Callable[[int, int], torch.Tensor]


def value(
    dtype: torch.dtype, rank: int, which: int = 0, shape: tuple[int, ...] = SHAPE
) -> torch.Tensor:
    """Small whole numbers, so that sums and products of 8 ranks are exact in every dtype."""
    generator = torch.Generator().manual_seed(1000 * rank + which)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    low = 0 if dtype == torch.uint8 else -1
    return torch.randint(low, 2, shape, generator=generator).to(dtype)


def exact(dtype: torch.dtype) -> torch.dtype:
    """A dtype of the CPU in which the expected result is computed."""
    return torch.float32 if dtype.is_floating_point else torch.int64


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    wide = exact(found.dtype)
    torch.testing.assert_close(found.cpu().to(wide), expected.cpu().to(wide), rtol=0, atol=0)


def noise(rank: int, shape: tuple[int, ...] = NOISE_SHAPE) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank))


def raises(call: Callable[[], object], *words: str) -> None:
    """The call fails, and its message has these words."""
    with pytest.raises((RuntimeError, ValueError)) as caught:
        call()
    missing = [word for word in words if not re.search(word, str(caught.value))]
    assert not missing, f"{missing} not in: {caught.value}"


def into(cases: dict[str, Case]) -> Callable[[Case], Case]:
    """A decorator that enters cases under their names."""

    def case(function: Case) -> Case:
        cases[function.__name__] = function
        return function

    return case


# ---- Every collective: how it is called, and what it means --------------------------------------


def on(device: str, dtype: torch.dtype, shape: tuple[int, ...] = SHAPE) -> Make:
    return lambda rank, which: value(dtype, rank, which, shape).to(device)


def empties(world: World, like: torch.Tensor) -> Tensors:
    return [torch.empty_like(like) for _ in world.ranks]


def broadcast(world: World, make: Make) -> Tensors:
    tensor = make(world.rank, 0)
    dist.broadcast(tensor, src=1)
    return [tensor]


def broadcast_means(world: World, make: Make) -> Tensors:
    return [make(1, 0)]


def all_gather(world: World, make: Make) -> Tensors:
    outputs = empties(world, make(world.rank, 0))
    dist.all_gather(outputs, make(world.rank, 0))
    return outputs


def all_gather_means(world: World, make: Make) -> Tensors:
    return [make(rank, 0) for rank in world.ranks]


def all_gather_single(world: World, make: Make) -> Tensors:
    own = make(world.rank, 0)
    output = torch.empty(
        world.size * own.shape[0], own.shape[1], dtype=own.dtype, device=own.device
    )
    dist.all_gather_single(output, own)
    return list(output.chunk(world.size))


def gather(world: World, make: Make) -> Tensors:
    outputs = empties(world, make(world.rank, 0)) if world.rank == 0 else None
    dist.gather(make(world.rank, 0), outputs, dst=0)
    return outputs or []


def gather_means(world: World, make: Make) -> Tensors:
    return all_gather_means(world, make) if world.rank == 0 else []


def scatter(world: World, make: Make) -> Tensors:
    inputs = [make(1, rank) for rank in world.ranks] if world.rank == 1 else None
    output = torch.empty_like(make(world.rank, 0))
    dist.scatter(output, inputs, src=1)
    return [output]


def scatter_means(world: World, make: Make) -> Tensors:
    return [make(1, world.rank)]


def all_to_all(world: World, make: Make) -> Tensors:
    outputs = empties(world, make(world.rank, 0))
    dist.all_to_all(outputs, [make(world.rank, to) for to in world.ranks])
    return outputs


def all_to_all_means(world: World, make: Make) -> Tensors:
    return [make(rank, world.rank) for rank in world.ranks]


def all_to_all_single(world: World, make: Make) -> Tensors:
    own = torch.cat([make(world.rank, to) for to in world.ranks])
    output = torch.empty_like(own)
    dist.all_to_all_single(output, own)
    return list(output.chunk(world.size))


def send_recv(world: World, make: Make) -> Tensors:
    to, source = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    output = torch.empty_like(make(world.rank, 0))
    sending = dist.isend(make(world.rank, 0), to)
    dist.recv(output, source)
    sending.wait()
    return [output]


def send_recv_means(world: World, make: Make) -> Tensors:
    return [make((world.rank - 1) % world.size, 0)]


def batch_isend_irecv(world: World, make: Make) -> Tensors:
    own = make(world.rank, 0)
    outputs = empties(world, own)
    others = [rank for rank in world.ranks if rank != world.rank]
    calls = [dist.P2POp(dist.isend, own, rank) for rank in others]
    calls += [dist.P2POp(dist.irecv, outputs[rank], rank) for rank in others]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    outputs[world.rank].copy_(own)
    return outputs


MOVES: dict[str, tuple[Callable[..., Tensors], Callable[..., Tensors]]] = {
    "broadcast": (broadcast, broadcast_means),
    "all_gather": (all_gather, all_gather_means),
    "all_gather_single": (all_gather_single, all_gather_means),
    "gather": (gather, gather_means),
    "scatter": (scatter, scatter_means),
    "all_to_all": (all_to_all, all_to_all_means),
    "all_to_all_single": (all_to_all_single, all_to_all_means),
    "send_recv": (send_recv, send_recv_means),
    "batch_isend_irecv": (batch_isend_irecv, all_gather_means),
}

Op = dist.ReduceOp.RedOpType


def combined(op: Op, tensors: Tensors) -> torch.Tensor:
    """What a reduction means, in the order of the ranks."""
    dtype = tensors[0].dtype
    if dtype == torch.bool:
        combine = {Op.SUM: torch.logical_or, Op.MAX: torch.logical_or}.get(op, torch.logical_and)
        return functools.reduce(combine, tensors)
    wide = [tensor.to(exact(dtype)) for tensor in tensors]
    if op == Op.AVG:
        total = functools.reduce(torch.add, wide)
        rounding = None if dtype.is_floating_point else "trunc"
        return torch.div(total, len(wide), rounding_mode=rounding).to(dtype)
    functions = {
        Op.SUM: torch.add,
        Op.PRODUCT: torch.mul,
        Op.MIN: torch.minimum,
        Op.MAX: torch.maximum,
    }
    return functools.reduce(functions[op], wide).to(dtype)


def all_reduce(world: World, make: Make, op: Op) -> Tensors:
    tensor = make(world.rank, 0)
    dist.all_reduce(tensor, op)
    return [tensor]


def all_reduce_means(world: World, make: Make, op: Op) -> Tensors:
    return [combined(op, all_gather_means(world, make))]


def reduce(world: World, make: Make, op: Op) -> Tensors:
    tensor = make(world.rank, 0)
    dist.reduce(tensor, dst=1, op=op)
    return [tensor] if world.rank == 1 else []


def reduce_means(world: World, make: Make, op: Op) -> Tensors:
    return all_reduce_means(world, make, op) if world.rank == 1 else []


def reduce_scatter(world: World, make: Make, op: Op) -> Tensors:
    output = torch.empty_like(make(world.rank, 0))
    dist.reduce_scatter(output, [make(world.rank, to) for to in world.ranks], op)
    return [output]


def reduce_scatter_means(world: World, make: Make, op: Op) -> Tensors:
    return [combined(op, all_to_all_means(world, make))]


def reduce_scatter_single(world: World, make: Make, op: Op) -> Tensors:
    output = torch.empty_like(make(world.rank, 0))
    dist.reduce_scatter_single(output, torch.cat([make(world.rank, to) for to in world.ranks]), op)
    return [output]


REDUCTIONS: dict[str, tuple[Callable[..., Tensors], Callable[..., Tensors]]] = {
    "all_reduce": (all_reduce, all_reduce_means),
    "reduce": (reduce, reduce_means),
    "reduce_scatter": (reduce_scatter, reduce_scatter_means),
    "reduce_scatter_single": (reduce_scatter_single, reduce_scatter_means),
}
OPS = {"sum": Op.SUM, "avg": Op.AVG, "product": Op.PRODUCT, "min": Op.MIN, "max": Op.MAX}
POINT_TO_POINT = ("send_recv", "batch_isend_irecv")
# "Invalid scalar type", unless they go from one rank to another, as bytes.
UNKNOWN_TO_GLOO = (torch.int16, torch.float8_e4m3fn, torch.float8_e5m2)


def gloo_moves(name: str, dtype: torch.dtype) -> bool:
    return name in POINT_TO_POINT or dtype not in UNKNOWN_TO_GLOO


def gloo_reduces(op: Op, dtype: torch.dtype) -> bool:
    """It divides for an average: integers can't hold that, and bool breaks its group."""
    return dtype not in UNKNOWN_TO_GLOO and (op != Op.AVG or dtype.is_floating_point)


def check(found: Tensors, expected: Tensors) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        same(one, other)


def move_case(name: str, dtype: torch.dtype, shape: tuple[int, ...] = SHAPE) -> Case:
    call, meaning = MOVES[name]

    def case(world: World) -> None:
        found = call(world, on("spyre", dtype, shape))
        check(found, meaning(world, on("cpu", dtype, shape)))
        if gloo_moves(name, dtype):
            check(found, call(world, on("cpu", dtype, shape)))

    return case


def reduction_case(name: str, op: Op, dtype: torch.dtype, shape: tuple[int, ...] = SHAPE) -> Case:
    call, meaning = REDUCTIONS[name]

    def case(world: World) -> None:
        found = call(world, on("spyre", dtype, shape), op)
        check(found, meaning(world, on("cpu", dtype, shape), op))
        if gloo_reduces(op, dtype):
            check(found, call(world, on("cpu", dtype, shape), op))

    return case


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def table() -> Iterator[tuple[str, Case]]:
    for name, dtype in itertools.product(MOVES, DTYPES):
        yield f"{name}-{short(dtype)}", move_case(name, dtype)
    for name, (op_name, op), dtype in itertools.product(REDUCTIONS, OPS.items(), DTYPES):
        if op != Op.AVG or dtype != torch.bool:
            yield f"{name}-{op_name}-{short(dtype)}", reduction_case(name, op, dtype)
    for name, dtype in itertools.product(MOVES, LARGE_DTYPES):
        yield f"{name}-{short(dtype)}-large", move_case(name, dtype, LARGE)
    for name, dtype in itertools.product(REDUCTIONS, LARGE_DTYPES):
        yield f"{name}-{short(dtype)}-large", reduction_case(name, Op.SUM, dtype, LARGE)


def all_cases(size: int) -> Iterator[tuple[str, Case]]:
    """Every case for so many ranks with its name, in the order in which all run them."""
    from tests.distributed import call_cases, clock_cases, ecosystem_cases, value_cases

    yield from table()
    for module in (value_cases, call_cases, clock_cases):
        yield from module.CASES.items()
    yield from ecosystem_cases.of_world(size)
