"""The compilers: which are refused, how their cache goes on, and how they are ended."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.command import TUNE, run
from tests.fake_compilers import WRITE, calls, compiled, fake
from tests.standing_in import Disk
from tsm2_tune.errors import InputError
from tsm2_tune.tuner.compile import compiler
from tsm2_tune.tuner.compile.compiler import Toolchain, compile_text
from tsm2_tune.tuner.results.trial import Binary, CompileFailure, Outcome

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_driver")]


@pytest.mark.parametrize(
    ("command", "script", "complaint"),
    [
        ("false", b"", "false"),
        ('"unbalanced', b"", "is not a command (No closing quotation)"),
        (None, b"\x7fELF, but no program", "cannot be started"),
        (None, b"#!/bin/sh\nprintf '\\377\\376 1.0\\n'\n", "wrote no output"),
        (None, b"", "is not executable"),
        ("", b"", "C++ compiler"),
    ],
)
def test_a_compiler_that_is_none_leaves_no_database(
    command: str | None, script: bytes, complaint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_bytes(script)
    compiler.chmod(0o755 if script else 0o644)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(compiler) if command is None else command)
    if not command:
        monkeypatch.setenv("PATH", str(tmp_path))
    result = run(*TUNE, "--db", str(tmp_path / "r.db"))
    assert result.exit_code == 2, result.output
    assert complaint in " ".join(result.output.split())
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {"compiler"}


def test_a_limit_that_the_tuners_own_kernels_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = run(*TUNE, "--compile-limit", "0.001", "--db", str(tmp_path / "r.db"))
    assert result.exit_code == 2
    assert result.output.endswith("compiling took more than 0.001 s; raise --compile-limit\n")


def test_the_compiler_cache_survives_a_broken_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, toolchain: Toolchain
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def seconds() -> float:
        binary = compile_text("// nothing\n", kernel="", defines=(), toolchain=toolchain, limit_seconds=60)
        assert isinstance(binary, Binary)
        assert Path(binary.path).read_bytes()[:4] == b"\x7fELF"
        return binary.compile_seconds

    assert seconds() > 0
    for broken in ("", "{", "[]", '{"spill_bytes": "x"}'):
        (report,) = tmp_path.rglob("*.json")
        report.write_text(broken)
        assert seconds() > 0
    (library,) = tmp_path.rglob("*.so")
    whole = library.read_bytes()
    for damaged in (whole[:100], b"", bytes(len(whole)), whole + b"\0"):  # not written to its end, or by others
        library.write_bytes(damaged)
        assert seconds() > 0
        assert len(library.read_bytes()) == len(whole)
    assert seconds() == 0
    folder = report.parent
    shutil.rmtree(folder)
    folder.touch()  # a file where a folder should be
    assert seconds() >= 0


def test_a_damaged_cubin_is_compiled_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cache does not look into binaries that nvcc makes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    nvcc = tmp_path / "nvcc"
    nvcc.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nprintf "\\177ELF cubin" > "$2"\n')
    nvcc.chmod(0o755)
    toolchain = Toolchain(str(nvcc), "1", (), source_suffix=".cu", suffix=".cubin", extra_digest="")
    for _ in range(2):
        binary = compile_text("", kernel="k", defines=(), toolchain=toolchain, limit_seconds=60)
        assert isinstance(binary, Binary)
        assert binary.compile_seconds > 0
        assert Path(binary.path).read_bytes() == b"\x7fELF cubin"
        Path(binary.path).write_bytes(b"\x7fELF rubbi")


@pytest.mark.parametrize(
    ("full", "left"),
    [
        ({"f_bavail": 2**20 // 4096}, r"1\.0 MiB left on the disk of .*: free some space"),
        ({"f_favail": 3}, r"room for 3 files left on the disk of .*: remove some"),
    ],
)
def test_a_compiler_on_a_full_disk_says_nothing_about_the_kernel(
    full: dict[str, int], left: str, disk: Disk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, toolchain: Toolchain
) -> None:
    """A trial would be stored as one that does not compile, and never be tried again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def compiled() -> Binary | CompileFailure:
        return compile_text("#error no", kernel="", defines=(), toolchain=toolchain, limit_seconds=60)

    assert isinstance(compiled(), CompileFailure)
    disk(**full)
    with pytest.raises(InputError, match="a compiler failed with " + left):
        compiled()


def test_running_compilers_can_be_killed(tmp_path: Path, toolchain: Toolchain) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nsleep 60\n")
    slow.chmod(0o755)
    chain = replace(toolchain, compiler=str(slow))
    with ThreadPoolExecutor() as pool:
        compiling = pool.submit(compile_text, "", kernel="", defines=(), toolchain=chain, limit_seconds=60)
        while not compiling.done():
            compiler.kill_running()
            time.sleep(0.01)
        failure = compiling.result()
    assert isinstance(failure, CompileFailure)
    assert failure.outcome is Outcome.INTERRUPTED


@pytest.mark.parametrize(
    ("says", "outcome", "number"),
    [
        ("1) echo no such function; exit 1;; 2) echo something strange; exit 1;;", Outcome.OK, 3),
        ("1) echo no such function; exit 1;;", Outcome.OK, 2),
        ("*) echo no such variable; exit 1;;", Outcome.COMPILE_FAILED, 2),
        ("1) echo no such function; exit 1;; *) echo no such variable; exit 1;;", Outcome.COMPILE_FAILED, 3),
    ],
)
@pytest.mark.usefixtures("own_cache")
def test_failure_with_our_headers_counts_if_it_repeats_without(
    says: str, outcome: Outcome, number: int, tmp_path: Path
) -> None:
    toolchain = fake(tmp_path, f"case $(wc -l < $calls | tr -d ' ') in {says} esac\n{WRITE}")
    found = compiled(replace(toolchain, includes=(str(tmp_path),)))
    assert (found.outcome if isinstance(found, CompileFailure) else Outcome.OK) is outcome
    assert len(calls(tmp_path)) == number
