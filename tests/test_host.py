"""The host runs CUDA text as a GPU would, and refuses what it cannot run."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests import on_host
from tests.on_host import PREVIOUS, REVERSED_IN_BLOCKS, SHARED, STUCK, filled, floats, launch_k, load, pointer
from tsm2_tune.errors import DeviceError, ToolMissing
from tsm2_tune.tuner.device.emulator import run_on_host
from tsm2_tune.tuner.device.emulator.device import HostDevice, host_identity
from tsm2_tune.tuner.device.emulator.limits import host_limits
from tsm2_tune.tuner.device.emulator.preprocess import host_text
from tsm2_tune.tuner.device.emulator.toolchain import host_toolchain
from tsm2_tune.tuner.device.interface import KernelFault, LaunchFailed

pytestmark = on_host.ON_HOST


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_barriers_order_the_threads_of_a_block_in_whatever_order_they_run(seed: int) -> None:
    device = HostDevice(seed=seed)
    blocks, threads = 5, 96
    values = np.arange(blocks * threads, dtype=np.float32)
    source, target = filled(device, values), device.allocate(values.nbytes)
    shape = {"blocks": blocks, "threads": threads, "smem_bytes": 4 * threads}
    launch_k(device, REVERSED_IN_BLOCKS, pointer(source), pointer(target), **shape)
    expected = values.reshape(blocks, threads)[:, ::-1].ravel() + 2
    np.testing.assert_array_equal(floats(device, target), expected)
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


def test_shuffles_exchange_values_within_a_warp(device: HostDevice) -> None:
    text = """
    extern "C" __global__ void k(double *sums, int *others)
    {
        double sum = threadIdx.x;
        #pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
            sum += __shfl_down_sync(0xFFFFFFFFu, sum, distance);
        sums[threadIdx.x] = __shfl_sync(0xFFFFFFFFu, sum, 0);
        int *mine = others + 4 * threadIdx.x;
        mine[0] = __shfl_xor_sync(0xFFFFFFFFu, int(threadIdx.x), 1);
        mine[1] = __shfl_up_sync(0xFFFFFFFFu, int(threadIdx.x), 3, 8);
        mine[2] = __shfl_sync(0xFFFFFFFFu, int(threadIdx.x), 2, 8);
        if (threadIdx.x % 32 < 4)
            mine[3] = __shfl_down_sync(0xFu, int(threadIdx.x), 1, 4);
        __syncwarp();
    }
    """
    threads = 64
    sums, others = device.allocate(8 * threads), filled(device, np.full((threads, 4), -1, np.int32))
    launch_k(device, text, pointer(sums), pointer(others), threads=threads)
    found_sums, found = np.empty(threads), np.empty((threads, 4), np.int32)
    device.download(sums, found_sums)
    device.download(others, found)
    thread = np.arange(threads)
    np.testing.assert_array_equal(found_sums, np.repeat([np.arange(32).sum(), np.arange(32, 64).sum()], 32))
    np.testing.assert_array_equal(found[:, 0], thread ^ 1)
    np.testing.assert_array_equal(found[:, 1], np.where(thread % 8 >= 3, thread - 3, thread))
    np.testing.assert_array_equal(found[:, 2], thread // 8 * 8 + 2)
    np.testing.assert_array_equal(found[[0, 1, 2, 3, 4, 34], 3], [1, 2, 3, 3, -1, 35])


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
        kernel((pointer(target),), blocks=1, threads=1)
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
    with pytest.raises(LaunchFailed, match="no_such_file"):
        device.load("/no_such_file.so", "k")
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


def test_the_compiler_is_the_one_that_cxx_names_or_has_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    found = host_toolchain()
    monkeypatch.setenv("CXX", f"{found.compiler} -DOWN=1")
    assert host_toolchain().flags == ("-DOWN=1", *found.flags)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolMissing, match=r"'no-such-compiler' not found: \$CXX names it"):
        host_toolchain()
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(ToolMissing, match="install g"):
        host_toolchain()


def test_the_host_names_itself_its_limits_and_its_ceilings(support_path: str) -> None:
    limits, identity = host_limits(), host_identity(host_toolchain())
    assert limits.name == identity.name
    assert limits.name.startswith("cpu ")
    assert identity.toolkit
    assert min(limits.sms, limits.l2_bytes, limits.memory_bytes) > 0
    device = HostDevice(support_path=support_path)
    ceilings = device.ceilings()
    assert min(ceilings.read_gbytes_per_s, ceilings.copy_gbytes_per_s, *dict(ceilings.gflops).values()) > 0
    device.close()


def test_run_on_host_takes_numpy_arrays() -> None:
    values = np.arange(64, dtype=np.float32)
    target = np.empty_like(values)
    run_on_host(REVERSED_IN_BLOCKS, "k", (), [values, target], blocks=2, threads=32, smem_bytes=128)
    np.testing.assert_array_equal(target, values.reshape(2, 32)[:, ::-1].ravel() + 2)


def test_run_on_host_works_again_after_a_fault() -> None:
    for _ in range(2):
        with pytest.raises(KernelFault, match="line 6"):
            run_on_host(STUCK, "k", (), [np.int32(0)], blocks=1, threads=64)
    run_on_host(STUCK, "k", (), [np.int32(9)], blocks=1, threads=64)
    with pytest.raises(DeviceError, match="undeclared_name"):
        run_on_host('extern "C" __global__ void k() { undeclared_name; }', "k", (), [], blocks=1, threads=1)
