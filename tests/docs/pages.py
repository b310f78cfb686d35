"""The code in Markdown pages: finding it, and running a page from top to bottom.

Blocks that count, by the language after the fence:

| language | what happens |
|---|---|
| `python` | runs in the namespace of the page; its output stands in a block behind it |
| `python` with `>>>` | the same, compared line by line in the manner of doctest |
| `output` | what the Python block before it prints; `...` stands for anything |
| `output examples/x.py` | what that example prints |
| `console` | lines that start with `$ ` run in a shell, in order; the others are what they print |
| `shell` | is not run; see `test_examples.py` |

Run as a script it executes one page, in a fresh process: `python pages.py page.md`.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md")))

RUN = ("python", "console")  # languages that are executed

_FENCE = re.compile(r"(`{3,})(.*)")
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the number of its first line in the page."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    found: list[Block] = []
    lines: list[str] = []
    fence, language, start = "", "", 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        match = _FENCE.fullmatch(line.rstrip())
        if not fence and match:
            fence, language, start = match[1], match[2].strip(), number + 1
        elif fence and line.strip() == fence:
            found.append(Block(language, "\n".join(lines) + "\n", start))
            fence, lines = "", []
        elif fence:
            lines.append(line)
    assert not fence, f"{page}: the block that starts at line {start - 1} has no end"
    return found


def same_output(wanted: str, got: str) -> bool:
    """Are the two the same, up to white space and what `...` stands for?"""
    return doctest.OutputChecker().check_output(wanted, got, _OPTIONS)


def part_with_headline(printed: str, shown: str) -> str:
    """Of an example that prints headlines, the part that a block shows; else everything."""
    if not shown.startswith("== "):
        return printed
    parts = {part.splitlines()[0]: part for part in re.split(r"^(?=== )", printed, flags=re.M)[1:]}
    headline = shown.splitlines()[0]
    assert headline in parts, f"'{headline}' is none of {list(parts)}"
    return parts[headline]


class MismatchError(AssertionError):
    """A page does not show what its code does."""


def _run_session(page: Path, block: Block, namespace: dict[str, Any]) -> None:
    """A block of `>>>` lines and their output."""
    report = io.StringIO()
    test = doctest.DocTestParser().get_doctest(
        block.text, namespace, page.name, str(page), block.line - 1
    )
    runner = doctest.DocTestRunner(optionflags=_OPTIONS)
    runner.run(test, out=report.write, clear_globs=False)
    if runner.failures:
        raise MismatchError(report.getvalue())
    namespace.update(test.globs)


def _run_script(
    page: Path, block: Block, expected: Block | None, namespace: dict[str, Any]
) -> None:
    # Empty lines in front: tracebacks then name lines of the page.
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    wanted = expected.text if expected else ""
    if not same_output(wanted, printed.getvalue()):
        raise MismatchError(
            f"{page}, line {block.line}: the block prints\n{printed.getvalue()}\n"
            f"and the page shows\n{wanted}"
        )


def _run_console(page: Path, block: Block) -> None:
    """Commands and what they print, in a directory that has the examples."""
    if not Path("examples").exists():
        Path("examples").symlink_to(ROOT / "examples")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for entry in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, wanted = entry.partition("\n")
        done = subprocess.run(
            ["bash", "-c", command],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
        )
        if done.returncode or not same_output(wanted, done.stdout):
            raise MismatchError(
                f"{page}, line {block.line}: the command {command} ends with {done.returncode}, "
                f"prints\n{done.stdout}\nand the page shows\n{wanted}\n{done.stderr}"
            )


def run_page(page: Path) -> int:
    """Run the Python blocks of a page in order, in one namespace, and its commands; returns how
    many blocks there were."""
    namespace: dict[str, Any] = {"__name__": "page"}
    code = blocks(page)
    count = 0
    for block, after in zip(code, [*code[1:], None], strict=True):
        if block.language not in RUN:
            continue
        count += 1
        if block.language == "console":
            _run_console(page, block)
        elif block.text.lstrip().startswith(">>>"):
            _run_session(page, block, namespace)
        else:
            expected = after if after and after.language == "output" else None
            _run_script(page, block, expected, namespace)
    return count


if __name__ == "__main__":
    print(f"{run_page(Path(sys.argv[1]))} blocks")
