"""Conversion of a problem to the arguments of a column-major BLAS call. For a row-major C, BLAS computes C^T."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.measure.vendor.libraries import CublasError
from tsm2_tune.tuner.verify.operands import Operands

# cublasOperation_t
NO_TRANSPOSE = 0
TRANSPOSE = 1
CONJUGATE_TRANSPOSE = 2

# Letters of `Problem.op` -> BLAS's operation on the column-major matrix in memory. The first table is for a
# column-major C. For a row-major C BLAS computes the transpose, B^T A^T.
OPERATIONS = {"n": NO_TRANSPOSE, "t": TRANSPOSE, "c": CONJUGATE_TRANSPOSE}
OPERATIONS_OF_TRANSPOSE = {"n": TRANSPOSE, "t": NO_TRANSPOSE, "j": CONJUGATE_TRANSPOSE}
UNCONJUGATED = {"c": "t", "j": "n"}  # equivalent letters for a real matrix

# cublasComputeType_t: two without TF32 and without emulation, and one that may use TF32
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77
# cudaDataType_t
R_32F, R_64F, R_16F, C_32F, C_64F, R_16BF = 0, 1, 2, 4, 5, 14
GEMM_DEFAULT = -1  # CUBLAS_GEMM_DEFAULT


@dataclass(frozen=True, slots=True)
class Element:
    """The GEMM routine and the enum values of cuBLAS for one element type."""

    call: str  # the type's GEMM routine; "" if only cublasGemmEx supports the type
    data_type: int
    compute_type: int
    scale_type: int  # cudaDataType_t of alpha and beta
    scalar: type[ctypes._SimpleCData[Any]]  # type of alpha's real part
    is_complex: bool = False


ELEMENTS = {
    "f32": Element("cublasSgemm_v2", R_32F, COMPUTE_32F, R_32F, ctypes.c_float),
    "f64": Element("cublasDgemm_v2", R_64F, COMPUTE_64F, R_64F, ctypes.c_double),
    "c64": Element("cublasCgemm_v2", C_32F, COMPUTE_32F, C_32F, ctypes.c_float, is_complex=True),
    "c128": Element("cublasZgemm_v2", C_64F, COMPUTE_64F, C_64F, ctypes.c_double, is_complex=True),
    "bf16": Element("", R_16BF, COMPUTE_32F, R_32F, ctypes.c_float),
    "f16": Element("", R_16F, COMPUTE_32F, R_32F, ctypes.c_float),
    "tf32": Element("", R_32F, COMPUTE_32F_FAST_TF32, R_32F, ctypes.c_float),
    # cuBLAS has no 3xTF32. Its f32 routine has about the same accuracy.
    "3xtf32": Element("cublasSgemm_v2", R_32F, COMPUTE_32F, R_32F, ctypes.c_float),
}


# Matrix-vector products.
GEMV_CALLS = {"f32": "cublasSgemv_v2", "f64": "cublasDgemv_v2", "c64": "cublasCgemv_v2", "c128": "cublasZgemv_v2"}

# Products of a matrix and its (conjugate) transpose: SYRK, and HERK for complex types.
FILL_LOWER = 0  # CUBLAS_FILL_MODE_LOWER: the triangle of C that is written
SYRK_CALLS = {"f32": "cublasSsyrk_v2", "f64": "cublasDsyrk_v2", "c64": "cublasCherk_v2", "c128": "cublasZherk_v2"}
# `Problem.op` of a complex X -> HERK's operation on X in memory. If C is row-major, HERK computes its transpose.
HERK = {"cx": CONJUGATE_TRANSPOSE, "jxt": NO_TRANSPOSE}


@dataclass(frozen=True, slots=True)
class Gemm:
    """The arguments of a column-major GEMM call. If C is row-major, they describe its transpose B^T A^T.

    Strides are the distances between the matrices of a batch, in elements.
    """

    element: Element
    operation_a: int
    operation_b: int
    m: int
    n: int
    k: int
    a: int  # address
    lda: int
    b: int
    ldb: int
    c: int
    ldc: int
    batch: int
    stride_a: int
    stride_b: int
    stride_c: int

    @property
    def stored_a(self) -> tuple[int, int]:
        """Rows and columns of A in memory."""
        return (self.m, self.k) if self.operation_a == NO_TRANSPOSE else (self.k, self.m)

    @property
    def routine(self) -> str:
        """The symbol of cuBLAS's routine, with strides for a batch."""
        if self.batch == 1:
            return self.element.call or "cublasGemmEx"
        call = self.element.call
        return f"{call.removesuffix('_v2')}StridedBatched" if call else "cublasGemmStridedBatchedEx"

    @property
    def stored_b(self) -> tuple[int, int]:
        return (self.k, self.n) if self.operation_b == NO_TRANSPOSE else (self.n, self.k)


def scalar_of(element: Element, value: float) -> Any:
    """Return alpha or beta as a ctypes object of the element type. Its address is an argument of a BLAS call."""
    return (element.scalar * 2)(value, 0.0) if element.is_complex else element.scalar(value)


def operations(op: str, *, is_complex: bool) -> tuple[int, int]:
    """Return the cublasOperation_t of both factors: A and B, or B and A if C is row-major.

    C is row-major if `op` has three letters. Raise CublasError if a factor is conjugated but not transposed in
    memory: BLAS has no operation for such a factor.
    """
    letters = [letter if is_complex else UNCONJUGATED.get(letter, letter) for letter in op[:2]]
    row_major_c = len(op) == 3
    table = OPERATIONS_OF_TRANSPOSE if row_major_c else OPERATIONS
    if not set(letters) <= set(table):
        raise CublasError(f"BLAS has no product {op}: it conjugates only what it transposes")
    first, second = reversed(letters) if row_major_c else letters
    return table[first], table[second]


def product_of(problem: Problem) -> tuple[Element, tuple[int, int]]:
    """Return the type and both cublasOperation_t of the problem's GEMM. Raise CublasError if BLAS has none."""
    if problem.dtype_name not in ELEMENTS:
        raise CublasError(f"BLAS has no product of {problem.dtype_name}")
    element = ELEMENTS[problem.dtype_name]
    return element, operations(problem.factors + problem.op[2:], is_complex=element.is_complex)


def gemm_of(operands: Operands) -> Gemm:
    """Return the arguments of GEMM C = op(A) op(B) for the operands. Raise CublasError if BLAS has no such GEMM."""
    problem = operands.problem
    element, (operation_a, operation_b) = product_of(problem)
    first, second, m, n = operands.a, operands.b, problem.m, problem.n
    if len(problem.op) == 3:
        first, second, m, n = second, first, n, m
    return Gemm(
        element,
        operation_a,
        operation_b,
        m,
        n,
        problem.k,
        a=first.address,
        lda=first.filling.leading_dimension,
        b=second.address,
        ldb=second.filling.leading_dimension,
        c=operands.c.address,
        ldc=operands.c.filling.leading_dimension,
        batch=problem.batch,
        stride_a=first.stride,
        stride_b=second.stride,
        stride_c=operands.c.stride,
    )


@dataclass(frozen=True, slots=True)
class Gemv:
    """The arguments of a GEMV call: a column-major matrix, and two vectors with strides (increments)."""

    call: str
    operation: int
    rows: int  # of the matrix in memory
    columns: int
    increment_b: int
    increment_c: int


def gemv_of(operands: Operands) -> Gemv:
    """Return the arguments of GEMV C = op(A) B, with n = 1. Raise CublasError if BLAS has none for the problem."""
    problem = operands.problem
    letters = [letter if problem.dtype.is_complex else UNCONJUGATED.get(letter, letter) for letter in problem.factors]
    if (
        problem.n > 1
        or problem.is_batched
        or problem.dtype_name not in GEMV_CALLS
        or letters[0] not in OPERATIONS
        or letters[1] in "cj"
    ):
        raise CublasError(f"BLAS has no product {problem.op} of a matrix and a vector for {problem.text}")
    _, along_b, along_c = problem.contiguous
    return Gemv(
        GEMV_CALLS[problem.dtype_name],
        OPERATIONS[letters[0]],
        *problem.stored["A"],
        increment_b=1 if along_b == "k" else operands.b.filling.leading_dimension,
        increment_c=1 if along_c == "m" else operands.c.filling.leading_dimension,
    )


@dataclass(frozen=True, slots=True)
class Syrk:
    """The arguments of a SYRK or HERK call, which writes the lower triangle of a column-major n x n matrix."""

    call: str
    operation: int
    n: int
    k: int
    x: int  # address
    ldx: int
    c: int
    ldc: int
    scalar: type[ctypes.c_float] | type[ctypes.c_double]  # of alpha and beta, which are real


def operation_of(problem: Problem) -> int:
    """Return the cublasOperation_t of X in X^T X or X^H X. Raise CublasError if neither SYRK nor HERK has it."""
    if not problem.dtype.is_complex:
        return NO_TRANSPOSE if problem.op[0] == "n" else TRANSPOSE
    if problem.op not in HERK:
        raise CublasError(f"cuBLAS has no product {problem.op} of complex numbers: herk conjugates the other factor")
    return HERK[problem.op]


def syrk_of(operands: Operands) -> Syrk:
    """Return the arguments of SYRK or HERK for these operands. Raise CublasError if cuBLAS lacks the product."""
    problem = operands.problem
    if problem.dtype_name not in SYRK_CALLS or problem.is_batched:
        raise CublasError(f"cuBLAS has no syrk of {problem.text}")
    return Syrk(
        SYRK_CALLS[problem.dtype_name],
        operation_of(problem),
        problem.n,
        problem.k,
        x=operands.a.address,
        ldx=operands.a.filling.leading_dimension,
        c=operands.c.address,
        ldc=operands.c.filling.leading_dimension,
        scalar=ctypes.c_double if problem.dtype.component.name == "f64" else ctypes.c_float,
    )
