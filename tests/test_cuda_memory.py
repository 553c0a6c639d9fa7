"""Tests of freed GPU memory: it is kept for the next allocation if asked for, and given back in the end."""

from __future__ import annotations

import pytest

from tsm2_tune.tuner.device.cuda_memory import LARGE_BYTES, MAPPED_BYTES, CudaMemory
from tsm2_tune.tuner.device.interface import DeviceLost, KernelFault


class OutOfMemory(Exception):
    """The driver's."""


class Allocation:
    def __init__(self, driver: Driver, size_bytes: int) -> None:
        self._driver, self.size_bytes = driver, size_bytes

    def __int__(self) -> int:
        return 256 * (1 + self._driver.allocations)

    def free(self) -> None:
        self._driver.used_bytes -= self.size_bytes


class Driver:
    """Fake driver of a GPU with so much memory."""

    MemoryError = OutOfMemory

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes, self.used_bytes, self.allocations = memory_bytes, 0, 0

    def mem_alloc(self, size_bytes: int) -> Allocation:
        if self.used_bytes + size_bytes > self.memory_bytes:
            raise OutOfMemory
        self.used_bytes += size_bytes
        self.allocations += 1
        return Allocation(self, size_bytes)


def memory_of(driver: Driver) -> CudaMemory:
    return CudaMemory(driver, driver.memory_bytes)


def test_memory_is_of_the_driver_and_goes_back() -> None:
    driver = Driver(1000)
    buffer = memory_of(driver).allocate(900)
    assert (buffer.size_bytes, driver.used_bytes) == (900, 900)
    buffer.free()
    assert driver.used_bytes == 0


def test_what_is_freed_is_allocated_next() -> None:
    driver = Driver(100 * MAPPED_BYTES)
    memory = memory_of(driver)
    with memory.keeping():
        addresses = set()
        for size_bytes in (1, 100, MAPPED_BYTES, 0):
            buffer = memory.allocate(size_bytes)
            assert buffer.size_bytes == size_bytes
            addresses.add(buffer.address)
            buffer.free()
        assert len(addresses) == driver.allocations == 1
        both = memory.allocate(10), memory.allocate(10)
        assert driver.allocations == 2
        assert both[0].address != both[1].address
        for buffer in both:
            buffer.free()
    assert driver.used_bytes == 0


def test_what_is_much_larger_is_kept_for_others() -> None:
    driver = Driver(100 * MAPPED_BYTES)
    memory = memory_of(driver)
    with memory.keeping():
        for mapped in (10, 12):
            memory.allocate(mapped * MAPPED_BYTES).free()
        for mapped, allocations in ((9, 2), (10, 2), (12, 2), (8, 2), (7, 3), (20, 4)):
            memory.allocate(mapped * MAPPED_BYTES).free()
            assert driver.allocations == allocations
        one = memory.allocate(9 * MAPPED_BYTES)
        assert one.allocated_bytes == 10 * MAPPED_BYTES, "the smallest that is large enough"
        one.free()


def test_a_large_buffer_serves_all_smaller_large_ones() -> None:
    driver = Driver(100 * LARGE_BYTES)
    memory = memory_of(driver)
    with memory.keeping():
        for times, allocations in ((50, 1), (25, 1), (24, 2), (1, 2), (50, 2)):
            memory.allocate(times * LARGE_BYTES).free()
            assert driver.allocations == allocations
        memory.allocate(LARGE_BYTES // 2).free()
        assert driver.allocations == 3


def test_a_large_buffer_wastes_too_little_to_leave_out_another() -> None:
    driver = Driver(80 * LARGE_BYTES)
    memory = memory_of(driver)
    with memory.keeping():
        for buffer in [memory.allocate(times * LARGE_BYTES) for times in (50, 20)]:
            buffer.free()
        both = [memory.allocate(times * LARGE_BYTES) for times in (22, 40)]
        assert [buffer.size_bytes for buffer in both] == [22 * LARGE_BYTES, 40 * LARGE_BYTES]
        assert driver.used_bytes <= driver.memory_bytes
        for buffer in both:
            buffer.free()
    assert driver.used_bytes == 0


def test_what_never_fits_frees_nothing() -> None:
    driver = Driver(10 * MAPPED_BYTES)
    memory = memory_of(driver)
    with memory.keeping():
        memory.allocate(6 * MAPPED_BYTES).free()
        with pytest.raises(MemoryError, match="bytes of device memory"):
            memory.allocate(11 * MAPPED_BYTES)
        memory.allocate(6 * MAPPED_BYTES).free()
        assert driver.allocations == 1


def test_what_is_kept_makes_room() -> None:
    driver = Driver(10 * MAPPED_BYTES)
    memory = memory_of(driver)
    with memory.keeping():
        memory.allocate(6 * MAPPED_BYTES).free()
        large = memory.allocate(9 * MAPPED_BYTES)
        assert driver.used_bytes == 9 * MAPPED_BYTES
        with pytest.raises(MemoryError, match=f"{2 * MAPPED_BYTES} bytes of device memory"):
            memory.allocate(2 * MAPPED_BYTES)
        rest = memory.allocate(MAPPED_BYTES)
        large.free()
        rest.free()
    assert driver.used_bytes == 0


@pytest.mark.parametrize(("error", "left"), [(KeyError, 0), (KernelFault, 1), (DeviceLost, 1)])
def test_memory_goes_back_after_an_error_but_for_a_fault(error: type[Exception], left: int) -> None:
    """After a fault the driver answers each call by another error, and PyCUDA prints it."""
    driver = Driver(10 * MAPPED_BYTES)
    memory = memory_of(driver)
    with pytest.raises(error):
        _keep_and_fail(memory, error)
    assert driver.used_bytes == left * MAPPED_BYTES
    memory.allocate(1).free()
    assert driver.used_bytes == left * MAPPED_BYTES


def _keep_and_fail(memory: CudaMemory, error: type[Exception]) -> None:
    with memory.keeping():
        memory.allocate(1).free()
        raise error
