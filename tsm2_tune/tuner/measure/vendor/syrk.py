"""Calls of cuBLAS's SYRK, and HERK for complex types: the product of a matrix and its (conjugate) transpose."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tsm2_tune.generator.dtypes import dtype_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.interface import Device
from tsm2_tune.tuner.measure.vendor.blas import CONJUGATE_TRANSPOSE, NO_TRANSPOSE, TRANSPOSE
from tsm2_tune.tuner.measure.vendor.cublas import Cublas
from tsm2_tune.tuner.measure.vendor.libraries import CublasError
from tsm2_tune.tuner.verify.operands import Operand, Operands

FILL_LOWER = 0  # CUBLAS_FILL_MODE_LOWER: the triangle of C that is written
CALLS = {"f32": "cublasSsyrk_v2", "f64": "cublasDsyrk_v2", "c64": "cublasCherk_v2", "c128": "cublasZherk_v2"}
# `Problem.op` of a complex X -> HERK's operation on X in memory. If C is row-major, HERK computes its transpose.
HERK = {"cx": CONJUGATE_TRANSPOSE, "jxt": NO_TRANSPOSE}


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
    if problem.dtype_name not in CALLS or problem.is_batched:
        raise CublasError(f"cuBLAS has no syrk of {problem.text}")
    return Syrk(
        CALLS[problem.dtype_name],
        operation_of(problem),
        problem.n,
        problem.k,
        x=operands.a.address,
        ldx=operands.a.filling.leading_dimension,
        c=operands.c.address,
        ldc=operands.c.filling.leading_dimension,
        scalar=ctypes.c_double if problem.dtype.component.name == "f64" else ctypes.c_float,
    )


def launch(cublas: Cublas, operands: Operands) -> Callable[[], None]:
    """Return a launcher of X^T X or X^H X into C's lower triangle. Raise CublasError if cuBLAS lacks it."""
    syrk = syrk_of(operands)
    alpha, beta = syrk.scalar(1.0), syrk.scalar(0.0)
    x, c = ctypes.c_void_p(syrk.x), ctypes.c_void_p(syrk.c)
    extents = (FILL_LOWER, syrk.operation, syrk.n, syrk.k)
    return cublas.started(syrk.call, *extents, ctypes.byref(alpha), x, syrk.ldx, ctypes.byref(beta), c, syrk.ldc)


def mirrored(lower: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return the Hermitian matrix with this lower triangle. The upper triangle of `lower` is ignored."""
    below = np.tril(lower, -1)
    return np.asarray(np.tril(lower) + below.conj().T)


def complete(device: Device, c: Operand, dtype_name: str) -> None:
    """Copy C's lower triangle, which SYRK wrote, to its upper triangle, so that all of C can be verified."""
    dtype = np.dtype(dtype_named(dtype_name).numpy_name)
    whole = np.empty(c.buffer.size_bytes // dtype.itemsize, dtype)
    device.download(c.buffer, whole)
    leading = c.filling.leading_dimension
    lines = whole[c.front : c.front + leading * (c.columns - 1) + c.rows]
    stored = np.lib.stride_tricks.as_strided(lines, (c.rows, c.columns), (dtype.itemsize, leading * dtype.itemsize))
    stored[:] = mirrored(stored)
    device.upload(whole, c.buffer)
