"""Scripts in processes of their own, which don't pay for importing PyTorch each time.

A server imports PyTorch and its compiler and opens no card. For every script it forks; the child is
as good as new, for four seconds less. `python fresh.py` is the server; `Server` is its client.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NamedTuple

OURS = ("AIU_", "SPYRE_", "TORCH_SPYRE_", "FLEX_", "LOCAL_", "SENCORES", "LX_", "DXP_", "LAYOUT_")


class Finished(NamedTuple):
    """How a script ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


class Server:
    """Runs scripts one after the other, in an environment in which nothing of ours is set."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            env={name: value for name, value in os.environ.items() if not name.startswith(OURS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, script: Path, *arguments: str, cwd: Path) -> Finished:
        """Run a script to its end."""
        assert self._process.stdin
        assert self._process.stdout
        with tempfile.TemporaryDirectory() as folder:
            order = {"argv": [str(script), *arguments], "cwd": str(cwd), "folder": folder}
            print(json.dumps(order), file=self._process.stdin, flush=True)
            status = self._process.stdout.readline()
            assert status, "the server ended"
            texts = (Path(folder, name).read_text() for name in ("stdout", "stderr"))
            return Finished(int(status), *texts)

    def close(self) -> None:
        """Let the server end, and wait for it."""
        self._process.communicate()


def serve() -> None:
    """Take orders from stdin, a line of JSON each, and answer with exit codes."""
    import torch._inductor.compile_fx  # noqa: F401  what every compiled script needs

    import torch_spyre._inductor.registration  # noqa: F401

    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(order["argv"], order["cwd"], order["folder"])
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(argv: list[str], cwd: str, folder: str) -> None:
    """In the child: be the script, and never come back."""
    os.chdir(cwd)
    sys.path.insert(0, str(Path(argv[0]).parent))  # as `python script.py` does
    for name, descriptor in {"stdout": 1, "stderr": 2}.items():
        os.dup2(os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = argv
    code: object = 0
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    serve()
