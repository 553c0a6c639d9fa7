"""The examples run, on the host, and find what they say."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.processes import python

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
QUICKLY = ("-m", "tests.quick_command")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return python(*command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path})


@pytest.mark.usefixtures("toolchain", "session_cache")
def test_the_api_tunes_exports_and_multiplies() -> None:
    ended = run(*QUICKLY, "examples/api.py", "--device", "cpu", "--shapes", "128x4x64", "--trials", "1")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[-2].startswith("128x4x64:f32:ttt: ")
    assert lines[-1] == "128x4x64:f32:ttt: the largest error is 0"
    refused = run("examples/api.py", "--device", "cpu", "--shapes", "128x4")
    assert (refused.returncode, refused.stderr) == (1, "shape '128x4': expected MxNxK, such as 20480x16x20480\n")


@pytest.mark.usefixtures("toolchain", "session_cache")
def test_shortest_paths_are_those_of_scipy() -> None:
    pytest.importorskip("scipy", reason="SciPy is not installed: pip install scipy")
    ended = run(*QUICKLY, "examples/shortest_paths.py", "--device", "cpu", "--nodes", "36", "--trials", "1")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("all distances are equal\n")


@pytest.mark.parametrize("program", sorted((ROOT / "examples/programs").glob("*.py")), ids=lambda path: path.stem)
def test_a_program_without_its_library_says_what_to_install(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch", "cupy"):
        (tmp_path / f"{name}.py").write_text(f'raise ModuleNotFoundError("No module named {name!r}")\n')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ended = run(str(program))
    name, package = ("CuPy", "cupy") if "import cupy" in program.read_text() else ("PyTorch", "torch")
    said = f"this program needs {name} (No module named {package!r}): pip install {package}"
    assert (ended.returncode, ended.stderr.startswith(said), ended.stderr.count("\n")) == (1, True, 1)
