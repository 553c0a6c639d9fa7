"""Compilers that are shell scripts, to fail as real ones do."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from tsm2_tune.generator.source import code
from tsm2_tune.tuner.compile.compiler import Toolchain, cache_folder, compile_text
from tsm2_tune.tuner.results.trial import Binary, CompileFailure

# Head of each script: `output` is the file to write, `$calls` has a line for each call.
HEAD = """#!/bin/sh
calls={calls}
echo $$ >> $calls
while [ "$1" != -o ]; do shift; done
output=$2
"""
# An nvcc that tells its version; what else it is called with is in the file `log`.
NVCC = """#!/bin/sh
if [ "$1" = --version ]; then echo 'Cuda compilation tools, release 13.0, V13.0.48'; exit; fi
echo "$@" >> {log}
while [ "$1" != -o ]; do shift; done
{compiles}
"""
WRITES = "printf '\\177ELF' > \"$2\""
WRITE = "printf '\\177ELF of a kind' > $output\n"


def fake(folder: Path, script: str) -> Toolchain:
    """A toolchain whose compiler is the script."""
    compiler = folder / "fake-compiler"
    compiler.write_text(HEAD.format(calls=folder / "calls") + script)
    compiler.chmod(0o755)
    return Toolchain(str(compiler), "1", (), source_suffix=".cu", suffix=".cubin", extra_digest=script)


def calls(folder: Path) -> list[int]:
    """The process of each call."""
    return [int(line) for line in (folder / "calls").read_text().split()]


def compiled(toolchain: Toolchain, text: str = "", limit_seconds: float = 60.0) -> Binary | CompileFailure:
    return compile_text(text, kernel="k", defines=(), toolchain=toolchain, limit_seconds=limit_seconds)


def is_gone(process: int) -> bool:
    """Return whether the process ends within 10 seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":  # a zombie, because its parent is slow
            return True
        time.sleep(0.002)
    return False


def mode(path: Path) -> int:
    return os.lstat(path).st_mode & 0o7777


def fake_toolkit(folder: Path, binary: bytes) -> Path:
    """Return a CUDA toolkit in this folder, whose nvcc writes this binary whatever it compiles."""
    nvcc, made = folder / "bin" / "nvcc", folder / "made"
    nvcc.parent.mkdir(parents=True, exist_ok=True)
    made.write_bytes(binary)
    nvcc.write_text(NVCC.format(log="/dev/null", compiles=f'cat {made} > "$2"'))
    nvcc.chmod(0o755)
    return folder


@pytest.fixture
def binaries_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tsm2-tune" / "binaries"


@pytest.fixture
def writing_compiler(tmp_path: Path) -> Toolchain:
    """A compiler that compiles everything."""
    return fake(tmp_path, WRITE)


def binary(toolchain: Toolchain, text: str = "") -> Path:
    """The cached file of the compiled text."""
    answer = compiled(toolchain, text)
    assert isinstance(answer, Binary), answer.detail
    return cached_file(text, (), toolchain)


def cached_file(text: str, defines: tuple[str, ...], toolchain: Toolchain) -> Path:
    """The file of a compiled text in the cache."""
    key = hashlib.sha256(json.dumps([code(text), defines, toolchain.digest]).encode()).hexdigest()
    return cache_folder() / key[:2] / f"{key}{toolchain.suffix}"
