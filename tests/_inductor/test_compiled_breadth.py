"""Every operation that must work compiles in one graph, and gives what PyTorch means by it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from bounded import FP32, TINY, UNIT
from breadth_table import CASES, SIZES, Case
from torch._inductor.utils import run_and_get_code
from torch.utils import _pytree as pytree

from tests.ops import step_model
from torch_spyre._inductor.errors import Unsupported

DEVICE = "spyre"
TERMS = 16  # roundings of fp32 sums, of the largest result


@pytest.fixture(autouse=True)
def _setup() -> Iterator[None]:
    torch.manual_seed(0)
    torch.spyre.set_downcast_warning(False)
    torch._dynamo.reset()
    with torch._inductor.config.patch(fx_graph_cache=False, fx_graph_remote_cache=False):
        yield
    torch._dynamo.reset()


# ---- What is called ------------------------------------------------------------------------------

_CALL = re.compile(r"torch\.ops\.(\w+\.\w+)\.\w+\(")
# Allocations and checks that every wrapper may write.
_HOST_PROGRAM = frozenset({"aten.reinterpret_tensor"})


def externs_of(codes: list[str]) -> frozenset[str]:
    """Eager operations that generated code calls on device tensors."""
    bodies = [code[code.index("def call(") :] for code in codes]
    found = {name for body in bodies for name in _CALL.findall(body)}
    found |= {f"aten.{name}" for body in bodies for name in re.findall(r"extern_kernels\.(\w+)\(", body)}
    return frozenset(found) - _HOST_PROGRAM


# ---- Numbers -------------------------------------------------------------------------------------


def widened(value: Any) -> Any:
    """What the card holds of a host tensor; floats in float64."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value.clone() if isinstance(value, torch.Tensor) else value
    return torch.from_numpy(step_model.as_seen_by_card(value).astype(np.float64))


def check(case: Case, actual: Any, exact: Any, like: Any) -> None:
    """Every tensor within the case's bound, in the dtype, shape and strides that the CPU gives."""
    actual, exact, like = (pytree.tree_leaves(tree) for tree in (actual, exact, like))
    assert len(actual) == len(exact) == len(like)
    for ours, wanted, host in zip(actual, exact, like, strict=True):
        if not isinstance(host, torch.Tensor):
            assert ours is host or ours == host
            continue
        assert (ours.dtype, ours.shape) == (host.dtype, host.shape)
        ours = ours.detach().cpu()
        if not host.is_floating_point():
            assert torch.equal(ours, wanted.to(host.dtype)), (ours, wanted)
        elif host.numel():
            check_close(ours.double(), wanted.detach().double(), host.dtype, case)


def check_close(ours: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype, case: Case) -> None:
    finite = exact.isfinite()
    assert torch.equal(ours[~finite].nan_to_num(1e99), exact[~finite].nan_to_num(1e99))
    ours, exact = ours[finite], exact[finite]
    sizes = exact.abs()
    if case.mixes and sizes.numel():
        sizes = sizes.amax().clamp_min(1).expand_as(sizes)
    bound = case.roundings * (UNIT[dtype] * sizes + TINY[dtype])
    if case.mixes:
        bound = bound + TERMS * FP32 * sizes
    if dtype is torch.float16:
        bound = bound + 2.0**-25  # small numbers are lost on the way to the host
    if dtype is torch.bfloat16:
        bound = bound + 2.0**-8 * sizes
    error = (ours - exact).abs()
    assert (error <= bound).all(), f"{(error / bound.clamp_min(1e-300)).max():.3g} bounds off"


def arguments(case: Case, size: str, dtype: torch.dtype) -> list[Any]:
    """As read back from the card, so that the card rounds none of them."""
    made = case.make(SIZES[size], dtype)
    return [x.to(DEVICE).cpu() if isinstance(x, torch.Tensor) else x for x in made]


def on_card(args: list[Any]) -> list[Any]:
    return [x.to(DEVICE) if isinstance(x, torch.Tensor) else x for x in args]


def cases() -> Iterator[Any]:
    for name, case in CASES.items():
        for dtype in case.dtypes:
            for size in SIZES:
                text = str(dtype).removeprefix("torch.")
                yield pytest.param(case, dtype, size, id=f"{name}-{text}-{size}")


@pytest.mark.parametrize(("case", "dtype", "size"), cases())
def test_an_operation_compiles_in_one_graph(case: Case, dtype: torch.dtype, size: str) -> None:
    args = arguments(case, size, dtype)
    ours, exact = on_card(args), [widened(x) for x in args]
    with torch.no_grad():
        compiled = torch.compile(case.call, fullgraph=True, dynamic=False)
        results, codes = run_and_get_code(compiled, *ours)
        wanted = (case.exact or case.call)(*exact)
        host = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
        like = case.call(*host)
    check(case, (results, ours), (wanted, exact), (like, host))
    assert externs_of(codes) == case.extern


DIFFERENTIABLE = {name: case for name, case in CASES.items() if case.backward is not None}


def gradients(call: Callable[..., Any], args: list[Any], to: Callable[[Any], Any]) -> list[Any]:
    """Of a weighted sum of all results, so that no gradient is zero by symmetry."""
    leaves = [to(x).requires_grad_() if _is_float(x) else to(x) for x in args]
    results = [x for x in pytree.tree_leaves(call(*leaves)) if x.requires_grad]
    weights = [torch.linspace(-1, 2, x.numel(), dtype=torch.float64).sin() for x in results]
    total = sum(
        (x * w.view(x.shape).to(x.device, x.dtype)).sum()
        for x, w in zip(results, weights, strict=True)
    )
    total.backward()
    return [x.grad for x in leaves if _is_float(x) and x.grad is not None]


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_compile_too(name: str) -> None:
    case = DIFFERENTIABLE[name]
    args = arguments(case, "odd", torch.float32)
    compiled = torch.compile(case.call, fullgraph=True, dynamic=False)
    found, codes = run_and_get_code(gradients, compiled, args, lambda x: x.to(DEVICE))
    exact = gradients(case.call, args, lambda x: x.double() if _is_float(x) else x)
    like = [x.float() for x in exact]
    loose = Case(case.call, case.make, roundings=32, mixes=True)
    check(loose, found, exact, like)
    assert externs_of(codes) == case.backward
