"""The command as the tests call it."""

from __future__ import annotations

from click.testing import CliRunner, Result

from tsm2_tune.cli import main

TUNE = ("--device", "cpu", "--shapes", "64x2x64", "--family", "tsm2", "--max-trials", "1")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))
