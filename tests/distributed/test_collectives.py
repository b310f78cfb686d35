"""Every collective with 2, 4 and 8 ranks. The ranks are started once and run all cases."""

from __future__ import annotations

import fcntl
import functools
import json
from pathlib import Path

import pytest

from tests.distributed import cases, launch

CASES = [(world, name) for world in (2, 4, 8) for name, _ in cases.all_cases(world)]
Reports = list[dict[str, str | None]]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder that all workers of this run of pytest see."""
    folder = tmp_path_factory.getbasetemp()
    return folder if worker_id == "master" else folder.parent


@functools.cache
def reports(folder: Path, world: int) -> Reports:
    """What the ranks found, whichever worker of pytest started them."""
    place = folder / f"distributed-{world}"
    place.mkdir(exist_ok=True)
    with open(place / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = place / "all.json"
        if not done.exists():
            done.write_text(json.dumps(launch.run_cases(world, place)))
    return json.loads(done.read_text())


@pytest.mark.parametrize(("world", "name"), CASES)
def test_on_every_rank(shared: Path, world: int, name: str) -> None:
    found = enumerate(reports(shared, world))
    failed = {rank: report[name] if name in report else report[""] for rank, report in found}
    failed = {rank: text for rank, text in failed.items() if text}
    assert not failed, "\n".join(f"rank {rank}: {text}" for rank, text in failed.items())
