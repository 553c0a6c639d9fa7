"""The compilers: which are refused, how their cache goes on, and what of them results rest on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.command import TUNE, refused
from tests.fake_compilers import WRITE, calls, compiled, fake
from tests.on_host import needs_nvcc
from tests.standing_in import Disk
from tsm2_tune.errors import InputError
from tsm2_tune.tuner.compile import cache, nvcc
from tsm2_tune.tuner.compile.compiler import Toolchain, compile_text
from tsm2_tune.tuner.compile.environment import DECIDING, OF_LINKERS, OF_NVCC, OF_TEXTS
from tsm2_tune.tuner.compile.pool import Compilers
from tsm2_tune.tuner.device.emulator import toolchain as host
from tsm2_tune.tuner.device.emulator.toolchain import host_toolchain
from tsm2_tune.tuner.doctor.finding import Question, State
from tsm2_tune.tuner.doctor.software import host_compiler
from tsm2_tune.tuner.results.trial import Binary, CompileFailure, Outcome

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_driver")]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*DECIDING, "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("command", "script", "complaint"),
    [
        ("false", b"", "false"),
        ('"unbalanced', b"", "is not a command (No closing quotation)"),
        (None, b"\x7fELF, but no program", "cannot be started"),
        (None, b"#!/bin/sh\nprintf '\\377\\376 1.0\\n'\n", "wrote no output"),
        (None, b"", "is not executable"),
        ("", b"", "no C++ compiler found: looked for $CXX and for c++, g++, clang++"),
        ("no-such-compiler", b"", "'no-such-compiler' not found: $CXX names it; install it or unset CXX"),
        ("true", b"", "does not build a C++ library"),
    ],
)
def test_a_compiler_that_is_none_leaves_no_database(
    command: str | None, script: bytes, complaint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_bytes(script)
    compiler.chmod(0o755 if script else 0o644)
    monkeypatch.setenv("CXX", str(compiler) if command is None else command)
    if command == "":
        monkeypatch.setenv("PATH", str(tmp_path))
    assert complaint in " ".join(refused(*TUNE, path=tmp_path / "r.db").split())
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {"compiler"}


def test_a_limit_that_the_tuners_own_kernels_pass(tmp_path: Path) -> None:
    said = refused(*TUNE, "--compile-limit", "0.001", path=tmp_path / "r.db")
    assert said.endswith("compiling took more than 0.001 s; raise --compile-limit\n")


def test_the_compiler_cache_survives_a_broken_report(tmp_path: Path, toolchain: Toolchain) -> None:

    def seconds() -> float:
        binary = compile_text("// nothing\n", kernel="", defines=(), toolchain=toolchain, limit_seconds=60)
        assert isinstance(binary, Binary)
        assert binary.code[:4] == b"\x7fELF"
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


def test_a_damaged_cubin_is_compiled_again(tmp_path: Path) -> None:
    """The cache does not look into binaries that nvcc makes."""
    toolchain = fake(tmp_path, WRITE)
    for _ in range(2):
        binary = compiled(toolchain)
        assert isinstance(binary, Binary)
        assert binary.compile_seconds > 0
        assert binary.code == b"\x7fELF of a kind"
        next(cache.cache_folder().glob("??/*.cubin")).write_bytes(b"\x7fELF of a rubb")


@pytest.mark.parametrize(
    ("full", "left"),
    [
        ({"f_bavail": 2**20 // 4096}, r"1\.0 MiB left on the disk of .*: free some space"),
        ({"f_favail": 3}, r"room for 3 files left on the disk of .*: remove some"),
    ],
)
def test_a_compiler_on_a_full_disk_says_nothing_about_the_kernel(
    full: dict[str, int], left: str, disk: Disk, toolchain: Toolchain
) -> None:
    """A trial would be stored as one that does not compile, and never be tried again."""

    def compiled() -> Binary | CompileFailure:
        return compile_text("#error no", kernel="", defines=(), toolchain=toolchain, limit_seconds=60)

    assert isinstance(compiled(), CompileFailure)
    disk(**full)
    with pytest.raises(InputError, match="a compiler failed with " + left):
        compiled()


@pytest.mark.parametrize(
    ("says", "outcome", "number"),
    [
        ("1) echo no such function; exit 1;; 2) echo something strange; exit 1;;", Outcome.OK, 3),
        ("1) echo no such function; exit 1;;", Outcome.OK, 2),
        ("*) echo no such variable; exit 1;;", Outcome.COMPILE_FAILED, 2),
        ("1) echo no such function; exit 1;; *) echo no such variable; exit 1;;", Outcome.COMPILE_FAILED, 3),
    ],
)
def test_failure_with_our_headers_counts_if_it_repeats_without(
    says: str, outcome: Outcome, number: int, tmp_path: Path
) -> None:
    toolchain = fake(tmp_path, f"case $(wc -l < $calls | tr -d ' ') in {says} esac\n{WRITE}")
    found = compiled(replace(toolchain, includes=(str(tmp_path),)))
    assert (found.outcome if isinstance(found, CompileFailure) else Outcome.OK) is outcome
    assert len(calls(tmp_path)) == number


# --- What of a compiler results rest on ---


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("is_nvcc", [False, pytest.param(True, marks=needs_nvcc)])
def test_variables_are_part_of_what_results_rest_on(is_nvcc: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> Toolchain:
        return nvcc.cuda_toolchain((9, 0)) if is_nvcc else host_toolchain()

    plain = found()
    on_host = dict.fromkeys((*OF_TEXTS, *OF_LINKERS), "/usr/lib/gcc/")
    values = dict.fromkeys((*OF_NVCC, *OF_TEXTS), "-DA=1") | {"NVCC_CCBIN": "g++"} if is_nvcc else on_host
    for name, value in values.items():
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            changed = found()
        assert changed.stated_flags == f"{plain.stated_flags} {name}={value}"
        assert changed.digest != plain.digest


@needs_nvcc
def test_a_wrapper_that_adds_flags_is_another_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored trials state it so, also if a script starts nvcc. Variables for linkers and others change no cubin."""
    plain = nvcc.cuda_toolchain((9, 0))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with monkeypatch.context() as patch:
        patch.setenv("LIBRARY_PATH", "/usr/lib")
        patch.setenv("PTXAS_FLAGS", "-O0")
        found = []
        for flags in ((), ("-Xptxas", "-O0"), ("-Xptxas", "-O1")):  # edited in place
            written(tmp_path / "nvcc", f'#!/bin/sh\nexec {plain.compiler} "$@" {" ".join(flags)}\n')
            found.append(nvcc.cuda_toolchain((9, 0)).stated_flags)
    assert found[0] == plain.stated_flags == "-cubin -arch=sm_90a -std=c++17 -Xptxas -v"
    assert len(set(found)) == 3


def rests_on(toolchain: Toolchain) -> tuple[str, str, str]:
    """Return the parts of a compiler's identity that a basis includes."""
    return toolchain.version, toolchain.stated_flags, toolchain.extra_digest


# A program that only starts the compiler, as gcc -D makes one of it.
STARTER = (
    '#include <unistd.h>\nint main(int n, char **v) { char *w[999] = {"g++", ADDED}; int i = ADDED[0] ? 1 : 0;\n'
)
STARTER += "for (int j = 1; j < n; ++j) w[++i] = v[j]; return execvp(w[0], w); }\n"


def edits_of(way: str, folder: Path) -> tuple[dict[str, str], Callable[[str], object]]:
    """Return variables, and a function that lets a file that the compiler reads add an option, or none."""
    options, script = folder / "options", folder / "cxx"
    subprogram = subprocess.run(
        ["g++", "-print-prog-name=cc1plus"], capture_output=True, text=True, check=True
    ).stdout
    if way == "response file":
        return {"CXX": f"g++ @{options}"}, lambda option: written(options, option)
    if way == "script":
        written(script, f'#!/bin/sh\nexec g++ $(cat {options}) "$@"\n')
        return {"CXX": str(script)}, lambda option: written(options, option)
    if way == "program":
        written(folder / "starter.c", STARTER)
        make = ["gcc", "-o", str(script), str(folder / "starter.c")]
        return {"CXX": str(script)}, lambda option: subprocess.run([*make, f'-DADDED="{option}"'], check=True)
    if way == "subprogram":
        path = folder / "bin" / "cc1plus"
        text = f'#!/bin/sh\nexec {subprogram.strip()} "$@" '
        return {"COMPILER_PATH": str(folder / "bin")}, lambda option: written(path, text + option)
    pragma = '#pragma GCC optimize ("O0")\n'
    path = folder / "include" / "signal.h"
    return {"CPLUS_INCLUDE_PATH": str(folder / "include")}, lambda option: written(
        path, (pragma if option else "") + "#include_next <signal.h>\n"
    )


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("way", ["response file", "script", "program", "subprogram", "header"])
def test_files_read_by_the_host_compiler_are_in_its_identity(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine code of a sample need not differ by the option, nor its path and variables."""
    variables, edit = edits_of(way, tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = []
    for option in ("", "-fno-inline", ""):
        edit(option)
        host._answers.cache_clear()  # a new process has an empty cache
        found.append(rests_on(host_toolchain()))
    assert (found[0] == found[2], found[0] == found[1]) == (True, False)


@needs_nvcc
@pytest.mark.parametrize("way", ["options", "headers"])
def test_files_that_nvccs_variables_name_are_part_of_what_results_rest_on(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, header = tmp_path / "options", tmp_path / "include" / "string.h"
    monkeypatch.setenv(
        *(("NVCC_APPEND_FLAGS", f"-optf {options}") if way == "options" else ("CPATH", str(header.parent)))
    )
    found = []
    for option, added in (("-lineinfo", ""), ("-Xptxas -O0", "extern int another;"), ("-lineinfo", "")):
        written(options, option)
        written(header, f"{added}\n#include_next <string.h>\n")
        found.append(rests_on(nvcc.cuda_toolchain((9, 0))))
    assert (found[0] == found[2], found[0] == found[1]) == (True, False)


def test_a_wrapper_is_asked_with_the_compiler_that_it_wraps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = host_toolchain()
    script = '#!/bin/sh\ncase $1 in -*) echo ccache 4.7; exit 1;; esac\nexec "$@"\n'
    ccache = written(tmp_path / "ccache", script)
    monkeypatch.setenv("CXX", f"{ccache} {plain.compiler} -DOWN=1")
    found = host_toolchain()
    assert found.version == plain.version
    assert found.flags == (plain.compiler, "-DOWN=1", *plain.flags)


def test_a_cache_that_runs_nothing_is_told(tmp_path: Path, disk: Disk) -> None:
    disk(tmp_path, f_flag=os.ST_NOEXEC)
    with pytest.raises(InputError, match=r"mounted noexec, .*: set XDG_CACHE_HOME"):
        cache.refuse_noexec()
    assert "noexec" in refused(*TUNE, path=tmp_path / "r.db")
    (finding,) = host_compiler(Question("cpu", "r.db"))
    assert (finding.state, "noexec" in finding.text) == (State.PROBLEM, True)


@pytest.mark.parametrize(("usable", "sharing", "most"), [(1, 1, 1), (7, 1, 7), (16, 1, 14), (16, 2, 7)])
def test_of_eight_cores_one_runs_no_compiler(
    usable: int, sharing: int, most: int, toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(usable)))
    compilers = Compilers(toolchain, 60.0, sharing)
    assert compilers._pool._max_workers == most
    compilers.close()
