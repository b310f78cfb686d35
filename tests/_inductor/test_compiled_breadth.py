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
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.nn import functional as F  # noqa: N812
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
    found |= {
        f"aten.{name}" for body in bodies for name in re.findall(r"extern_kernels\.(\w+)\(", body)
    }
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
    """Every dtype with the odd size, the first one with the aligned size as well."""
    for name, case in CASES.items():
        for dtype in case.dtypes:
            text = str(dtype).removeprefix("torch.")
            for size in SIZES if dtype is case.dtypes[0] else ("odd",):
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


# ---- Random numbers ------------------------------------------------------------------------------

RANDOM: dict[str, tuple[Callable[..., Any], str]] = {
    "rand": (lambda x: torch.rand(5, 70, device=x.device) + x, "aten.rand"),
    "randn": (lambda x: torch.randn(5, 70, device=x.device) + x, "aten.randn"),
    "rand_like": (lambda x: torch.rand_like(x) + x, "aten.rand_like"),
    "randint": (lambda x: torch.randint(0, 9, (5, 70), device=x.device) + x, "aten.randint"),
    "randperm": (lambda x: torch.randperm(70, device=x.device) + x, "aten.randperm"),
    "dropout": (lambda x: F.dropout(x, 0.3) * 2, "aten.native_dropout"),
    "bernoulli": (lambda x: torch.bernoulli(x.sigmoid()) + x, "aten.bernoulli"),
    "bernoulli_": (lambda x: x.clone().bernoulli_(0.3) + x, "aten.bernoulli"),
    "normal_": (lambda x: x.normal_(1, 2) + 1, "aten.normal_functional"),
    "uniform_": (lambda x: x.uniform_(1, 2) + 1, "aten.uniform"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_those_of_eager_mode(name: str, dtype: torch.dtype) -> None:
    call, extern = RANDOM[name]
    x = torch.randn(5, 70).to(dtype).to(DEVICE)
    theirs = x.clone()
    torch.manual_seed(7)
    wanted = call(theirs)
    torch.manual_seed(7)
    found, codes = run_and_get_code(torch.compile(call, fullgraph=True, dynamic=False), x)
    assert torch.equal(found.cpu(), wanted.cpu())
    assert torch.equal(x.cpu(), theirs.cpu())
    assert externs_of(codes) == {extern}


def test_dropout_and_its_gradient_drop_the_same() -> None:
    x = torch.ones(5, 70).to(DEVICE).requires_grad_()
    result = torch.compile(lambda x: F.dropout(x, 0.5), fullgraph=True)(x)
    result.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), result.detach().cpu())


# ---- Calls between kernels -----------------------------------------------------------------------


def rows(length: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(4, length),)


def rows_and_places(length: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(4, length), torch.randint(0, length, (4, 2))


def _write_twice(x: torch.Tensor, i: torch.Tensor) -> Any:
    before = x * 2
    x.scatter_(1, i, 7.0)
    between = x * 3
    x.scatter_(1, i - 1, 5.0)
    return before, between, x.sum(-1)


def _write_temporary(x: torch.Tensor, i: torch.Tensor) -> Any:
    y = x + 1
    y.index_put_((torch.zeros_like(i[0]), i[0]), x.new_zeros(()))
    return (y * 2).sum(-1), y


# Kernels before and after a call; what it makes, and what it changes.
CALLS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[torch.Tensor, ...]]]] = {
    "scan": (lambda x: (x * 2).cumsum(-1) + 1, rows),
    "scan of a transposed view": (lambda x: ((x * 2).t().cumsum(0) + 1).t(), rows),
    "scan that is summed": (lambda x: x.cumsum(-1).sum(-1), rows),
    "two results": (lambda x: [t * 2 for t in (x * 2).sort(-1)], rows),
    "input written twice": (_write_twice, rows_and_places),
    "temporary written": (_write_temporary, rows_and_places),
    "index of the last": (lambda x: (x.argmax(-1), *x.max(-1)), rows),
    "uninitialised at first": (
        lambda x: F.pad((x * 2)[None], (2, 3), mode="circular") + 1,
        rows,
    ),
    "negative index": (lambda x, i: x.t()[i[:, 0] - x.shape[1]] * 2, rows_and_places),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_between_kernels_see_the_valid_part_of_dynamic_sizes(name: str) -> None:
    call, make = CALLS[name]
    compiled = torch.compile(call, fullgraph=True, dynamic=True)
    for length in (5, 100, 130):
        theirs = make(length)
        ours = on_card(list(theirs))
        found = compiled(*ours)
        exact = [widened(x) for x in theirs]
        case = Case(call, rows, roundings=8, mixes=True)
        check(case, (found, ours), (call(*exact), exact), (call(*theirs), list(theirs)))


def test_a_call_in_a_graph_goes_through_the_caches() -> None:
    """Compiled again after a reset, nothing is lowered a second time."""
    call = lambda x: (x * 3).sort(-1)[0] + torch.lgamma(x)  # noqa: E731
    x = torch.rand(5, 70)
    caches = {"fx_graph_cache": True, "fx_graph_remote_cache": False}
    with torch._inductor.config.patch(caches), fresh_cache():
        for _ in range(2):
            torch._dynamo.reset()
            counters.clear()
            result = torch.compile(call, fullgraph=True, dynamic=False)(x.to(DEVICE))
            wanted = call(x.double())
            assert (result.cpu().double() - wanted).abs().max() < 1e-5
        assert (
            counters["inductor"]["fxgraph_cache_hit"]
            + counters["aot_autograd"]["autograd_cache_hit"]
            > 0
        )
        assert counters["inductor"]["fxgraph_cache_miss"] == 0


def test_what_is_no_loop_of_the_card_is_called_and_nothing_else() -> None:
    call = lambda x: torch.relu(torch.cumsum(x * 2 + 1, 1) + 1)  # noqa: E731
    x = torch.rand(5, 70)
    found, codes = run_and_get_code(torch.compile(call, fullgraph=True), x.to(DEVICE))
    check(Case(call, rows, roundings=8, mixes=True), found, call(x.double()), call(x))
    assert externs_of(codes) == {"aten.cumsum"}


def test_other_devices_keep_their_loops() -> None:
    """Compiled for the CPU after all this, a scatter and an argmax are C++ as ever."""
    torch.compile(lambda x: x.argmax(-1))(torch.rand(5, 70).to(DEVICE))
    call = lambda x, i: (x.scatter_add(1, i, x), x.argmax(-1))  # noqa: E731
    args = torch.rand(5, 70), torch.randint(0, 70, (5, 70))
    found, codes = run_and_get_code(torch.compile(call, fullgraph=True), *args)
    for ours, wanted in zip(found, call(*args), strict=True):
        torch.testing.assert_close(ours, wanted)
    assert externs_of(codes) == frozenset()


def test_control_flow_is_refused_in_our_own_words() -> None:
    def branch(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    with pytest.raises(Unsupported, match="torch.cond"):
        torch.compile(branch, fullgraph=True)(torch.rand(5, 70).to(DEVICE))
