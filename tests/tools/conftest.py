"""Shared by the tests of pages."""

from __future__ import annotations

import pytest

from tests.tools.browser import Opened, open_browser


@pytest.fixture(scope="module")  # its event loop must not run in tests of other modules
def browser():
    with open_browser() as browser:
        yield browser


@pytest.fixture
def shown(browser, tmp_path):
    """Opens an explanation; afterwards nothing may have gone wrong in it."""
    from torch_spyre.tools.explain.page import render

    opened: list[Opened] = []

    def show(explanation, address: str = "", **options: object) -> Opened:
        opened.append(Opened(browser, render(explanation), tmp_path, **options))
        opened[-1].go(address)
        return opened[-1]

    yield show
    for page in opened:
        assert page.errors == []
        assert {url.split("#")[0] for url in page.requests} <= {page.file.as_uri()}
        page.page.close()
