"""One rank of the tests: runs every case, or those that are named, and writes what it found."""

from __future__ import annotations

import datetime
import json
import sys
import traceback
from pathlib import Path

import torch
from torch import distributed as dist

from tests.distributed import cases


def main(folder: Path, wanted: list[str]) -> None:
    dist.init_process_group("cpu:gloo,spyre:spyreccl", timeout=datetime.timedelta(seconds=120))
    report: dict[str, str | None] = {}
    world = cases.World(dist.get_rank(), dist.get_world_size())
    for name, case in cases.all_cases(world.size):
        if wanted and name not in wanted:
            continue
        try:
            case(world)
            report[name] = None
        except BaseException:
            report[name] = traceback.format_exc(limit=-6)
        if wanted:
            print(name, report[name] or "holds", flush=True)
    (folder / f"rank{world.rank}.json").write_text(json.dumps(report))
    torch.spyre.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
