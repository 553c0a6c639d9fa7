"""The command as the tests call it."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from tests.processes import python
from tsm2_tune.cli import main

TUNE = ("--device", "cpu", "--shapes", "64x2x64", "--family", "tsm2", "--max-trials", "1")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def completed(*arguments: str) -> Result:
    """Run the command, which succeeds, and return its result."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


def said(*arguments: str) -> str:
    """Return what the command prints, which succeeds without a word on standard error."""
    found = run(*arguments)
    assert (found.exit_code, found.stderr) == (0, "")
    return found.stdout


def refused(*arguments: str, path: Path | None = None) -> str:
    """Return the one line in which the command refuses, asked of the database at the path, if one is given.

    The name of the device and a note that the machine is busy may come before it.
    """
    result = run(*arguments, *(() if path is None else ("--db", str(path))))
    lines = [one for one in result.output.splitlines(True) if not one.startswith(("device: ", "note: the load "))]
    assert (result.exit_code, len(lines)) == (2, 1), result.output
    assert len(lines[0]) < 700
    return lines[0]


def loaded_modules(statement: str) -> set[str]:
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    answer = python("-c", program, check=True)
    return set(answer.stdout.splitlines()[-1].split())
