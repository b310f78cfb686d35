"""What HuggingFace's packages know of the device and its backend."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from torch_spyre import _transformers
from torch_spyre.constants import DEVICE_NAME, DISTRIBUTED_BACKEND_NAME


def test_transformers_starts_our_backend_whichever_is_imported_first() -> None:
    utils = pytest.importorskip("transformers.distributed.utils")
    assert utils.get_distributed_backend(DEVICE_NAME) == DISTRIBUTED_BACKEND_NAME
    finders = [f for f in sys.meta_path if isinstance(f, _transformers.Completer)]
    assert utils.__name__ not in [finder.name for finder in finders]
    del utils.DISTRIBUTED_BACKEND_MAP[DEVICE_NAME]
    _transformers.complete_when_imported()
    assert utils.get_distributed_backend(DEVICE_NAME) == DISTRIBUTED_BACKEND_NAME


def test_a_transformers_without_the_table_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = pytest.importorskip("transformers.distributed.utils")
    monkeypatch.delattr(utils, "DISTRIBUTED_BACKEND_MAP")
    _transformers.complete_when_imported()
    assert not hasattr(utils, "DISTRIBUTED_BACKEND_MAP")


def test_accelerate_counts_the_memory_of_cards_unless_it_is_told() -> None:
    modeling = pytest.importorskip("accelerate.utils.modeling")
    found = modeling.get_max_memory()
    assert list(found) == [0, "cpu"] and found[0] == torch.spyre.mem_get_info(0)[0]
    assert modeling.get_max_memory({"cpu": "1GB"}) == {"cpu": 10**9}
    patched = modeling.get_max_memory
    _transformers.complete_when_imported()
    assert modeling.get_max_memory is patched


def test_accelerate_that_found_another_accelerator_is_left_alone() -> None:
    module = types.ModuleType("modeling")
    module.get_max_memory = lambda _: {0: 5, "cpu": 7}
    _transformers.COMPLETIONS["accelerate.utils.modeling"](module)
    assert module.get_max_memory() == {0: 5, "cpu": 7}
