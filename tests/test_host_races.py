"""The host tells races: what two threads do to the same bytes with no barrier between, in whatever order they ran."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from tests.on_host import ON_HOST, SHARED, pointer
from tsm2_tune.tuner.compile.compiler import compile_text
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.device.emulator.entry_point import IN_ORDER
from tsm2_tune.tuner.device.emulator.toolchain import WATCHED_SAMPLE, host_toolchain, watching
from tsm2_tune.tuner.device.interface import KernelFault
from tsm2_tune.tuner.results.trial import Binary, CompileFailure

Floats = np.ndarray[Any, np.dtype[np.float32]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
pytestmark = [*ON_HOST, pytest.mark.usefixtures("calls_before_accesses")]

BEFORE = f"""
extern "C" __global__ void k(float *to)
{{
    {SHARED}
    float *staged = reinterpret_cast<float *>(shared_bytes);
    const int t = threadIdx.x;
    float value = t;
"""
THREADS = np.arange(64)
UNORDERED = "no barrier orders the two"


@pytest.fixture(scope="module")
def calls_before_accesses(session_cache: None) -> None:
    """Skips where no linker may be expected to take what is watched."""
    sample = compile_text(
        WATCHED_SAMPLE, kernel="sample", defines=(), toolchain=watching(host_toolchain()), limit_seconds=60
    )
    if sys.platform != "linux" and isinstance(sample, CompileFailure):
        pytest.skip(sample.detail)
    assert isinstance(sample, Binary), sample.detail


def run(body: str, *, threads: int = 64) -> Floats:
    """Watch a kernel of this body whose threads run in ascending order; KernelFault where it races.

    Two blocks of it: each finds 100, 101, ... where its threads leave their values, which are returned.
    """
    text = f"{BEFORE}{body}\nto[blockIdx.x * blockDim.x + t] = value;\n}}\n"
    compiled = compile_text(text, kernel="k", defines=(), toolchain=watching(host_toolchain()), limit_seconds=60)
    assert isinstance(compiled, Binary), compiled.detail
    device = HostDevice(seed=IN_ORDER)
    try:
        target, values = device.allocate(4 * 2 * threads), np.tile(100 + np.arange(threads, dtype=np.float32), 2)
        device.upload(values, target)
        kernel = device.load(compiled.path, "k")
        kernel((pointer(target),), blocks=2, threads=threads, smem_bytes=4 * 2 * threads)
        device.synchronise()
        device.download(target, values)
    finally:
        device.close()
    return values


WRITE, READ_NEXT = "staged[t] = t;", "value = staged[(t + 1) % blockDim.x];"
COPY = "tsm2_host::start_copy(staged + t, to + t, 4, 4);"
COPY_OWN = COPY.replace("to + t", "to + blockIdx.x * blockDim.x + t")
VARIABLE = "__shared__ short said[2];"
READ_BEFORE = "value = t > 0 ? staged[t - 1] : 0;"  # which threads in order have written


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (f"{WRITE} __syncthreads(); {READ_NEXT}", np.roll(THREADS, -1)),
        (f"{WRITE} __syncthreads(); {READ_NEXT} __syncthreads(); {WRITE}", np.roll(THREADS, -1)),
        (f"{WRITE} value = staged[t];", THREADS),
        (f"{WRITE} __syncwarp(); value = staged[t ^ 1];", THREADS ^ 1),
        (f"{WRITE} __syncthreads(); value = staged[5] + staged[7];", np.full_like(THREADS, 12)),
        (f"{COPY_OWN} tsm2_host::wait_for_all_copies(); __syncthreads(); {READ_NEXT}", 100 + np.roll(THREADS, -1)),
        (f"{VARIABLE} if (t == 5) said[1] = t; __syncthreads(); value = said[1];", np.full_like(THREADS, 5)),
        (f"{VARIABLE} said[1] = 7; __syncthreads(); value = said[1];", np.full_like(THREADS, 7)),
    ],
    ids=["barrier", "barriers", "own", "lanes", "reads alone", "copies", "variable", "the same value"],
)
def test_what_a_barrier_orders_is_no_race(body: str, left: Ints) -> None:
    assert run(body).tolist() == 2 * left.tolist()


@pytest.mark.parametrize(
    ("body", "first", "second"),
    [
        (f"{WRITE} {READ_BEFORE}", "thread (0) of block (0) wrote byte 0", "which thread (1) read"),
        (f"{WRITE} __syncthreads(); {READ_NEXT} {WRITE}", "thread (0) of block (0) read byte 4", "thread (1) wrote"),
        ("staged[0] = t;", "thread (0) of block (0) wrote byte 0", "thread (1) wrote"),
        (f"{WRITE} __syncwarp(); {READ_NEXT}", "of block (0)", "shared memory of 512 bytes"),
        (f"{WRITE} value += __shfl_xor_sync(0xFFFFFFFFu, value, 1); value = staged[t ^ 1];", "wrote byte", "read"),
        (f"{WRITE} tsm2_host::sync_lanes(); value = staged[t ^ 1];", "wrote byte", "read"),
        (f"{COPY} tsm2_host::wait_for_all_copies(); value = staged[t ^ 1];", "read byte", "wrote"),
        (f"{VARIABLE} said[1] = t;", "thread (0) of block (0) wrote a variable in shared memory", "thread (1) wrote"),
        (f"{VARIABLE} if (t == 0) said[1] = t; value = said[1];", "wrote a variable", "which thread (1) read"),
    ],
    ids=["unordered", "overwritten", "writers", "warp", "shuffle", "product", "copy", "variable", "read"],
)
def test_a_race_is_told_in_whatever_order_threads_run(body: str, first: str, second: str) -> None:
    with pytest.raises(KernelFault, match=UNORDERED) as caught:
        run(body)
    assert first in str(caught.value)
    assert second in str(caught.value)


def test_block_arrives_after_a_barrier_behind_its_stores() -> None:
    store, count = "__stcg(to + t, value);", "if (t == 0) tsm2_host::count_block();"
    assert run(f"{store} __syncthreads(); {count}").tolist() == 2 * THREADS.tolist()
    assert run(f"if (t == 0) {store} {count}").tolist() == 2 * THREADS.tolist()
    for body in (f"{store} {count}", f"{count} {store}"):
        with pytest.raises(KernelFault, match="incremented the counter, and no barrier orders"):
            run(body)
