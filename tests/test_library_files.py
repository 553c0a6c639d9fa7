"""The files of a C library: how they are written, and that they are clean C and Fortran."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tsm2_tune
from tests.calls import Call
from tests.fabricated import GPU, PROBLEM, configuration, fake_binary, host_run, kernel, trial, winners
from tests.fake_compilers import fake_toolkit
from tests.library_calls import H200, PRODUCT, SUCCESS, InProcess, choices, library_of, play, tried
from tests.on_host import IN_C
from tsm2_tune.cli import main
from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.export.library import SOURCES, usable
from tsm2_tune.tuner.results.store import Store

pytestmark = IN_C


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database with two winners of a GPU, one of --math and one of a host, and a compiler that makes their code."""
    monkeypatch.setenv("CUDA_HOME", str(fake_toolkit(tmp_path.with_name(f"{tmp_path.name}-cuda"), fake_binary())))
    path = tmp_path / "results.db"
    gpu, maths = Problem(4096, 8, 512, "f32"), Problem(4096, 8, 512, "minplus_f32")
    with Store.open(path, create=True) as store:
        for run, problem in ((H200, PROBLEM), (H200, gpu), (H200, maths), (host_run(), PROBLEM)):
            store.add_trial(run, trial(problem=problem, source=kernel(configuration(), problem)))
    return path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["export", "--format", "library", *arguments])


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_it_is_exported_with_its_header_and_its_interface(there: InProcess, path: Path, tmp_path: Path) -> None:
    output = tmp_path / "libmine.so"
    done = run("--db", str(path), "--output", str(output))
    assert done.exit_code == 0, done.output
    assert "left out: 1 winner of a host" in done.output
    beside = [str(tmp_path / f"libmine{suffix}") for suffix in (".h", ".f90", ".so")]
    assert done.output.splitlines()[-1] == f"wrote {', '.join(beside)}: 1 kernel for 2 problems"
    assert {file.name for file in tmp_path.glob("*mine*")} == {"libmine.so", "libmine.h", "libmine.f90"}
    assert (tmp_path / "libmine.h").read_bytes() == (SOURCES / "tsm2.h").read_bytes()
    record = there(play, str(output), [Call("f32", "NN", 4096, 8, 512), ("load",)])
    assert record.statuses == [SUCCESS] * 2
    assert all(line.startswith("load \x7fELF") for line in record.log if line.startswith("load "))
    ((_, text, _),) = there(choices, str(output), [Call("f32", "NN", 4096, 8, 512)], (GPU, 9, 0))
    assert text == f"{configuration().text}: tuned for this shape; with the L2 clean 500.0 us measured"


def test_it_needs_the_c_library_alone(plain: str) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("no readelf")
    told = subprocess.run(["readelf", "-d", plain], check=True, capture_output=True, text=True).stdout
    needed = {line.rpartition("[")[2].partition(".so")[0] for line in told.splitlines() if "(NEEDED)" in line}
    assert needed <= {"libc", "libdl", "libm", "ld-linux-x86-64", "ld-linux-aarch64"}
    assert "[libtsm2.so]" in told


@pytest.mark.parametrize(("arguments", "error"), [
    *((["--output", name], "name a file that ends in .so, such as libtsm2.so")
      for name in ("-", "{}/libtsm2.h", "{}/.so")),
    (["--no-binaries", "--output", "{}/libtsm2.so"], "--no-binaries is only for a module"),
])  # fmt: skip
def test_other_names_and_a_library_without_binaries_are_refused(
    path: Path, tmp_path: Path, arguments: list[str], error: str
) -> None:
    done = run("--db", str(path), *(one.format(tmp_path) for one in arguments))
    assert (done.exit_code, done.output.count("\n"), error in done.output) == (2, 1, True)


@pytest.mark.parametrize("missing", ["nvcc", "c++"])
def test_without_a_compiler_nothing_is_written(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def refuse(*_: object) -> None:
        raise ToolMissing(f"{missing} not found: install it")

    name = "library.compiler_command" if missing == "c++" else "cubins.cuda_toolchain"
    monkeypatch.setattr(f"tsm2_tune.tuner.export.{name}", refuse)
    before = sorted(tmp_path.rglob("*"))
    done = run("--db", str(path), "--dtype", "f32", "--device", GPU, "--output", str(tmp_path / "libtsm2.so"))
    assert (done.exit_code, done.output.splitlines()[-1]) == (2, f"Error: {missing} not found: install it")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_where_one_file_cannot_be_written_none_is(path: Path, tmp_path: Path) -> None:
    (tmp_path / "libtsm2.f90").mkdir()
    (tmp_path / "libtsm2.h").write_text("of before")
    before = sorted(tmp_path.rglob("*"))
    done = run("--db", str(path), "--output", str(tmp_path / "libtsm2.so"))
    assert done.exit_code == 2
    assert f"cannot write {tmp_path}/libtsm2.f90" in done.output
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "libtsm2.h").read_text() == "of before"


def test_winners_that_a_library_has_no_function_for(tmp_path: Path) -> None:
    told = list[str]()
    with Store.open(tmp_path / "results.db", create=True) as store:
        store.add_trial(host_run(), trial())
        store.add_trial(H200, trial(problem=replace(PROBLEM, dtype_name="tf32")))
        with pytest.raises(
            InputError, match="has no winner of what was asked for that was tuned on a GPU for one of f32"
        ):
            usable(store, store.best(), told.append)
    assert told == []


def test_nothing_from_the_database_becomes_code(there: InProcess, tmp_path: Path) -> None:
    nasty = "A\"B'C\\D*/ // # ??/ %d %s \n\x01é"
    rows, sources = winners(tmp_path, tried())
    row = replace(rows[0], device=nasty, driver=nasty, toolkit=nasty, flags=nasty, tuned_at="2026-01-02")
    path = library_of(tmp_path / "libtsm2.so", row, sources)
    ((status, text, _),) = there(choices, str(path), [PRODUCT], (nasty, 9, 0))
    assert (status, text) == (SUCCESS, f"{row.config}: tuned for this shape; with the L2 clean 500.0 us measured")
    ((status, text, _),) = there(choices, str(path), [PRODUCT], (GPU, 9, 0))
    assert f"tuned on {nasty}: no winner of {GPU} fits" in text


STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]


USER = """
#include "tsm2.h"
#include "tsm2.h"
int user(tsm2_handle handle);
int user(tsm2_handle handle)
{
    const float one = 1;
    float *x = 0;
    return tsm2_gemm_f32(handle, TSM2_N, TSM2_T, 1, 1, 1, &one, x, 1, x, 1, &one, x, 1);
}
"""


@pytest.mark.parametrize(("language", "standard"), [("c", "c99"), ("c++", "c++11")])
def test_the_header_compiles(tmp_path: Path, language: str, standard: str) -> None:
    (user := tmp_path / "user").write_text(USER)
    compiler = shutil.which("c++" if language == "c++" else "cc")
    if compiler is None:
        pytest.skip("no C++ compiler")
    command = [compiler, *STRICT, f"-I{SOURCES}", f"-std={standard}", "-x", language, "-c", str(user), "-o", "user.o"]
    subprocess.run(command, check=True, cwd=tmp_path)


def test_the_c_texts_are_clean(tmp_path: Path) -> None:
    texts = [str(SOURCES / file.name) for file in SOURCES.iterdir() if file.name.endswith(".c")]
    options = (*STRICT, "-std=c11", "-O2", f"-I{Path(tsm2_tune.__file__).parent / 'core'}")
    subprocess.run(["cc", *options, "-c", *texts], check=True, cwd=tmp_path)


@pytest.mark.skipif(shutil.which("gfortran") is None, reason="no gfortran")
def test_the_interface_for_fortran_compiles(tmp_path: Path) -> None:
    interface, example = SOURCES / "tsm2.f90", Path(__file__).parent.parent / "examples" / "library.f90"
    for text in (interface, example):
        command = ["gfortran", "-std=f2008", "-Wall", "-Wextra", "-Werror", "-c", str(text), "-o", "text.o"]
        subprocess.run(command, check=True, cwd=tmp_path)


def test_the_interface_for_fortran_is_the_headers() -> None:
    header, interface = (SOURCES / "tsm2.h").read_text(), (SOURCES / "tsm2.f90").read_text()
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    in_c = {
        name: [re.split(r"[ *]+", one.strip())[-1].lower().removesuffix("[]") for one in arguments.split(",")]
        for name, arguments in re.findall(r"(tsm2_\w+)\(([^)]*)\);", code)
    }
    joined = re.sub(r"&\s*\n\s*", "", interface)
    in_fortran = {
        name: (arguments or "void").lower().split(", ")
        for name, arguments in re.findall(r"function (tsm2_\w+)\((.*?)\) bind\(c\)", joined)
    }
    assert len(in_fortran) == 32
    for name, arguments in in_fortran.items():
        expected = ["element_type" if one == "type" else one for one in in_c[name]]
        assert arguments == expected, name
    constants = dict(re.findall(r"TSM2_(\w+) = (\d+)", code))
    assert {n.upper(): v for n, v in re.findall(r"enumerator :: tsm2_(\w+) = (\d+)", interface)} == constants
