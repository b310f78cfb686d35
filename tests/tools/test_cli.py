"""Commands explain themselves."""

from __future__ import annotations

import pytest

import torch_spyre
from torch_spyre.tools.cli import main


@pytest.mark.parametrize("command", ["", "run", "explain", "trace"])
def test_help_names_the_command(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: spyre {command}".rstrip())


@pytest.mark.parametrize("command", ["", "run", "explain", "trace"])
def test_help_names_the_exit_codes(command, capsys):
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    checks = "" if command in ("explain", "trace") else "1, a check failed; "
    assert printed.endswith(
        f"Exit codes: 0, all went well; {checks}2, what was asked for can't be done."
    )


def test_a_number_that_is_none_is_called_so(capsys):
    for given in ("x", "0"):
        with pytest.raises(SystemExit) as end:
            main(["trace", "trace.json", "--top", given])
        assert end.value.code == 2
        message = capsys.readouterr().err.splitlines()[-1]
        assert message.endswith(f"argument --top: {given} is not a number of at least 1")


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"spyre (torch-spyre) {torch_spyre.__version__}\n"


def test_spyre_lists_its_commands(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert all(f"\n    {command} " in printed for command in ("run", "explain", "trace"))
