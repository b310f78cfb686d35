"""Every collective once, on four cards: `torchrun --nproc-per-node 4 examples/collectives.py`.

Started as a plain program it calls torchrun itself. Each process has a card of its own, `spyre`;
rank 0 prints what it holds after the call.
"""

import os
import subprocess
import sys

import torch
from torch import distributed as dist

CARDS = 4


def show(name: str, *tensors: torch.Tensor) -> None:
    """What rank 0 holds; all ranks wait for each other first."""
    dist.barrier()
    if dist.get_rank() == 0:
        values = [[round(value) for value in tensor.flatten().tolist()] for tensor in tensors]
        print(f"{name:22} {values[0] if len(values) == 1 else values}")


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device="spyre")


def main() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % world, (rank - 1) % world

    x = numbers(rank, 10 * rank)
    dist.all_reduce(x)
    show("all_reduce", x)

    x = numbers(rank, 10 * rank)
    dist.all_reduce(x, dist.ReduceOp.MAX)
    show("all_reduce MAX", x)

    x = numbers(rank, 10 * rank)
    dist.reduce(x, dst=0, op=dist.ReduceOp.PRODUCT)
    show("reduce PRODUCT", x)

    x = numbers(rank)
    dist.broadcast(x, src=3)
    show("broadcast", x)

    parts = [numbers(0) for _ in range(world)]
    dist.all_gather(parts, numbers(rank))
    show("all_gather", *parts)

    whole = torch.empty(world, device="spyre")
    dist.all_gather_single(whole, numbers(rank))
    show("all_gather_single", whole)

    dist.gather(numbers(rank), parts if rank == 0 else None, dst=0)
    show("gather", *parts)

    x = numbers(0)
    dist.scatter(x, [numbers(5 + i) for i in range(world)] if rank == 2 else None, src=2)
    show("scatter", x)

    dist.reduce_scatter(x, [numbers(10 * i + rank) for i in range(world)])
    show("reduce_scatter", x)

    dist.reduce_scatter_single(x, torch.arange(4.0, device="spyre") + 1)
    show("reduce_scatter_single", x)

    dist.all_to_all(parts, [numbers(10 * rank + i) for i in range(world)])
    show("all_to_all", *parts)

    dist.all_to_all_single(whole, numbers(*(10 * rank + i for i in range(world))))
    show("all_to_all_single", whole)

    if rank == 1:
        dist.send(numbers(7, 7), dst=0)
    elif rank == 0:
        x = numbers(0, 0)
        dist.recv(x, src=1)
    show("send, recv", x)

    x = numbers(0)
    calls = [dist.P2POp(dist.isend, numbers(rank), after), dist.P2POp(dist.irecv, x, before)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    show("batch_isend_irecv", x)

    x = numbers(rank)
    work = dist.all_reduce(x, async_op=True)
    y = numbers(1) + 1  # meanwhile
    work.wait()
    show("async_op=True", x, y)

    group = dist.new_group([0, 2])
    x = numbers(rank)
    if rank in (0, 2):
        dist.all_reduce(x, group=group)
    show("in a group of 0 and 2", x)

    objects = [None] * world
    dist.all_gather_object(objects, f"card {rank}")
    if rank == 0:
        print(f"{'all_gather_object':22} {objects}")


if __name__ == "__main__":
    if "RANK" not in os.environ:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*torchrun, "--nproc-per-node", str(CARDS), __file__]
        sys.exit(subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode)
    torch.spyre.set_downcast_warning(False)
    card = torch.device("spyre", torch.spyre.current_device())  # LOCAL_RANK says which
    dist.init_process_group("spyreccl", device_id=card)
    main()
    dist.destroy_process_group()
