"""Time kernels and the library's own product (cuBLAS) on the arrays of a call."""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np

from tsm2_tune.runtime.arrays.libraries import at_stream, is_cupys, is_torchs, preserved, scratch, vendors_product
from tsm2_tune.runtime.arrays.matrices import Product
from tsm2_tune.runtime.choice.choose import contenders
from tsm2_tune.runtime.choice.winners import Match, Vendor
from tsm2_tune.runtime.cuda.cubins import is_compiled
from tsm2_tune.runtime.cuda.driver import (
    ask_driver,
    cuda,
    current_context,
    device_handle,
    device_of,
    home,
    is_capturing,
)
from tsm2_tune.runtime.cuda.workspace import driver_memory
from tsm2_tune.runtime.prepare import await_all, effective_factors, prepare_launch, stream_of

ROUNDS = 7  # samples of each of the fastest candidates, interleaved
FAR = 1.2  # after two rounds a candidate slower than this many times the fastest sample is dropped
L2_BYTES = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
NEVER = math.inf  # the time of a candidate that fails
LEAST_FILL_BYTES = 1 << 24  # least number of bytes written before each sample, even if the L2 is smaller
FILLS, MOST_FILLS = 3, 96  # memsets before a sample: they keep the GPU busy while the host launches the candidate
_measuring = threading.Lock()  # one thread times at a time, since concurrent work would disturb the times


def vendors_of(product: Product, alpha: Any, beta: Any) -> Callable[[], Any] | None:
    """Return a function that computes the product with PyTorch or CuPy, whose arrays these are; else None.

    Return None for CuPy's arrays, too, unless alpha is 1 and beta is 0.
    """
    a, b, out = (x.array for x in product.given)
    factors = effective_factors(product, alpha, beta)
    of_torch, of_cupy = (all(map(of, (a, b, out))) for of in (is_torchs, is_cupys))
    if product.math is not None or not (of_torch or (of_cupy and factors == effective_factors(product, None, None))):
        return None
    if any(len(x.shape) != 2 for x in (a, b, out)):
        return None
    if of_torch:
        a, b, out = (x.detach() for x in (a, b, out))  # so that no later call records gradients
    asked = product.conjugates[0] != product.a.is_conjugate, product.conjugates[1] != product.b.is_conjugate
    return partial(vendors_product, a, b, out, *factors, asked)


def fastest_way(
    product: Product, found: Match, alpha: Any, beta: Any, stream: Any, multiply: Callable[[], Any] | None
) -> Match | Vendor:
    """Return the fastest of the launches with the least predicted times and, by `multiply`, the library's product.

    `found`, the choice by predicted time, is returned if every candidate fails. The library is chosen if its GPU
    time and the host's time to call it are both less than the GPU time of the fastest kernel.
    """
    assert product.out is not None
    handle = stream_of(product, stream)
    context, ordinal = home(product.a)
    with current_context(context):
        if is_capturing(handle):
            raise RuntimeError(
                "measure: kernels cannot be timed while a stream is captured: call plan, or compute this product"
                " once, before the capture"
            )
    await_all(product, stream, handle)
    out, zero = product.out.array, effective_factors(product, None, None)[1]
    keeps = nullcontext() if beta in (None, zero) else preserved("out", out)
    with _measuring, at_stream(out, handle), keeps:
        ways, starts = _ways_to(product, alpha, beta, handle, ordinal)
        if multiply is not None:
            starts.append(multiply)
        times, hosts_us = times_us(starts, out, context, ordinal, handle)
    us, vendor_us = min(times[: len(ways)], default=NEVER), NEVER if multiply is None else times[-1]
    if min(us, vendor_us) == NEVER:
        return found  # launching it will raise the error
    if max(vendor_us, hosts_us[-1]) < us:
        return Vendor(f"timed on these arrays, with the L2 dirty {vendor_us:.1f} us, the fastest kernel {us:.1f} us")
    fastest = ways[times.index(us)]
    return fastest.timed(us, vendor_us if vendor_us < NEVER else None)


def _ways_to(
    product: Product, alpha: Any, beta: Any, handle: int, ordinal: int
) -> tuple[list[Match], list[Callable[[], Any]]]:
    """Return the launches to time that load, the predicted one first, and a function for each that launches it."""
    name, arch = device_of(ordinal)
    at_a, at_b, at_out = (x.address for x in product.given)
    ways: list[Match] = []
    starts: list[Callable[[], Any]] = []
    for place, way in enumerate(contenders(product, name)):
        if place == 0 or is_compiled(way.winner, way.index_bits, arch):
            with suppress(RuntimeError):  # leave out a kernel that does not load
                _, made, _ = prepare_launch(product, way, handle, is_kept=False)
                starts.append(partial(made.start, (handle, at_a, at_b, at_out), alpha, beta, product.a.array))
                ways.append(way)
    return ways, starts


def times_us(
    starts: Sequence[Callable[[], object]], array: Any, context: int, ordinal: int, stream: int
) -> tuple[list[float], list[float]]:
    """Return the median GPU times and the least host times in us of functions that start GPU work on the stream.

    The GPU time of a function that fails is NEVER. Each round times every function once, after memsets that fill
    the L2 with dirty lines, as in a real program, and keep the GPU busy while the host launches. If the GPU was idle
    before the launch, the sample is repeated with more memsets. A function that takes longer than FAR times the
    fastest is dropped after two rounds.
    """
    size, handle = ctypes.c_int(), ctypes.c_void_p(stream)
    ask_driver("cuDeviceGetAttribute", ctypes.byref(size), L2_BYTES, device_handle(ordinal))
    fill_bytes = max(2 * size.value, LEAST_FILL_BYTES)
    samples: list[list[float]] = [[] for _ in starts]
    hosts_us, fills = [NEVER for _ in starts], [FILLS for _ in starts]
    with current_context(context), _filled(fill_bytes, array) as room, _events() as events:

        def fill(times: int) -> None:
            for _ in range(times):
                ask_driver("cuMemsetD8Async", room, turn, ctypes.c_size_t(fill_bytes), handle)

        able = [at for at, start in enumerate(starts) if _starts(start)]
        for turn in range(ROUNDS):
            least = min((min(of) for of in samples if of), default=NEVER)
            for at in able:
                if turn > 1 and min(samples[at]) > FAR * least:
                    continue
                try:
                    us, host_us, is_late = _sample(starts[at], partial(fill, fills[at]), events, handle)
                    while is_late and fills[at] < MOST_FILLS:
                        fills[at] *= 2
                        us, host_us, is_late = _sample(starts[at], partial(fill, fills[at]), events, handle)
                except Exception:  # each library raises its own type
                    us, host_us = NEVER, NEVER
                samples[at].append(us)
                hosts_us[at] = min(hosts_us[at], host_us)
    return [float(np.median(of)) if NEVER not in of and of else NEVER for of in samples], hosts_us


def _sample(
    start: Callable[[], object],
    fill: Callable[[], None],
    events: tuple[ctypes.c_void_p, ctypes.c_void_p],
    stream: ctypes.c_void_p,
) -> tuple[float, float, bool]:
    """Return the GPU's and the host's time of `start`, and whether the GPU was idle before `start` returned."""
    before, after = events
    fill()
    ask_driver("cuEventRecord", before, stream)
    started = time.perf_counter()
    start()
    host_us = 1e6 * (time.perf_counter() - started)
    is_late = cuda().cuEventQuery(before) == 0
    ask_driver("cuEventRecord", after, stream)
    ask_driver("cuEventSynchronize", after)
    milliseconds = ctypes.c_float()
    ask_driver("cuEventElapsedTime", ctypes.byref(milliseconds), before, after)
    return 1e3 * milliseconds.value, host_us, is_late


def _starts(start: Callable[[], object]) -> bool:
    """Call the function once, so that later calls load no kernels. Return whether it raised no exception."""
    with suppress(Exception):  # each library raises its own type
        start()
        return True
    return False


@contextmanager
def _filled(size_bytes: int, array: Any) -> Iterator[ctypes.c_uint64]:
    """Yield the address of scratch memory, allocated by PyTorch or CuPy for their arrays, else by the driver."""
    try:
        of_library = scratch(array, size_bytes)
        address = ctypes.c_uint64(driver_memory(size_bytes) if of_library is None else of_library[0])
    except MemoryError as error:
        raise MemoryError(
            f"the GPU has no room for the {size_bytes} bytes that measuring overwrites between samples: free memory"
            " on it, also what a library's allocator keeps, or plan without measure"
        ) from error
    try:
        yield address
    finally:
        if of_library is None:
            ask_driver("cuMemFree_v2", address)


@contextmanager
def _events() -> Iterator[tuple[ctypes.c_void_p, ctypes.c_void_p]]:
    """Yield two CUDA events with timing, and destroy them at the end."""
    events = ctypes.c_void_p(), ctypes.c_void_p()
    try:
        for event in events:
            ask_driver("cuEventCreate", ctypes.byref(event), 0)
        yield events
    finally:
        for event in events:
            if event.value:
                cuda().cuEventDestroy_v2(event)
