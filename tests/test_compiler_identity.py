"""A compiler is more than its version: variables and wrappers that change what it makes are told apart."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import TUNE, run
from tests.standing_in import Disk
from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.tuner.compile import cache, nvcc
from tsm2_tune.tuner.compile.compiler import Toolchain, compile_text
from tsm2_tune.tuner.compile.environment import DECIDING, OF_LINKERS, OF_NVCC, OF_TEXTS
from tsm2_tune.tuner.device.emulator import toolchain as host
from tsm2_tune.tuner.device.emulator.toolchain import host_toolchain
from tsm2_tune.tuner.doctor.finding import Question, State
from tsm2_tune.tuner.doctor.software import host_compiler
from tsm2_tune.tuner.results.trial import Binary

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
DIVISION = 'extern "C" __global__ void line(float *x) { x[threadIdx.x] = x[threadIdx.x] / x[2]; }\n'


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*DECIDING, "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def wrapper(path: Path, compiler: str, *flags: str) -> Path:
    path.write_text(f'#!/bin/sh\nexec {compiler} "$@" {" ".join(flags)}\n')
    path.chmod(0o755)
    return path


def cubin() -> bytes:
    found = compile_text(DIVISION, kernel="line", defines=(), toolchain=nvcc.cuda_toolchain((9, 0)), limit_seconds=60)
    assert isinstance(found, Binary)
    return Path(found.path).read_bytes()


@needs_nvcc
def test_results_with_flags_of_the_environment_serve_no_other_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for flags in ("", "-Xptxas -O0 -use_fast_math", ""):
        monkeypatch.setenv("NVCC_APPEND_FLAGS", flags)
        made.append(cubin())
    assert made[0] == made[2] != made[1]


def assert_stated(find: Callable[[], Toolchain], values: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each variable is part of what results rest on."""
    plain = find()
    for name, value in values.items():
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            found = find()
        assert found.stated_flags == f"{plain.stated_flags} {name}={value}"
        assert found.digest != plain.digest


@pytest.mark.slow
@needs_nvcc
def test_variables_are_part_of_what_nvccs_results_rest_on(monkeypatch: pytest.MonkeyPatch) -> None:
    values = dict.fromkeys((*OF_NVCC, *OF_TEXTS), "-DA=1") | {"NVCC_CCBIN": "g++"}
    assert_stated(lambda: nvcc.cuda_toolchain((9, 0)), values, monkeypatch)


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
            wrapper(tmp_path / "nvcc", plain.compiler, *flags)
            found.append(nvcc.cuda_toolchain((9, 0)).stated_flags)
    assert found[0] == plain.stated_flags == "-cubin -arch=sm_90a -std=c++17 -Xptxas -v"
    assert len(set(found)) == 3


def rests_on(toolchain: Toolchain) -> tuple[str, str, str]:
    """Return the parts of a compiler's identity that a basis includes."""
    return toolchain.version, toolchain.stated_flags, toolchain.extra_digest


@pytest.mark.slow
def test_variables_are_part_of_what_the_hosts_results_rest_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_stated(host_toolchain, dict.fromkeys((*OF_TEXTS, *OF_LINKERS), "/usr/lib/gcc/"), monkeypatch)


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_wrapper_is_asked_with_the_compiler_that_it_wraps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = host_toolchain()
    ccache = tmp_path / "ccache"
    ccache.write_text('#!/bin/sh\ncase $1 in -*) echo ccache 4.7; exit 1;; esac\nexec "$@"\n')
    ccache.chmod(0o755)
    monkeypatch.setenv("CXX", f"{ccache} {plain.compiler}")
    found = host_toolchain()
    assert found.version == plain.version
    assert found.flags == (plain.compiler, *plain.flags)


@pytest.mark.slow
def test_what_is_no_compiler_of_cpp_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for compiler in ("true", "gcc"):
        monkeypatch.setenv("CXX", compiler)
        with pytest.raises(ToolMissing, match=r"does not build a C\+\+ library"):
            host_toolchain()
    for command in (("doctor", "--device", "cpu"), TUNE):
        found = run(*command, "--db", str(tmp_path / "r.db"))
        assert found.exit_code != 0
        assert "does not build a C++ library" in " ".join(found.output.split())


@pytest.mark.slow
def test_a_cache_that_runs_nothing_is_told(tmp_path: Path, disk: Disk) -> None:
    disk(tmp_path, f_flag=os.ST_NOEXEC)
    with pytest.raises(InputError, match=r"mounted noexec, .*: set XDG_CACHE_HOME"):
        cache.refuse_noexec()
    found = run(*TUNE, "--db", str(tmp_path / "r.db"))
    assert (found.exit_code, "noexec" in found.output) == (2, True)
    (finding,) = host_compiler(Question("cpu", "r.db"))
    assert (finding.state, "noexec" in finding.text) == (State.PROBLEM, True)
