"""The table of card operations: complete, sound, and cheap to import."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from op_cases import CASES

from torch_spyre.backend import opcodes
from torch_spyre.ops import registry
from torch_spyre.ops.fallbacks import FallbackWarning, warn
from torch_spyre.ops.formats import FACT, fact
from torch_spyre.ops.registry import Expression, Pointwise
from torch_spyre.tools import operations


def _formulas(entry: Pointwise) -> list[Expression]:
    formulas = [entry.formula, *entry.formulas.values()]
    found = [f for formula in formulas for f in (formula.floats, formula.ints, formula.bools) if f]
    return [(f, *entry.operands) if isinstance(f, str) else f for f in found]


def _check(expression: Expression, entry: Pointwise) -> str | None:
    """The domain of an expression, None for an argument or a number; fails if it is malformed."""
    if isinstance(expression, str) and expression.startswith(FACT):
        assert math.isfinite(fact(expression, torch.float16))
        return None
    if not isinstance(expression, tuple):
        assert not isinstance(expression, str) or expression in entry.operands
        return None
    opcode = opcodes.by_name()[str(expression[0])]
    operands = expression[1:]
    assert len(operands) == len(opcode.operands), expression
    for operand, domain in zip(operands, opcode.operands, strict=True):
        assert _check(operand, entry) in (None, domain)
    return opcode.result


ENTRIES = [entry for entry in registry.TABLE if isinstance(entry, Pointwise)]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_formulas_name_operations_and_operands_that_exist(entry: Pointwise) -> None:
    formulas = _formulas(entry)
    assert formulas
    for formula in formulas:
        _check(formula, entry)


def test_every_entry_covers_functional_in_place_and_out() -> None:
    names = registry.overload_names()
    for wanted in (
        *("add.Tensor", "add.Scalar", "add_.Tensor", "add_.Scalar", "add.out"),
        *("exp", "exp_", "exp.out", "where.self", "where.self_out", "fill_.Scalar", "fill_.Tensor"),
        *("zero_", "clamp", "clamp.Tensor", "clamp_", "pow.Scalar", "pow_.Tensor", "div.out_mode"),
        *("lt_.Scalar", "__lshift__.Scalar", "__irshift__.Tensor", "lerp_.Scalar", "gelu_"),
        *(
            "uniform_",
            "random_.from",
            "bernoulli_.float",
            "arange.start_out",
            "masked_fill_.Scalar",
        ),
    ):
        assert f"aten::{wanted}" in names


def test_what_pytorch_composes_itself_is_left_to_it() -> None:
    names = registry.overload_names()
    assert "aten::square" not in names
    assert "aten::where.ScalarOther" not in names
    assert "aten::silu_backward" not in names


def test_an_entry_covers_no_overload_that_lacks_its_operands() -> None:
    table = registry.overloads()
    assert table["aten::round"].entry is not table["aten::round.decimals"].entry


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.name}{len(entry.operands)}")
def test_every_entry_is_in_use(entry: Pointwise) -> None:
    assert any(overload.entry is entry for overload in registry.overloads().values())


def test_every_name_is_one_that_the_dispatcher_knows() -> None:
    for name in registry.overload_names():
        operation, _, overload = name.partition(".")
        assert torch._C._get_schema(operation, overload) is not None


def test_every_pointwise_entry_has_a_test_case() -> None:
    tested = {case.name.partition(".")[0].rstrip("_") for case in CASES}
    missing = {entry.name.rstrip("_") for entry in ENTRIES} - tested
    # In-place spellings and the right shift of `>>` share their formula with tested ones. PyTorch
    # composes silu_backward, but for the form that writes: see test_like_cpu.
    assert missing <= {"__ilshift", "__irshift", "__rshift", "silu_backward"}


def test_the_import_needs_nothing_heavy() -> None:
    code = (
        "import sys, torch; before = set(sys.modules)\n"
        "import torch_spyre.ops.registry\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = run.stdout.split()
    assert all(name.startswith("torch_spyre") for name in loaded), loaded


def test_the_page_of_operations_is_current() -> None:
    """`python -m torch_spyre.tools.operations > docs/operations.md` writes it."""
    assert (Path(__file__).parents[2] / "docs/operations.md").read_text() == operations.page()


def test_the_fallback_warning_tells_what_to_do() -> None:
    with pytest.warns(FallbackWarning) as caught:
        warn("aten::svd")
    message = str(caught[0].message)
    assert "aten::svd" in message
    assert "CPU" in message
    assert "torch.spyre.fallback_stats()" in message
    assert "filterwarnings" in message
