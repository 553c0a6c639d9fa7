"""Tests of the arguments that measurements give to cuBLAS and cuBLASLt."""

from __future__ import annotations

import ctypes
from itertools import product
from typing import Any

import numpy as np
import pytest

from benchmarks.cells import LAYOUTS, REGIMES, cells
from tests.benchmarked_vendor import addressed_operands
from tsm2_tune.generator.dtypes import DTYPES, PLUS_TIMES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.measure.vendor.blas import (
    CONJUGATE_TRANSPOSE,
    ELEMENTS,
    NO_TRANSPOSE,
    TRANSPOSE,
    gemm_of,
    gemv_of,
    operations,
    syrk_of,
)  # fmt: skip
from tsm2_tune.tuner.measure.vendor.cublaslt import Algorithm, HeuristicResult, alignment
from tsm2_tune.tuner.measure.vendor.libraries import CublasError
from tsm2_tune.tuner.measure.vendor.routines import mirrored


def stored(matrix: np.ndarray[Any, Any], letter: str) -> np.ndarray[Any, Any]:
    """The column-major matrix in memory whose letter gives `matrix`."""
    return {"n": matrix, "t": matrix.T, "c": matrix.conj().T, "j": matrix.conj()}[letter]


def applied(operation: int, matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return {NO_TRANSPOSE: matrix, TRANSPOSE: matrix.T, CONJUGATE_TRANSPOSE: matrix.conj().T}[operation]


@pytest.mark.parametrize("op", ["".join(letters) for letters in product("ntcj", "ntcj", ("", "t"))])
def test_gemm_is_told_the_same_product(op: str) -> None:
    random = np.random.default_rng(1)
    conjugated = "c" if len(op) == 3 else "j"  # without a transpose, as BLAS would meet it
    for is_complex in (False, True):
        a, b = (random.normal(size=size) + is_complex * 1j * random.normal(size=size) for size in ((5, 3), (3, 4)))
        if is_complex and conjugated in op[:2]:
            with pytest.raises(CublasError, match="conjugates only what it transposes"):
                operations(op, is_complex=True)
            continue
        first, second = operations(op, is_complex=is_complex)
        in_memory = [stored(a, op[0]), stored(b, op[1])][:: -1 if len(op) == 3 else 1]
        c = applied(first, in_memory[0]) @ applied(second, in_memory[1])
        expected = (a if is_complex else a.real) @ (b if is_complex else b.real)
        np.testing.assert_allclose(c.T if len(op) == 3 else c, expected)


@pytest.mark.parametrize("op", ["nn", "tn", "nt", "ttt", "ntt"])
def test_the_matrices_in_memory_have_the_stored_shapes(op: str) -> None:
    problem = Problem(500, 7, 30, "f64", op)
    gemm = gemm_of(addressed_operands(problem, padding=3))
    swapped = problem.row_major_c
    assert (gemm.stored_a, gemm.stored_b) == tuple(problem.stored[name] for name in ("BA" if swapped else "AB"))
    assert (gemm.m, gemm.n) == problem.stored["C"]
    assert (gemm.a, gemm.b, gemm.c) == ((1, 0, 2) if swapped else (0, 1, 2))
    assert (gemm.lda, gemm.ldb, gemm.ldc) == (gemm.stored_a[0] + 3, gemm.stored_b[0] + 3, gemm.m + 3)


@pytest.mark.parametrize(
    ("op", "dtype", "expected"),
    [
        ("nn", "f32", (NO_TRANSPOSE, 50, 30, 1, 1)),
        ("tn", "f64", (TRANSPOSE, 30, 50, 1, 1)),
        ("ttt", "f32", (TRANSPOSE, 30, 50, 4, 4)),
        ("cnt", "c64", (CONJUGATE_TRANSPOSE, 30, 50, 1, 4)),
        ("nt", "c128", (NO_TRANSPOSE, 50, 30, 4, 1)),
    ],
)
def test_gemv_is_told_the_same_product(op: str, dtype: str, expected: tuple[int, ...]) -> None:
    gemv = gemv_of(addressed_operands(Problem(50, 1, 30, dtype, op), padding=3))
    assert (gemv.operation, gemv.rows, gemv.columns, gemv.increment_b, gemv.increment_c) == expected


@pytest.mark.parametrize(("routine", "text", "error"), [
    *((gemv_of, text, "no product") for text in ("50x2x30:f32", "50x1x30:bf16", "50x1x30:c64:jn", "50x1x30:c64:nc")),
    *((syrk_of, f"4x4x9:c64:{op}", f"no product {op} of complex") for op in ("tx", "nxt", "cxt", "jx")),
    (syrk_of, "4x4x9:bf16:tx", "no syrk of .*:bf16:"),
])  # fmt: skip
def test_blas_has_no_other_product_with_a_vector_or_with_itself(routine: Any, text: str, error: str) -> None:
    with pytest.raises(CublasError, match=error):
        routine(addressed_operands(Problem.parse(text), padding=0))


@pytest.mark.parametrize(
    ("name", "op"), [("f32", "tx"), ("f64", "nxt"), ("f32", "nx"), ("c64", "cx"), ("c128", "jxt")]
)
def test_syrk_and_herk_are_told_the_same_product(name: str, op: str) -> None:
    problem = Problem(4, 4, 9, name, op)
    syrk = syrk_of(addressed_operands(problem, padding=3))
    assert (syrk.n, syrk.k, syrk.x, syrk.ldx, syrk.c, syrk.ldc) == (4, 9, 0, problem.stored["A"][0] + 3, 1, 7)
    random = np.random.default_rng(1)
    a = random.normal(size=(4, 9)) + (1j * random.normal(size=(4, 9)) if problem.dtype.is_complex else 0)
    x, c = stored(a, op[0]), a @ a.conj().T
    computed = x @ x.conj().T if syrk.operation == NO_TRANSPOSE else x.conj().T @ x
    np.testing.assert_allclose(computed, c.T if problem.row_major_c else c)
    whole: Any = mirrored(np.where(np.tri(4) == 1, computed, np.nan))
    np.testing.assert_allclose(whole, computed)


def test_cublas_has_every_cell_and_element_type() -> None:
    assert {name for name, dtype in DTYPES.items() if dtype.semiring is PLUS_TIMES} <= set(ELEMENTS)
    for cell in cells(REGIMES, LAYOUTS, tuple(ELEMENTS), "headline"):
        operands = addressed_operands(cell.problem, padding=0)
        gemm_of(operands)
        if cell.regime == "G":
            syrk_of(operands)


def test_structures_have_the_sizes_of_the_header() -> None:
    assert (ctypes.sizeof(Algorithm), ctypes.sizeof(HeuristicResult)) == (64, 96)
    offsets = (getattr(HeuristicResult, name).offset for name in ("workspace_bytes", "state", "waves"))
    assert tuple(offsets) == (64, 72, 76)
    assert [alignment(address) for address in (0, 4, 24, 4096, 4096 + 16)] == [256, 4, 8, 256, 16]
