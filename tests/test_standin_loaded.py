"""Tests that the stand-in finds a program's cuBLAS and cuBLASLt, however they are linked, loaded and asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.library_calls import fabricated_library, tried
from tests.linked_libraries import CUBLAS, CUBLASLT, HEADERS, PLUGIN, WORDS, Library, linked
from tests.on_host import IN_C
from tests.processes import python
from tests.standin_calls import compiled_c, launches_and_routines, run_with_standin
from tsm2_tune.generator.problem import Problem
from tsm2_tune.interpose.build import standin_path
from tsm2_tune.interpose.journal import written_in
from tsm2_tune.interpose.preload import Standing

pytestmark = IN_C
of_both = pytest.mark.parametrize("library", [CUBLAS, CUBLASLT], ids=lambda library: library.name)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> Path:
    """A pack of one kernel, for A as it is."""
    return fabricated_library(tmp_path_factory.mktemp("narrow"), tried(Problem(6, 2, 3, "f64")))


LINKED = """
extern char **environ;
int main(void)
{
    for (char **one = environ; *one != NULL; ++one)
        memset(*one, 'x', strlen(*one)); /* as setproctitle does, once it has copied them */
    clearenv();
    const int status = multiply_once(0);
    void *next = dlsym(RTLD_NEXT, "main"), *standard = dlsym(RTLD_DEFAULT, ROUTINE_NAME);
    printf("%d %d %d %d\\n%s", status, next == NULL, standard == (void *)ROUTINE, dlsym(RTLD_NEXT, "printf") != NULL,
           fake_log());
    return 0;
}
"""
DRIVEN = """
for path in sys.argv[1:]:
    assert [ctypes.CDLL(path).multiply(transa) for transa in (0, 1)] == [0, 0]
"""
LOGGED = """
import ctypes, sys
driver = ctypes.CDLL("libcuda.so.1")
driver.fake_log.restype = ctypes.c_char_p
{}
print(driver.fake_log().decode())
"""
Run = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def driven(fakes: Path, tmp_path: Path, narrow: Path) -> Run:
    """Returns the launches and the routines of a script that multiplies by plugins."""

    def run(plugins: Iterable[str], script: str = DRIVEN) -> tuple[int, list[str]]:
        program = [sys.executable, "-c", LOGGED.format(script), *plugins]
        return launches_and_routines(run_with_standin(program, [tmp_path, fakes], narrow))

    return run


@of_both
def test_a_program_that_is_linked_is_reached(fakes: Path, narrow: Path, tmp_path: Path, library: Library) -> None:
    """It writes over its environment. With cuBLASLt it is linked with names that have a version."""
    text = LINKED.replace("ROUTINE_NAME", f'"{library.routine}"').replace("ROUTINE", library.routine)
    program = library.built(tmp_path, "linked", text, *linked(fakes, f"{library.so}.13"))
    if library is CUBLASLT:
        names = subprocess.run(["nm", "-D", program], capture_output=True, text=True, check=True).stdout
        assert "cublasLtMatmul@libcublasLt.so.13" in names
    first, *log = run_with_standin([program], [fakes], narrow)
    assert (first, launches_and_routines(log)) == ("0 1 1 1", (1, []))


@of_both
@pytest.mark.parametrize(("name", "optimised"), [("lib{}-5b5fe7f9.so.12", "-O0"), ("libalgebra.so", "-O2")])
def test_one_of_another_name_is_found(
    fakes: Path, tmp_path: Path, driven: Run, library: Library, name: str, optimised: str
) -> None:
    """Wheels carry one under a name with a hash, local to the library that needs it."""
    named = name.format(library.name)
    library.other(fakes, tmp_path / named, "of another: ")
    plugin = library.plugin(tmp_path, tmp_path, named, PLUGIN, optimised)
    assert driven([plugin]) == (1, [f"of another: {library.routine}"])


@of_both
def test_each_of_two_libraries_gets_its_own_calls(fakes: Path, tmp_path: Path, driven: Run, library: Library) -> None:
    """Descriptors, which differ, are read by the library that made them."""
    assert driven(library.two(fakes, tmp_path) * 2) == (4, [library.routine, f"of 12: {library.routine}"] * 2)


@of_both
def test_another_preloaded_tool_sees_what_is_left(
    fakes: Path, tmp_path: Path, narrow: Path, library: Library
) -> None:
    tool = compiled_c(HEADERS, tmp_path, "tool.so", library.tool, "-shared", f"-L{fakes}", "-l:libcuda.so.1")
    program = library.built(tmp_path, "tooled", TOOLED, *linked(fakes, f"{library.so}.13"))
    lines = run_with_standin([program], [fakes], narrow, preloaded=f":{tool}")
    assert lines.count("the tool") == 1
    assert launches_and_routines(lines) == (1, [library.routine] if library is CUBLAS else [])


TOOLED = """
int main(void)
{
    const int status = multiply_once(0) | multiply_once(1);
    puts(fake_log());
    return status;
}
"""
ASKING = """
int main(void)
{
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);
    printf("%d ", dlsym(RTLD_DEFAULT, ROUTINE) == NULL);
    printf("%d ", dlerror() != NULL);
    printf("%d ", dlsym(handle, ROUTINE) == NULL);
    printf("%d\\n", dlsym(dlopen(SO, RTLD_NOW | RTLD_GLOBAL), ROUTINE) != NULL);
    printf("%d\\n", dlsym(RTLD_DEFAULT, ROUTINE) != NULL);
    return 0;
}
"""


@of_both
def test_without_the_library_its_function_is_not_there(
    fakes: Path, tmp_path: Path, narrow: Path, library: Library
) -> None:
    defined = f'-DROUTINE="{library.routine}"', f'-DSO="{library.so}.13"'
    program = compiled_c(HEADERS, tmp_path, "asking", ASKING, *defined, "-O2", "-ldl")
    assert run_with_standin([str(program)], [fakes], narrow) == ["1 1 1 1", "1"]


# cuBLAS


EARLY = """
__attribute__((constructor)) static void early(void) { multiply_once(0); }
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


def test_products_in_constructors_of_libraries_are_reached(fakes: Path, narrow: Path, tmp_path: Path) -> None:
    CUBLAS.built(tmp_path, "libearly.so", EARLY, "-shared", *linked(fakes))
    program = CUBLAS.built(tmp_path, "after", AFTER_EARLY, f"-L{tmp_path}", "-l:libearly.so", *linked(fakes))
    assert launches_and_routines(run_with_standin([program], [fakes, tmp_path], narrow)) == (1, [])


CREATING = """
int create(void **handle) { return cublasCreate_v2(handle); }
int destroy(void *handle) { return cublasDestroy_v2(handle); }
int multiply(void *handle, int transa) { return multiply_by(handle, transa); }
"""
OF_HANDLES = """
def plugin(path):
    found = ctypes.CDLL(path)
    found.destroy.argtypes, found.multiply.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int]
    return found
def create(of):
    handle = ctypes.c_void_p()
    assert of.create(ctypes.byref(handle)) == 0
    return handle.value
first, second = ctypes.CDLL("libcublas.so.13"), ctypes.CDLL("libcublas.so.12")
handle = ctypes.c_void_p()
second.cublasCreate_v2(ctypes.byref(handle))
assert second.cublasSetStream_v2(handle, ctypes.c_void_p(9)) == 0
first, second = map(plugin, sys.argv[1:])
old = create(second)
second.destroy(old)
assert create(first) == old  # its memory is given again
assert first.multiply(old, 1) == 0
many = [create(second) for _ in range(3000)]
assert [second.multiply(one, 1) for one in (many[0], many[-1])] == [0, 0]
"""


def test_a_handle_of_a_second_cublas_is_forgotten_when_it_is_destroyed(
    fakes: Path, tmp_path: Path, driven: Run
) -> None:
    found = driven(CUBLAS.two(fakes, tmp_path, CREATING), OF_HANDLES)
    assert found == (0, ["cublasDgemm_v2", *["of 12: cublasDgemm_v2"] * 2])


def test_a_sentence_that_nobody_reads_ends_no_program(fakes: Path, tmp_path: Path) -> None:
    """Standard error is a pipe whose other end is closed."""
    program = CUBLAS.built(tmp_path, "tooled", TOOLED, *linked(fakes))
    told = Standing(standin_path(), tmp_path / "missing.so").environment(None) | {"LD_LIBRARY_PATH": str(fakes)}
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([program], env=told, stdout=subprocess.PIPE, stderr=writing, timeout=60)
    os.close(writing)
    assert done.returncode == 0


# cuBLASLt


ONE_BY_ONE = """
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
    plugins = CUBLASLT.two(fakes, tmp_path)
    program = CUBLASLT.built(tmp_path, "program", ONE_BY_ONE, "-O1", f"-L{fakes}", "-l:libcuda.so.1", "-ldl")
    first, second, third, *lines = run_with_standin([program, *plugins, plugins[0]], [fakes, tmp_path], narrow)
    assert first == second == third
    assert launches_and_routines(lines) == (0, ["cublasLtMatmul", "of 12: cublasLtMatmul", "cublasLtMatmul"])


ASKING_ITSELF = (
    WORDS
    + """
#define ASK(name) int own_##name(WORDS) __asm__(#name); int own_##name(WORDS) \\
    { return ((int (*)(WORDS))dlsym(dlopen("libcublasLt.so.13", RTLD_NOW), #name))(AS_GIVEN); }
ASK(cublasLtMatmulDescCreate) ASK(cublasLtMatmulDescSetAttribute) ASK(cublasLtMatrixLayoutCreate) ASK(cublasLtMatmul)
"""
)


def test_a_library_may_have_functions_that_ask_for_cublaslts(tmp_path: Path, driven: Run) -> None:
    plugin = CUBLASLT.built(tmp_path, "plugin.so", ASKING_ITSELF + PLUGIN, "-shared", "-O0", "-Wl,-Bsymbolic")
    assert driven([plugin]) == (1, ["cublasLtMatmul"])


@pytest.mark.parametrize(
    "missing",
    ["cublasLtMatmulDescInit_internal", "cublasLtMatrixLayoutInit_internal", "cublasLtMatmulDescGetAttribute"],
)
def test_without_functions_for_descriptors_all_is_left(
    fakes: Path, tmp_path: Path, driven: Run, missing: str
) -> None:
    other = f"-D{missing}={missing}_of_another_version", "-UREVERSED"
    CUBLASLT.other(fakes, tmp_path / "libcublasLt.so.13", "of another: ", *other)
    plugin = CUBLASLT.plugin(tmp_path, tmp_path, "libcublasLt.so.13")
    assert driven([plugin]) == (0, ["of another: cublasLtMatmul"] * 2)


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


def test_of_more_calling_places_than_are_kept_each_is_known(fakes: Path, tmp_path: Path, driven: Run) -> None:
    """1024 of each of two libraries, some of which would be kept in the same place."""
    found = driven(CUBLASLT.two(fakes, tmp_path, MANY, "-O0"))
    assert found == (2048, ["cublasLtMatmul"] * 1024 + ["of 12: cublasLtMatmul"] * 1024)


# cuBLAS multiplies by cuBLASLt, in a routine that is not stood in for, and in one that is.
CUBLAS_ITSELF = """
int cublasCreate_v2(void **handle) { return (*handle = malloc(64)) == NULL; }
int cublasGetStream_v2(void *handle, void **stream) { return *stream = NULL, 0; }
int cublasHgemm(void *handle) { prepare(0); return MULTIPLY; }
int cublasDgemm_v2(void *handle) { prepare(0); return MULTIPLY; }
"""
PROGRAM = """
from tests.cublas_program import call
from tests.standin_calls import gemm
cublas, handle, kept = ctypes.CDLL("CUBLAS"), ctypes.c_void_p(), []
assert cublas.cublasCreate_v2(ctypes.byref(handle)) == 0
assert cublas.cublasHgemm(handle) == 0
name, values = gemm("cublasDgemm_v2", transa=1)
assert call(cublas, handle, name, values, kept, {}) == 0
"""


@pytest.mark.parametrize("name", ["libcublas.so.13", "libalgebra.so"])
def test_what_cublas_multiplies_by_cublaslt_is_no_product_of_the_programs(
    fakes: Path, tmp_path: Path, narrow: Path, name: str
) -> None:
    cublas = CUBLASLT.built(tmp_path, name, CUBLAS_ITSELF, "-shared", *linked(fakes, "libcublasLt.so.13"))
    (tmp_path / "journal").mkdir()
    told = Standing(standin_path(), narrow).environment(tmp_path / "journal") | {"LD_LIBRARY_PATH": str(fakes)}
    done = python("-c", LOGGED.format(PROGRAM.replace("CUBLAS", str(cublas))), env=told, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert launches_and_routines(done.stdout.splitlines()) == (0, ["cublasLtMatmul"] * 2)
    written = written_in(tmp_path / "journal")
    assert {one.routine: one.calls for one in written.seen} == {"gemm": 1}
    assert written.uncounted == (0, 0, 0)
