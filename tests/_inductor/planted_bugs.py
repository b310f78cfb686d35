"""Plants bugs in the kernels of compiled functions; run with checked mode on.

    SPYRE_CARD_CHECK=1 python planted_bugs.py overlap split mask uninitialised same_stick

Prints one line per bug: its name, then what the card said ("nothing" if it did not notice).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec
import torch

from torch_spyre._inductor import plan
from torch_spyre.ir.spec import Allocation, Coordinate, KernelSpec, Mask, OpSpec, TensorArg

replace = msgspec.structs.replace
Edit = Callable[[KernelSpec], KernelSpec]


def softmax(x):
    return x.softmax(1)


def logarithm(x):
    return torch.log(x - 100) + 1


def with_op(kernel: KernelSpec, position: int, op: OpSpec) -> KernelSpec:
    return replace(kernel, body=(*kernel.body[:position], op, *kernel.body[position + 1 :]))


def position_of(kernel: KernelSpec, name: str) -> int:
    return next(i for i, op in enumerate(kernel.body) if op.op == name)


def moved(arg: TensorArg, address: int) -> TensorArg:
    return replace(arg, allocation=Allocation("lx", address))


def overlap(kernel: KernelSpec) -> KernelSpec:
    """The total is put where the numerator still lies."""
    total = position_of(kernel, "sum")
    numerator = kernel.body[total].args[0].allocation.index
    spoilt = kernel.body[total].output
    edited = kernel
    for i, op in enumerate(kernel.body):
        args = tuple(
            moved(arg, numerator)
            if isinstance(arg, TensorArg) and i >= total and arg.allocation == spoilt.allocation
            else arg
            for arg in op.args
        )
        edited = with_op(edited, i, replace(op, args=args))
    return edited


def split(kernel: KernelSpec) -> KernelSpec:
    """One operation is divided among half of the cores: it reads what others own."""
    at = position_of(kernel, "exp")
    op = kernel.body[at]
    space = tuple(dim._replace(slices=max(1, dim.slices // 2)) for dim in op.iteration_space)
    return with_op(kernel, at, replace(op, iteration_space=space))


def mask(kernel: KernelSpec) -> KernelSpec:
    """The largest element is looked for in the padding too."""
    at = position_of(kernel, "amax")
    op = kernel.body[at]
    space = tuple(
        dim._replace(extent=128) if i == op.stick else dim
        for i, dim in enumerate(op.iteration_space)
    )
    return with_op(kernel, at, replace(op, iteration_space=space, masks=(Mask(op.stick, 128),)))


def uninitialised(kernel: KernelSpec) -> KernelSpec:
    """Nobody computes the largest element."""
    at = position_of(kernel, "amax")
    return replace(kernel, body=(*kernel.body[:at], *kernel.body[at + 1 :]))


def same_stick(kernel: KernelSpec) -> KernelSpec:
    """All cores write the same rows of the result."""
    op = kernel.body[-1]
    rows = next(i for i, dim in enumerate(op.iteration_space) if dim.slices > 1)
    where = tuple(
        Coordinate(c.offset, tuple(t for t in c.terms if t.variable != rows))
        for c in op.output.device_coordinates
    )
    space = tuple(
        dim._replace(extent=dim.slices) if i == rows else dim
        for i, dim in enumerate(op.iteration_space)
    )
    output = replace(op.output, device_coordinates=where)
    edited = replace(op, args=(*op.args[:-1], output), iteration_space=space)
    return with_op(kernel, len(kernel.body) - 1, edited)


def untouched(kernel: KernelSpec) -> KernelSpec:
    return kernel


BUGS: dict[str, tuple[Callable[..., torch.Tensor], Edit]] = {
    "overlap": (softmax, overlap),
    "split": (softmax, split),
    "mask": (softmax, mask),
    "uninitialised": (softmax, uninitialised),
    "same_stick": (softmax, same_stick),
    "nan": (logarithm, untouched),
    "none": (softmax, untouched),
}


def run(name: str) -> str:
    function, edit = BUGS[name]
    original = plan.bundle_of
    plan.bundle_of = lambda kernel: original(edit(kernel))
    torch._dynamo.reset()
    x = torch.randn(64, 100).half().to("spyre")
    try:
        torch.compile(function)(x).cpu()
    except RuntimeError as error:
        return str(error).replace("\n", " | ")
    finally:
        plan.bundle_of = original
        torch.spyre.reset()
    return "nothing"


if __name__ == "__main__":
    torch._inductor.config.force_disable_caches = True
    for bug in sys.argv[1:]:
        print(f"{bug}: {run(bug)}")
