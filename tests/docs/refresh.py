"""Puts what the examples print now into the pages that show it: `python -m tests.docs.refresh`.

For changes that are meant. Blocks with parts left out (`...`) are not touched. Read the difference
before you commit it: the text around a block may have to change, too.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.docs.fresh import Server
from tests.docs.pages import PAGES, ROOT, blocks, part_with_headline, same_output


def refresh(page: Path, server: Server, printed: dict[str, str]) -> int:
    """Bring one page up to date; returns how many of its blocks were not."""
    text = page.read_text()
    count = 0
    for block in blocks(page):
        language, *names = block.language.split()
        if language != "output" or not names or "..." in block.text:
            continue
        (name,) = names
        if name not in printed:
            with tempfile.TemporaryDirectory() as folder:
                printed[name] = server.run(ROOT / name, cwd=Path(folder)).stdout
        now = part_with_headline(printed[name], block.text).strip() + "\n"
        if not same_output(block.text, now):
            text = text.replace(block.text, now)
            count += 1
    page.write_text(text)
    return count


def main() -> None:
    """All pages."""
    server = Server()
    printed: dict[str, str] = {}
    for page in PAGES:
        if count := refresh(page, server, printed):
            print(f"{page.relative_to(ROOT)}: {count} changed")
    server.close()


if __name__ == "__main__":
    main()
