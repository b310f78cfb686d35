"""Two layers with more between them than the scratchpads hold: plans without and with loops."""

from __future__ import annotations

import torch
from torch.nn import functional

from torch_spyre import name_tensor_dims, spyre_hint
from torch_spyre._inductor import config
from torch_spyre.tools.measure import Cost, StepCost, compiled_kernels, measure

ROWS, WIDTH, INNER = 8192, 128, 4096
TILES = (2, 4, 8, 16, 32, 64)


def headline(text: str) -> None:
    print(f"\n== {text}")


def layers(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, tiles: int = 1) -> torch.Tensor:
    """gelu(x @ a) @ b, in tiles of rows; one tile leaves the plan to the compiler."""
    name_tensor_dims(x, ["rows", None])
    with spyre_hint(num_tiles_per_dim={"rows": tiles}):
        return functional.gelu(x @ a) @ b


def plan(inputs: list[torch.Tensor], tiles: int = 1) -> tuple[Cost, tuple[StepCost, ...]]:
    torch.compiler.reset()
    _, cost = measure(torch.compile(layers), *inputs, tiles)
    return cost, compiled_kernels()[-1].steps


def show_steps(steps: tuple[StepCost, ...]) -> None:
    print(f"{'step':14}{'visits':>6}{'us':>10}{'MiB read':>10}{'written':>9}  bound by")
    for step in steps:
        moved = f"{step.bytes_read / 2**20:10.1f}{step.bytes_written / 2**20:9.1f}"
        print(f"{step.operation:14}{step.visits:6}{step.microseconds:10.1f}{moved}  {step.bound}")
    print(f"{'all':14}{'':6}{sum(step.microseconds for step in steps):10.1f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    shapes = ((ROWS, WIDTH), (WIDTH, INNER), (INNER, WIDTH))
    inputs = [torch.rand(shape, dtype=torch.float16).to("spyre") for shape in shapes]
    headline("Without loops (SPYRE_PLAN=basic)")
    with config.patch(plan="basic"):
        show_steps(plan(inputs)[1])
    headline("With loops")
    show_steps(plan(inputs)[1])
    headline("Hints, us")
    for tiles in TILES:
        cost, _ = plan(inputs, tiles)
        moved = (cost.bytes_read + cost.bytes_written) / 2**20
        print(f"{tiles:2} tiles of {ROWS // tiles:4} rows{cost.microseconds:10.1f}{moved:8.1f} MiB")
