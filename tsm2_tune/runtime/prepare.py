"""Prepare a launch: check alpha and beta, allocate `out`, find stream and plan, wait for streams, hold arrays."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

from tsm2_tune.runtime.arrays.dlpack import let_wait
from tsm2_tune.runtime.arrays.libraries import at_stream, current_stream, is_torchs, new_array
from tsm2_tune.runtime.arrays.matrices import Product
from tsm2_tune.runtime.arrays.pycuda_arrays import new_gpu_array
from tsm2_tune.runtime.choice.winners import Match
from tsm2_tune.runtime.cuda.cubins import function_of
from tsm2_tune.runtime.cuda.driver import (
    LEGACY_STREAM,
    ask_driver,
    context_id,
    cuda,
    current_context,
    device_of,
    home,
    is_capturing,
    stream_handle,
)
from tsm2_tune.runtime.elements import UNITS, too_large
from tsm2_tune.runtime.launch_plan import Plan, made_strides
from tsm2_tune.runtime.plan_cache import keep_plan, plans

WITHOUT_TIMES = 2  # CU_EVENT_DISABLE_TIMING
NOT_READY = 600  # CUDA_ERROR_NOT_READY

_held: list[tuple[ctypes.c_void_p, list[Any]]] = []  # the event recorded after a product, and the product's arrays
_holding = threading.Lock()


def checked_factors(product: Product, alpha: Any, beta: Any) -> tuple[Any, Any]:
    """Return alpha and beta as numbers or None. Raise TypeError or ValueError if one does not fit the product."""
    if alpha is None and beta is None:
        return alpha, beta
    alpha, beta = _number("alpha", alpha), _number("beta", beta)
    for name, factor in (("alpha", alpha), ("beta", beta)):
        real = factor is None or isinstance(factor, (int, float, np.integer, np.floating))
        if not real and not (product.is_complex and isinstance(factor, (complex, np.complexfloating))):
            kind = "number" if product.is_complex else "real number"
            raise TypeError(f"{name}: expected a {kind}, got {type(factor).__name__}")
        if factor is not None and too_large(factor, product.sum_dtype):
            raise ValueError(f"{name}: too large for {product.sum_dtype}")
    if (
        product.out is None
        and effective_factors(product, alpha, beta)[1] != effective_factors(product, None, None)[1]
    ):
        raise ValueError(f"beta = {beta}: pass the matrix that it scales as out")
    return alpha, beta


def _number(name: str, factor: Any) -> Any:
    """Return the number in a 0-d NumPy array or 0-d CPU tensor. Raise TypeError for one in GPU memory."""
    if getattr(factor, "ndim", None) != 0 or isinstance(factor, np.generic):
        return factor
    if isinstance(factor, np.ndarray):
        return factor[()]
    if not is_torchs(factor) or factor.device.type != "cpu":
        raise TypeError(
            f"{name}: it is in a device's memory, and reading it would wait for the device: pass {name}.item()"
        )
    if factor.requires_grad:
        raise TypeError(f"{name}: it requires a gradient, which kernels do not compute: pass {name}.detach()")
    return factor.item()


def effective_factors(product: Product, alpha: Any, beta: Any) -> tuple[Any, Any]:
    """Return alpha and beta, with None replaced by the default: 1 and 0, or 0 and infinity for minplus."""
    one, zero = UNITS.get(product.math or "", (1, 0))
    return one if alpha is None else alpha, zero if beta is None else beta


def stream_of(product: Product, stream: Any) -> int:
    """Return the handle of `stream`, or else of the current stream of out's library, or without `out` of a's."""
    if stream is None:
        return current_stream((product.out or product.a).array) or 0
    return stream_handle(stream)


def prepare_launch(product: Product, found: Match, stream: Any, *, is_kept: bool = True) -> tuple[Product, Plan, int]:
    """Allocate `out` if the product has none. Return it, its plan, perhaps cached, and the stream's handle."""
    context, ordinal = home(product.a)
    for other in product.given[1:]:
        if home(other) != (context, ordinal):
            raise ValueError(
                f"{other.name} and a are in different CUDA contexts: put them on one device, and in"
                " PyCUDA use pycuda.autoprimaryctx with arrays of other libraries"
            )
    handle = stream_of(product, stream)
    if product.out is None:
        strides = made_strides(product, found)
        with at_stream(product.a.array, handle):
            array = new_array(product.a.array, product.out_shape, strides)
        if array is None:
            array = new_gpu_array(context, ordinal, product, strides)
        product = product.with_out(array)
        if product.given[2].read_only:
            raise TypeError(f"a: a {type(array).__name__} creates no writable array: pass out")
    number = context_id(context)
    key = (number, id(found), product.out_shape)  # the plan keeps `found`, so that no other match has its id
    plan = plans.get(key)
    if plan is None:
        function = function_of(context, number, found.winner, found.index_bits, device_of(ordinal)[1])
        plan = Plan(product, found, function, (context, number, ordinal))
        if is_kept:
            keep_plan(key, plan)
    return product, plan, handle


def await_all(product: Product, stream: Any, handle: int) -> None:
    """Make the launch on the stream `handle` wait for other streams' work on the arrays; the host may wait."""
    if product.library == "torch":
        return  # the tensors name no streams, and have one current stream, which the caller replaces by `handle`
    streams = {matrix.stream for matrix in product.given}
    for matrix in product.given:
        if matrix.by_dlpack:
            let_wait(matrix.name, matrix.array, handle)
        if stream is None and not product.library:  # arrays of one library have one current stream, `handle`
            streams.add(current_stream(matrix.array))
    others = streams - ({None, 0, LEGACY_STREAM} if handle in (0, LEGACY_STREAM) else {None, handle})
    if not others:
        return
    stored = next((matrix for matrix in product.given if matrix.address), None)  # an empty matrix may have no memory
    if stored is not None:
        with current_context(home(stored)[0]):
            for other in others:
                ask_driver("cuStreamSynchronize", ctypes.c_void_p(other))


def hold_until_done(product: Product, context: int, stream: int) -> None:
    """Hold the product's DLPack arrays until the stream's work is done; release those of earlier products.

    While the stream is captured, hold nothing: the user of the graph must keep the arrays alive.
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
