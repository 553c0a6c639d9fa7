"""Run CUDA kernels on the CPU, for NumPy arrays. This emulation is for finding faults, not for speed."""

from __future__ import annotations

from typing import Any

import numpy as np

from tsm2_tune.runtime.arrays.batches import new_permuted
from tsm2_tune.runtime.arrays.matrices import Product
from tsm2_tune.runtime.choice.winners import Match
from tsm2_tune.runtime.cuda.cubins import text_of
from tsm2_tune.runtime.launch_plan import made_order, made_strides
from tsm2_tune.runtime.zero_alpha import reads_operands


def multiply_on_host(product: Product, match: Match, alpha: complex, beta: complex) -> Any:
    """Run the matched kernel on the CPU and return `out`, a new array if the product has none."""
    if product.out is None:
        product = product.with_out(_new_out(product, match))
    if not match.grid[0]:
        raise ValueError(
            f"a product of {product.shape[0]}x{product.shape[1]} has too many tiles: compute it in parts"
        )
    oriented = product.transposed() if match.is_transposed else product
    winner, (m, n, k), bits = match.winner, match.extents, match.index_bits
    index, scalar = np.int32 if bits == 32 else np.int64, product.sum_dtype.type
    arrays = [x.array for x in oriented.given]
    if match.is_transposed:
        arrays = [(x.array if x.array.ndim == 2 else x.span).T for x in oriented.given]
    if not reads_operands(alpha, product.math):  # replace a and b by zeros, so that their NaNs have no effect
        arrays[:2] = [np.zeros(x.span_bytes, np.uint8) for x in oriented.given[:2]]
    a, b, c = ((array, index(ld)) for array, ld in zip(arrays, match.leading, strict=True))
    arguments = [index(m), index(n), index(k), scalar(alpha), *a, *b, scalar(beta), *c]
    blocks, splits = match.grid
    if match.workspace_bytes is not None:
        partials, counters = match.workspace_bytes
        arguments += [_aligned(partials, product.sum_dtype), np.zeros(counters // 4, np.uint32)]
    if match.launch.batched:
        strides = match.strides if match.workspace_bytes is None else (*match.strides, *match.workspace_strides)
        arguments += [np.int32(match.batch), *map(np.int64, strides)]
    try:
        from tsm2_tune.tuner.device.emulator import run_on_host
    except ImportError as error:
        raise RuntimeError(
            "NumPy arrays need the package tsm2_tune, which emulates kernels on the CPU: install it from where this"
            f" module was made ({error})"
        ) from error
    run_on_host(
        text_of(winner),
        winner.kernel,
        (f"INDEX_BITS={bits}",),
        arguments,
        blocks=blocks,
        splits=splits,
        products=match.products_of_grid,
        threads=match.launch.threads,
        smem_bytes=match.launch.smem_bytes,
    )
    assert product.out is not None
    return product.out.array


def _new_out(product: Product, match: Match) -> Any:
    """Return a new array for the result."""
    if not product.products:
        order: Any = made_order(match)
        return np.empty(product.out_shape, product.dtype, order=order)
    return new_permuted(
        product.out_shape,
        made_strides(product, match),
        lambda extents: np.empty(extents, product.dtype),
        lambda array, dimensions: array.transpose(dimensions),
    )


def _aligned(size_bytes: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return an uninitialised 1-d array with this number of bytes, aligned to 16 bytes."""
    elements = size_bytes // dtype.itemsize
    room = np.empty(elements + 16 // dtype.itemsize, dtype)
    first = -room.ctypes.data % 16 // dtype.itemsize
    return room[first : first + elements]
