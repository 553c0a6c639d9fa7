"""Install the distributions into fresh virtual environments, as a user does, and use what is installed.

python -m tests.installed dist

The wheel goes into one of each Python of VERSIONS that is on the machine, and starts. With the newest it also plans,
tunes on the host and exports a module, and the source distribution is installed too. No environment has more than
what a plain `pip install` brings, and none sees nvcc. Exits with 1 where something fails; a Python that is missing is
named. The source distribution may not be too large, and a tag of the commit has to be that of the version.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
MOST_BYTES = 3_000_000  # limit of the source distribution
LIMIT_SECONDS = 600.0  # for one command: pip may have to fetch dependencies
SHAPE = "32x2x32"
TUNE = ("--device", "cpu", "--shapes", SHAPE, "--family", "tsm2", "--max-trials", "1", "--no-pairs", "--wait")
USE = """
import sys, numpy, best_kernels
assert "tsm2_tune" not in sys.modules
a = numpy.arange(1024, dtype=numpy.float32).reshape(32, 32, order="F") % 7
b = numpy.ones((32, 2), dtype=numpy.float32, order="F")
assert (best_kernels.gemm(a, b) == a @ b).all()
"""


class Failed(Exception):
    """A command did not do what it should."""


def python(version: str) -> str | None:
    """An interpreter of this version: on PATH, or of pyenv, whose shims on PATH may stand for none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    own = sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
    for found in (shutil.which(f"python{version}"), *map(str, reversed(own))):
        if found and subprocess.run([found, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return found
    return None


def without_cuda(folder: Path) -> dict[str, str]:
    """An environment that has neither this source tree nor a CUDA toolkit in it, and caches of its own."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    paths = os.environ.get("PATH", os.defpath).split(os.pathsep)
    there = [path for path in paths if not os.path.exists(os.path.join(path, "nvcc"))]
    return {**kept, "PATH": os.pathsep.join(there), "XDG_CACHE_HOME": str(folder / "cache")}


class Environment:
    """A virtual environment with one distribution installed in it; `run` runs what it has."""

    def __init__(self, interpreter: str, distribution: Path, folder: Path) -> None:
        self._folder, self._variables = folder, without_cuda(folder)
        self._call(interpreter, "-m", "venv", "--without-pip", str(folder / "venv"))
        into = str(folder / "venv/bin/python")
        pip = (sys.executable, "-m", "pip", "--python", into, "install", "--quiet", "--no-compile")
        self._call(*pip, str(distribution), variables=dict(os.environ))

    def run(self, program: str, *arguments: str) -> str:
        """Run a program of the environment and return what it prints. Raise Failed if it fails."""
        return self._call(str(self._folder / "venv/bin" / program), *arguments)

    def _call(self, *command: str, variables: dict[str, str] | None = None) -> str:
        ended = subprocess.run(
            command, cwd=self._folder, env=variables or self._variables, capture_output=True, text=True, check=False,
            timeout=LIMIT_SECONDS,
        )  # fmt: skip
        if ended.returncode != 0:
            raise Failed(f"{' '.join(command)}: exit status {ended.returncode}\n{ended.stdout}{ended.stderr}")
        return ended.stdout


def starts(environment: Environment, version: str) -> None:
    """The command says which version it is, and the package has its types."""
    said = environment.run("tsm2-tune", "--version")
    if said.split()[-1] != version:
        raise Failed(f"--version says {said!r}, not {version}")


def works(environment: Environment) -> None:
    """The installed command plans for a card, tunes on the host, and exports a module that multiplies by itself."""
    planned = environment.run("tsm2-tune", "space", "--shapes", SHAPE, "--device", "h200")
    if SHAPE not in planned:
        raise Failed(f"space does not tell of {SHAPE}: {planned!r}")
    environment.run("tsm2-tune", *TUNE)
    environment.run("tsm2-tune", "export", "--format", "module", "--output", "best_kernels.py")
    environment.run("python", "-c", USE)


def tried(folder: Path, wheel: Path, source: Path) -> Iterator[str]:
    """A line for each installation. Failed where one does not work, or where there is no Python at all."""
    version = wheel.name.split("-")[1]
    if source.stat().st_size > MOST_BYTES:
        raise Failed(f"{source.name} has {source.stat().st_size} bytes, more than {MOST_BYTES}")
    tags = subprocess.run(["git", "tag", "--points-at"], capture_output=True, text=True, check=False).stdout.split()
    if tags and f"v{version}" not in tags:
        raise Failed(f"the version is {version}, and the commit's tag {', '.join(tags)}")
    there = {one: found for one in VERSIONS if (found := python(one)) is not None}
    if not there:
        raise Failed(f"no Python of {', '.join(VERSIONS)} found")
    for one, interpreter in there.items():
        environment = Environment(interpreter, wheel, made(folder / one))
        starts(environment, version)
        yield f"Python {one}: the wheel installs and starts"
    works(environment)
    yield f"Python {one}: the wheel plans, tunes on the host and exports"
    starts(Environment(interpreter, source, made(folder / "source")), version)
    yield f"Python {one}: the source distribution installs and starts"
    for one in VERSIONS:
        if one not in there:
            yield f"Python {one}: not on this machine, not tried"


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def main() -> None:
    """Try the one wheel and the one source distribution of the folder."""
    parser = argparse.ArgumentParser(description="install the distributions and use them")
    parser.add_argument("folder", type=Path, help="where a wheel and a source distribution are")
    folder = parser.parse_args().folder.absolute()
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            for line in tried(Path(scratch), wheel, source):
                print(line, flush=True)
    except Failed as failed:
        sys.exit(str(failed))


if __name__ == "__main__":
    main()
