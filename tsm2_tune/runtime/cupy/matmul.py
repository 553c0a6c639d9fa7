"""The namespace `cupy` of an exported module.

Its function `matmul` uses a tuned kernel if the kernel is predicted to be faster than cuBLAS.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from tsm2_tune.runtime.arrays.batches import Extents, common_extents
from tsm2_tune.runtime.arrays.matrices import Product
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

    def matmul(a: Any, b: Any, out: Any = None, **named: Any) -> Any:
        """Return a @ b. Results, array layouts and errors are those of cupy.matmul.

        a and b are matrices, vectors, or batches of matrices. If b is not a batch, a contiguous batch `a` is
        multiplied as one tall matrix. A kernel computes the product or the batch if `choice` returns a kernel for it.
        CuPy computes all other products: two vectors; element types that differ or have no kernel; arrays that are
        not plain cupy.ndarrays, or not on the current device; an `out` that has another type or overlaps a or b;
        calls with further arguments. Where the call costs more than the product, this module's `plan` prepares it.
        """
        if named or type(a) is not kind or type(b) is not kind or (out is not None and type(out) is not kind):
            return of_cupy(a, b, out=out, **named)
        dtype, on = a.dtype, current_device()
        if b.dtype != dtype or dtype.char not in TYPES_OF_KERNELS or not a.data.device_id == b.data.device_id == on:
            return of_cupy(a, b, out=out)
        shape = _shape_of_product(a.shape, b.shape)
        if shape is None or (out is not None and out.shape != shape):
            return of_cupy(a, b, out=out)
        made = empty(shape, dtype) if out is None else out
        rows, matrix = a, made
        if a.ndim > 2 >= b.ndim and a._c_contiguous and made._c_contiguous:  # the batch is one product
            rows = a.reshape((math.prod(a.shape[:-1]), a.shape[-1]))
            matrix = made.reshape((rows.shape[0], *shape[a.ndim - 1 :]))  # a view
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


def _shape_of_product(of_a: Extents, of_b: Extents) -> Extents | None:
    """Return the shape of a @ b; None for two vectors, and for shapes that do not fit or have an extent of 0."""
    is_vector = len(of_b) == 1
    if not of_a or not of_b or len(of_a) == len(of_b) == 1 or 0 in of_a or 0 in of_b:
        return None
    if of_a[-1] != of_b[-1 if is_vector else -2]:
        return None
    try:
        products = common_extents(of_a[:-2], of_b[:-2])
    except ValueError:
        return None
    return (*products, *of_a[-2:-1], *of_b[len(of_b) - (not is_vector) :])
