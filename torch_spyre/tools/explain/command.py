"""The command `spyre explain`."""

from __future__ import annotations

import argparse
import codecs
import errno
import io
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from torch_spyre.tools.output import is_terminal, write_out

if TYPE_CHECKING:
    from .document import Explanation

PASSED, UNUSABLE = 0, 2
_START_BYTES = 512
_NO_SCRIPTS = {
    b"<": "a page (HTML)",
    b"{": "JSON under another name",
    b"\x1f\x8b": "packed (gzip)",
    b"PK\x03\x04": "packed (zip)",
    b"\x7fELF": "a binary (ELF)",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The arguments of `spyre explain`."""
    parser.add_argument(
        "file", type=Path, help="a script that calls torch.compile, or an explanation (.json)"
    )
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        help="of the script: all but the options here; behind --, those too",
    )
    _add_own_options(parser)


def _add_own_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the page there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the document there")
    parser.add_argument(
        "--call",
        type=int,
        metavar="N",
        help="explain the Nth call of a compiled function, from 1 (default: the last)",
    )
    parser.add_argument(
        "--rows", type=int, default=8, metavar="N", help="of each table; 0: all (default 8)"
    )
    parser.add_argument("--quiet", action="store_true", help="print no summary")


def explain_file(options: argparse.Namespace) -> int:
    """`spyre explain`: one line and exit code 2 for what can't be explained.

    A script that raises shows its own traceback before that.
    """
    try:
        _take_own_options(options)
        _check_targets(options)
        found = _explanation(options)
        _write(options, found)
        if not options.quiet:
            _print(found, options.rows or None)
    except _UnusableError as error:
        print(f"spyre explain: {error}", file=sys.stderr)
        return UNUSABLE
    return PASSED


class _UnusableError(Exception):
    """What was asked for can't be done."""


def _take_own_options(options: argparse.Namespace) -> None:
    """Options of ours may stand behind the script as well; what is left is the script's."""
    given = options.arguments
    end = given.index("--") if "--" in given else len(given)
    own = argparse.ArgumentParser("spyre explain", add_help=False, allow_abbrev=False)
    _add_own_options(own)
    for action in own._actions:  # what stood in front stays, unless it is given again
        action.default = argparse.SUPPRESS
    _, rest = own.parse_known_args(given[:end], options)
    options.arguments = [*rest, *given[end + 1 :]]


def _check_targets(options: argparse.Namespace) -> None:
    """A script may run for long: where nothing can be written is said before."""
    try:
        if not options.quiet:
            is_terminal()
    except OSError as error:
        raise _UnusableError(f"can't print: {error.strerror}") from None
    for target in filter(None, (options.html, options.json)):
        if problem := _why_unwritable(target):
            raise _UnusableError(f"{target}: {os.strerror(problem)}")


def _why_unwritable(target: Path) -> int:
    if target.is_dir():
        return errno.EISDIR
    if not target.parent.is_dir():
        return errno.ENOENT
    place = target if target.exists() else target.parent
    return 0 if os.access(place, os.W_OK) else errno.EACCES


def _explanation(options: argparse.Namespace) -> Explanation:
    path: Path = options.file
    if options.rows < 0:
        raise _UnusableError(f"--rows {options.rows}: at least 0")
    if options.call is not None and options.call < 1:
        raise _UnusableError(f"--call {options.call}: calls are counted from 1")
    try:
        with path.open("rb") as file:
            start = file.read(_START_BYTES)
    except OSError as error:
        raise _UnusableError(f"{path}: {error.strerror}") from None
    if path.suffix != ".json":
        _check_is_script(path, start)
        return _run(options)
    if options.arguments:
        raise _UnusableError(f"{path} is no script: it takes no {' '.join(options.arguments)}")
    return _read(path)


def _check_is_script(path: Path, start: bytes) -> None:
    """Files of other kinds are easily mistaken for one: they are told by how they begin."""
    text = start.removeprefix(codecs.BOM_UTF8).lstrip()
    for sign, kind in _NO_SCRIPTS.items():
        if text.startswith(sign):
            raise _UnusableError(
                f"{path} is {kind}, no script: give a Python script, or a .json that was saved "
                "with --json"
            )


def _read(path: Path) -> Explanation:
    from .document import decode

    try:
        return decode(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _UnusableError(f"{path}: {error}") from None


def _run(options: argparse.Namespace) -> Explanation:
    from .collect import NothingToExplainError
    from .script import ScriptError, explain_script

    try:
        return explain_script(options.file, options.arguments, options.call)
    except (ScriptError, NothingToExplainError) as error:
        raise _UnusableError(str(error)) from None
    except Exception as error:
        _print_traceback(error, options.file)
        raise _UnusableError(f"{options.file} raised {type(error).__name__}") from None


def _print_traceback(error: Exception, script: Path) -> None:
    """The script's frames, without those that run it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(script):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


def _write(options: argparse.Namespace, found: Explanation) -> None:
    from .document import encode
    from .page import render

    try:
        if options.json:
            options.json.write_bytes(encode(found))
        if options.html:
            options.html.write_text(render(found), encoding="utf-8")
    except OSError as error:
        raise _UnusableError(f"{error.filename}: {error.strerror}") from None


def _print(found: Explanation, rows: int | None) -> None:
    from rich.console import Console

    from .text import WIDTH, render

    try:
        is_shown = is_terminal()
        shown = io.StringIO()
        width = None if is_shown else WIDTH
        console = Console(file=shown, force_terminal=is_shown, width=width, highlight=False)
        console.print(render(found, rows))
        write_out(shown.getvalue())
    except OSError as error:
        raise _UnusableError(f"can't print: {error.strerror}") from None
