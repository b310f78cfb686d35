"""A real browser for pages: Debian's chromium without a window, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# What keeps a browser from asking the network for anything of its own.
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser with an empty profile; skips the test where there is none."""
    reason = "pip install torch-spyre[test]"
    driver = pytest.importorskip("playwright.sync_api", reason=reason)
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium: `make browser` as root on Debian, or install it by hand")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        yield browser
        browser.close()


class Opened:
    """A page in the browser, and everything it asked for or complained about."""

    def __init__(self, browser: Browser, html: str, folder: Path, **options: object) -> None:
        self.file = folder / "explanation.html"
        self.file.write_text(html, encoding="utf-8")
        self.requests: list[str] = []
        self.errors: list[str] = []
        viewport = {"width": 1400, "height": 900}
        self.page: Page = browser.new_page(viewport=viewport, **options)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def go(self, address: str = "") -> Page:
        """Loads the file and waits until it has drawn."""
        self.page.goto("about:blank")
        self.requests.clear()
        self.page.goto(self.file.as_uri() + address)
        self.settle()
        return self.page

    def settle(self) -> None:
        """Two frames: what was asked for is drawn, and what that asked for, too."""
        self.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def nodes(self) -> int:
        return self.page.evaluate("document.querySelectorAll('*').length")

    def sight(self) -> tuple[float, float]:
        """From when to when the timeline shows, in ns."""
        self.settle()
        start, end = self.page.evaluate(
            "[explainPage.timeline.axis.start, explainPage.timeline.axis.end]"
        )
        return start, end

    def click_step(self, launch: int, place: int) -> None:
        """Clicks on a step in the timeline, where the page says that it is."""
        x, y = self.page.evaluate(
            """([launch, place]) => {
              const { timeline, model } = explainPage;
              const op = model.ops[model.launches[launch].firstOp + place];
              const band = timeline.bands.find((band) => band.kind === "cores");
              const box = timeline.surface.canvas.getBoundingClientRect();
              return [box.left + timeline.axis.toPixel(op.start + op.duration / 2),
                      box.top + 48 + band.top + band.height - 3];
            }""",
            [launch, place],
        )
        self.page.mouse.click(x, y)
        self.settle()

    def colours(self, canvas: str, x: int = 0, y: int = 0, size: int = 0) -> dict[str, int]:
        """How many pixels of a canvas, or of a square in it, have a colour of which unit."""
        return self.page.evaluate(
            """([id, x, y, size]) => {
              const canvas = document.getElementById(id);
              const copy = document.createElement("canvas"); // reading would slow the page's own
              copy.width = size || canvas.width;
              copy.height = size || canvas.height;
              const context = copy.getContext("2d", { willReadFrequently: true });
              context.drawImage(canvas, -x, -y);
              const { data } = context.getImageData(0, 0, copy.width, copy.height);
              const units = {};
              for (const [unit, colour] of Object.entries(explainPage.colours.bounds))
                units[colour.match(/\\d+/g).slice(0, 3).join()] = unit;
              const counts = {};
              for (let i = 0; i < data.length; i += 4) {
                const unit = units[`${data[i]},${data[i + 1]},${data[i + 2]}`];
                if (unit) counts[unit] = (counts[unit] || 0) + 1;
              }
              return counts;
            }""",
            [canvas, x, y, size],
        )
