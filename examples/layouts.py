"""One matrix in three layouts: the values stay, the place of each element changes."""

from __future__ import annotations

import torch
from torch.spyre import SpyreTensorLayout

host = torch.arange(512 * 256).remainder(500).reshape(512, 256).half()

LAYOUTS = {
    "default: columns in the sticks": SpyreTensorLayout([512, 256], torch.float16),
    "rows in the sticks": SpyreTensorLayout([512, 256], [256, 1], torch.float16, [1, 0]),
    "sparse: one element per stick": SpyreTensorLayout(
        [512, 256], [256, 1], torch.float16, [0, 1, -1]
    ),
}

# Row 3, column 70 of the matrix, counted along its storage.
offset = 3 * 256 + 70

for name, layout in LAYOUTS.items():
    x = host.to("spyre", device_layout=layout)
    where = layout.device_coordinates(offset)
    print(name)
    print(f"  device_size {layout.device_size}, stride_map {layout.stride_map}")
    print(
        f"  element (3, 70) is at {where}, {layout.device_offset(offset)} elements from the start"
    )
    print(f"  {layout.nbytes:,} bytes on the card for {host.nbytes:,} on the host")
    print(f"  comes back equal: {torch.equal(x.cpu(), host)}")
