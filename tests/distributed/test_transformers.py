"""What HuggingFace transformers knows of the backend."""

from __future__ import annotations

import sys

import pytest

from torch_spyre import _transformers
from torch_spyre.constants import DEVICE_NAME, DISTRIBUTED_BACKEND_NAME


def test_transformers_starts_our_backend_whichever_is_imported_first() -> None:
    utils = pytest.importorskip("transformers.distributed.utils")
    assert utils.get_distributed_backend(DEVICE_NAME) == DISTRIBUTED_BACKEND_NAME
    assert not any(isinstance(f, _transformers.BackendOfTransformers) for f in sys.meta_path)
    del utils.DISTRIBUTED_BACKEND_MAP[DEVICE_NAME]
    _transformers.complete_when_imported()
    assert utils.get_distributed_backend(DEVICE_NAME) == DISTRIBUTED_BACKEND_NAME


def test_a_transformers_without_the_table_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = pytest.importorskip("transformers.distributed.utils")
    monkeypatch.delattr(utils, "DISTRIBUTED_BACKEND_MAP")
    _transformers.complete_when_imported()
    assert not hasattr(utils, "DISTRIBUTED_BACKEND_MAP")
