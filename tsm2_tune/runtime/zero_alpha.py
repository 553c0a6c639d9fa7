"""Products with alpha = 0: out = beta out. As in BLAS, a and b are not read, so their NaNs do not get into `out`."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tsm2_tune.runtime.arrays.batches import one_stride
from tsm2_tune.runtime.arrays.libraries import at_stream, vendors_product
from tsm2_tune.runtime.arrays.matrices import Product
from tsm2_tune.runtime.cuda.driver import ask_driver, current_context, home
from tsm2_tune.runtime.elements import UNITS

NO_OPERANDS = "alpha is 0: out is scaled, and a and b are not read"


def reads_operands(alpha: Any, math: str | None) -> bool:
    """Return whether the product reads a and b. It does unless alpha is 0.

    A min-plus product always does: its alpha is an addend. None means the default alpha.
    """
    return alpha is None or math in UNITS or bool(alpha != 0)


def scaled(product: Product, beta: Any, stream: int) -> Any:
    """Start out = beta out on the stream, and return `out`, in PyTorch and CuPy perhaps a new one.

    With arrays of other libraries, raise ValueError unless beta is 0 or 1 and there is an `out`.
    """
    a, b = product.a.array, product.b.array
    out = None if product.out is None else product.out.array
    beta = 0 if beta is None else beta
    if product.library in ("torch", "cupy"):
        with at_stream(a, stream):
            return vendors_product(a, b, out, 0, beta, (False, False))
    if product.out is None or beta not in (0, 1):
        needed = "an out" if product.out is None else "a beta of 0 or 1"
        raise ValueError(f"alpha = 0 needs {needed} with arrays that are not all of PyTorch or all of CuPy")
    if beta == 0:
        _zero(product, stream)
    return out


def _zero(product: Product, stream: int) -> None:
    """Write zeros into `out`, but not into the padding that its leading dimension and strides leave."""
    matrix = product.given[2]
    order, ld = matrix.order
    lines, elements = (matrix.columns, matrix.rows) if order == "n" else (matrix.rows, matrix.columns)
    size = matrix.dtype.itemsize
    offsets = [
        sum(one * step for one, step in zip(at, matrix.steps, strict=True)) for at in np.ndindex(matrix.products)
    ]
    if one_stride(matrix.products, [matrix.steps]) == (ld * size * lines,):  # all lines are equally far apart
        lines, offsets = lines * len(offsets), [0]
    pitch, width, height = (ctypes.c_size_t(x) for x in (ld * size, elements * size, lines))
    with current_context(home(matrix)[0]):
        for offset in offsets:
            place = ctypes.c_uint64(matrix.address + offset), pitch, ctypes.c_ubyte(0), width, height
            ask_driver("cuMemsetD2D8Async", *place, ctypes.c_void_p(stream))
