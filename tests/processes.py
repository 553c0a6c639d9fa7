"""Programs of Python in a process of their own, as tests start them and read their output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def python(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run this Python with the arguments, and capture its output; `options` are those of `subprocess.run`.

    Fail the test if the process takes longer than `timeout`.
    """
    command = [sys.executable, *map(str, arguments)]
    try:
        return subprocess.run(command, **{"capture_output": True, "text": True, "check": False, **options})
    except subprocess.TimeoutExpired as late:
        return pytest.fail(f"it took more than {late.timeout:g} s: {(late.stderr or b'').decode()}")


def succeed(module: str, *arguments: object, **options: Any) -> None:
    """Run a module of the tests, and assert that it succeeds."""
    done = python("-m", module, *arguments, cwd=ROOT, **options)
    assert done.returncode == 0, done.stdout + done.stderr
