"""PyTorch on other devices is as it was before the package: what the patches must not change."""

from __future__ import annotations

import pickle

import torch
from torch import nn


def with_new_zeros(x):
    return x + torch.empty(2).zero_()


def test_device_contexts_reach_torch_empty():
    with torch.device("meta"):
        assert torch.empty(2).device.type == "meta"
        assert nn.Linear(2, 2).weight.device.type == "meta"
    with torch.device("spyre"):
        assert nn.Linear(2, 2).weight.device.type == "spyre"


def test_torchscript_pickle_and_lazy_modules_know_the_functions():
    assert torch.jit.script(with_new_zeros)(torch.ones(2)).tolist() == [1, 1]
    assert pickle.loads(pickle.dumps(torch.empty)) is torch.empty
    assert pickle.loads(pickle.dumps(torch.Tensor.to)) is torch.Tensor.to
    assert nn.LazyLinear(3).to(torch.float16).weight.dtype == torch.float16


def test_compiled_cpu_code_is_the_same_as_without_the_package(check_python):
    script = """
        import torch
        def f(x):
            y = torch.empty(3, dtype=torch.float32).fill_(2)
            return (x.to(torch.float32) * y).to(torch.float16)
        print(torch.compile(f, fullgraph=True, backend="aot_eager")(torch.arange(3)).tolist())
        """
    outputs = {check_python(script, TORCH_DEVICE_BACKEND_AUTOLOAD=on).stdout for on in ("0", "1")}
    assert outputs == {"[0.0, 2.0, 4.0]\n"}


def test_large_tensors_print_their_corners_only():
    x = torch.arange(90000.0).reshape(300, 300)
    before = torch.spyre.counters()["bytes_to_host"]
    text = repr(x.to("spyre"))
    assert text.replace(", device='spyre:0'", "") == repr(x)
    assert torch.spyre.counters()["bytes_to_host"] - before < 1000


def test_negative_views_mean_their_negated_values():
    x = torch._neg_view(torch.arange(3.0, device="spyre"))
    assert x.tolist() == [0, -1, -2] and (x + 1).tolist() == [1, 0, -1]
    assert x.clone().tolist() == [0, -1, -2]
    x.copy_(torch.tensor([5.0, 6.0, 7.0]))
    assert x.tolist() == [5, 6, 7]
    values = torch.complex(torch.ones(2), torch.ones(2))
    values.conj().imag.copy_(torch.full((2,), 5.0, device="spyre"))
    assert values.imag.tolist() == [-5, -5]


def test_a_script_may_end_right_after_backward(check_python):
    for _ in range(3):
        check_python(
            """
            import warnings, torch
            warnings.simplefilter("ignore")
            x = torch.ones(3, device="spyre", requires_grad=True)
            (x * 2).sum().backward()
            """
        )
