"""What `torch_spyre.tools.measure` says about work is what the card counts."""

from __future__ import annotations

import pytest
import torch

from torch_spyre.tools.measure import Cost, compiled_kernels, largest_error, measure

ROWS, COLUMNS = 64, 256


@pytest.fixture
def matrix():
    return torch.rand(ROWS, COLUMNS, dtype=torch.float16).to("spyre")


def test_an_eager_sum_reads_both_operands_and_writes_one_result(matrix):
    _, cost = measure(torch.add, matrix, matrix.clone())
    nbytes = ROWS * COLUMNS * 2
    assert (cost.bytes_read, cost.bytes_written, cost.launches) == (2 * nbytes, nbytes, 1)
    assert cost.microseconds > 0


def test_the_cost_is_that_of_one_call_though_there_are_two(matrix):
    calls = []

    def work():
        calls.append(matrix + 1)
        return len(calls)

    result, cost = measure(work)
    assert (result, cost.launches) == (2, 1)


def test_work_that_leaves_the_card_alone_costs_nothing():
    assert measure(lambda: 3) == (3, Cost(0.0, 0, 0, 0))


def test_a_compiled_kernel_costs_what_its_launch_does(matrix):
    torch.compiler.reset()
    _, cost = measure(torch.compile(lambda x: torch.softmax(x, -1)), matrix)
    steps = {"amax", "exp", "sum"}  # others of this process may take as long
    kernel = next(
        kernel
        for kernel in compiled_kernels()
        if kernel.microseconds == cost.microseconds
        and steps <= {step.operation for step in kernel.steps}
    )
    assert (kernel.bytes_read, kernel.bytes_written) == (cost.bytes_read, cost.bytes_written)
    assert sum(step.bytes_read for step in kernel.steps) == kernel.bytes_read
    assert 0 < kernel.lx_bytes < 2 << 20


def test_a_copy_to_another_stick_is_called_restickify(matrix):
    torch.compiler.reset()
    known = len(compiled_kernels())
    torch.compile(lambda x: (x.t() * 3).contiguous())(matrix)
    assert "restickify" in {step.operation for step in compiled_kernels()[known].steps}


def test_errors_are_found_where_float32_would_hide_them():
    exact = torch.tensor([2.0**24 + 1], dtype=torch.float64)
    assert largest_error(torch.tensor([2.0**24]), exact) == 1.0


def test_a_cost_reads_as_a_sentence():
    text = str(Cost(1.25, 1024, 128, 1))
    assert text == "1.2 us modelled, 1,024 bytes read, 128 written, 1 kernel"
