"""The host finds what a GPU hides: missing barriers, accesses past a buffer's end, threads that wait for ever."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.on_host import ON_HOST, PREVIOUS, SHARED, STUCK, filled, floats, launch_k, load, pointer
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.device.interface import KernelFault, LaunchConfig

pytestmark = ON_HOST


@pytest.mark.parametrize(("seed", "barrier", "right"), [(0, 0, True), (1, 0, False), (2, 0, False), (1, 1, True)])
def test_a_missing_barrier_shows_in_shuffled_order(seed: int, barrier: int, right: bool) -> None:
    device = HostDevice(seed=seed)
    target = device.allocate(4 * 64)
    launch_k(device, PREVIOUS, pointer(target), np.int32(barrier), threads=64, smem_bytes=4 * 64)
    assert np.array_equal(floats(device, target), [0, *range(63)]) is right
    device.close()


def test_shared_memory_is_nan_until_written_in_every_block(device: HostDevice) -> None:
    text = f"""
    extern "C" __global__ void k(float *to)
    {{
        {SHARED}
        float *staged = reinterpret_cast<float *>(shared_bytes);
        if ((threadIdx.x + blockIdx.x) % 2)
            staged[threadIdx.x] = 1;
        to[blockIdx.x * blockDim.x + threadIdx.x] = staged[threadIdx.x];
    }}
    """
    target = device.allocate(4 * 128)
    launch_k(device, text, pointer(target), blocks=4, smem_bytes=128)
    written = [(thread + block) % 2 for block in range(4) for thread in range(32)]
    np.testing.assert_array_equal(floats(device, target), np.where(written, 1, np.nan))


def test_a_copy_that_nobody_awaits_is_not_done_in_the_next_block(device: HostDevice) -> None:
    text = f"""
    extern "C" __global__ void k(const float *from, float *to)
    {{
        {SHARED}
        float *staged = reinterpret_cast<float *>(shared_bytes);
        cp_async<4>(staged + blockIdx.x, from);
        if (blockIdx.x == 0)
            return;
        cp_async_wait_all();
        to[0] = staged[0];
        to[1] = staged[1];
    }}
    """
    source, target = filled(device, np.ones(1, np.float32)), device.allocate(8)
    launch_k(device, text, pointer(source), pointer(target), blocks=2, threads=1, smem_bytes=8)
    np.testing.assert_array_equal(floats(device, target), [np.nan, 1])


def test_launches_of_a_kernel_have_the_shared_memory_that_each_asks_for(device: HostDevice) -> None:
    text = f"""
    extern "C" __global__ void k(int elements)
    {{
        {SHARED}
        reinterpret_cast<float *>(shared_bytes)[elements] = 1;
    }}
    """
    kernel = load(device, text)
    for size in (128, 100_000, 256, 20_000):
        kernel((np.int32(size // 4 - 1),), LaunchConfig(blocks=1, threads=1, smem_bytes=size))
        device.synchronise()
    kernel((np.int32(5000),), LaunchConfig(blocks=1, threads=1, smem_bytes=20_000))
    with pytest.raises(KernelFault, match="20000 bytes"):
        device.synchronise()


# One load or store by thread 17 of block 2, at an index that the argument gives.
ONE_ACCESS = """
extern "C" __global__ void load(const float *from, float *to, int index)
{
    if (blockIdx.x == 2 && threadIdx.x == 17)
        to[0] = from[index];
}
extern "C" __global__ void store(float *to, int index)
{
    if (blockIdx.x == 2 && threadIdx.x == 17)
        to[index] = 5;
}
"""


@pytest.mark.parametrize("elements", [256, 255, 3, 5000])
@pytest.mark.parametrize("kernel", ["load", "store"])
def test_an_access_past_the_end_faults_at_the_first_element(device: HostDevice, kernel: str, elements: int) -> None:
    buffer, sink = device.allocate(4 * elements), device.allocate(4)
    before = (pointer(buffer),) if kernel == "store" else (pointer(buffer), pointer(sink))
    access = load(device, ONE_ACCESS, kernel)
    access((*before, np.int32(elements - 1)), LaunchConfig(blocks=3, threads=32))
    device.synchronise()
    access((*before, np.int32(elements)), LaunchConfig(blocks=3, threads=32))
    with pytest.raises(KernelFault, match=f"accessed byte {4 * elements} of a buffer of {4 * elements} bytes, right"):
        device.synchronise()


@pytest.mark.parametrize(
    ("index", "message"),
    [(256, "thread (17) of block (2) accessed byte 1024 of a buffer of 1024 bytes, right past its end"),
     (258, "accessed byte 1032 of a buffer of 1024 bytes, 8 bytes past its end"),
     (-1025, "accessed memory 4100 bytes before the start of a buffer of 1024 bytes"),
     (-1, "a kernel wrote 4 bytes before the start of a buffer of 1024 bytes")],
)  # fmt: skip
def test_a_fault_says_how_far_from_which_buffer(device: HostDevice, index: int, message: str) -> None:
    device.allocate(512)
    buffer, sink = filled(device, np.zeros(256, np.float32)), device.allocate(4)
    before = load(device, ONE_ACCESS, "load")
    before((pointer(buffer), pointer(sink), np.int32(-1)), LaunchConfig(blocks=3, threads=32))
    assert np.isnan(floats(device, sink)).all()
    load(device, ONE_ACCESS, "store")((pointer(buffer), np.int32(index)), LaunchConfig(blocks=3, threads=32))
    with pytest.raises(KernelFault, match=re.escape(message)):
        device.synchronise()


@pytest.mark.parametrize(
    ("element", "message"),
    [(100, r"block \(0\) wrote byte 400 of shared memory of 400 bytes, right past its end"),
     (5000, r"thread \(1\) of block \(0\) accessed byte 20000 of shared memory of 400 bytes, 19600 bytes past")],
)  # fmt: skip
def test_a_write_past_shared_memory_is_found(device: HostDevice, element: int, message: str) -> None:
    text = f"""
    extern "C" __global__ void k(int element)
    {{
        {SHARED}
        if (threadIdx.x == 1)
            reinterpret_cast<float *>(shared_bytes)[element] = 1;
    }}
    """
    with pytest.raises(KernelFault, match=message):
        launch_k(device, text, np.int32(element), smem_bytes=400)


WAITS = (  # of the kinds of STUCK
    "waits at the barrier in line 6, which thread (40) will not reach: it has ended",
    "waits at the barrier in line 6, which thread (40) will not reach: it waits at the barrier in line 4",
    "mask 0xffffffff in line 9, which thread (40) will not reach: it waits at the barrier in line 12",
    "mask 0xffffffff in line 11, which thread (40) will not reach: it waits at the barrier in line 12",
    "mask 0x00000003 in line 14 that involves lane",
    "mask 0x00000007 in line 16 that involves lane 5, which does not execute it",
    "waits at the warp operation with mask 0xffff0001 in line 18",
    "waits at the warp operation with mask 0xffffffff in line 22",
)
FAULTS = (
    *("divided an integer by zero", r"reached __trap\(\)", "overflowed its stack of 60 KiB", "null pointer"),
    *("accessed address 0x10000, which is not near a buffer", "indexed a local array out of bounds"),
)


@pytest.mark.parametrize(("kind", "message"), [*enumerate(WAITS)])
def test_threads_that_wait_for_one_that_never_comes_are_told_apart(
    device: HostDevice, kind: int, message: str
) -> None:
    with pytest.raises(KernelFault) as caught:
        launch_k(device, STUCK, np.int32(kind), threads=64)
    assert message in str(caught.value)
    assert "of block (0)" in str(caught.value)


@pytest.mark.parametrize(("kind", "message"), [*enumerate(FAULTS)])
def test_other_faults_are_the_kernels_too(device: HostDevice, kind: int, message: str) -> None:
    text = """
    __device__ __noinline__ int deep(int depth, volatile int *above)
    {
        volatile int frame[64];
        frame[depth % 64] = above ? above[0] + depth : 1;
        return depth < 0 ? 0 : deep(depth + 1, frame) + frame[depth % 64];
    }
    extern "C" __global__ void k(int kind, int zero, int *to)
    {
        if (kind == 0) *to = 5 / zero;
        if (kind == 1) __trap();
        if (kind == 2) *to = deep(zero, nullptr);
        if (kind == 3) *(volatile int *)(size_t(zero)) = 1;
        if (kind == 4) *(volatile int *)(size_t(zero) + 0x10000) = 1;
        if (kind == 5) { int own[4] = {}; own[zero + 4] = 1; *to = own[zero]; }
    }
    """
    with pytest.raises(KernelFault, match=message):
        launch_k(device, text, np.int32(kind), np.int32(0), pointer(device.allocate(4)), threads=1)


def test_after_a_fault_the_device_is_lost_and_the_process_is_not(device: HostDevice) -> None:
    buffer = filled(device, np.zeros(4, np.float32))
    store = load(device, ONE_ACCESS, "store")
    store((pointer(buffer), np.int32(4)), LaunchConfig(blocks=3, threads=32))
    store((pointer(buffer), np.int32(0)), LaunchConfig(blocks=3, threads=32))
    with pytest.raises(KernelFault):
        device.synchronise()
    with pytest.raises(KernelFault):
        floats(device, buffer)
    assert not buffer.view(size_bytes=16).any(), "a kernel ran after the fault"

    fresh = HostDevice()
    launch_k(fresh, PREVIOUS, pointer(fresh.allocate(256)), np.int32(1), threads=64, smem_bytes=256)
    fresh.close()
