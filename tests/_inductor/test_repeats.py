"""Equal kernels are planned once, and as they would be by themselves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from unittest import mock

import pytest
import torch
from compiled import Run, run_compiled
from torch.nn import functional

from torch_spyre._inductor.passes import tiling

LAYERS = 4


def _mlp(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for up, down in zip(weights[::2], weights[1::2], strict=True):
        x = x + functional.silu(functional.rms_norm(x, x.shape[-1:]) @ up) @ down
    return x


def _attention(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """Long enough that scores need loops, of sums, too."""
    for w in weights:
        heads = (x @ w).unflatten(-1, (3, 1, 4, -1)).permute(1, 2, 3, 0, 4)
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = functional.layer_norm(x + attended[0].transpose(0, 1).flatten(1), x.shape[-1:])
    return x


WORK: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]] = {
    "mlp": (_mlp, [(512, 256), *[(256, 1024), (1024, 256)] * LAYERS]),
    "attention": (_attention, [(1024, 256), *[(256, 768)] * LAYERS]),
}


def _run(name: str) -> Run:
    function, shapes = WORK[name]
    torch.manual_seed(0)
    return run_compiled(function, [(torch.randn(s) / s[0] ** 0.5).half() for s in shapes])


@pytest.mark.parametrize("name", WORK)
def test_a_plan_that_is_carried_over_is_the_plan_that_would_be_made(name: str) -> None:
    with mock.patch.object(tiling, "_Kernel", wraps=tiling._Kernel) as planned:
        once = _run(name)
    assert planned.call_count < len(once.launches)
    with mock.patch.object(tiling, "identity", side_effect=count()):
        each = _run(name)
    hashes = [[launch.bundle.content_hash for launch in run.launches] for run in (once, each)]
    assert hashes[0] == hashes[1]
    assert torch.equal(once.results[0], each.results[0])


def test_reasons_name_the_buffers_of_their_own_kernel() -> None:
    buffers = []
    original = tiling.plan_together

    def plan(graph: tiling.SpyreGraph) -> None:
        original(graph)
        for op in graph.ops:
            near = {t.buffer.name for o in graph.ops if o.kernel == op.kernel for t in o.tensors}
            reason = op.output.buffer.why_not_lx
            named = {word.rstrip(":") for word in reason.split()} & set(graph.buffers)
            buffers.extend(named)
            assert named <= near

    with mock.patch("torch_spyre._inductor.passes.plan_together", plan):
        _run("attention")
    assert buffers
