"""Tests of the cuBLASLt that a call reaches, however programs load it, and of calls by cuBLAS itself."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.library_calls import fabricated_library, tried
from tests.on_host import IN_C
from tests.standin_calls import FLAGS, TESTS, compiled_c, launches_and_routines, run_with_standin
from tsm2_tune.generator.problem import Problem
from tsm2_tune.interpose.build import standin_path
from tsm2_tune.interpose.journal import written_in
from tsm2_tune.interpose.preload import Standing

pytestmark = IN_C
DECLARED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
int cublasLtMatmulDescCreate(void **, int, int);
int cublasLtMatmulDescSetAttribute(void *, int, const void *, size_t);
int cublasLtMatrixLayoutCreate(void **, int, uint64_t, uint64_t, int64_t);
int cublasLtMatmul(void *, void *, const void *, const void *, void *, const void *, void *, const void *,
                   const void *, void *, void *, void *, const void *, void *, size_t, void *);
const char *fake_log(void);
static void *operation, *a, *b, *c;
static void prepare(int transa)
{
    cublasLtMatmulDescCreate(&operation, 70, 1);
    cublasLtMatmulDescSetAttribute(operation, 3, &transa, sizeof transa);
    cublasLtMatrixLayoutCreate(&a, 1, transa ? 3 : 6, transa ? 6 : 3, transa ? 3 : 6);
    cublasLtMatrixLayoutCreate(&b, 1, 3, 2, 3);
    cublasLtMatrixLayoutCreate(&c, 1, 6, 2, 6);
}
static const double one = 1, zero = 0;
static void *const A = (void *)(1l << 40), *const B = (void *)(1l << 50), *const C = (void *)(1l << 60);
#define MULTIPLY cublasLtMatmul((void *)1, operation, &one, A, a, B, b, &zero, C, c, C, c, NULL, NULL, 0, NULL)
"""
LINKED = """
int main(void)
{
    prepare(0);
    const int status = MULTIPLY;
    printf("%d %d\\n%s", status, dlsym(RTLD_DEFAULT, "cublasLtMatmul") == (void *)cublasLtMatmul, fake_log());
    return 0;
}
"""
PLUGIN = """
int multiply(int transa)
{
    prepare(transa);
    return MULTIPLY;
}
"""
DRIVEN = """
import ctypes, sys
driver = ctypes.CDLL("libcuda.so.1")
driver.fake_log.restype = ctypes.c_char_p
for path in sys.argv[1:]:
    assert [ctypes.CDLL(path).multiply(transa) for transa in (0, 1)] == [0, 0]
print(driver.fake_log().decode())
"""


built = partial(compiled_c, DECLARED)


def linked(folder: Path, library: str = "libcublasLt.so.13") -> list[str]:
    return [f"-L{folder}", f"-l:{library}"]


def other_lt(fakes: Path, path: Path, prefix: str, *options: str) -> Path:
    """A second cuBLASLt, whose calls are noted with the prefix."""
    command = [
        "cc",
        *FLAGS,
        f'-DPREFIX="{prefix}"',
        f"-Wl,-soname,{path.name}",
        str(TESTS / "fake_cublaslt.c"),
        *options,
    ]
    subprocess.run([*command, f"-L{fakes}", "-l:libcuda.so.1", "-o", str(path)], check=True)
    return path


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> Path:
    """A pack of one kernel, for A as it is."""
    return fabricated_library(tmp_path_factory.mktemp("narrow"), tried(Problem(6, 2, 3, "f64")))


def test_a_program_that_is_linked_with_versioned_names_is_reached(fakes: Path, narrow: Path, tmp_path: Path) -> None:
    program = built(tmp_path, "linked", LINKED, *linked(fakes), *linked(fakes, "libcuda.so.1"))
    names = subprocess.run(["nm", "-D", str(program)], capture_output=True, text=True, check=True).stdout
    assert "cublasLtMatmul@libcublasLt.so.13" in names
    first, *log = run_with_standin([str(program)], [fakes], narrow)
    assert first == "0 1"
    assert launches_and_routines(log) == (1, [])


@pytest.mark.parametrize("name", ["libcublasLt-5b5fe7f9.so.12", "libalgebra.so"])
def test_a_cublaslt_of_another_name_is_found(fakes: Path, tmp_path: Path, narrow: Path, name: str) -> None:
    """It is local to the library that needs it."""
    other_lt(fakes, tmp_path / name, "of another: ")
    plugin = built(tmp_path, "plugin.so", PLUGIN, "-shared", *linked(tmp_path, name))
    lines = run_with_standin([sys.executable, "-c", DRIVEN, str(plugin)], [fakes, tmp_path], narrow)
    assert launches_and_routines(lines) == (1, ["of another: cublasLtMatmul"])


def test_descriptors_are_read_by_the_library_that_made_them(fakes: Path, tmp_path: Path, narrow: Path) -> None:
    other_lt(fakes, tmp_path / "libcublasLt.so.12", "of 12: ", "-DREVERSED")
    plugins = [
        built(tmp_path, f"plugin{number}.so", PLUGIN, "-shared", *linked(folder, f"libcublasLt.so.{number}"))
        for number, folder in ((13, fakes), (12, tmp_path))
    ]
    lines = run_with_standin([sys.executable, "-c", DRIVEN, *map(str, plugins * 2)], [fakes, tmp_path], narrow)
    assert launches_and_routines(lines) == (4, ["cublasLtMatmul", "of 12: cublasLtMatmul"] * 2)


ONE_BY_ONE = """
#include <link.h>
int main(int count, char **paths)
{
    for (int at = 1; at < count; ++at) {
        void *plugin = dlopen(paths[at], RTLD_NOW | RTLD_LOCAL);
        int (*multiply)(int);
        struct link_map *map;
        *(void **)&multiply = dlsym(plugin, "multiply");
        dlinfo(plugin, RTLD_DI_LINKMAP, &map);
        printf("%lx %d\\n", (long)map->l_addr, multiply(1));
        dlclose(plugin);
    }
    puts(fake_log());
    return 0;
}
"""


def test_code_that_comes_to_where_other_code_was_calls_its_own_library(
    fakes: Path, tmp_path: Path, narrow: Path
) -> None:
    """A plugin was closed, and one that was linked with another library lies where it lay."""
    other_lt(fakes, tmp_path / "libcublasLt.so.12", "of 12: ", "-DREVERSED")
    plugins = [
        built(tmp_path, f"plugin{number}.so", PLUGIN, "-shared", *linked(folder, f"libcublasLt.so.{number}"))
        for number, folder in ((13, fakes), (12, tmp_path))
    ]
    program = built(tmp_path, "program", ONE_BY_ONE, "-O1", *linked(fakes, "libcuda.so.1"), "-ldl")
    first, second, third, *lines = run_with_standin(
        [str(program), *map(str, [*plugins, plugins[0]])], [fakes, tmp_path], narrow
    )
    assert first == second == third
    assert launches_and_routines(lines) == (0, ["cublasLtMatmul", "of 12: cublasLtMatmul", "cublasLtMatmul"])


ASKING_ITSELF = """
#define FOUND(name, ...) \\
    (((int (*)(__VA_ARGS__))dlsym(dlopen("libcublasLt.so.13", RTLD_NOW), name)))
int cublasLtMatmulDescCreate(void **made, int compute, int scale)
{
    return FOUND("cublasLtMatmulDescCreate", void **, int, int)(made, compute, scale);
}
int cublasLtMatmulDescSetAttribute(void *of, int number, const void *value, size_t bytes)
{
    return FOUND("cublasLtMatmulDescSetAttribute", void *, int, const void *, size_t)(of, number, value, bytes);
}
int cublasLtMatrixLayoutCreate(void **made, int type, uint64_t rows, uint64_t columns, int64_t ld)
{
    return FOUND("cublasLtMatrixLayoutCreate", void **, int, uint64_t, uint64_t, int64_t)(made, type, rows, columns,
                                                                                          ld);
}
int cublasLtMatmul(void *handle, void *of, const void *alpha, const void *A, void *a, const void *B, void *b,
                   const void *beta, const void *C, void *c, void *D, void *d, const void *algorithm, void *workspace,
                   size_t bytes, void *stream)
{
    return FOUND("cublasLtMatmul", void *, void *, const void *, const void *, void *, const void *, void *,
                 const void *, const void *, void *, void *, void *, const void *, void *, size_t, void *)(
        handle, of, alpha, A, a, B, b, beta, C, c, D, d, algorithm, workspace, bytes, stream);
}
"""


def test_a_library_may_have_functions_that_ask_for_cublaslts(fakes: Path, tmp_path: Path, narrow: Path) -> None:
    plugin = built(tmp_path, "plugin.so", ASKING_ITSELF + PLUGIN, "-shared", "-O0", "-Wl,-Bsymbolic")
    lines = run_with_standin([sys.executable, "-c", DRIVEN, str(plugin)], [fakes], narrow)
    assert launches_and_routines(lines) == (1, ["cublasLtMatmul"])


TOOL = """
void fake_note(const char *);
int cublasLtMatmul(void *handle, void *operation, const void *alpha, const void *A, void *layout_a, const void *B,
                   void *layout_b, const void *beta, const void *C, void *layout_c, void *D, void *layout_d,
                   const void *algorithm, void *workspace, size_t bytes, void *stream)
{
    fake_note("the tool");
    return 0;
}
"""


def test_another_preloaded_tool_sees_what_is_left(fakes: Path, tmp_path: Path, narrow: Path) -> None:
    tool = built(tmp_path, "tool.so", TOOL, "-shared", *linked(fakes, "libcuda.so.1"))
    plugin = built(tmp_path, "plugin.so", PLUGIN, "-shared", *linked(fakes))
    lines = run_with_standin([sys.executable, "-c", DRIVEN, str(plugin)], [fakes], narrow, preloaded=f":{tool}")
    assert lines.count("the tool") == 1
    assert launches_and_routines(lines) == (1, [])


ASKING = """
int main(void)
{
    printf("%d ", dlsym(RTLD_DEFAULT, "cublasLtMatmul") == NULL);
    printf("%d\\n", dlsym(dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_GLOBAL), "cublasLtMatmul") != NULL);
    printf("%d\\n", dlsym(RTLD_DEFAULT, "cublasLtMatmul") != NULL);
    return 0;
}
"""


def test_without_cublaslt_its_function_is_not_there(fakes: Path, tmp_path: Path, narrow: Path) -> None:
    program = built(tmp_path, "asking", ASKING, "-O2", "-ldl")
    assert run_with_standin([str(program)], [fakes], narrow) == ["1 1", "1"]


@pytest.mark.parametrize(
    "missing",
    ["cublasLtMatmulDescInit_internal", "cublasLtMatrixLayoutInit_internal", "cublasLtMatmulDescGetAttribute"],
)
def test_without_functions_for_descriptors_all_is_left(
    fakes: Path, tmp_path: Path, narrow: Path, missing: str
) -> None:
    other_lt(fakes, tmp_path / "libcublasLt.so.13", "of another: ", f"-D{missing}={missing}_of_another_version")
    plugin = built(tmp_path, "plugin.so", PLUGIN, "-shared", *linked(tmp_path))
    lines = run_with_standin([sys.executable, "-c", DRIVEN, str(plugin)], [tmp_path, fakes], narrow)
    assert launches_and_routines(lines) == (0, ["of another: cublasLtMatmul"] * 2)


MANY = """
#define FOUR(x) x x x x
#define MANY(x) FOUR(FOUR(FOUR(FOUR(FOUR(x)))))
int multiply(int transa)
{
    int status = 0;
    prepare(transa);
    MANY(status |= MULTIPLY;)
    return status;
}
"""


def test_of_more_calling_places_than_are_kept_each_is_known(fakes: Path, tmp_path: Path, narrow: Path) -> None:
    """1024 of each of two libraries, some of which would be kept in the same place."""
    other_lt(fakes, tmp_path / "libcublasLt.so.12", "of 12: ", "-DREVERSED")
    plugins = [
        built(tmp_path, f"plugin{number}.so", MANY, "-shared", "-O0", *linked(folder, f"libcublasLt.so.{number}"))
        for number, folder in ((13, fakes), (12, tmp_path))
    ]
    lines = run_with_standin([sys.executable, "-c", DRIVEN, *map(str, plugins)], [fakes, tmp_path], narrow)
    assert launches_and_routines(lines) == (2048, ["cublasLtMatmul"] * 1024 + ["of 12: cublasLtMatmul"] * 1024)


# cuBLAS multiplies by cuBLASLt, in a routine that is not stood in for, and in one that is.
CUBLAS_ITSELF = """
#include <stdlib.h>
int cublasCreate_v2(void **handle) { return (*handle = malloc(64)) == NULL; }
int cublasGetStream_v2(void *handle, void **stream) { return *stream = NULL, 0; }
int cublasHgemm(void *handle) { prepare(0); return MULTIPLY; }
int cublasDgemm_v2(void *handle)
{
    prepare(0);
    return MULTIPLY;
}
"""
PROGRAM = """
import ctypes
from tests.cublas_program import call
from tests.standin_calls import gemm
driver, cublas, handle, kept = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("CUBLAS"), ctypes.c_void_p(), []
driver.fake_log.restype = ctypes.c_char_p
assert cublas.cublasCreate_v2(ctypes.byref(handle)) == 0
assert cublas.cublasHgemm(handle) == 0
name, values = gemm("cublasDgemm_v2", transa=1)
assert call(cublas, handle, name, values, kept, {}) == 0
print(driver.fake_log().decode())
"""


@pytest.mark.parametrize("name", ["libcublas.so.13", "libalgebra.so"])
def test_what_cublas_multiplies_by_cublaslt_is_no_product_of_the_programs(
    fakes: Path, tmp_path: Path, narrow: Path, name: str
) -> None:
    cublas = built(tmp_path, name, CUBLAS_ITSELF, "-shared", *linked(fakes), *linked(fakes, "libcuda.so.1"))
    (tmp_path / "journal").mkdir()
    told = Standing(standin_path(), narrow).environment(tmp_path / "journal") | {"LD_LIBRARY_PATH": str(fakes)}
    command = [sys.executable, "-c", PROGRAM.replace("CUBLAS", str(cublas))]
    done = subprocess.run(command, env=told, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert launches_and_routines(done.stdout.splitlines()) == (0, ["cublasLtMatmul"] * 2)
    written = written_in(tmp_path / "journal")
    assert {one.routine: one.calls for one in written.seen} == {"gemm": 1}
    assert written.uncounted == (0, 0, 0)
