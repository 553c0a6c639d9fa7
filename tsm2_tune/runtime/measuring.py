"""The fastest way to a product, by timing on its own arrays."""

from __future__ import annotations

import ctypes
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from tsm2_tune.runtime.choosing import contenders
from tsm2_tune.runtime.driver import (
    OUT_OF_MEMORY,
    ask_driver,
    cuda,
    current_context,
    device_of,
    home,
    is_capturing,
)
from tsm2_tune.runtime.libraries import at_stream, is_cupys, is_torchs, preserved, vendors_product
from tsm2_tune.runtime.matrices import Product
from tsm2_tune.runtime.starting import await_all, factors_of, ready
from tsm2_tune.runtime.winners import Match, Vendor

ROUNDS = 7  # in which those that may be the fastest are timed
FAR = 1.2  # times the least of the first round, past which a way is not timed again
L2_BYTES = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
NEVER = math.inf  # microseconds of a way that fails
LEAST_FILL_BYTES = 1 << 24  # written before each, also where the L2 is small or not told of
FILLS = 3  # one after the other: so long the host may take to start the next


def vendors_of(product: Product, alpha: Any, beta: Any) -> Callable[[], Any] | None:
    """The product by the library that all its arrays are of; None where that multiplies none so."""
    a, b, out = (x.array for x in product.given)
    if product.math is not None or not any(all(map(of, (a, b, out))) for of in (is_torchs, is_cupys)):
        return None
    asked = product.conjugates[0] != product.a.is_conjugate, product.conjugates[1] != product.b.is_conjugate
    return partial(vendors_product, a, b, out, *factors_of(product, alpha, beta), asked)


def fastest_way(
    product: Product, found: Match, alpha: Any, beta: Any, handle: int, multiply: Callable[[], Any] | None
) -> Match | Vendor:
    """What takes least on this stream, by timing: of the ways that are expected to be about as fast as the one found,
    and the vendor's.
    """
    assert product.out is not None
    if is_capturing(handle):
        raise RuntimeError("measure: a stream that is captured times nothing: make the plan before the capture")
    context, ordinal = home(product.a)
    at_a, at_b, at_out = (x.address for x in product.given)
    ways: list[Match] = []
    starts: list[Callable[[], Any]] = []
    for way in contenders(product, device_of(ordinal)[0]):
        with suppress(RuntimeError):  # one that does not load
            _, made, _ = ready(product, way, handle)
            starts.append(partial(made.start, at_a, at_b, at_out, alpha, beta, handle, product.a.array))
            ways.append(way)
    if multiply is not None:
        starts.append(multiply)
    await_all(product, handle, handle)
    out, zero = product.out.array, factors_of(product, None, None)[1]
    with at_stream(out, handle), nullcontext() if beta in (None, zero) else preserved("out", out):
        times = times_us(starts, context, ordinal, handle)
    us, vendor_us = min(times[: len(ways)]), NEVER if multiply is None else times[-1]
    if min(us, vendor_us) == NEVER:
        return found  # whose start says what is wrong
    if vendor_us < us:
        return Vendor(f"timed on these arrays, with the L2 dirty {vendor_us:.1f} us, the fastest kernel {us:.1f} us")
    fastest = ways[times.index(us)]
    return replace(fastest, expected_us=us, vendor_us=vendor_us if vendor_us < NEVER else None, is_timed=True)


def times_us(starts: Sequence[Callable[[], object]], context: int, ordinal: int, stream: int) -> list[float]:
    """The median time of each on the stream, NEVER where it fails; of what falls behind in the first round that
    round's.

    They are timed in turns, each when twice as much as the L2 holds has been written: its lines are dirty then, as in
    programs, and the host is ahead of the GPU. RuntimeError where all fail, MemoryError without room for these bytes.
    """
    size, handle = ctypes.c_int(), ctypes.c_void_p(stream)
    ask_driver("cuDeviceGetAttribute", ctypes.byref(size), L2_BYTES, _device(ordinal))
    fill_bytes = max(2 * size.value, LEAST_FILL_BYTES)
    samples: list[list[float]] = [[] for _ in starts]
    with current_context(context), _filled(fill_bytes) as room, _events() as (before, after):
        able = [at for at, start in enumerate(starts) if _starts(start)]
        for turn in range(ROUNDS):
            least = min((min(of) for of in samples if of), default=NEVER)
            for at in able:
                if turn and samples[at][0] > FAR * least:
                    continue
                for _ in range(FILLS):
                    ask_driver("cuMemsetD8Async", room, turn, ctypes.c_size_t(fill_bytes), handle)
                ask_driver("cuEventRecord", before, handle)
                starts[at]()
                ask_driver("cuEventRecord", after, handle)
                ask_driver("cuEventSynchronize", after)
                milliseconds = ctypes.c_float()
                ask_driver("cuEventElapsedTime", ctypes.byref(milliseconds), before, after)
                samples[at].append(1e3 * milliseconds.value)
    return [statistics.median(of) if of else NEVER for of in samples]


def _starts(start: Callable[[], object]) -> bool:
    """Whether it can be started. It is, so that what the first start of a kernel needs is there when it is timed."""
    with suppress(Exception):  # each library has its own
        start()
        return True
    return False


def _device(ordinal: int) -> ctypes.c_int:
    device = ctypes.c_int()
    ask_driver("cuDeviceGet", ctypes.byref(device), ordinal)
    return device


@contextmanager
def _filled(size_bytes: int) -> Iterator[ctypes.c_uint64]:
    """The address of so much memory."""
    address = ctypes.c_uint64()
    if ask_driver("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes), expected=OUT_OF_MEMORY):
        raise MemoryError(f"the GPU has no room for the {size_bytes} bytes that are written between timings")
    try:
        yield address
    finally:
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
