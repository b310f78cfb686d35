"""scaled_dot_product_attention in eager mode: one plan without gradients, PyTorch's parts with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from torch_spyre.tools.plans import plans_of

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True, "keys": 37},
    "scale": {"scale": 0.3},
    "groups": {"enable_gqa": True, "key_heads": 2},
    "mask": {"mask": "bool"},
    "bias": {"mask": "float"},
    "mask and causal": {"mask": "bool", "is_causal": True},
    "bias and causal": {"mask": "float", "is_causal": True},
    "rank 3": {"rank": 3},
    "wide values": {"width": 96},
    "rows first": {"is_permuted": True},
    "float32": {"dtype": torch.float32},
    "bfloat16": {"dtype": torch.bfloat16},
}


def _inputs(case: dict[str, Any]) -> tuple[list[torch.Tensor | None], dict[str, Any]]:
    """Query, key, value, mask on the host, and the rest of the arguments."""
    torch.manual_seed(0)
    heads, queries, width = 4, 37, 64
    keys, key_heads = case.get("keys", 53), case.get("key_heads", heads)
    if case.get("is_permuted"):
        query = torch.randn(2, queries, heads, width).transpose(1, 2)
    else:
        query = torch.randn(2, heads, queries, width)
    key = torch.randn(2, key_heads, keys, width)
    value = torch.randn(2, key_heads, keys, case.get("width", width))
    mask = None
    if case.get("mask") == "bool":
        mask = torch.rand(queries, keys) < 0.5
        mask[3] = False  # a query that sees nothing
    elif case.get("mask") == "float":
        mask = torch.randn(2, 1, queries, keys)
    if case.get("rank") == 3:
        query, key, value = query[0], key[0], value[0]
    known = ("is_causal", "scale", "enable_gqa")
    return [query, key, value, mask], {name: case[name] for name in known if name in case}


def _on_card(tensors: list[torch.Tensor | None], dtype: torch.dtype) -> list[torch.Tensor | None]:
    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to("spyre", dtype if tensor.is_floating_point() else None)

    return [None if tensor is None else moved(tensor) for tensor in tensors]


@pytest.mark.parametrize("name", CASES)
def test_is_one_plan_and_right(name: str) -> None:
    case = CASES[name]
    dtype = case.get("dtype", torch.float16)
    host, rest = _inputs(case)
    card = _on_card(host, dtype)
    # What the card holds is what the host should compute with.
    exact = [t if t is None else t.cpu() for t in card]
    exact = [t.float() if t is not None and t.is_floating_point() else t for t in exact]
    wanted = functional.scaled_dot_product_attention(*exact, **rest)
    torch.spyre.reset_fallback_stats()
    found: list[torch.Tensor] = []
    plans = plans_of(lambda: found.append(functional.scaled_dot_product_attention(*card, **rest)))
    assert [plan.operation for plan in plans if "attention" in plan.operation] in (
        ["spyre::attention"],
        [],  # planned by an earlier test
    )
    assert not torch.spyre.fallback_stats()
    assert found[0].dtype is dtype
    bound = 1e-5 if dtype is torch.float32 else 2**-7
    torch.testing.assert_close(found[0].cpu().float(), wanted, rtol=bound, atol=bound)


def test_result_has_the_strides_of_the_query() -> None:
    host, rest = _inputs(CASES["rows first"])
    query, key, value, _ = _on_card(host, torch.float16)
    assert query is not None
    found = functional.scaled_dot_product_attention(query, key, value, **rest)
    assert found.transpose(1, 2).is_contiguous()  # so that joining the heads is a view


def test_gradients_take_pytorchs_parts() -> None:
    host, rest = _inputs(CASES["causal"])
    card = [t.to("spyre").requires_grad_() for t in host if t is not None]
    exact = [t.clone().requires_grad_() for t in host if t is not None]
    functional.scaled_dot_product_attention(*card, **rest).sum().backward()
    functional.scaled_dot_product_attention(*exact, **rest).sum().backward()
    for found, wanted in zip(card, exact, strict=True):
        assert found.grad is not None
        torch.testing.assert_close(found.grad.cpu(), wanted.grad, rtol=1e-4, atol=1e-5)


def test_compiled_has_the_same_bits() -> None:
    host, rest = _inputs(CASES["groups"])
    query, key, value, _ = _on_card(host, torch.float16)

    def work(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, **rest)

    assert query is not None and key is not None and value is not None
    eager = work(query, key, value)
    compiled = torch.compile(work, dynamic=False)(query, key, value)
    assert torch.equal(eager.cpu(), compiled.cpu())


def test_vmap_and_a_mask_elsewhere() -> None:
    host, _ = _inputs({})
    query, key, value, _ = _on_card(host, torch.float16)
    assert query is not None and key is not None and value is not None
    one = torch.vmap(functional.scaled_dot_product_attention)(query, key, value)
    exact = (tensor.cpu().float() for tensor in (query, key, value))
    wanted = functional.scaled_dot_product_attention(*exact)
    torch.testing.assert_close(one.cpu().float(), wanted, rtol=2**-7, atol=2**-7)
    with pytest.raises(RuntimeError, match="device"):
        functional.scaled_dot_product_attention(query, key, value, torch.zeros(37, 53))
