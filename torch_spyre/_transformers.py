"""HuggingFace's packages learn of this device where they have lists of devices of their own.

transformers starts torch.distributed for `tp_plan="auto"` by a table of backends. accelerate looks
for memory on some devices for `device_map="auto"`. Both are completed when the program has loaded
them, which is left to it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import torch

from torch_spyre.constants import DEVICE_NAME, DISTRIBUTED_BACKEND_NAME


def _add_backend(module: ModuleType) -> None:
    table = getattr(module, "DISTRIBUTED_BACKEND_MAP", None)
    if isinstance(table, dict):
        table.setdefault(DEVICE_NAME, DISTRIBUTED_BACKEND_NAME)


def _count_memory(module: ModuleType) -> None:
    original = getattr(module, "get_max_memory", None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def get_max_memory(max_memory: dict[int | str, Any] | None = None) -> dict[int | str, Any]:
        found = original(max_memory)
        if max_memory is not None or any(isinstance(device, int) for device in found):
            return found  # the user chose, or accelerate found another kind of accelerator
        cards = range(torch.spyre.device_count())  # type: ignore[attr-defined]
        free = {card: torch.spyre.mem_get_info(card)[0] for card in cards}  # type: ignore[attr-defined]
        return {**free, **found}

    module.get_max_memory = get_max_memory  # type: ignore[attr-defined]


COMPLETIONS: dict[str, Callable[[ModuleType], None]] = {
    "transformers.distributed.utils": _add_backend,
    "accelerate.utils.modeling": _count_memory,
}


class Completer:
    """Finds a module, once, and completes it after it has run."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            sys.meta_path.remove(self)
            run = spec.loader.exec_module

            def run_and_complete(module: ModuleType) -> None:
                run(module)
                COMPLETIONS[name](module)

            spec.loader.exec_module = run_and_complete  # type: ignore[method-assign]
        return spec


def complete_when_imported() -> None:
    """Called once; also where the packages came first."""
    for name, complete in COMPLETIONS.items():
        if name in sys.modules:
            complete(sys.modules[name])
        else:
            sys.meta_path.insert(0, Completer(name))
