"""Keep arrays alive until their product is computed, if their library may reuse freed memory on another stream."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from tsm2_tune.runtime.arrays.matrices import Product
from tsm2_tune.runtime.cuda.driver import ask_driver, cuda, current_context, is_capturing

WITHOUT_TIMES = 2  # CU_EVENT_DISABLE_TIMING
NOT_READY = 600  # CUDA_ERROR_NOT_READY

_held: list[tuple[ctypes.c_void_p, list[Any]]] = []  # the event recorded after a product, and the product's arrays
_holding = threading.Lock()


def hold_until_done(product: Product, context: int, stream: int) -> None:
    """Hold references to the product's DLPack arrays until all work submitted to the stream so far is done.

    Also release the arrays of earlier products whose work is done. If the stream is being captured into a CUDA graph,
    hold nothing: the user of the graph must keep the arrays alive.
    """
    arrays = [matrix.array for matrix in product.given if matrix.by_dlpack]
    if not arrays:
        return
    event, handle = ctypes.c_void_p(), ctypes.c_void_p(stream)
    with current_context(context), _holding:
        if is_capturing(stream):
            return
        are_done = [cuda().cuEventQuery(over) != NOT_READY for over, _ in _held]
        for (over, _), is_done in zip(_held, are_done, strict=True):
            if is_done:
                ask_driver("cuEventDestroy_v2", over)
        _held[:] = [one for one, is_done in zip(_held, are_done, strict=True) if not is_done]
        ask_driver("cuEventCreate", ctypes.byref(event), WITHOUT_TIMES)
        ask_driver("cuEventRecord", event, handle)
        _held.append((event, arrays))
