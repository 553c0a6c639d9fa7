"""The examples run, on the host, and find what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.host
@pytest.mark.usefixtures("toolchain", "session_cache")
def test_shortest_paths_are_those_of_scipy() -> None:
    pytest.importorskip("scipy", reason="SciPy is not installed: pip install scipy")
    command = [sys.executable, "examples/shortest_paths.py", "--device", "cpu", "--nodes", "36", "--trials", "1"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "36 crossings" in ended.stdout
    assert ended.stdout.endswith("all distances are equal\n")
