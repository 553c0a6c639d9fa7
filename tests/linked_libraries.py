"""Builders of C programs and plugins that multiply by cuBLAS or cuBLASLt, and of other versions of both."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.standin_calls import FLAGS, TESTS, compiled_c

HEADERS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
const char *fake_log(void);
void fake_note(const char *);
static const double one = 1, zero = 0;
static void *const A = (void *)(1l << 40), *const B = (void *)(1l << 50), *const C = (void *)(1l << 60);
"""
GEMM = """
int cublasCreate_v2(void **);
int cublasDestroy_v2(void *);
int cublasDgemm_v2(void *, int, int, int, int, int, const double *, const double *, int, const double *, int,
                   const double *, double *, int);
static int multiply_by(void *handle, int transa)
{
    return cublasDgemm_v2(handle, transa, 0, 6, 2, 3, &one, A, 6, B, 3, &zero, C, 6);
}
static int multiply_once(int transa)
{
    static void *handle;
    if (handle == NULL)
        cublasCreate_v2(&handle);
    return multiply_by(handle, transa);
}
"""
LT = """
int cublasLtMatmulDescCreate(void **, int, int);
int cublasLtMatmulDescSetAttribute(void *, int, const void *, size_t);
int cublasLtMatrixLayoutCreate(void **, int, uint64_t, uint64_t, int64_t);
int cublasLtMatmul(void *, void *, const void *, const void *, void *, const void *, void *, const void *,
                   const void *, void *, void *, void *, const void *, void *, size_t, void *);
static void *operation, *a, *b, *c;
static void prepare(int transa)
{
    cublasLtMatmulDescCreate(&operation, 70, 1);
    cublasLtMatmulDescSetAttribute(operation, 3, &transa, sizeof transa);
    cublasLtMatrixLayoutCreate(&a, 1, transa ? 3 : 6, transa ? 6 : 3, transa ? 3 : 6);
    cublasLtMatrixLayoutCreate(&b, 1, 3, 2, 3);
    cublasLtMatrixLayoutCreate(&c, 1, 6, 2, 6);
}
#define MULTIPLY cublasLtMatmul((void *)1, operation, &one, A, a, B, b, &zero, C, c, C, c, NULL, NULL, 0, NULL)
static int multiply_once(int transa)
{
    prepare(transa);
    return MULTIPLY;
}
"""
PLUGIN = """
int multiply(int transa) { return multiply_once(transa); } /* which an optimising compiler makes a jump */
"""


# Arguments of any number and type, as they are passed on
WORDS = """
#define WORDS long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, long l, \\
    long m, long n, long o, long p
#define AS_GIVEN a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p
"""
PASSED_ON = (
    WORDS
    + """
int cublasDgemm_v2(WORDS)
{
    fake_note("the tool");
    return ((int (*)(WORDS))dlsym(RTLD_NEXT, "cublasDgemm_v2"))(AS_GIVEN);
}
"""
)
KEPT = """
int cublasLtMatmul(void) { fake_note("the tool"); return 0; }
"""


@dataclass(frozen=True)
class Library:
    """A library that is stood in for."""

    name: str
    routine: str
    declared: str
    options: tuple[str, ...] = ()  # of another version
    tool: str = ""  # passes on, or not, what a preloaded tool sees

    @property
    def so(self) -> str:
        return f"lib{self.name}.so"

    def built(self, folder: Path, name: str, text: str, *options: str) -> str:
        return str(compiled_c(HEADERS + self.declared, folder, name, text, *options))

    def plugin(self, folder: Path, at: Path, library: str, text: str = PLUGIN, *options: str) -> str:
        """A library that multiplies by the one of this name in a folder."""
        return self.built(folder, f"plugin-{library}.so", text, "-shared", *options, f"-L{at}", f"-l:{library}")

    def other(self, fakes: Path, path: Path, prefix: str, *options: str) -> None:
        """Make a second one, whose calls are noted with the prefix."""
        source = str(TESTS / f"fake_{self.name.lower()}.c")
        command = ["cc", *FLAGS, f'-DPREFIX="{prefix}"', f"-Wl,-soname,{path.name}", source, *self.options, *options]
        subprocess.run([*command, f"-L{fakes}", "-l:libcuda.so.1", "-o", str(path)], check=True)

    def two(self, fakes: Path, folder: Path, text: str = PLUGIN, *options: str) -> list[str]:
        """Return plugins for version 13 and for another version 12."""
        self.other(fakes, folder / f"{self.so}.12", "of 12: ")
        places = (13, fakes), (12, folder)
        return [self.plugin(folder, at, f"{self.so}.{number}", text, *options) for number, at in places]


CUBLAS = Library("cublas", "cublasDgemm_v2", GEMM, tool=PASSED_ON)
CUBLASLT = Library("cublasLt", "cublasLtMatmul", LT, ("-DREVERSED",), KEPT)


def linked(fakes: Path, library: str = "libcublas.so.13") -> list[str]:
    return [f"-L{fakes}", f"-l:{library}", "-l:libcuda.so.1"]
