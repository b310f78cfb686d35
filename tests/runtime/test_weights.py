"""Eager linear layers lay their weights out for the matrix units, once (runtime/weights.h)."""

from __future__ import annotations

import subprocess
import sys
import threading

import torch

from torch_spyre import _C

# Only a process whose card no second thread has used lays weights out, so this is its own.
ALONE = """
import torch
from torch.nn import functional
from torch_spyre import _C
from torch_spyre.tools.plans import plans_of

torch.manual_seed(0)

def matrix():
    return torch.randn(192, 256).half().to("spyre")

def default(weight):
    return _C.SpyreTensorLayout(list(weight.shape), list(weight.stride()), weight.dtype, [0, 1])

def is_laid_out(weight):
    return _C.get_spyre_tensor_layout(weight) != default(weight)

x = torch.randn(8, 256).half().to("spyre")
weight, bias = torch.nn.Parameter(matrix()), torch.randn(192).half().to("spyre")
wanted = (x @ weight.t()).detach().cpu()
assert not is_laid_out(weight)  # the backward would want it as it is
with torch.no_grad():
    assert torch.equal((x @ weight.t()).cpu(), wanted) and is_laid_out(weight)
    assert torch.equal(functional.linear(x, weight).cpu(), wanted)
    assert torch.equal((weight + 0).cpu(), weight.cpu())
    steps = [step for plan in plans_of(lambda: x[:4] @ weight.t()) for step in plan.launches[0]]
    assert steps == ["batchmatmul"], steps

    biased, inferred = (torch.nn.Parameter(matrix()) for _ in range(2))
    functional.linear(x, biased, bias)
    with torch.inference_mode():
        functional.linear(x, inferred)
    assert is_laid_out(biased) and is_laid_out(inferred)

    value, table, chosen, part = matrix(), *(torch.nn.Parameter(matrix()) for _ in range(3))
    functional.embedding(torch.tensor([1, 2]).to("spyre"), table)
    layout = _C.SpyreTensorLayout([192, 4, 64], [256, 64, 1], _C.DataFormats.SEN169_FP16)
    _C.set_spyre_tensor_layout(chosen.detach(), layout)
    for _ in range(3):
        x @ value.t(), x @ table.t(), x @ chosen.t(), x @ part[:64].t()
assert not any(map(is_laid_out, (value, table, part)))
assert _C.get_spyre_tensor_layout(chosen) == layout
print("done")
"""


def test_a_product_lays_a_weight_out() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True)
    assert done.stdout.strip() == "done", done.stderr


# A loader reads checkpoints with threads of its own, as that of transformers does.
AFTER_THREADS = """
import threading
import time
import torch
from torch_spyre import _C

weights, is_used, may_end = [], threading.Event(), threading.Event()

def load():
    weights.append(torch.nn.Parameter(torch.randn(192, 256).half().to("spyre")))
    is_used.set()
    may_end.wait()

def layout():
    with torch.no_grad():
        x @ weights[0].t()
    return _C.get_spyre_tensor_layout(weights[0])

loader = threading.Thread(target=load)
loader.start()
is_used.wait()
x = torch.randn(8, 256).half().to("spyre")
before = _C.get_spyre_tensor_layout(weights[0])
assert layout() == layout() == before
may_end.set()
loader.join()
while layout() == before:  # Python's thread ends a little before the system's
    time.sleep(0.001)
print("done")
"""


def test_a_weight_is_laid_out_once_the_other_threads_have_ended() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AFTER_THREADS], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "done", done.stderr


def test_threads_leave_weights_alone() -> None:
    """A storage that another thread may be looking at keeps its block."""
    torch.zeros(1, device="spyre")
    weight = torch.nn.Parameter(torch.randn(192, 256).half().to("spyre"))
    x = torch.randn(8, 256).half().to("spyre")
    before = _C.get_spyre_tensor_layout(weight)
    wanted = (x @ weight.t()).detach().cpu()
    found: list[torch.Tensor] = []

    @torch.no_grad()
    def multiply() -> None:
        found.extend((x @ weight.t()).cpu() for _ in range(4))

    thread = threading.Thread(target=multiply)
    thread.start()
    thread.join()
    assert len(found) == 4 and all(torch.equal(each, wanted) for each in found)
    assert _C.get_spyre_tensor_layout(weight) == before
