"""The command: `spyre trace`, and `python -m torch_spyre.tools.trace`.

Exit codes: 0, all went well; 2, what was asked for can't be done.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from torch_spyre.tools.output import write_out

from . import page, table, text
from .analyse import Analysis
from .read import TraceError, read_trace

DONE, UNUSABLE = 0, 2
TRACE_DESCRIPTION = (
    "Analyses a trace that torch.profiler exported: how busy each card was, use of PT and LPDDR5, "
    "rooflines, time by kernel, operation, layer and stream, copies, and the host's gaps. "
    "Times on the card are modelled."
)
EXIT_CODES = "Exit codes: 0, all went well; 2, what was asked for can't be done."


def add_options(parser: argparse.ArgumentParser) -> None:
    """The arguments of `spyre trace`."""
    parser.add_argument("trace", type=Path, help="a file of export_chrome_trace, .json or .json.gz")
    parser.add_argument(
        "--format", choices=("text", "csv", "html"), default="text", help="default: text"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it there")
    parser.add_argument(
        "--by", choices=table.BY, help="one table only (CSV always is one: by kernel, unless given)"
    )
    parser.add_argument(
        "--top", type=_positive, metavar="N", help="rows per table (default: 10; CSV and HTML: all)"
    )
    parser.add_argument(
        "--depth", type=_positive, metavar="N", help="of layers: N parts of their names"
    )


def _positive(text: str) -> int:
    with contextlib.suppress(ValueError):
        if (number := int(text)) >= 1:
            return number
    raise argparse.ArgumentTypeError(f"{text} is not a number of at least 1")


def analyse_file(options: argparse.Namespace) -> int:
    """`spyre trace`: one line and exit code 2 for a file that can't be analysed."""
    try:
        shown = _shown(Analysis(read_trace(options.trace), options.depth), options)
        if options.output:
            _write(options.output, shown)
        else:
            _print(shown)
    except TraceError as error:
        print(f"spyre trace: {error}", file=sys.stderr)
        return UNUSABLE
    return DONE


def _shown(analysis: Analysis, options: argparse.Namespace) -> str:
    if options.format == "csv":
        found = table.group_table(analysis, options.by or "kernel")
        return table.csv_text(found._replace(rows=found.rows[: options.top]))
    if options.format == "html":
        return page.render(analysis, options.trace.name, options.by, options.top)
    return text.render(analysis, options.by, options.top or 10)


def _print(shown: str) -> None:
    try:
        write_out(shown)
    except OSError as error:
        raise TraceError(f"can't print: {error.strerror}") from None


def _write(path: Path, shown: str) -> None:
    try:
        path.write_text(shown, encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{path}: can't be written: {error.strerror}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `python -m torch_spyre.tools.trace`."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_spyre.tools.trace", description=TRACE_DESCRIPTION, epilog=EXIT_CODES
    )
    add_options(parser)
    return analyse_file(parser.parse_args(arguments))
