"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    ["align", "align_gather", "align_matmul", "coordinates", "pieces", "splits", "terms"],
)
def test_docstrings_show_what_the_functions_do(name):
    # By full name: `torch_spyre.ir.align`, the attribute, is the function.
    module = importlib.import_module(f"torch_spyre.ir.{name}")
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
