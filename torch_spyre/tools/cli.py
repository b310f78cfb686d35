"""The command `spyre`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch_spyre
from torch_spyre.tools.explain.command import add_options as add_explain_options
from torch_spyre.tools.explain.command import explain_file
from torch_spyre.tools.output import is_terminal
from torch_spyre.tools.trace import command as trace_command
from torch_spyre.tools.units import bytes_text, time_text

if TYPE_CHECKING:
    from rich.console import Console

    from torch_spyre.backend.cost import KernelCost
    from torch_spyre.backend.replay import Comparison, Replay, Run
    from torch_spyre.backend.spyrecode import StepInfo

PASSED, FAILED, UNUSABLE = 0, 1, 2
EXIT_CODES = "Exit codes: 0, all went well; 1, a check failed; 2, what was asked for can't be done."


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `spyre`."""
    parser = argparse.ArgumentParser(
        prog="spyre", description="Tools for the Spyre device.", epilog=EXIT_CODES
    )
    version = f"spyre (torch-spyre) {torch_spyre.__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="run one compiled kernel alone",
        description="Runs the kernel of a bundle directory (TORCH_COMPILE_DEBUG=1 writes them) "
        "on random or given inputs and prints what it costs on the card.",
        epilog=EXIT_CODES,
    )
    add_run_options(run)
    run.set_defaults(command=run_bundle)
    explain = commands.add_parser(
        "explain",
        help="what happened to the models of a script",
        description="Runs a script, and explains a call of what it compiles for Spyre: graphs and "
        "graph breaks, kernels, copies, scratchpads, modelled time. Or shows an explanation that "
        "was saved.",
        epilog=trace_command.EXIT_CODES,
    )
    add_explain_options(explain)
    explain.set_defaults(command=explain_file)
    trace = commands.add_parser(
        "trace",
        help="analyse a trace",
        description=trace_command.TRACE_DESCRIPTION,
        epilog=trace_command.EXIT_CODES,
    )
    trace_command.add_options(trace)
    trace.set_defaults(command=trace_command.analyse_file)
    options = parser.parse_args(arguments)
    return options.command(options)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """The arguments of `spyre run`."""
    parser.add_argument("directory", type=Path, help="with bundle.mlir and sdsc_<n>.json")
    parser.add_argument("--check", action="store_true", help="compare with the numpy reference")
    parser.add_argument(
        "--inputs", type=Path, metavar="FILE", help=".pt or .npz with arg0, arg1, … (else random)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (default 0)")
    parser.add_argument(
        "--extents", type=int, nargs="*", metavar="N", help="valid lengths (default: the largest)"
    )
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="launches, each from the same inputs"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=4.0,
        metavar="U",
        help="spacings of the number format that --check lets a float be off (default 4)",
    )


def run_bundle(options: argparse.Namespace) -> int:
    """`spyre run`: one message and exit code 2 for whatever can't be run."""
    from torch_spyre.backend.reference import UncheckableError
    from torch_spyre.backend.replay import ReplayError, first_line
    from torch_spyre.ir.superdsc import BundleError

    try:
        return _run(options)
    except BundleError as error:
        problem = f"{options.directory}/{error}"
    except (ReplayError, UncheckableError, RuntimeError, IndexError) as error:
        problem = str(error)
    except OSError as error:
        is_output = error.strerror and error.filename is None  # files that are read have names
        problem = f"can't print: {error.strerror}" if is_output else first_line(error)
    except ValueError as error:  # a setting that is none
        problem = first_line(error)
    print(f"spyre run: {problem}", file=sys.stderr)
    return UNUSABLE


def _run(options: argparse.Namespace) -> int:
    from rich.console import Console

    from torch_spyre.backend import replay as replays

    if options.repeat < 1:
        raise replays.ReplayError(f"--repeat {options.repeat}: at least 1")
    if options.seed < 0:
        raise replays.ReplayError(f"--seed {options.seed}: at least 0")
    replay = replays.Replay.read(options.directory)
    images = replays.random_images(replay, options.seed)
    if options.inputs:
        replays.put_inputs(replay, images, replays.read_inputs(options.inputs))
    largest = replay.bundle.extents
    extents = tuple(largest if options.extents is None else options.extents)
    if len(extents) != len(largest) or any(
        not 0 <= n <= most for n, most in zip(extents, largest, strict=True)
    ):
        raise replays.ReplayError(
            f"--extents {list(extents)}: the kernel takes {len(largest)}, at most {list(largest)}"
        )
    run = replays.run_on_card(replay, images, extents, options.repeat)
    console = Console(width=None if is_terminal() else 100, highlight=False)
    print_run(console, options.directory, replay, run)
    if not options.check:
        return PASSED
    reference = replays.run_reference(replay, images, extents)
    comparisons = replays.compare(replay, run, reference, options.tolerance)
    print_comparisons(console, comparisons)
    return FAILED if any(c.mismatches for c in comparisons) else PASSED


# ---- What people see ----------------------------------------------------------------------------


def print_run(console: Console, directory: Path, replay: Replay, run: Run) -> None:
    """Totals as they were counted, and a table of the steps as they are modelled."""
    from torch_spyre.backend.cost import program_cost

    arguments = replay.code.manifest.arguments
    console.print(f"{directory}: {len(arguments)} arguments, {len(replay.bundle.sdscs)} operations")
    for number, argument in enumerate(arguments):
        role = "written" if argument.is_written else "read"
        console.print(f"  arg{number}  {argument.format}, {bytes_text(argument.nbytes)}, {role}")
    if replay.bundle.pool_bytes:
        console.print(f"  pool  {bytes_text(replay.bundle.pool_bytes)}")
    console.print(
        f"{time_text(run.nanoseconds)} on the card, {bytes_text(run.bytes_read)} read, "
        f"{bytes_text(run.bytes_written)} written"
    )
    manifest = replay.code.manifest
    _print_steps(console, program_cost("", replay.code.program, manifest.steps), manifest.steps)


def _print_steps(console: Console, cost: KernelCost, infos: Sequence[StepInfo]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("step", "operation", "cores", "time", "read", "written", "bound by", "from"):
        is_text = name in ("operation", "bound by", "from")
        table.add_column(name, justify="left" if is_text else "right")
    for number, (info, step) in enumerate(zip(infos, cost.steps, strict=True)):
        times = f" ×{step.visits}" if step.visits > 1 else ""
        table.add_row(
            str(number),
            info.op + times,
            str(step.cores),
            time_text(round(step.microseconds * 1000)),
            bytes_text(step.bytes_read),
            bytes_text(step.bytes_written),
            step.bound,
            info.source or info.file,
        )
    console.print(table)


def print_comparisons(console: Console, comparisons: Sequence[Comparison]) -> None:
    """A line per written argument."""
    for found in comparisons:
        if found.mismatches:
            console.print(
                f"arg{found.argument}: {found.mismatches:,} of {found.elements:,} elements differ "
                f"from the reference; the first is {found.first}",
                soft_wrap=True,
            )
        else:
            console.print(
                f"arg{found.argument}: all {found.elements:,} elements agree with the reference "
                f"(off by {found.worst:.2g} spacings at most)"
            )


if __name__ == "__main__":
    sys.exit(main())
