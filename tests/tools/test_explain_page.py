"""The page of an explanation in a real browser: what people see there, and what must not happen."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import pytest

from tests.tools import explanations
from tests.tools.explanations import place_of
from tests.tools.test_explain_render import empty
from torch_spyre.tools.explain.document import Explanation, Launch, Source

SMALL = explanations.small()
LAYER = SMALL.kernels[0]
VIEWS = ("scratchpad", "operations", "roofline", "time", "graphs")


def test_a_page_loads_without_complaint_and_asks_the_network_for_nothing(shown):
    opened = shown(SMALL)
    assert opened.requests == [opened.file.as_uri()]
    assert opened.errors == []


def test_the_head_names_the_model_and_calls_its_time_modelled(shown):
    page = shown(SMALL).page
    assert page.title() == "GraniteForCausalLM on Spyre"
    head = page.inner_text("header.top")
    for text in ("input_ids: int64[1, 128]", "Modelled time", "4.32 ms", "torch 2.13.0"):
        assert text in head
    assert "1 graph break" in head and "aten::linalg_qr" in head


def test_the_timeline_shows_what_bounds_the_card_in_proportion_to_its_time(shown):
    opened = shown(SMALL)
    pixels = opened.colours("timeline-canvas")
    times: dict[str, int] = defaultdict(int)
    for launch in (*[LAYER] * 3, SMALL.kernels[1]):
        for step in launch.steps:
            times[step.bound] += step.duration
    shares = {bound: time / sum(times.values()) for bound, time in times.items()}
    assert set(pixels) >= {bound for bound, share in shares.items() if share > 0.01}
    measured = pixels["SFP"] / (pixels["SFP"] + pixels["LPDDR5"])
    assert measured == pytest.approx(shares["SFP"], abs=0.03)


def test_exchanges_with_other_cards_have_a_colour_and_are_no_work_of_the_cores(shown):
    plain = shown(SMALL).page
    name, end = "spyreccl:all_reduce", SMALL.duration
    exchange = Launch(name, "exchange", 0, 33, end, end // 4, 3 << 20, 2 << 20, None, "link")
    opened = shown(msgspec.structs.replace(SMALL, launches=(*SMALL.launches, exchange)))
    page = opened.page
    assert {"link", "PCIe"} <= set(opened.colours("timeline-canvas"))
    for mode in ("bound", "kind"):
        page.select_option("#colour-mode", mode)
        assert "link" in page.inner_text("#legend") and "link" not in plain.inner_text("#legend")
    page.evaluate(f"explainPage.selectLaunch(explainPage.model.launches[{len(SMALL.launches)}])")
    opened.settle()
    text = page.inner_text("#details")
    assert name in text and "exchange" in text and "eager" not in text
    names, values = (page.locator(f"#details {tag}").all_inner_texts() for tag in ("dt", "dd"))
    facts = dict(zip(names, values, strict=True))
    assert (facts["sent"], facts["received"]) == ("3 MiB", "2 MiB")
    memory = "#figures .figure:has(dt:text-is('LPDDR5')) dd >> nth=0"
    assert page.inner_text(memory) == plain.inner_text(memory)


def test_a_launch_opens_into_its_steps(shown):
    opened = shown(SMALL)
    before = opened.page.evaluate("explainPage.timeline.surface.marks")
    step = place_of(LAYER, "add", "buf30")  # on 24 of the 32 cores
    opened.page.focus("#timeline-canvas")
    opened.page.evaluate("explainPage.selectLaunch(explainPage.model.launches[1])")
    opened.page.click("#zoom-selection")
    opened.settle()
    start, end = opened.page.evaluate(
        "[explainPage.timeline.axis.start, explainPage.timeline.axis.end]"
    )
    launch = SMALL.launches[1]
    assert start < launch.start + launch.duration and end > launch.start + launch.duration
    assert end - start < 1.2 * launch.duration
    assert opened.page.evaluate("explainPage.timeline.surface.marks") != before
    opened.click_step(1, step)
    assert "24 of 32" in opened.page.inner_text("#details")


def test_wheel_and_keys_zoom_and_move(shown):
    opened = shown(SMALL)
    page = opened.page

    whole = opened.sight()
    page.hover("#timeline-canvas", position={"x": 500, "y": 120})
    page.mouse.wheel(0, -300)
    near = opened.sight()
    assert whole[0] < near[0] < near[1] < whole[1]
    page.focus("#timeline-canvas")
    page.keyboard.press("ArrowRight")
    assert opened.sight()[0] > near[0]
    page.keyboard.press("+")
    assert opened.sight()[1] - opened.sight()[0] < near[1] - near[0]
    page.keyboard.press("0")
    assert opened.sight() == whole


def test_the_scratchpad_shows_each_tensor_where_and_when_it_is(shown):
    opened = shown(SMALL)
    assert set(opened.colours("scratchpad-canvas")) >= {"LPDDR5", "SFP"}
    tensors = [buffer for buffer in LAYER.buffers if buffer.component == "lx"]
    largest = max(tensors, key=lambda buffer: buffer.nbytes * (buffer.last - buffer.first))
    writer = next(step for step in LAYER.steps if LAYER.buffers[step.writes] == largest)
    share = {
        "x": (largest.first + largest.last + 1) / 2 / len(LAYER.steps),
        "y": (largest.address + 0.75 * largest.nbytes) / (1.15 * LAYER.lx_bytes),
    }
    width, height = opened.page.evaluate(
        "[explainPage.views.scratchpad.surface.width, explainPage.views.scratchpad.surface.height]"
    )
    x = round(64 + (width - 10 - 64) * share["x"])
    y = round(height - 30 - (height - 30 - 8) * share["y"])
    assert opened.colours("scratchpad-canvas", x - 1, y - 1, size=3) == {writer.bound: 9}


def test_what_did_not_stay_in_the_scratchpad_is_listed_with_the_reason(shown):
    page = shown(SMALL).page
    spilled = [buffer for buffer in LAYER.buffers if buffer.component == "pool"]
    rows = page.locator("#outside .spill").all_inner_texts()
    assert len(rows) == len(spilled) == 2
    for buffer in spilled:
        assert any(buffer.name in row and buffer.why_not_lx in row for row in rows)


def test_graphs_breaks_and_fallbacks_are_listed_with_reasons_and_text(shown):
    opened = shown(SMALL, address="#view=graphs")
    text = opened.page.inner_text("#graphs")
    assert "print: a call of a builtin that Dynamo does not trace" in text
    assert "print(hidden_states.norm())" in text and "granite/modeling.py:391" in text
    assert "after the graph break in modeling.py:391" in text and "aten::linalg_qr" in text
    opened.page.click("details.graph summary >> nth=0")
    opened.settle()
    text = opened.page.inner_text("details.graph >> nth=0")
    assert "call_function[target=torch.ops.aten.mm.default]" in text
    assert "CPU: aten.linalg_qr" in text and "spyre_lm_head_1" in text


def test_fallbacks_in_other_parts_of_the_script_are_told_apart(shown):
    elsewhere = {"aten::linalg_inv_ex": 3}
    opened = shown(
        msgspec.structs.replace(SMALL, fallbacks={}, fallbacks_elsewhere=elsewhere),
        address="#view=graphs",
    )
    head = opened.page.inner_text("#figures .figure:has(dt:text-is('On the CPU'))")
    assert head.split("\n") == ["On the CPU", "0", "elsewhere in the script: aten::linalg_inv_ex"]
    text = opened.page.inner_text("#graphs")
    assert "Nothing of this call ran on the CPU" in text
    assert "aten::linalg_inv_ex" in text.split("On the CPU elsewhere in the script")[1]


def test_every_step_is_on_the_roofline_and_none_above_it(shown):
    opened = shown(SMALL, address="#view=roofline")
    hits = opened.page.evaluate(
        "explainPage.views.roofline.hits.map(({x, y, point}) => [x, y, point.macs / point.time])"
    )
    assert len(hits) == len(LAYER.steps) + len(SMALL.kernels[1].steps)
    assert all(0 < x < 1000 and 0 < y < 600 for x, y, _ in hits)
    assert max(rate for *_, rate in hits) <= SMALL.card.macs_per_ns


def test_rates_are_marked_at_round_numbers(shown):
    opened = shown(SMALL, address="#view=roofline")
    opened.page.evaluate(
        """() => {
          const { surface } = explainPage.views.roofline;
          window.texts = [];
          surface.label = (text) => window.texts.push(text);
          surface.invalidate();
        }"""
    )
    opened.settle()
    texts = opened.page.evaluate("texts")
    after = texts.index("modelled time of all launches") + 1
    assert texts[after : after + 4] == ["0", "50", "100", "150"]


def test_the_graph_of_a_kernel_begins_with_its_first_step_in_the_middle(shown):
    page = shown(SMALL, address="#view=operations").page
    top, bottom, height = page.evaluate(
        """() => {
          const { graph, view, surface } = explainPage.views.operations;
          const [first] = graph.nodes;
          const shown = (y) => (y - view.y) * view.scale;
          return [shown(first.y), shown(first.y + first.height), surface.height];
        }"""
    )
    assert (top + bottom) / 2 == pytest.approx(height / 2)


EVIL = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"


def made_evil(explanation: Explanation) -> Explanation:
    """Every text that a model may bring along, as bad as it can be."""
    source = Source(EVIL, 1, EVIL, EVIL, EVIL, EVIL)
    replace = msgspec.structs.replace
    kernels = tuple(
        replace(
            kernel,
            name=EVIL,
            mlir=EVIL,
            steps=tuple(
                replace(step, op=EVIL, source=source, spec=EVIL, sdsc=EVIL, loop_ir=EVIL, why=EVIL)
                for step in kernel.steps
            ),
            buffers=tuple(replace(buffer, name=EVIL, why_not_lx=EVIL) for buffer in kernel.buffers),
        )
        for kernel in explanation.kernels
    )
    return replace(
        explanation,
        title=EVIL,
        inputs=(EVIL,),
        environment={EVIL: EVIL},
        fallbacks={EVIL: 1},
        kernels=kernels,
        breaks=tuple(replace(found, reason=EVIL, source=source) for found in explanation.breaks),
        graphs=tuple(
            replace(graph, name=EVIL, why=EVIL, fx=EVIL, captured={EVIL: 1}, source=source)
            for graph in explanation.graphs
        ),
        launches=tuple(replace(launch, name=EVIL) for launch in explanation.launches),
    )


def test_text_of_a_model_is_shown_as_text_and_never_run(shown):
    opened = shown(made_evil(SMALL), "#launch=1&step=5")
    page = opened.page
    for button in ("Loops", "OpSpec", "SuperDSC", "Bundle"):
        page.click(f".program-texts button:text-is('{button}')")
        assert page.inner_text(".program") == EVIL
    for view in VIEWS:
        page.click(f"#tab-{view}")
        opened.settle()
    page.click("details.graph summary >> nth=0")
    page.fill("#search", "hacked")
    page.hover("#timeline-canvas", position={"x": 500, "y": 120})
    opened.settle()
    assert page.inner_text("#title") == EVIL and page.inner_text("#details h2") == EVIL
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0


def test_an_explanation_of_nothing_has_every_view(shown):
    opened = shown(empty())
    for view in VIEWS:
        opened.page.click(f"#tab-{view}")
        opened.settle()


def test_forty_layers_are_as_light_as_three(shown):
    few, many = shown(SMALL), shown(explanations.decoder(40))
    for view in VIEWS:
        for opened in (few, many):
            opened.page.click(f"#tab-{view}")
            opened.page.fill("#search", "mul")
            opened.settle()
        assert many.nodes() < few.nodes() + 200 < 1500, view
    many.page.click("#tab-time")
    many.page.select_option("#grouping", "op")
    many.page.keyboard.press("Escape")
    many.page.click("#time-rows .group >> nth=0")  # 280 products
    assert many.nodes() < 1500


@pytest.mark.parametrize("layers", [40, 400])
def test_a_frame_costs_what_the_screen_has_not_what_the_model_has(shown, layers):
    opened = shown(explanations.decoder(layers))
    marks, width = opened.page.evaluate(
        "[explainPage.timeline.surface.marks, explainPage.timeline.surface.width]"
    )
    # Two marks at most per pixel and row: seven rows, and the line of the whole call.
    assert marks < 16 * width
    assert opened.page.evaluate("explainPage.model.ops.length") > 30 * layers
