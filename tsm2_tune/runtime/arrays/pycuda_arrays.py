"""New results as PyCUDA arrays, for PyCUDA's arrays and for libraries without an allocator."""

from __future__ import annotations

import threading
from typing import Any

from tsm2_tune.runtime.arrays.matrices import Product
from tsm2_tune.runtime.cuda.driver import primary_context

_contexts: dict[tuple[int, int], Any] = {}  # by thread and device: a PyCUDA context belongs to a thread


def new_gpu_array(context: int, ordinal: int, product: Product, order: str) -> Any:
    """Return a new GPUArray for the product's result in the context. `order` is NumPy's."""
    if product.a.element == "bf16":
        raise TypeError("out: PyCUDA has no arrays of bfloat16: give the matrix for the result")
    try:
        from pycuda import driver, gpuarray
    except ImportError as error:
        raise RuntimeError(
            f"a {type(product.a.array).__name__} makes no array for the result: give out, or install PyCUDA ({error})"
        ) from error
    driver.init()
    current = driver.Context.get_current()
    if current is not None and current.handle == context:
        return gpuarray.GPUArray(product.out_shape, product.dtype, order=order)
    if primary_context(ordinal) != context:
        raise RuntimeError("a is not of PyCUDA's current context: make it current, or pass out")
    key = (threading.get_ident(), ordinal)
    if key not in _contexts:  # kept: PyCUDA leaves a context current when its last owner is deleted
        _contexts[key] = driver.Device(ordinal).retain_primary_context()
    _contexts[key].push()
    try:
        return gpuarray.GPUArray(product.out_shape, product.dtype, order=order)
    finally:
        driver.Context.pop()
