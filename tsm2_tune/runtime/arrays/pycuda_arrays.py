"""PyCUDA's arrays: the owner of their memory, and new arrays, also for libraries whose allocator is not known."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from tsm2_tune.runtime.arrays.matrices import Product
from tsm2_tune.runtime.cuda.driver import owner_id, primary_context

_contexts: dict[tuple[int, int], Any] = {}  # (thread, device) -> context: a PyCUDA context belongs to one thread
Owned = tuple[int, int | None]  # address, and id of the CUDA context that owns the memory; None: no context does
_owned: dict[int, tuple[Owned, Any]] = {}  # id of a memory object -> its address and owner, and a reference to it


def owned_memory(memory: Any) -> Owned:
    """Return the address of a GPUArray's `gpudata`, and the id of the context that owns it.

    The driver is asked once for each of PyCUDA's own memory objects, and each time for an integer or another holder.
    """
    found = _owned.get(id(memory))
    if found is not None:
        return found[0]
    address = int(memory)
    owned = address, owner_id(address)
    if type(memory).__module__ == "pycuda._driver":
        key = id(memory)
        _owned[key] = owned, weakref.ref(memory, lambda _: _owned.pop(key, None))
    return owned


def new_gpu_array(context: int, ordinal: int, product: Product, strides: tuple[int, ...]) -> Any:
    """Return a new PyCUDA GPUArray for the product's result, with these strides in elements, in this CUDA context.

    Raise RuntimeError if PyCUDA is missing, or the context is neither current nor primary.
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
    of_bytes = tuple(product.dtype.itemsize * stride for stride in strides)
    driver.init()
    current = driver.Context.get_current()
    if current is not None and current.handle == context:
        return gpuarray.GPUArray(product.out_shape, product.dtype, strides=of_bytes)
    if primary_context(ordinal) != context:
        raise RuntimeError("a is not of PyCUDA's current context: make it current, or pass out")
    key = (threading.get_ident(), ordinal)
    if key not in _contexts:  # never deleted: PyCUDA leaves a context current when its last reference is deleted
        _contexts[key] = driver.Device(ordinal).retain_primary_context()
    _contexts[key].push()
    try:
        return gpuarray.GPUArray(product.out_shape, product.dtype, strides=of_bytes)
    finally:
        driver.Context.pop()
