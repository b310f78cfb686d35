"""Explanations of real models in a real browser: whatever the compiler says, the page shows it."""

from __future__ import annotations

import pytest
import torch

import torch_spyre
from tests.tools.screenshot import granite
from tests.tools.test_explain import HIDDEN, ROWS, Model
from torch_spyre.tools.explain.document import Explanation

VIEWS = ("scratchpad", "operations", "roofline", "time", "graphs")


@pytest.fixture(scope="module")
def small() -> Explanation:
    """Three layers, a graph break, and an operation that only the CPU has."""
    torch.manual_seed(0)
    model = Model(3).half().to("spyre").requires_grad_(False)
    return torch_spyre.explain(model, torch.rand(ROWS, HIDDEN, dtype=torch.float16).to("spyre"))


@pytest.fixture(scope="module")
def deep() -> Explanation:
    pytest.importorskip("transformers")
    return granite(layers=40)


def look_at_everything(shown, explanation: Explanation) -> None:
    """Every view of every kernel, and the longest step of each; `shown` looks for complaints."""
    opened = shown(explanation)
    page = opened.page
    for number, kernel in enumerate(explanation.kernels):
        launch = next(
            i
            for i, launch in enumerate(explanation.launches)
            if launch.call is not None
            and explanation.graphs[launch.call[0]].calls[launch.call[1]].kernel == number
        )
        page.evaluate(f"explainPage.selectLaunch(explainPage.model.launches[{launch}])")
        page.click("#zoom-selection")
        opened.settle()
        place = max(range(len(kernel.steps)), key=lambda i: kernel.steps[i].duration)
        opened.click_step(launch, place)
        step = kernel.steps[place]
        assert page.inner_text("#details h2") == step.op
        assert step.source.code in page.inner_text("#details").replace("\n", "")
        page.click(".program-texts button:text-is('OpSpec')")
        assert page.inner_text(".program").strip() == step.spec.strip()
        for view in VIEWS:
            page.click(f"#tab-{view}")
            opened.settle()
            assert page.is_visible(f"#view-{view}")
            if view in ("scratchpad", "operations", "roofline"):
                assert page.evaluate(f"explainPage.views.{view}.surface.marks") > 0
    assert opened.requests == [opened.file.as_uri()]
    assert opened.errors == []


def test_a_model_with_a_break_and_a_fallback_is_shown_from_end_to_end(small, shown):
    assert (len(small.graphs), len(small.breaks)) == (2, 1) and small.fallbacks
    look_at_everything(shown, small)
    opened = shown(small, address="#view=graphs")
    text = opened.page.inner_text("#graphs")
    assert "torch._dynamo.graph_break()" in text and "linalg_svd" in text
    for graph in opened.page.locator("details.graph summary").all():
        graph.click()
    opened.settle()
    assert "aten.mm" in opened.page.inner_text("#graphs")


@pytest.mark.slow
def test_forty_layers_of_granite_are_shown_from_end_to_end(deep, shown):
    assert sum(len(graph.calls) for graph in deep.graphs) >= 40
    look_at_everything(shown, deep)
    opened = shown(deep)
    opened.page.fill("#search", "layers.39")
    opened.settle()
    assert int(opened.page.inner_text("#result-count").split()[0].replace(",", "")) > 10
    assert opened.nodes() < 1500
