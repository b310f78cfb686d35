"""What happens to numbers on their way to the card and back."""

from __future__ import annotations

import torch

VALUES = {
    "1 + 1/512, on the grid of both formats": 1 + 1 / 512,
    "1 + 1/1024, between two SEN169 numbers": 1 + 1 / 1024,
    "smallest fp16 subnormal": 2.0**-24,
    "largest fp16": 65504.0,
    "minus infinity": float("-inf"),
    "plus infinity": float("inf"),
}

print("float16 to the card and back")
for name, value in VALUES.items():
    there = torch.tensor([value], dtype=torch.float16).to("spyre")
    print(f"  {name:40}{value!r:>22} -> {there.cpu().item()!r}")

print("the same numbers in float32 are held exactly")
held = torch.tensor(list(VALUES.values())).to("spyre").cpu()
print(f"  all equal: {torch.equal(held, torch.tensor(list(VALUES.values())))}")

print("formats on the card")
for dtype in (torch.float16, torch.float32, torch.float8_e4m3fn, torch.int64, torch.uint8):
    device_format = torch.spyre.get_device_dtype(dtype)
    sticks = device_format.elems_per_stick()
    print(f"  {dtype!s:22}{device_format.name:14}{sticks:4} elements per stick")
