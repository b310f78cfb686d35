"""Builds the extension `torch_spyre._C`; everything else is declared in pyproject.toml."""

import fcntl
import os
import sys
from pathlib import Path

from setuptools import Extension, setup

# Torch looks for `ninja` on the PATH and without it falls back, with one line of warning, to a
# build that is neither parallel nor incremental. In a venv that nobody activated, it lies here.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
# Torch's default is two jobs more than cores, which only costs memory.
os.environ.setdefault("MAX_JOBS", str(len(os.sched_getaffinity(0))))

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # a stale extension must not stop its own build
from torch.utils.cpp_extension import (
    BuildExtension,
    include_paths,
    library_paths,
)

ROOT = Path(__file__).parent.resolve()
CSRC = Path("torch_spyre/csrc")
DEBUG = os.environ.get("TORCH_SPYRE_DEBUG", "") not in ("", "0", "false", "off")

COMPILE_FLAGS = [
    "-std=c++20",
    *(["-O0", "-g"] if DEBUG else ["-O3", "-g0"]),
    # Result bits are part of the card's contract and must not depend on the host's instruction
    # set; the other two only drop side effects (errno, traps) that block vectorisation.
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror",
    # Torch's and pybind11's headers are not ours to clean: -isystem silences them.
    *(flag for path in include_paths() for flag in ("-isystem", path)),
    # Kineto's headers (torch.profiler), and fmt within them, of which the wheel has no library.
    *(flag for path in include_paths()[:1] for flag in ("-isystem", f"{path}/kineto")),
    "-DFMT_HEADER_ONLY=1",
]


class Build(BuildExtension):
    """Keeps objects in one place, so that `pip install -e` and `build_ext --inplace` share them.

    An editable install builds in a fresh temporary folder and would compile everything again.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.build_temp = str(ROOT / "build" / ("ext-debug" if DEBUG else "ext"))

    def build_extensions(self) -> None:
        """Builds in turn: two ninjas in one folder spoil its log and compile all again."""
        Path(self.build_temp).mkdir(parents=True, exist_ok=True)
        with open(Path(self.build_temp) / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            super().build_extensions()


setup(
    ext_modules=[
        Extension(
            "torch_spyre._C",
            sources=sorted(str(path) for path in CSRC.rglob("*.cpp")),
            depends=sorted(str(path) for path in CSRC.rglob("*") if path.suffix in (".h", ".inl")),
            include_dirs=[str(ROOT / CSRC)],  # absolute: ninja runs in the build folder
            library_dirs=library_paths(),
            libraries=["c10", "torch", "torch_cpu", "torch_python"],
            extra_compile_args=COMPILE_FLAGS,
            extra_link_args=["-g" if DEBUG else "-s"],
            language="c++",
        )
    ],
    cmdclass={"build_ext": Build},
)
