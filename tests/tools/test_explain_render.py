"""The HTML of an explanation is one file that is complete in itself."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from tests.tools import explanations
from torch_spyre.tools.explain import page
from torch_spyre.tools.explain.document import Explanation, decode, encode
from torch_spyre.tools.explain.page import render

ASSETS = Path(page.__file__).parent / "assets"
ROOT = Path(__file__).parents[2]


class Embedded(HTMLParser):
    """What a browser would take for the document's data, and every element with its attributes."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.data = ""
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][1].get("id") == "explanation":
            self.data += data if not self.data else ""


@pytest.mark.parametrize("made", [explanations.small, explanations.decoder])
def test_the_file_holds_the_whole_explanation(made):
    assert decode(Embedded(render(made())).data) == made()


def test_text_of_a_model_can_not_end_the_data_that_it_is_in():
    evil = "</script><script>alert(1)</script><!-- {{style}} \\u003c & \u2028 ]]>"
    explanation = msgspec.structs.replace(explanations.small(), title=evil, inputs=(evil,))
    html = render(explanation)
    assert decode(Embedded(html).data) == explanation
    assert [tag for tag, _ in Embedded(html).elements].count("script") == 2
    assert html.count("<title>") == 1 and "&lt;/script&gt;" in html


def test_nothing_in_the_file_is_fetched_from_elsewhere():
    html = render(explanations.small())
    loading = {"src", "href", "srcset", "data", "action", "poster", "background"}
    for tag, attributes in Embedded(html).elements:
        assert not loading & attributes.keys(), f"<{tag}> has {attributes}"
        assert tag not in {"link", "iframe", "object", "embed", "img"}
    assert not re.search(r"https?://|@import|\burl\(|\bimport\b *[({]|\bfetch\(", html)
    assert "default-src 'none'" in html  # and the browser is told so


def test_the_same_explanation_gives_the_same_bytes():
    explanation = explanations.small()
    assert render(explanation) == render(decode(encode(explanation))) == render(explanation)


def test_every_asset_is_in_the_file_and_in_the_wheel():
    found = {path.name for path in ASSETS.iterdir()}
    assert found == {*page.STYLES, *page.SCRIPTS, "page.html"}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["torch_spyre.tools.explain"]
    for name in found:
        assert any(fnmatch(f"assets/{name}", pattern) for pattern in patterns)


def test_every_part_of_the_page_is_small_enough_to_read():
    for path in ASSETS.iterdir():
        assert len(path.read_text().splitlines()) < 400, path.name


def empty() -> Explanation:
    return msgspec.structs.replace(
        explanations.small(),
        graphs=(),
        breaks=(),
        fallbacks={},
        kernels=(),
        launches=(),
        duration=0,
    )


def test_an_explanation_of_nothing_is_a_page_too():
    assert decode(Embedded(render(empty())).data) == empty()
