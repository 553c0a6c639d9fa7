"""Tests of the arguments that the bench gives to cuBLAS and cuBLASLt."""

from __future__ import annotations

import ctypes
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from benchmarks import versus_cublas
from benchmarks.cells import LAYOUTS, REGIMES, cells
from benchmarks.replay import streamed
from benchmarks.versus_cublas import refuse_less_precision
from tests.benchmarked_vendor import addressed_operands
from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import DTYPES, PLUS_TIMES, Problem
from tsm2_tune.tuner.measure.vendor.blas import (
    CONJUGATE_TRANSPOSE,
    ELEMENTS,
    NO_TRANSPOSE,
    TRANSPOSE,
    gemm_of,
    operations,
)
from tsm2_tune.tuner.measure.vendor.cublaslt import Algorithm, HeuristicResult, alignment
from tsm2_tune.tuner.measure.vendor.libraries import CublasError
from tsm2_tune.tuner.measure.vendor.syrk import mirrored, syrk_of


def stored(matrix: np.ndarray[Any, Any], letter: str) -> np.ndarray[Any, Any]:
    """The column-major matrix in memory whose letter gives `matrix`."""
    return {"n": matrix, "t": matrix.T, "c": matrix.conj().T, "j": matrix.conj()}[letter]


def applied(operation: int, matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return {NO_TRANSPOSE: matrix, TRANSPOSE: matrix.T, CONJUGATE_TRANSPOSE: matrix.conj().T}[operation]


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("op", ["".join(letters) for letters in product("ntcj", "ntcj", ("", "t"))])
def test_blas_is_told_the_same_product(op: str, is_complex: bool) -> None:
    random = np.random.default_rng(1)
    a, b = random.normal(size=(5, 3)), random.normal(size=(3, 4))
    if is_complex:
        a, b = a + 1j * random.normal(size=a.shape), b + 1j * random.normal(size=b.shape)
    conjugated = "c" if len(op) == 3 else "j"  # without a transpose, as BLAS would meet it
    if is_complex and conjugated in op[:2]:
        with pytest.raises(CublasError, match="conjugates only what it transposes"):
            operations(op, is_complex=True)
        return
    first, second = operations(op, is_complex=is_complex)
    in_memory = [stored(a, op[0]), stored(b, op[1])]
    if len(op) == 3:
        in_memory.reverse()
    c = applied(first, in_memory[0]) @ applied(second, in_memory[1])
    np.testing.assert_allclose(c.T if len(op) == 3 else c, a @ b)


@pytest.mark.parametrize("op", ["nn", "tn", "nt", "ttt", "ntt"])
def test_the_matrices_in_memory_have_the_stored_shapes(op: str) -> None:
    problem = Problem(500, 7, 30, "f64", op)
    gemm = gemm_of(addressed_operands(problem, padding=3))
    swapped = problem.row_major_c
    assert gemm.stored_a == problem.stored["B" if swapped else "A"]
    assert gemm.stored_b == problem.stored["A" if swapped else "B"]
    assert (gemm.m, gemm.n) == problem.stored["C"]
    assert (gemm.a, gemm.b, gemm.c) == ((1, 0, 2) if swapped else (0, 1, 2))
    assert (gemm.lda, gemm.ldb) == (gemm.stored_a[0] + 3, gemm.stored_b[0] + 3)
    assert gemm.ldc == gemm.m + 3


@pytest.mark.parametrize(
    ("name", "op"), [("f32", "tx"), ("f64", "nxt"), ("f32", "nx"), ("c64", "cx"), ("c128", "jxt")]
)
def test_syrk_and_herk_are_told_the_same_product(name: str, op: str) -> None:
    problem = Problem(4, 4, 9, name, op)
    syrk = syrk_of(addressed_operands(problem, padding=3))
    assert (syrk.n, syrk.k, syrk.x, syrk.ldx, syrk.c, syrk.ldc) == (4, 9, 0, problem.stored["A"][0] + 3, 1, 7)
    random = np.random.default_rng(1)
    a = random.normal(size=(4, 9)) + (1j * random.normal(size=(4, 9)) if problem.dtype.is_complex else 0)
    x = stored(a, op[0])
    computed = x @ x.conj().T if syrk.operation == NO_TRANSPOSE else x.conj().T @ x
    c = a @ a.conj().T
    np.testing.assert_allclose(computed, c.T if problem.row_major_c else c)
    np.testing.assert_allclose(mirrored(np.where(np.tri(4) == 1, computed, np.nan)), computed)


def test_cublas_has_no_other_complex_matrix_times_itself() -> None:
    for op in ("tx", "nxt", "cxt", "jx"):
        with pytest.raises(CublasError, match=f"no product {op} of complex numbers"):
            syrk_of(addressed_operands(Problem(4, 4, 9, "c64", op), padding=0))
    with pytest.raises(CublasError, match="no syrk of bf16"):
        syrk_of(addressed_operands(Problem(4, 4, 9, "bf16", "tx"), padding=0))


def test_cublas_has_every_cell_and_element_type() -> None:
    assert {name for name, dtype in DTYPES.items() if dtype.semiring is PLUS_TIMES} <= set(ELEMENTS)
    for cell in cells(REGIMES, LAYOUTS, tuple(ELEMENTS), "headline"):
        operands = addressed_operands(cell.problem, padding=0)
        gemm_of(operands)
        if cell.regime == "G":
            syrk_of(operands)


def test_structures_have_the_sizes_of_the_header() -> None:
    assert ctypes.sizeof(Algorithm) == 64
    assert ctypes.sizeof(HeuristicResult) == 96
    assert HeuristicResult.workspace_bytes.offset == 64
    assert HeuristicResult.state.offset == 72
    assert HeuristicResult.waves.offset == 76


def test_the_heuristic_is_told_how_the_operands_are_aligned() -> None:
    assert [alignment(address) for address in (0, 4, 24, 4096, 4096 + 16)] == [256, 4, 8, 256, 16]


def test_nothing_is_captured_where_the_stream_cannot_be_chosen() -> None:
    assert streamed(cast(Any, SimpleNamespace())) is None
    assert streamed(cast(Any, SimpleNamespace(stream=None))) is not None


@pytest.mark.parametrize("name", versus_cublas.LESS_PRECISE)
def test_less_than_the_element_type_is_refused(name: str) -> None:
    refuse_less_precision({"PATH": "/bin", name: "0"})
    with pytest.raises(InputError, match=f"{name} = 1"):
        refuse_less_precision({name: "1"})
