"""`cupy` of an exported module: CuPy's matmul, by kernels if they are predicted to be faster."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from tsm2_tune.runtime.arrays.matrices import Product
from tsm2_tune.runtime.arrays.protocols import CupyArray
from tsm2_tune.runtime.gemm import gemm
from tsm2_tune.runtime.plan_cache import starters

TYPES_OF_KERNELS = "fdFDe"  # element types of kernels, as NumPy's letters


def cupy_namespace() -> SimpleNamespace:
    """Return a namespace with CuPy's names. Raise RuntimeError if CuPy is not installed."""
    try:
        import cupy
    except ImportError as error:
        raise RuntimeError(f"it needs CuPy: {error}") from error

    kind, empty, current_device = cupy.ndarray, cupy.empty, cupy.cuda.runtime.getDevice
    of_cupy = cupy.matmul

    def matmul(a: CupyArray, b: CupyArray, out: CupyArray | None = None, **named: Any) -> Any:
        """cupy.matmul: the same results, array layouts and errors.

        a, b: matrices, vectors, or batches of matrices. If b is no batch, a contiguous batch of a is multiplied as
        one matrix. A kernel computes the product if `choice` names one. CuPy computes all others: of two vectors, of
        other batches, of types that differ or have no kernel, of arrays of other kinds or not on the current device,
        with an `out` of another type or that overlaps a or b, and with further arguments.
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
            except (TypeError, ValueError):  # CuPy copies such operands, or reports the error
                return of_cupy(a, b, out=out)
            gemm(rows, b, out=matrix)
        return made

    return SimpleNamespace(matmul=matmul)


def _as_one_product(a: CupyArray, b: CupyArray) -> tuple[Any, tuple[int, ...]]:
    """Return `a` as one matrix or vector, and the shape of the result; None if that is not one product."""
    of_a, of_b, shape_a, shape_b = a.ndim, b.ndim, a.shape, b.shape
    if not (1 <= of_b <= 2 and of_a >= 1 and of_a + of_b > 2) or shape_a[-1] != shape_b[0]:
        return None, ()
    shape = (*shape_a[:-1], *shape_b[1:])
    if of_a <= 2:
        return a, shape
    if not a._c_contiguous or 0 in shape_a:
        return None, ()
    return a.reshape((math.prod(shape_a[:-1]), shape_a[-1])), shape
