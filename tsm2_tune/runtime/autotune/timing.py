"""Time kernels and the vendor's product on the arrays of a call."""

from __future__ import annotations

import ctypes
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from tsm2_tune.runtime.arrays.libraries import at_stream, is_cupys, is_torchs, preserved, scratch, vendors_product
from tsm2_tune.runtime.arrays.matrices import Product, index_bits
from tsm2_tune.runtime.arrays.protocols import Array
from tsm2_tune.runtime.choice.choose import contenders
from tsm2_tune.runtime.choice.winners import Match, Vendor
from tsm2_tune.runtime.cuda.cubins import is_compiled
from tsm2_tune.runtime.cuda.driver import (
    ask_driver,
    cuda,
    current_context,
    device_of,
    home,
    is_capturing,
)
from tsm2_tune.runtime.cuda.workspace import driver_memory
from tsm2_tune.runtime.prepare import await_all, effective_factors, prepare_launch, stream_of

ROUNDS = 7  # interleaved rounds for the fastest candidates
FAR = 1.2  # times the fastest sample, beyond which a way is dropped after two rounds
L2_BYTES = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
NEVER = math.inf  # the time, in microseconds, of a way that fails
LEAST_FILL_BYTES = 1 << 24  # written before each sample, even if the L2 is smaller
FILLS, MOST_FILLS = 3, 96  # fills that hide the host's launch overhead; more if it needs longer
_measuring = threading.Lock()  # other threads' timings would disturb these


def vendors_of(product: Product, alpha: Any, beta: Any) -> Callable[[], Any] | None:
    """Return the product by the arrays' common library; None if there is none, or it would compute something else."""
    a, b, out = (x.array for x in product.given)
    factors = effective_factors(product, alpha, beta)
    of_torch, of_cupy = (all(map(of, (a, b, out))) for of in (is_torchs, is_cupys))
    if product.math is not None or not (of_torch or (of_cupy and factors == effective_factors(product, None, None))):
        return None
    if any(len(x.shape) != 2 for x in (a, b, out)):
        return None
    if of_torch:
        a, b, out = (x.detach() for x in (a, b, out))  # wherever the plan is called, gradients are not recorded
    asked = product.conjugates[0] != product.a.is_conjugate, product.conjugates[1] != product.b.is_conjugate
    return partial(vendors_product, a, b, out, *factors, asked)


def fastest_way(
    product: Product, found: Match, alpha: Any, beta: Any, stream: Any, multiply: Callable[[], Any] | None
) -> Match | Vendor:
    """Return the fastest of the launches predicted to be about as fast as `found`, and of the vendor's product.

    The vendor's time is at least the host's time to start it.
    """
    assert product.out is not None
    handle = stream_of(product, stream)
    context, ordinal = home(product.a)
    with current_context(context):
        if is_capturing(handle):
            raise RuntimeError(
                "measure: nothing is timed while a stream is captured: make the plan, or the first such product,"
                " before that"
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
        return found  # its launch reports the error
    if max(vendor_us, hosts_us[-1]) < us:
        return Vendor(f"timed on these arrays, with the L2 dirty {vendor_us:.1f} us, the fastest kernel {us:.1f} us")
    fastest = ways[times.index(us)]
    return replace(fastest, expected_us=us, vendor_us=vendor_us if vendor_us < NEVER else None, is_timed=True)


def _ways_to(
    product: Product, alpha: Any, beta: Any, handle: int, ordinal: int
) -> tuple[list[Match], list[Callable[[], Any]]]:
    """Return the launches that can be started, gemm's own choice first, and functions that start them."""
    name, arch = device_of(ordinal)
    at_a, at_b, at_out = (x.address for x in product.given)
    ways: list[Match] = []
    starts: list[Callable[[], Any]] = []
    for place, way in enumerate(contenders(product, name)):
        bits = index_bits(product.transposed() if way.swapped else product, way.winner.orders)
        if place == 0 or is_compiled(way.winner, bits, arch):
            with suppress(RuntimeError):  # one that does not load
                _, made, _ = prepare_launch(product, way, handle, is_kept=False)
                starts.append(partial(made.start, at_a, at_b, at_out, alpha, beta, handle, product.a.array))
                ways.append(way)
    return ways, starts


def times_us(
    starts: Sequence[Callable[[], object]], array: Array, context: int, ordinal: int, stream: int
) -> tuple[list[float], list[float]]:
    """Return the median GPU time of each way, NEVER if it fails, and the least host time to start it.

    The ways are timed in turns. Before each sample twice the size of the L2 is written, so that its lines are dirty,
    as in programs, and the host is ahead of the GPU. If the host fell behind, its time is in the sample, which is
    retaken after more writes. A way that is FAR slower after two rounds is dropped. Raise MemoryError if the array's
    library cannot allocate these bytes.
    """
    size, handle = ctypes.c_int(), ctypes.c_void_p(stream)
    ask_driver("cuDeviceGetAttribute", ctypes.byref(size), L2_BYTES, _device(ordinal))
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
                except Exception:  # each library has its own
                    us, host_us = NEVER, NEVER
                samples[at].append(us)
                hosts_us[at] = min(hosts_us[at], host_us)
    return [statistics.median(of) if NEVER not in of and of else NEVER for of in samples], hosts_us


def _sample(
    start: Callable[[], object],
    fill: Callable[[], None],
    events: tuple[ctypes.c_void_p, ctypes.c_void_p],
    stream: ctypes.c_void_p,
) -> tuple[float, float, bool]:
    """Return the time on the GPU, the time on the host, and whether the GPU waited for the host."""
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
    """Start it once, so that later starts need no lazy loading. Return whether that succeeded."""
    with suppress(Exception):  # each library has its own
        start()
        return True
    return False


def _device(ordinal: int) -> ctypes.c_int:
    device = ctypes.c_int()
    ask_driver("cuDeviceGet", ctypes.byref(device), ordinal)
    return device


@contextmanager
def _filled(size_bytes: int, array: Array) -> Iterator[ctypes.c_uint64]:
    """Yield the address of scratch memory, from the array's library if it has an allocator."""
    try:
        of_library = scratch(array, size_bytes)
        address = ctypes.c_uint64(driver_memory(size_bytes) if of_library is None else of_library[0])
    except MemoryError as error:
        raise MemoryError(
            f"the GPU has no room for the {size_bytes} bytes that are written between timings: free memory on it,"
            " also what a library's allocator keeps, or plan without measure"
        ) from error
    try:
        yield address
    finally:
        if of_library is None:
            ask_driver("cuMemFree_v2", address)


@contextmanager
def _events() -> Iterator[tuple[ctypes.c_void_p, ctypes.c_void_p]]:
    """Yield two events that record times."""
    events = ctypes.c_void_p(), ctypes.c_void_p()
    try:
        for event in events:
            ask_driver("cuEventCreate", ctypes.byref(event), 0)
        yield events
    finally:
        for event in events:
            if event.value:
                cuda().cuEventDestroy_v2(event)
