"""The host runs CUDA text as a GPU would, refuses what it cannot run, and tells races.

A race is what two threads do to the same bytes with no barrier between, in whatever order they ran.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from tests.on_host import (
    ON_HOST,
    PREVIOUS,
    REVERSED_IN_BLOCKS,
    SHARED,
    STUCK,
    filled,
    floats,
    launch_k,
    load,
    pointer,
)
from tsm2_tune.errors import DeviceError
from tsm2_tune.tuner.compile.compiler import compile_text
from tsm2_tune.tuner.device.emulator import run_on_host
from tsm2_tune.tuner.device.emulator.device import HostDevice, host_identity
from tsm2_tune.tuner.device.emulator.entry_point import IN_ORDER
from tsm2_tune.tuner.device.emulator.limits import host_limits
from tsm2_tune.tuner.device.emulator.preprocess import host_text
from tsm2_tune.tuner.device.emulator.toolchain import WATCHED_SAMPLE, host_toolchain, watching
from tsm2_tune.tuner.device.interface import KernelFault, LaunchConfig, LaunchFailed
from tsm2_tune.tuner.results.trial import Binary, CompileFailure

pytestmark = ON_HOST


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_barriers_order_the_threads_of_a_block_in_whatever_order_they_run(seed: int) -> None:
    device = HostDevice(seed=seed)
    values = np.arange(5 * 96, dtype=np.float32)
    source, target = filled(device, values), device.allocate(values.nbytes)
    launch_k(device, REVERSED_IN_BLOCKS, pointer(source), pointer(target), blocks=5, threads=96, smem_bytes=4 * 96)
    np.testing.assert_array_equal(floats(device, target), values.reshape(5, 96)[:, ::-1].ravel() + 2)
    device.close()


def test_a_block_may_have_1024_threads_and_227_kib_of_shared_memory(device: HostDevice) -> None:
    text = f"""
    extern "C" __global__ void k(float *to, int floats)
    {{
        {SHARED}
        float *staged = reinterpret_cast<float *>(shared_bytes);
        for (int e = threadIdx.x; e < floats; e += blockDim.x)
            staged[e] = e;
        __syncthreads();
        to[threadIdx.x] = staged[floats - 1 - threadIdx.x];
    }}
    """
    target = device.allocate(4 * 1024)
    smem_bytes = 227 * 1024
    launch_k(device, text, pointer(target), np.int32(smem_bytes // 4), threads=1024, smem_bytes=smem_bytes)
    np.testing.assert_array_equal(floats(device, target), smem_bytes // 4 - 1 - np.arange(1024))


def test_the_words_of_cuda_mean_what_they_mean_there(device: HostDevice) -> None:
    text = """
    __constant__ float offsets[2] = {10, 20};
    struct __align__(16) Pair { double a, b; };
    static_assert(alignof(float4) == 16 && alignof(double2) == 16 && alignof(float3) == 4, "as in CUDA");
    __device__ __noinline__ float second(const float4 &v) { return v.y; }
    __global__ void __launch_bounds__(32, 1) k(const float4 *from, float *to)
    {
        __shared__ float one_for_all;
        if (threadIdx.x == 3)
            one_for_all = 7;
        __syncthreads();
        if (threadIdx.x != 5)
            return;
        const float4 v = __ldg(from);
        to[0] = second(v) + offsets[1];
        to[1] = min(int(v.x), -2) + max(3u, 4);
        __stcs(to + 2, fmaf(v.x, v.y, v.z) + one_for_all);
        to[3] = __dadd_rn(__dmul_rn(1 + 0x1p-30, 1 + 0x1p-30), -1 - 0x1p-29) == 0;
        to[4] = __int_as_float(__float_as_int(v.w));
        to[5] = atomicAdd(to + 6, 1) + gridDim.x + blockDim.x + warpSize;
    }
    """
    source = filled(device, np.array([1, 2, 3, 4], np.float32))
    target = filled(device, np.zeros(7, np.float32))
    launch_k(device, text, pointer(source), pointer(target))
    np.testing.assert_array_equal(floats(device, target), [22, 2, 12, 1, 4, 65, 1])


def test_variants_of_one_name_live_side_by_side(device: HostDevice) -> None:
    text = """
    constexpr float value = {};
    template <class T> struct Held {{ static inline T value = ::value; }};
    extern "C" __global__ void k(float *to) {{ to[threadIdx.x] = Held<float>::value; }}
    """
    target = device.allocate(4)
    kernels = [load(device, text.format(value)) for value in (1, 2)]
    for kernel, value in zip(kernels, (1, 2), strict=True):
        kernel((pointer(target),), LaunchConfig(blocks=1, threads=1))
        assert floats(device, target) == [value]


def test_what_cannot_run_is_refused(device: HostDevice) -> None:
    for change, message in (
        ({"threads": 257}, r"threads = 257 is outside 1 \.\.\. 256"),
        ({"threads": 0}, "threads = 0"),
        ({"blocks": 0}, "blocks = 0"),
        ({"smem_bytes": 227 * 1024 + 1}, "smem_bytes = 232449 is outside 0"),
    ):
        with pytest.raises(LaunchFailed, match=message):
            launch_k(device, REVERSED_IN_BLOCKS, np.uint64(0), np.uint64(0), **change)
    for second, sizes in (((np.int64(1),), "8, 8"), ((), "8")):
        with pytest.raises(LaunchFailed, match=rf"have \[8, 4\] bytes, not \[{sizes}\]"):
            launch_k(device, PREVIOUS, np.uint64(0), *second)
    with pytest.raises(LaunchFailed, match="kernel 'other' not loaded"):
        load(device, PREVIOUS, "other")
    with pytest.raises(LaunchFailed, match="not loaded: file too short"):
        device.load(b"no library", "k")
    with pytest.raises(MemoryError):
        device.allocate(device.limits.memory_bytes + 1)


def test_host_text_registers_each_kernel_and_moves_no_line() -> None:
    text = """// a __global__ void comment(int)
    extern "C" __global__ void __launch_bounds__(sizeof(int) * (4), 2) first(int);
    /* __global__ void other() */ __global__ __launch_bounds__(64) void
    second(float *a) { __shared__ float tile[4]; extern __shared__ unsigned char shared_bytes[]; }
    __global__ void third() {}"""
    lines = host_text(text).splitlines()
    told = "{ static __shared__ float tile[4]; tsm2_host::know_shared(tile);"
    assert lines[:5] == text.replace("{ __shared__ float tile[4];", told).splitlines()
    assert lines[5:] == [
        "TSM2_HOST_KERNEL(first, sizeof(int) * (4), 2)",
        "TSM2_HOST_KERNEL(second, 64)",
        "TSM2_HOST_KERNEL(third)",
    ]


def test_the_host_names_itself_its_limits_and_its_ceilings(support_code: bytes) -> None:
    limits, identity = host_limits(), host_identity(host_toolchain())
    assert limits.name == identity.name
    assert limits.name.startswith("cpu ")
    device = HostDevice(support_code=support_code)
    ceilings = device.ceilings()
    assert min(ceilings.read_gbytes_per_s, ceilings.copy_gbytes_per_s, *dict(ceilings.gflops).values()) > 0
    device.close()


def test_run_on_host_takes_numpy_arrays_also_after_a_fault() -> None:
    values = np.arange(64, dtype=np.float32)
    target = np.empty_like(values)
    for _ in range(2):
        with pytest.raises(KernelFault, match="line 6"):
            run_on_host(STUCK, "k", (), [np.int32(0)], blocks=1, threads=64)
        run_on_host(REVERSED_IN_BLOCKS, "k", (), [values, target], blocks=2, threads=32, smem_bytes=128)
        np.testing.assert_array_equal(target, values.reshape(2, 32)[:, ::-1].ravel() + 2)
    with pytest.raises(DeviceError, match="undeclared_name"):
        run_on_host('extern "C" __global__ void k() { undeclared_name; }', "k", (), [], blocks=1, threads=1)


# --- Races ---


Floats = np.ndarray[Any, np.dtype[np.float32]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
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
        kernel = device.load(compiled.code, "k")
        kernel((pointer(target),), LaunchConfig(blocks=2, threads=threads, smem_bytes=4 * 2 * threads))
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


@pytest.mark.usefixtures("calls_before_accesses")
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


@pytest.mark.usefixtures("calls_before_accesses")
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


@pytest.mark.usefixtures("calls_before_accesses")
def test_block_arrives_after_a_barrier_behind_its_stores() -> None:
    store, count = "__stcg(to + t, value);", "if (t == 0) tsm2_host::count_block();"
    assert run(f"{store} __syncthreads(); {count}").tolist() == 2 * THREADS.tolist()
    assert run(f"if (t == 0) {store} {count}").tolist() == 2 * THREADS.tolist()
    for body in (f"{store} {count}", f"{count} {store}"):
        with pytest.raises(KernelFault, match="incremented the counter, and no barrier orders"):
            run(body)
