"""The fastest way to a product, by timing on its own arrays."""

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
from tsm2_tune.runtime.cuda.workspace import of_driver
from tsm2_tune.runtime.prepare import await_all, factors_of, ready, stream_of

ROUNDS = 7  # interleaved rounds for the fastest candidates
FAR = 1.2  # times the least of the first round, past which a way is not timed again
L2_BYTES = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
NEVER = math.inf  # microseconds of a way that fails
LEAST_FILL_BYTES = 1 << 24  # written before each, also where the L2 is small or not told of
FILLS, MOST_FILLS = 3, 96  # written one after the other while the host starts the next; more where it needs longer
_measuring = threading.Lock()  # work that other threads start would be in the times


def vendors_of(product: Product, alpha: Any, beta: Any) -> Callable[[], Any] | None:
    """The product by the library that all its arrays are of; None where that computes it otherwise, as of vectors."""
    a, b, out = (x.array for x in product.given)
    factors = factors_of(product, alpha, beta)
    of_torch, of_cupy = (all(map(of, (a, b, out))) for of in (is_torchs, is_cupys))
    if product.math is not None or not (of_torch or (of_cupy and factors == factors_of(product, None, None))):
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
    """Return the fastest way by timing: a launch predicted to be about as fast as `found`, or the vendor's.

    The vendor's time is at least what the host needs to start it.
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
    out, zero = product.out.array, factors_of(product, None, None)[1]
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
    """Return the ways that can be started, the one that gemm takes first, and their starts on the stream."""
    name, arch = device_of(ordinal)
    at_a, at_b, at_out = (x.address for x in product.given)
    ways: list[Match] = []
    starts: list[Callable[[], Any]] = []
    for place, way in enumerate(contenders(product, name)):
        bits = index_bits(product.transposed() if way.swapped else product, way.winner.orders)
        if place == 0 or is_compiled(way.winner, bits, arch):
            with suppress(RuntimeError):  # one that does not load
                _, made, _ = ready(product, way, handle, is_kept=False)
                starts.append(partial(made.start, at_a, at_b, at_out, alpha, beta, handle, product.a.array))
                ways.append(way)
    return ways, starts


def times_us(
    starts: Sequence[Callable[[], object]], array: Any, context: int, ordinal: int, stream: int
) -> tuple[list[float], list[float]]:
    """Return the median time of each on the stream, NEVER where it fails, and the least that the host took to start
    it.

    They are timed in turns, each when twice as much as the L2 holds has been written: its lines are dirty then, as in
    programs, and the host is ahead of the GPU. Where it was not, its own time is in the sample, which is taken again
    after more writing. What has fallen behind after two turns is timed no more. MemoryError without room for these
    bytes, which the library of the array allocates.
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
    """The time of one on the GPU, after a fill, and on the host; and whether the GPU has waited for the host."""
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
    """Return whether it can be started.

    It is, so that what the first start of a kernel needs is there when it is timed.
    """
    with suppress(Exception):  # each library has its own
        start()
        return True
    return False


def _device(ordinal: int) -> ctypes.c_int:
    device = ctypes.c_int()
    ask_driver("cuDeviceGet", ctypes.byref(device), ordinal)
    return device


@contextmanager
def _filled(size_bytes: int, array: Any) -> Iterator[ctypes.c_uint64]:
    """The address of so much memory, of the array's library where that allocates. The array's stream is current."""
    try:
        of_library = scratch(array, size_bytes)
        address = ctypes.c_uint64(of_driver(size_bytes) if of_library is None else of_library[0])
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
    """Two that tell the time."""
    events = ctypes.c_void_p(), ctypes.c_void_p()
    try:
        for event in events:
            ask_driver("cuEventCreate", ctypes.byref(event), 0)
        yield events
    finally:
        for event in events:
            if event.value:
                cuda().cuEventDestroy_v2(event)
