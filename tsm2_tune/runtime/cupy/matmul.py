"""The namespace `cupy` of an exported module.

Its function `matmul` uses a tuned kernel if the kernel is predicted to be faster than cuBLAS.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from tsm2_tune.runtime.arrays.matrices import Product
from tsm2_tune.runtime.arrays.protocols import CupyArray
from tsm2_tune.runtime.gemm import gemm
from tsm2_tune.runtime.plan_cache import starters

TYPES_OF_KERNELS = "fdFDe"  # NumPy's letters of the element types that kernels may have


def cupy_namespace() -> SimpleNamespace:
    """Return a namespace with `matmul` for CuPy's arrays. Raise RuntimeError if CuPy is not installed."""
    try:
        import cupy
    except ImportError as error:
        raise RuntimeError(f"it needs CuPy: {error}") from error

    kind, empty, current_device = cupy.ndarray, cupy.empty, cupy.cuda.runtime.getDevice
    of_cupy = cupy.matmul

    def matmul(a: CupyArray, b: CupyArray, out: CupyArray | None = None, **named: Any) -> Any:
        """Return a @ b. Results, array layouts and errors are those of cupy.matmul.

        a and b are matrices, vectors, or batches of matrices. If b is not a batch, a contiguous batch `a` is
        multiplied as one tall matrix. A kernel computes the product if `choice` returns a kernel for it. CuPy
        computes all other products: two vectors; other batches; element types that differ or have no kernel; arrays
        that are not plain cupy.ndarrays, or not on the current device; an `out` that has another type or overlaps a
        or b; calls with further arguments.
        """
        if named or type(a) is not kind or type(b) is not kind or (out is not None and type(out) is not kind):
            return of_cupy(a, b, out=out, **named)
        dtype, on = a.dtype, current_device()
        if b.dtype != dtype or dtype.char not in TYPES_OF_KERNELS or not a.data.device_id == b.data.device_id == on:
            return of_cupy(a, b, out=out)
        rows, shape = _as_one_product(a, b)
        if rows is None or (out is not None and (out.shape != shape or not (out.ndim == 2 or out._c_contiguous))):
            return of_cupy(a, b, out=out)
        made = empty(shape, dtype) if out is None else out
        matrix = made if rows is a else made.reshape((rows.shape[0], *shape[a.ndim - 1 :]))  # a view
        starter = starters.get(kind)
        done = None if starter is None else starter(rows, b, matrix, None, None, None, None)
        if done is None:
            try:
                Product.of(rows, b, matrix)
            except (TypeError, ValueError):  # no kernel for these operands: CuPy copies them, or raises its own error
                return of_cupy(a, b, out=out)
            gemm(rows, b, out=matrix)
        return made

    return SimpleNamespace(matmul=matmul)


def _as_one_product(a: CupyArray, b: CupyArray) -> tuple[Any, tuple[int, ...]]:
    """Return `a` as a matrix or vector, with batches merged into rows, and the shape of a @ b.

    Return (None, ()) if a @ b cannot be computed as a single product without a copy.
    """
    of_a, of_b, shape_a, shape_b = a.ndim, b.ndim, a.shape, b.shape
    if not (1 <= of_b <= 2 and of_a >= 1 and of_a + of_b > 2) or shape_a[-1] != shape_b[0]:
        return None, ()
    shape = (*shape_a[:-1], *shape_b[1:])
    if of_a <= 2:
        return a, shape
    if not a._c_contiguous or 0 in shape_a:
        return None, ()
    return a.reshape((math.prod(shape_a[:-1]), shape_a[-1])), shape
