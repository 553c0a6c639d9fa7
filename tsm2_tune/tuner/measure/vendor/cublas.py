"""Calls of cuBLAS through ctypes: a handle, and functions that launch GEMM, GEMV and SYRK."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tsm2_tune.tuner.measure.vendor.blas import (
    ELEMENTS,
    FILL_LOWER,
    GEMM_DEFAULT,
    gemm_of,
    gemv_of,
    scalar_of,
    syrk_of,
)
from tsm2_tune.tuner.measure.vendor.libraries import CUBLAS, check, library
from tsm2_tune.tuner.verify.operands import Operands


class Cublas:
    """A cuBLAS handle in the current CUDA context. Algorithm and math mode are cuBLAS's defaults."""

    def __init__(self) -> None:
        """Create the handle.

        Raise ToolMissing if cuBLAS is missing, CublasError if cuBLAS does not support the device.
        """
        self._library = library(CUBLAS)
        self._handle = ctypes.c_void_p()
        check(self._library.cublasCreate_v2(ctypes.byref(self._handle)), "cublasCreate")
        version = ctypes.c_int()
        check(self._library.cublasGetVersion_v2(self._handle, ctypes.byref(version)), "cublasGetVersion")
        self.version = version.value

    def close(self) -> None:
        """Destroy the handle and free its memory."""
        self._library.cublasDestroy_v2(self._handle)

    def launch(self, operands: Operands) -> Callable[[], None]:
        """Return a function that launches C = A B on these buffers. Raise CublasError if BLAS has no GEMM for it."""
        gemm = gemm_of(operands)
        element = gemm.element
        alpha, beta = scalar_of(element, 1.0), scalar_of(element, 0.0)
        extents = (gemm.operation_a, gemm.operation_b, gemm.m, gemm.n, gemm.k, ctypes.byref(alpha))
        kind, how = ((), ()) if element.call else ((element.data_type,), (element.compute_type, GEMM_DEFAULT))

        def matrix(address: int, leading_dimension: int, stride: int) -> tuple[Any, ...]:
            to_next = (ctypes.c_longlong(stride),) if gemm.batch > 1 else ()
            return ctypes.c_void_p(address), *kind, leading_dimension, *to_next

        a, b = matrix(gemm.a, gemm.lda, gemm.stride_a), matrix(gemm.b, gemm.ldb, gemm.stride_b)
        c = matrix(gemm.c, gemm.ldc, gemm.stride_c)
        count = (gemm.batch,) if gemm.batch > 1 else ()
        return self.started(gemm.routine, *extents, *a, *b, ctypes.byref(beta), *c, *count, *how)

    def gemv_launch(self, operands: Operands) -> Callable[[], None]:
        """Return a function that launches C = A B by GEMV, for n = 1. Raise CublasError if BLAS has no such GEMV."""
        gemv, element = gemv_of(operands), ELEMENTS[operands.problem.dtype_name]
        a, b, c = (ctypes.c_void_p(one.address) for one in (operands.a, operands.b, operands.c))
        alpha, beta = (ctypes.byref(scalar_of(element, value)) for value in (1.0, 0.0))
        matrix = (gemv.operation, gemv.rows, gemv.columns, alpha, a, operands.a.filling.leading_dimension)
        return self.started(gemv.call, *matrix, b, gemv.increment_b, beta, c, gemv.increment_c)

    def syrk_launch(self, operands: Operands) -> Callable[[], None]:
        """Return a launcher of X^T X or X^H X into C's lower triangle. Raise CublasError if cuBLAS lacks it."""
        syrk = syrk_of(operands)
        alpha, beta = (ctypes.byref(syrk.scalar(value)) for value in (1.0, 0.0))
        x, c = ctypes.c_void_p(syrk.x), ctypes.c_void_p(syrk.c)
        extents = (FILL_LOWER, syrk.operation, syrk.n, syrk.k)
        return self.started(syrk.call, *extents, alpha, x, syrk.ldx, beta, c, syrk.ldc)

    def started(self, name: str, *arguments: Any) -> Callable[[], None]:
        """Return a function that calls cuBLAS's `name` with the handle, and raises CublasError if the call fails."""
        call = getattr(self._library, name)

        def start() -> None:
            check(call(self._handle, *arguments), routine_of(name))

        return start

    def use_workspace(self, address: int, size_bytes: int) -> None:
        """Set the workspace of later calls, which run in the default stream."""
        arguments = (self._handle, ctypes.c_void_p(address), ctypes.c_size_t(size_bytes))
        check(self._library.cublasSetWorkspace_v2(*arguments), "cublasSetWorkspace")


def routine_of(call: str) -> str:
    """Return the routine's documented name, without the suffix _v2 of the library's symbol."""
    return call.removesuffix("_v2")
