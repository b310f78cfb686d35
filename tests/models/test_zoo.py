"""Unmodified HuggingFace models on the device: right, in one graph, and without the CPU."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="an extra: pip install torch-spyre[models]")

from tests.models.report import examine
from tests.models.zoo import ZOO


@pytest.mark.parametrize("name", ZOO)
def test_forward_is_right_eager_and_compiled(name: str) -> None:
    row = examine(name)
    print(row)
    assert (row.graphs, row.breaks, row.fallbacks) == (1, 0, 0)
    for distance in (row.eager, row.compiled):
        assert distance.cosine > 0.9999
        assert distance.largest < 2**-7 * max(distance.reach, 1)
