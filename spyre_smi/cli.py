"""The commands `spyre-smi` and `aiu-smi`.

Exit codes: 0, all went well; 2, what was asked for can't be done.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from itertools import islice

from spyre_smi import display
from spyre_smi.samples import Sample, samples

DONE, UNUSABLE = 0, 2
TABLE_WINDOW, DMON_DELAY = 0.25, 1.0  # seconds
LONGEST_DELAY = 3600.0

DESCRIPTION = """\
What the Spyre cards of this machine are doing: a table of the cards that are open and the processes
that opened them. With `dmon`, a line per card again and again, until ctrl-C."""
EPILOG = """\
Utilisation, bandwidth, power and clock are modelled. Processes with SPYRE_MONITOR=0 are not seen,
those of other users only by root. Exit codes: 0, all went well; 2, what was asked can't be done."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.count is not None and options.mode != "dmon":
        parser.error("-c counts the samples of dmon")
    if sys.stdout is None:
        return _refuse("can't print: standard output is closed")
    try:
        return _dmon(options) if options.mode == "dmon" else _table(options)
    except _NoCardsError as error:
        return _refuse(f"can't look for cards: {error}")
    except BrokenPipeError:  # `spyre-smi dmon | head` has seen enough
        _print_no_more()
        return DONE
    except KeyboardInterrupt:  # how people end dmon
        return DONE
    except OSError as error:
        _print_no_more()
        return _refuse(f"can't print: {error.strerror}")


class _NoCardsError(Exception):
    """The place where processes publish can't be read."""


def _print_no_more() -> None:
    """What is left in the buffer must not fail once more when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_name(),
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"{_name()} (torch-spyre) {metadata.version('torch-spyre')}"
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("mode", nargs="?", choices=["dmon"], help="sample again and again")
    parser.add_argument(
        "-d",
        "--delay",
        type=_seconds,
        metavar="SECONDS",
        help=f"how long a sample looks (default {TABLE_WINDOW:g}, with dmon {DMON_DELAY:g})",
    )
    parser.add_argument(
        "-c", "--count", type=_positive, metavar="N", help="dmon: end after N samples"
    )
    parser.add_argument(
        "-i", "--card", type=int, action="append", metavar="N", help="only this card"
    )
    parser.add_argument(
        "-p", "--pid", type=int, action="append", metavar="PID", help="only this process"
    )
    parser.add_argument("--json", action="store_true", help="a JSON document (dmon: one per line)")
    return parser


def _name() -> str:
    """As whom it was called; `python -m spyre_smi` is spyre-smi."""
    called = os.path.basename(sys.argv[0])
    return called if called == "aiu-smi" else "spyre-smi"


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.01 <= (value := float(text)) <= LONGEST_DELAY:
            return value
    raise argparse.ArgumentTypeError(f"{text} is not from 0.01 to {LONGEST_DELAY:g} seconds")


def _positive(text: str) -> int:
    with contextlib.suppress(ValueError):
        if (value := int(text)) >= 1:
            return value
    raise argparse.ArgumentTypeError(f"{text} is not a number of samples: at least 1")


def _taken(options: argparse.Namespace, delay: float) -> Iterator[Sample]:
    """Samples; what goes wrong while they are taken is told from what goes wrong with printing."""
    try:
        yield from samples(options.delay or delay, options.card or (), options.pid or ())
    except OSError as error:
        raise _NoCardsError(error) from None


def _table(options: argparse.Namespace) -> int:
    sample = next(_taken(options, TABLE_WINDOW))
    if not sample.rows and (options.card or options.pid):
        return _refuse("no process with a Spyre card open fits --card and --pid")
    if options.json:
        print(json.dumps(sample.document(), indent=2))
    else:
        display.print_table(sample)
    sys.stdout.flush()
    return DONE


def _dmon(options: argparse.Namespace) -> int:
    print_sample = _print_json_line if options.json else display.Lines().show
    for sample in islice(_taken(options, DMON_DELAY), options.count):
        print_sample(sample)
    return DONE


def _print_json_line(sample: Sample) -> None:
    print(json.dumps(sample.document()), flush=True)


def _refuse(problem: str) -> int:
    print(f"{_name()}: {problem}", file=sys.stderr)
    return UNUSABLE
