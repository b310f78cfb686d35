"""What work costs on the card: modelled time, bytes moved, and the kernels that do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch

from torch_spyre import _C
from torch_spyre.backend.cost import KernelCost, StepCost, program_cost
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device.diagnostics import counters
from torch_spyre.device.management import synchronize

__all__ = [
    "Cost",
    "KernelCost",
    "StepCost",
    "compiled_kernels",
    "kernel_cost",
    "largest_error",
    "measure",
]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Cost:
    """Figures of the card's clock and counters. Nothing here is the time of this machine."""

    microseconds: float  # modelled
    bytes_read: int  # of LPDDR5
    bytes_written: int
    launches: int

    def __str__(self) -> str:
        return (
            f"{self.microseconds:.1f} us modelled, {self.bytes_read:,} bytes read, "
            f"{self.bytes_written:,} written, {_plural(self.launches, 'kernel')}"
        )


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def measure(
    work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> tuple[Result, Cost]:
    """Call a function on the current device and stream; its result, and what that cost there.

    The second call is measured. The first one may launch kernels that later ones do not: when
    PyTorch compiles, it tries its graph patterns on the device it finds.
    """
    work(*args, **kwargs)
    start, end = (torch.Event(DEVICE_NAME, enable_timing=True) for _ in range(2))
    synchronize()
    before = counters()
    start.record()
    result = work(*args, **kwargs)
    end.record()
    synchronize()
    after = counters()
    return result, Cost(
        start.elapsed_time(end) * 1000,
        after["bytes_read"] - before["bytes_read"],
        after["bytes_written"] - before["bytes_written"],
        after["launches"] - before["launches"],
    )


# ---- Kernels ------------------------------------------------------------------------------------


def kernel_cost(kernel: _C.Kernel) -> KernelCost:
    """The figures of a kernel's program, as the card will count them."""
    return program_cost(kernel.name, kernel.program, pool_bytes=kernel.pool_bytes)


def compiled_kernels() -> list[KernelCost]:
    """The distinct kernels that this process has compiled, oldest first."""
    from torch_spyre._inductor import runtime

    runtime.wait()
    return [kernel_cost(kernel) for kernel in runtime.kernels()]


def largest_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference between a result of the card and a reference, in float64."""
    return float((got.cpu().double() - wanted.double()).abs().max())
