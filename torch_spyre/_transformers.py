"""HuggingFace transformers learns which process-group backend this device has.

It starts torch.distributed for `tp_plan="auto"` where the program has not, by a table of its own.
The table gets one entry more when transformers loads it, which is left to the program.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from torch_spyre.constants import DEVICE_NAME, DISTRIBUTED_BACKEND_NAME

_MODULE, _TABLE = "transformers.distributed.utils", "DISTRIBUTED_BACKEND_MAP"


class BackendOfTransformers:
    """Finds one module, once, and completes it after it has run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            sys.meta_path.remove(self)
            run = spec.loader.exec_module

            def run_and_complete(module: ModuleType) -> None:
                run(module)
                _complete(module)

            spec.loader.exec_module = run_and_complete  # type: ignore[method-assign]
        return spec


def _complete(module: ModuleType) -> None:
    table = getattr(module, _TABLE, None)
    if isinstance(table, dict):
        table.setdefault(DEVICE_NAME, DISTRIBUTED_BACKEND_NAME)


def complete_when_imported() -> None:
    """Called once; also where transformers came first."""
    if _MODULE in sys.modules:
        _complete(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, BackendOfTransformers())
