"""Tests that the stand-in finds a program's cuBLAS, however it is linked, loaded and asked for functions."""

from __future__ import annotations

import os
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
from tsm2_tune.interpose.preload import Standing

pytestmark = IN_C
DECLARED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int cublasCreate_v2(void **);
int cublasDestroy_v2(void *);
int cublasDgemm_v2(void *, int, int, int, int, int, const double *, const double *, int, const double *, int,
                   const double *, double *, int);
const char *fake_log(void);
static int multiply_by(void *handle, int transa)
{
    const double one = 1, zero = 0;
    return cublasDgemm_v2(handle, transa, 0, 6, 2, 3, &one, (double *)(1l << 40), 6, (double *)(1l << 50), 3, &zero,
                          (double *)(1l << 60), 6);
}
"""


built = partial(compiled_c, DECLARED)


def other_cublas(fakes: Path, path: Path, prefix: str) -> Path:
    """A second cuBLAS, whose calls are noted with the prefix."""
    command = ["cc", *FLAGS, f'-DPREFIX="{prefix}"', f"-Wl,-soname,{path.name}", str(TESTS / "fake_cublas.c")]
    subprocess.run([*command, f"-L{fakes}", "-l:libcuda.so.1", "-o", str(path)], check=True)
    return path


@pytest.fixture
def narrow(tmp_path: Path) -> Path:
    """A pack of one kernel, for A as it is."""
    (tmp_path / "narrow").mkdir()
    return fabricated_library(tmp_path / "narrow", tried(Problem(6, 2, 3, "f64")))


LINKED = """
int main(void)
{
    void *handle;
    cublasCreate_v2(&handle);
    const int status = multiply_by(handle, 0);
    void *next = dlsym(RTLD_NEXT, "main"), *standard = dlsym(RTLD_DEFAULT, "cublasDgemm_v2");
    printf("%d %d %d %d\\n%s", status, next == NULL, standard == (void *)cublasDgemm_v2,
           dlsym(RTLD_NEXT, "printf") != NULL, fake_log());
    return cublasDestroy_v2(handle);
}
"""


def linked(fakes: Path, library: str = "libcublas.so.13") -> list[str]:
    return [f"-L{fakes}", f"-l:{library}", "-l:libcuda.so.1"]


def test_a_program_that_is_linked_with_cublas_is_reached(fakes: Path, pack: Path, tmp_path: Path) -> None:
    first, *log = run_with_standin([str(built(tmp_path, "linked", LINKED, *linked(fakes)))], [fakes], pack)
    assert first == "0 1 1 1"
    assert launches_and_routines(log) == (1, [])


CLEARED = """
extern char **environ;
int main(int count, char **arguments)
{
    void *handle;
    for (char **one = environ; *one != NULL; ++one)
        memset(*one, 'x', strlen(*one)); /* as setproctitle does, once it has copied them */
    clearenv();
    cublasCreate_v2(&handle);
    multiply_by(handle, 0);
    puts(fake_log());
    return 0;
}
"""


def test_a_program_may_write_over_its_environment(fakes: Path, pack: Path, tmp_path: Path) -> None:
    assert launches_and_routines(
        run_with_standin([str(built(tmp_path, "cleared", CLEARED, *linked(fakes)))], [fakes], pack)
    ) == (1, [])


EARLY = """
__attribute__((constructor)) static void early(void)
{
    void *handle;
    cublasCreate_v2(&handle);
    multiply_by(handle, 0);
}
int unused(void) { return 0; }
"""
AFTER_EARLY = """
int unused(void);
int main(void)
{
    puts(fake_log());
    return unused();
}
"""


def test_products_in_constructors_of_libraries_are_reached(fakes: Path, pack: Path, tmp_path: Path) -> None:
    built(tmp_path, "libearly.so", EARLY, "-shared", *linked(fakes))
    program = built(tmp_path, "after", AFTER_EARLY, f"-L{tmp_path}", "-l:libearly.so", *linked(fakes))
    assert launches_and_routines(run_with_standin([str(program)], [fakes, tmp_path], pack)) == (1, [])


PLUGIN = """
int create(void **handle) { return cublasCreate_v2(handle); } /* which an optimising compiler makes a jump */
int destroy(void *handle) { return cublasDestroy_v2(handle); }
int multiply(void *handle, int transa) { return multiply_by(handle, transa); }
"""
DRIVEN = """
import ctypes, sys
driver = ctypes.CDLL("libcuda.so.1")
driver.fake_log.restype = ctypes.c_char_p
def plugin(path):
    found = ctypes.CDLL(path)
    found.destroy.argtypes, found.multiply.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int]
    return found
def create(of):
    handle = ctypes.c_void_p()
    assert of.create(ctypes.byref(handle)) == 0
    return handle.value
def ended():
    print(driver.fake_log().decode())
"""


def plugin_of(folder: Path, fakes: Path, library: str, *options: str) -> str:
    """A library that multiplies by the cuBLAS of this name in the folder."""
    name = f"plugin-{library}.so"
    return str(built(folder, name, PLUGIN, "-shared", *options, f"-L{fakes}", f"-l:{library}"))


def test_each_of_two_cublas_libraries_gets_its_own_calls(fakes: Path, tmp_path: Path, narrow: Path) -> None:
    other_cublas(fakes, tmp_path / "libcublas.so.12", "of 12: ")
    plugins = [plugin_of(tmp_path, fakes, "libcublas.so.13"), plugin_of(tmp_path, tmp_path, "libcublas.so.12")]
    program = DRIVEN + (
        'first, second = ctypes.CDLL("libcublas.so.13"), ctypes.CDLL("libcublas.so.12")\n'
        "for one in map(plugin, sys.argv[1:] * 2):\n"
        "    handle = create(one)\n"
        "    assert [one.multiply(handle, transa) for transa in (0, 1)] == [0, 0]\n"
        "handle = ctypes.c_void_p()\n"
        "second.cublasCreate_v2(ctypes.byref(handle))\n"
        "assert second.cublasSetStream_v2(handle, ctypes.c_void_p(9)) == 0\n"
        "ended()\n"
    )
    lines = run_with_standin([sys.executable, "-c", program, *plugins], [fakes, tmp_path], narrow)
    assert launches_and_routines(lines) == (4, ["cublasDgemm_v2", "of 12: cublasDgemm_v2"] * 2)


def test_a_handle_of_a_second_cublas_is_forgotten_when_it_is_destroyed(
    fakes: Path, tmp_path: Path, narrow: Path
) -> None:
    other_cublas(fakes, tmp_path / "libcublas.so.12", "of 12: ")
    plugins = [plugin_of(tmp_path, fakes, "libcublas.so.13"), plugin_of(tmp_path, tmp_path, "libcublas.so.12")]
    program = DRIVEN + (
        'ctypes.CDLL("libcublas.so.13")\n'
        "first, second = map(plugin, sys.argv[1:])\n"
        "old = create(second)\n"
        "second.destroy(old)\n"
        "assert create(first) == old\n"  # its memory is given again
        "assert first.multiply(old, 1) == 0\n"
        "many = [create(second) for _ in range(3000)]\n"
        "assert [second.multiply(one, 1) for one in (many[0], many[-1])] == [0, 0]\n"
        "ended()\n"
    )
    lines = run_with_standin([sys.executable, "-c", program, *plugins], [fakes, tmp_path], narrow)
    assert launches_and_routines(lines) == (0, ["cublasDgemm_v2", *["of 12: cublasDgemm_v2"] * 2])


@pytest.mark.parametrize("name", ["libcublas-5b5fe7f9.so.12", "libalgebra.so"])
@pytest.mark.parametrize("optimised", ["-O0", "-O2"])
def test_a_cublas_of_another_name_is_found(
    fakes: Path, tmp_path: Path, narrow: Path, name: str, optimised: str
) -> None:
    """Wheels carry one under a name with a hash, local to the library that needs it."""
    other_cublas(fakes, tmp_path / name, "of another: ")
    plugin = plugin_of(tmp_path, tmp_path, name, optimised)
    program = DRIVEN + (
        "one = plugin(sys.argv[1])\n"
        "handle = create(one)\n"
        "assert [one.multiply(handle, transa) for transa in (0, 1)] == [0, 0]\n"
        "ended()\n"
    )
    lines = run_with_standin([sys.executable, "-c", program, plugin], [fakes, tmp_path], narrow)
    assert launches_and_routines(lines) == (1, ["of another: cublasDgemm_v2"])


TOOL = """
void fake_note(const char *);
int cublasDgemm_v2(void *handle, int transa, int transb, int m, int n, int k, const double *alpha, const double *A,
                   int lda, const double *B, int ldb, const double *beta, double *C, int ldc)
{
    int (*next)(void *, int, int, int, int, int, const double *, const double *, int, const double *, int,
                const double *, double *, int) = dlsym(RTLD_NEXT, "cublasDgemm_v2");
    fake_note("the tool");
    return next(handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
}
"""
TOOLED = """
int main(void)
{
    void *handle;
    cublasCreate_v2(&handle);
    multiply_by(handle, 1);
    puts(fake_log());
    return 0;
}
"""


def test_another_preloaded_tool_sees_what_is_left(fakes: Path, tmp_path: Path, narrow: Path) -> None:
    tool = built(tmp_path, "tool.so", TOOL, "-shared", f"-L{fakes}", "-l:libcuda.so.1")
    program = built(tmp_path, "tooled", TOOLED, *linked(fakes))
    lines = run_with_standin([str(program)], [fakes], narrow, preloaded=f":{tool}")
    assert lines[0] == "the tool"
    assert launches_and_routines(lines) == (0, ["cublasDgemm_v2"])


ASKING = """
int main(void)
{
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);
    printf("%d ", dlsym(RTLD_DEFAULT, "cublasDgemm_v2") == NULL);
    printf("%d ", dlerror() != NULL);
    printf("%d ", dlsym(handle, "cublasDgemm_v2") == NULL);
    printf("%d\\n", dlopen("libcublas.so.13", RTLD_NOW | RTLD_GLOBAL) != NULL);
    printf("%d\\n", dlsym(RTLD_DEFAULT, "cublasDgemm_v2") != NULL);
    return 0;
}
"""


def test_without_cublas_its_functions_are_not_there(fakes: Path, tmp_path: Path, narrow: Path) -> None:
    program = built(tmp_path, "asking", ASKING, "-O2", "-ldl")
    assert run_with_standin([str(program)], [fakes], narrow) == ["1 1 1 1", "1"]


def test_a_sentence_that_nobody_reads_ends_no_program(fakes: Path, tmp_path: Path) -> None:
    """Standard error is a pipe whose other end is closed."""
    program = built(tmp_path, "tooled", TOOLED, *linked(fakes))
    told = Standing(standin_path(), tmp_path / "missing.so").environment(None) | {"LD_LIBRARY_PATH": str(fakes)}
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([program], env=told, stdout=subprocess.PIPE, stderr=writing, timeout=60)
    os.close(writing)
    assert done.returncode == 0
