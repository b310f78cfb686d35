"""The page of an explanation in a real browser: what people can do there."""

from __future__ import annotations

import json
from collections import defaultdict

import msgspec
import pytest

from tests.tools import explanations
from tests.tools.browser import Opened
from tests.tools.explanations import place_of
from torch_spyre.tools.explain.document import Source, Step

SMALL = explanations.small()
LAYER = SMALL.kernels[0]
VIEWS = ("scratchpad", "operations", "roofline", "time", "graphs")


def check_details(opened: Opened, step: Step) -> None:
    """The panel shows a step at all its levels."""
    page = opened.page
    text = page.inner_text("#details")
    assert step.source.code in text.replace("\n", "")
    assert f"{step.source.file}:{step.source.line}" in text
    for button, expected in (("Loops", step.loop_ir), ("OpSpec", step.spec)):
        page.click(f".program-texts button:text-is('{button}')")
        assert page.inner_text(".program").strip() == expected.strip()
    page.click(".program-texts button:text-is('SuperDSC')")
    assert json.loads(page.inner_text(".program")) == json.loads(step.sdsc)


def test_a_click_on_a_step_shows_its_line_its_spec_and_its_json(shown):
    opened = shown(SMALL)
    place = place_of(LAYER, "batchmatmul", "gate")
    opened.click_step(2, place)
    assert opened.page.inner_text("#details h2") == "batchmatmul"
    assert "model.layers.1.mlp.gate_proj" in opened.page.inner_text("#details")
    check_details(opened, LAYER.steps[place])


def test_all_levels_are_shown_side_by_side(shown):
    opened = shown(SMALL, address="#launch=1&step=9")
    opened.page.click("#side-by-side")
    assert opened.page.locator("#compare h3").all_inner_texts() == [
        "Python",
        "Loops",
        "OpSpec",
        "SuperDSC",
    ]
    assert LAYER.steps[9].spec in opened.page.inner_text("#compare")
    opened.page.keyboard.press("Escape")
    assert not opened.page.is_visible("#compare")


def test_a_copy_of_the_compiler_says_why_it_is_there(shown):
    opened = shown(SMALL, address=f"#launch=1&step={place_of(LAYER, 'restickify')}")
    text = opened.page.inner_text("#details .callout")
    assert LAYER.steps[place_of(LAYER, "restickify")].why in text


@pytest.mark.parametrize("view", ["scratchpad", "operations", "roofline"])
def test_a_click_in_any_view_selects(shown, view):
    opened = shown(SMALL, address=f"#view={view}")
    place = place_of(LAYER, "silu")
    x, y = opened.page.evaluate(
        """([view, place]) => {
          const shown = explainPage.views[view];
          const box = shown.surface.canvas.getBoundingClientRect();
          const at = {
            scratchpad: () => [64 + (shown.surface.width - 74) * (place + 0.5) / shown.axis.length,
                               shown.surface.height - 30 - (shown.surface.height - 38)
                                 * (shown.kernel.lx_bytes - 999) / shown.top],
            operations: () => {
              const node = shown.graph.nodes[place];
              [shown.view.x, shown.view.y] = [node.x - 100, node.y - 100];
              return [120 * shown.view.scale, 120 * shown.view.scale];
            },
            roofline: () => {
              const hit = shown.hits.find(({ point }) => point.place === place);
              return [hit.x, hit.y];
            },
          }[view]();
          return [box.left + at[0], box.top + at[1]];
        }""",
        [view, place],
    )
    opened.page.mouse.click(x, y)
    opened.settle()
    assert opened.page.inner_text("#details h2") == "silu"


def occurrences(matches) -> int:
    """Steps of launches that a search should find."""
    launched = [
        (step, layer)
        for launch in SMALL.launches
        if launch.call and (call := SMALL.graphs[launch.call[0]].calls[launch.call[1]])
        for step, layer in zip(SMALL.kernels[call.kernel].steps, call.layers, strict=True)
    ]
    return sum(1 for step, layer in launched if matches(step, layer))


@pytest.mark.parametrize(
    ("query", "matches"),
    [
        ("restickify", lambda step, _: step.op == "restickify"),
        ("ATEN.SILU", lambda step, _: step.op == "silu"),
        ("layers.2.self_attn.q_proj", lambda _, layer: layer.endswith("2.self_attn.q_proj")),
        ("modeling.py:164", lambda step, _: step.source.line == 164),
        ("rotate_half k_embed", lambda step, _: step.source.line == 98),
        ("ksticks", lambda step, _: "ksticks" in step.loop_ir),
    ],
)
def test_search_finds_by_operation_layer_line_and_tensor(shown, query, matches):
    opened = shown(SMALL)
    opened.page.fill("#search", query)
    count = occurrences(matches)
    assert count > 0
    assert opened.page.inner_text("#result-count").split()[0] == str(count)


def test_an_operation_is_not_found_by_another_that_its_kernel_is_named_after(shown):
    kernels = [msgspec.structs.replace(LAYER, name="spyre_mm_gelu_0"), *SMALL.kernels[1:]]
    opened = shown(msgspec.structs.replace(SMALL, kernels=tuple(kernels)))
    opened.page.fill("#search", "gelu")
    assert opened.page.inner_text("#result-count").split()[0] == "0"
    opened.page.fill("#search", "spyre_mm_gelu_0")  # a kernel is found by its full name
    count = occurrences(lambda step, _: step in LAYER.steps)
    assert opened.page.inner_text("#result-count").split()[0] == str(count)


def test_an_eager_operation_of_a_graph_has_its_line_its_cores_and_its_units(shown):
    source = Source("granite/modeling.py", 402, "forward", "torch.sort(logits)", layer="lm_head")
    graph, place = SMALL.graphs[1], 1
    assert graph.calls[place].what == "aten.sort"
    calls = list(graph.calls)
    calls[place] = msgspec.structs.replace(calls[place], source=source)
    graphs = SMALL.graphs[0], msgspec.structs.replace(graph, calls=tuple(calls))
    launches = [
        msgspec.structs.replace(launch, name="aten::sort", call=(1, place))
        if launch.kind == "kernel" and launch.call is None
        else launch
        for launch in SMALL.launches
    ]
    (number,) = [i for i, launch in enumerate(launches) if launch.name == "aten::sort"]
    opened = shown(msgspec.structs.replace(SMALL, graphs=graphs, launches=tuple(launches)))
    page = opened.page
    band = "explainPage.timeline.bands.find((band) => band.kind === 'cores')"
    assert "aten::sort" in page.evaluate(f"{band}.items.map((op) => op.name)")
    page.evaluate(f"explainPage.selectLaunch(explainPage.model.launches[{number}])")
    opened.settle()
    text = page.inner_text("#details")
    assert "torch.sort(logits)" in text and "modeling.py:402" in text
    assert "16 of 32" in text and "bound by LPDDR5" in text
    assert page.inner_text("#details .units .bounding").startswith("LPDDR5")
    page.fill("#search", "torch.sort")
    assert page.inner_text("#result-count").split()[0] == "1"


def test_enter_jumps_to_what_was_found(shown):
    opened = shown(SMALL)
    page = opened.page
    page.keyboard.press("/")
    page.keyboard.type("silu")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    opened.settle()
    assert page.inner_text("#details h2") == "silu"
    assert "model.layers.1.mlp" in page.inner_text("#details")
    place = place_of(LAYER, "silu")
    assert page.evaluate("location.hash") == f"#launch=2&step={place}"
    start, end = opened.sight()
    launch = SMALL.launches[2]
    assert start <= launch.start + LAYER.steps[place].start <= end


def test_a_kernel_that_was_not_launched_is_found_and_says_so(shown):
    opened = shown(SMALL)
    opened.page.fill("#search", "x.exp()")
    opened.page.keyboard.press("Enter")
    assert "not launched" in opened.page.inner_text("#details")
    assert opened.page.evaluate("location.hash") == "#call=1.0&step=0"
    opened.go("#call=1.0&step=0")
    assert opened.page.inner_text("#details h2") == "exp"


def names(opened: Opened) -> list[str]:
    cells = opened.page.locator("#time-rows [role=row] .name").all_inner_texts()
    return [cell.replace("▸", "").replace("▾", "").strip() for cell in cells]


def test_the_table_of_times_sorts_by_every_column(shown):
    opened = shown(SMALL, address="#view=time")
    page = opened.page
    page.select_option("#grouping", "op")
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for kernel, times in ((LAYER, 3), (SMALL.kernels[1], 1)):
        for step in kernel.steps:
            for column, value in enumerate((step.duration, 1, step.macs)):
                totals[step.op][column] += value * times
    for column, key in enumerate(("time", "count", "macs")):
        page.click(f"#time-head [data-key={key}] button")
        down = page.get_attribute(f"#time-head [data-key={key}]", "aria-sort") == "descending"
        shown_names = [name for name in names(opened) if name in totals]
        assert len(shown_names) == len(totals)
        values = [totals[name][column] for name in shown_names]
        assert values == sorted(values, reverse=down)
    page.click("#time-head [data-key=name] button")
    assert names(opened) == sorted(names(opened), key=str.lower)


@pytest.mark.parametrize("width", [1600, 1280, 900])
def test_the_columns_of_the_table_of_times_stay_under_their_names(shown, width):
    page = shown(SMALL, address="#view=time").page
    page.set_viewport_size({"width": width, "height": 800})
    page.evaluate("document.querySelector('.time-table').scrollLeft = 1e6")
    name, figure, frame = page.evaluate(
        """() => ["#time-head > :last-child", ".time-row > :last-child", ".time-table"].map(
          (selector) => document.querySelector(selector).getBoundingClientRect().right)"""
    )
    assert name == figure < frame
    if width >= 1280:  # nothing has to be moved into sight
        assert page.evaluate("document.querySelector('.time-table').scrollLeft") == 0


def test_a_group_of_the_table_opens_into_its_operations(shown):
    opened = shown(SMALL, address="#view=time")
    page = opened.page
    page.click("#time-rows .group:has-text('model.layers.1')")
    assert page.get_attribute("#time-rows .group:has-text('model.layers.1')", "aria-expanded")
    page.click("#time-rows .time-row:has(.child) >> nth=0")
    opened.settle()
    longest = max(LAYER.steps, key=lambda step: step.duration)
    assert page.inner_text("#details h2") == longest.op
    assert "model.layers.1" in page.inner_text("#details .where")


def test_the_address_names_what_is_selected_and_leads_there(shown):
    opened = shown(SMALL, address="#launch=3&step=2&view=time")
    page = opened.page
    assert "model.layers.2" in page.inner_text("#details")
    assert page.is_visible("#view-time") and not page.is_visible("#view-scratchpad")
    page.keyboard.press("]")
    assert page.evaluate("location.hash") == "#launch=3&step=3&view=time"
    page.go_back()
    opened.settle()
    assert page.inner_text("#details h2") == LAYER.steps[2].op
    page.keyboard.press("Escape")
    assert "Where the time goes" in page.inner_text("#details")


@pytest.mark.parametrize(
    "address", ["#launch=99", "#launch=1&step=x", "#call=7", "#view=no&%%", "#a"]
)
def test_an_address_of_another_page_shows_the_summary_or_the_launch(shown, address):
    assert shown(SMALL, address=address).page.inner_text("#details h2")


def test_the_views_can_be_reached_with_the_keyboard_alone(shown):
    opened = shown(SMALL)
    page = opened.page
    page.focus("#tab-scratchpad")
    seen = []
    for _ in VIEWS:
        page.keyboard.press("ArrowRight")
        seen.append(page.evaluate("document.activeElement.dataset.view"))
        assert page.is_visible(f"#view-{seen[-1]}")
    assert sorted(seen) == sorted(VIEWS)
    for canvas in page.locator("canvas").all():
        assert canvas.get_attribute("aria-label") and canvas.get_attribute("tabindex") == "0"


def test_dark_and_light_are_different_pictures(shown):
    opened = shown(SMALL, color_scheme="dark")
    dark = opened.page.evaluate("explainPage.colours.named.surface")
    assert set(opened.colours("timeline-canvas")) >= {"LPDDR5", "SFP"}
    opened.page.click("#scheme")
    opened.settle()
    assert opened.page.evaluate("explainPage.colours.named.surface") != dark
    assert set(opened.colours("timeline-canvas")) >= {"LPDDR5", "SFP"}
