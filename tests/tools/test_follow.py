"""`follow` shows what the compiler did, at every level."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch

from torch_spyre._inductor.passes import PASSES
from torch_spyre.backend.disassemble import disassemble
from torch_spyre.ir.spec_text import kernel_text, spec_text
from torch_spyre.tools.follow import follow


@pytest.fixture(scope="module")
def levels():
    x = torch.rand(8, 100, dtype=torch.float16).to("spyre")
    return follow(lambda x: x / x.sum(-1, keepdim=True), x)


def test_the_fx_graph_has_the_aten_operations(levels):
    assert re.findall(r"aten\.(\w+)", levels.fx) == ["sum", "div"]


def test_loops_are_shown_as_the_host_counts_elements(levels):
    assert levels.loops.splitlines() == [
        "buf0[i0] = sum(arg0_1[100*i0 + i1])  over 8 x 100, reduced i1",
        "buf1[100*i0 + i1] = div(arg0_1[100*i0 + i1], buf0[i0])  over 8 x 100",
    ]


def test_passes_appear_in_their_order_and_only_if_they_change_something(levels):
    names = [pass_.__name__ for pass_ in PASSES]
    seen = [names.index(stage.name) for stage in levels.passes]
    assert seen == sorted(set(seen))
    texts = [levels.loops, *(stage.text for stage in levels.passes)]
    assert all(before != after for before, after in pairwise(texts))


def test_every_buffer_is_in_a_scratchpad_or_says_why_not(levels):
    for buffer in re.split(r"\n(?=\S)", levels.buffers):
        assert buffer.startswith("arg") or "lx at byte" in buffer or "not in LX" in buffer


def test_operations_are_the_same_at_all_levels_below_the_passes(levels):
    (kernel,) = levels.kernels
    operations = [spec.op for spec in kernel.spec.body]
    assert re.findall(r'OpSpec\(op="(\w+)"', kernel_text(kernel.spec)) == operations
    assert [sdsc.name for sdsc in kernel.bundle.sdscs] == operations
    assert re.findall(r"^step (\w+)", disassemble(kernel.program), re.M) == operations


def test_an_operation_is_printed_with_symbols(levels):
    (kernel,) = levels.kernels
    text = spec_text(kernel.spec.body[-1])
    assert 'OpSpec(op="div", kind="pointwise"' in text
    assert "Mod(c0, 64)" in text
    assert "masks=[c1 < 100]" in kernel_text(kernel.spec)


def test_a_constant_is_printed_as_the_number_it_is():
    levels = follow(lambda x: x * 2.5, torch.rand(4, device="cpu").to("spyre"))
    assert "ConstantArg(2.5)" in kernel_text(levels.kernels[0].spec)


def test_a_function_of_cpu_tensors_is_refused_with_the_likely_reason():
    with pytest.raises(ValueError, match="are the inputs on the device"):
        follow(lambda x: x + 1, torch.ones(3))
