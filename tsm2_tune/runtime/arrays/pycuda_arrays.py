"""Allocate results as PyCUDA arrays, for operands of PyCUDA and of libraries whose allocator is not known."""

from __future__ import annotations

import threading
from typing import Any

from tsm2_tune.runtime.arrays.matrices import Product
from tsm2_tune.runtime.cuda.driver import primary_context

_contexts: dict[tuple[int, int], Any] = {}  # (thread, device) -> context: a PyCUDA context belongs to one thread


def new_gpu_array(context: int, ordinal: int, product: Product, order: str) -> Any:
    """Return a new PyCUDA GPUArray for the product's result, in this CUDA context.

    `order` is "F" or "C". Raise RuntimeError if PyCUDA is missing, or the context is neither current nor primary.
    """
    if product.a.element == "bf16":
        raise TypeError("out: PyCUDA has no arrays of bfloat16: pass the matrix for the result")
    try:
        from pycuda import driver, gpuarray
    except ImportError as error:
        raise RuntimeError(
            f"a {type(product.a.array).__name__} creates no array for the result: pass out, or install PyCUDA"
            f" ({error})"
        ) from error
    driver.init()
    current = driver.Context.get_current()
    if current is not None and current.handle == context:
        return gpuarray.GPUArray(product.out_shape, product.dtype, order=order)
    if primary_context(ordinal) != context:
        raise RuntimeError("a is not of PyCUDA's current context: make it current, or pass out")
    key = (threading.get_ident(), ordinal)
    if key not in _contexts:  # never deleted: PyCUDA leaves a context current when its last reference is deleted
        _contexts[key] = driver.Device(ordinal).retain_primary_context()
    _contexts[key].push()
    try:
        return gpuarray.GPUArray(product.out_shape, product.dtype, order=order)
    finally:
        driver.Context.pop()
