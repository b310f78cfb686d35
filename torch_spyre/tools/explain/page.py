"""One HTML file of an explanation: it opens from disk and asks the network for nothing.

The parts lie in `assets`: a template, style sheets and scripts, which are joined here in an order
in which each uses only what is above it. Nothing is generated and nothing is minified, so "view
source" shows what is in the repository.
"""

from __future__ import annotations

import html
import re
from functools import cache
from importlib.resources import files

from torch_spyre.tools.explain.document import Explanation, encode

STYLES = ("colours.css", "page.css", "views.css")
SCRIPTS = (
    "format.js",
    "dom.js",
    "model.js",
    "colours.js",
    "canvas.js",
    "code.js",
    "timeline.js",
    "scratchpad.js",
    "flow_layout.js",
    "flow.js",
    "roofline.js",
    "table.js",
    "graphs.js",
    "summary.js",
    "details.js",
    "search.js",
    "header.js",
    "main.js",
)


def render(explanation: Explanation) -> str:
    """The page, as text: the same for the same explanation, byte for byte."""
    parts = {
        "title": html.escape(f"{explanation.title} on Spyre"),
        "style": "\n".join(map(_asset, STYLES)),
        "data": _json_for_script(explanation),
        "script": '(() => {\n"use strict";\n' + "\n".join(map(_asset, SCRIPTS)) + "})();",
    }
    # In one go: a part that happens to have "{{data}}" in it stays as it is.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def _json_for_script(explanation: Explanation) -> str:
    """JSON that can't end the script element it is in, whatever a model's source has in it.

    In JSON, `<` occurs only within strings, where it may as well be written as an escape.
    """
    return encode(explanation).decode().replace("<", r"\u003c").replace(">", r"\u003e")


@cache
def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")
