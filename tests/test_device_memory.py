"""Memory of devices: what has no room is told in one sentence and leaves nothing; what a GPU freed is used again."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import quick_worker
from tests.command import TUNE, run
from tests.conftest import ONCE, compiled
from tests.on_host import ON_HOST
from tsm2_tune.errors import DeviceError
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.probes import edge_problems
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.cuda_memory import LARGE_BYTES, MAPPED_BYTES, CudaMemory
from tsm2_tune.tuner.device.emulator.device import HostBuffer, HostDevice
from tsm2_tune.tuner.device.interface import DeviceLost, KernelFault
from tsm2_tune.tuner.device.support_kernels import Support
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.verify import bound_kernel, exhaustive
from tsm2_tune.tuner.verify.bound_kernel import Entry, WorkspaceTooLarge
from tsm2_tune.tuner.verify.checks import checks_of
from tsm2_tune.tuner.verify.operands import needed_bytes
from tsm2_tune.tuner.worker import child_process, server
from tsm2_tune.tuner.worker import client as workers
from tsm2_tune.tuner.worker.client import Attempt, FinalRound, Worker
from tsm2_tune.tuner.worker.protocol import Call, FullVerification, Run

pytestmark = ON_HOST

PROBLEM = Problem(100, 3, 40, "f32")
SPLIT = StreamAFmaConfig(64, 1, 2, 4, 2, splits=3, row_tiles=1, min_blocks=1)
BUFFERS_OF_SUPPORT = 4
MOST_ALLOCATIONS = 100  # limit of an attempt
NO_ROOM = r"does not fit in the device's free memory: no room for (its workspace: )?\d+ bytes of memory; end other"


class Starved(HostDevice):
    """The host, but one allocation is refused, when `left` have succeeded."""

    left = after_ceilings = -1

    def ceilings(self) -> Ceilings:
        found = super().ceilings()
        self.left = self.after_ceilings
        return found

    def allocate(self, size_bytes: int) -> HostBuffer:
        self.left -= 1
        if self.left == -1:
            raise MemoryError(f"{size_bytes} bytes of memory")
        return super().allocate(size_bytes)

    @property
    def in_use(self) -> int:
        return sum(not buffer.freed for buffer in self._buffers)


@pytest.fixture
def starved(support_code: bytes) -> Any:
    device = Starved(support_code=support_code)
    yield device
    device.close()


@pytest.fixture
def entry(quick: Toolchain) -> Entry:
    source = render(PROBLEM, SPLIT)
    return Entry(compiled(source.text, source.kernel, quick, source.defines).code, source.kernel, source.launch)


def bench_on(device: HostDevice, support_code: bytes) -> Any:
    bench = server._RequestHandler(device, cast(Connection, SimpleNamespace(send=lambda _: None)))
    bench._support_codes[PROBLEM.dtype_name] = support_code
    return bench


def test_whatever_has_no_room_ends_the_attempt_and_is_given_back(
    starved: Starved, entry: Entry, support_code: bytes
) -> None:
    refused, result = list[str](), None
    request = Attempt(PROBLEM, entry, edge_problems(SPLIT, PROBLEM)[:2], seed=1, effort=ONCE)
    while result is None and len(refused) < MOST_ALLOCATIONS:
        bench, starved.left = bench_on(starved, support_code), len(refused)
        try:
            result = bench.answer(request)
        except DeviceError as error:
            refused.append(str(error))
        bench._release()
        for support in bench._supports.values():
            support.free()
        assert starved.in_use == 0
    assert getattr(result, "outcome", None) is Outcome.OK
    of_a_probe = 3 + 2  # operands, a workspace; the problem has reports, too
    assert len(refused) == BUFFERS_OF_SUPPORT + 3 + 2 + 2 * of_a_probe
    assert all(re.match(rf"{PROBLEM.text} {NO_ROOM}", sentence) for sentence in refused)

    bench, starved.left = bench_on(starved, support_code), -1  # kernels that have no room together are not measured
    time_finalists = FinalRound(PROBLEM, (entry, entry), seed=1, effort=ONCE)
    assert len(bench.answer(time_finalists).measurements[0]) == 2
    starved.left = 3
    assert re.match(rf"{PROBLEM.text} {NO_ROOM}", bench.answer(time_finalists).detail)
    starved.limits, starved.left = replace(starved.limits, memory_bytes=needed_bytes(PROBLEM) + 100), 0
    result = bench.answer(Attempt(PROBLEM, entry, (), seed=1, effort=ONCE))
    assert result.outcome is Outcome.LAUNCH_FAILED
    assert "bytes, and the device has" in result.detail


def test_winner_is_verified_without_extents_beyond_its_workspace(
    starved: Starved, entry: Entry, support_code: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    support = Support(starved, support_code, PROBLEM.dtype_name)
    monkeypatch.setattr(bound_kernel, "needed_bytes", lambda problem: starved.limits.memory_bytes)
    for is_large in (True, False):
        starved.left = 3  # the operands
        call = Call("long extents", PROBLEM, checks_of(PROBLEM), is_large=is_large)
        request = FullVerification(PROBLEM, (Run("with splits", entry, PROBLEM.index_bits, (call,)),), seed=1)
        with nullcontext() if is_large else pytest.raises(WorkspaceTooLarge):
            verdict = exhaustive.verify_in_full(starved, support, request, lambda _: None)
    assert verdict.correct
    assert verdict.detail.startswith("every element of 0 calls right")
    assert verdict.detail.endswith(f", {len(call.checks)} calls do not fit in memory")
    support.free()
    assert starved.in_use == 0


def starving(counter: str, successes: int, *arguments: Any) -> None:
    """Serve as a worker process on a host that refuses an allocation."""
    server.open_device = partial(starved_device, counter, successes)  # type: ignore[attr-defined]
    quick_worker.serve(*arguments)


def starved_device(counter: str, successes: int, _: str, support_code: bytes) -> Starved:
    if counter == "opening":
        raise MemoryError("7 bytes of memory")
    device = Starved(support_code=support_code)
    setattr(device, counter, successes)
    return device


@pytest.mark.parametrize(
    ("counter", "successes", "what"),
    [
        ("opening", 0, "device cpu does not open: no room for 7 bytes of memory; end other processes"),
        ("left", 0, f"the measurement of the device's ceilings {NO_ROOM}"),
        ("after_ceilings", BUFFERS_OF_SUPPORT + 3, f"64x2x64:f32 {NO_ROOM}"),  # the A of a probe
    ],
)
def test_the_command_stores_nothing_of_what_has_no_room(
    counter: str, successes: int, what: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(workers, "serve", partial(starving, counter, successes))
        result = run(*TUNE, "--db", str(path))
    assert result.exit_code == 2
    assert re.search(what, result.output)
    with Store.open(path, create=True) as store:
        assert store.listing() == ()


@pytest.mark.parametrize("refused", ["a process", "a pipe"])
def test_a_system_that_starts_no_process_is_a_sentence(
    refused: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = list[Connection]()

    def kept() -> tuple[Connection, Connection]:
        ends.extend(made := multiprocessing.Pipe())
        return made

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with monkeypatch.context() as patch:
        patch.setattr(workers, "start_child", child_process.start_child)  # as for users, without a fork
        patch.setattr(child_process, "Pipe", kept if refused == "a process" else refuse)
        patch.setattr(child_process, "subprocess", SimpleNamespace(Popen=refuse, DEVNULL=None))
        result = run(*TUNE, "--db", str(path))
    assert result.exit_code == 2
    said = "cannot start a process for device cpu (Resource temporarily unavailable): end other processes, "
    assert said in result.output
    assert len(ends) == (2 if refused == "a process" else 0)
    assert all(end.closed for end in ends)
    Worker("cpu", lambda _: b"", limit_seconds=10.0).close()  # there is no process


# --- Freed memory of a GPU ---


class OutOfMemory(Exception):
    """The driver's."""


class Driver:
    """Fake driver of a GPU with so much memory."""

    MemoryError = OutOfMemory

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes, self.used_bytes, self.allocations = memory_bytes, 0, 0
        self.memory = CudaMemory(self, memory_bytes)

    def mem_alloc(self, size_bytes: int) -> Allocation:
        if self.used_bytes + size_bytes > self.memory_bytes:
            raise OutOfMemory
        self.used_bytes += size_bytes
        self.allocations += 1
        return Allocation(self, 256 * self.allocations, size_bytes)


@dataclass
class Allocation:
    """Memory of the driver."""

    driver: Driver
    address: int
    size_bytes: int

    def __int__(self) -> int:
        return self.address

    def free(self) -> None:
        self.driver.used_bytes -= self.size_bytes


# Sizes that are allocated and freed one after another, and the allocations of the driver after each.
@pytest.mark.parametrize(
    ("unit", "sizes"),
    [
        (1, [(1, 1), (100, 1), (MAPPED_BYTES, 1), (0, 1)]),
        (MAPPED_BYTES, [(10, 1), (12, 2), (9, 2), (10, 2), (12, 2), (8, 2), (7, 3), (20, 4)]),
        (LARGE_BYTES, [(50, 1), (25, 1), (24, 2), (1, 2), (50, 2), (0.5, 3)]),
    ],
)
def test_a_kept_buffer_serves_sizes_that_are_not_much_smaller(unit: int, sizes: list[tuple[float, int]]) -> None:
    driver = Driver(100 * max(unit, MAPPED_BYTES))
    with driver.memory.keeping():
        for size, allocations in sizes:
            buffer = driver.memory.allocate(int(size * unit))
            assert (buffer.size_bytes, driver.allocations) == (int(size * unit), allocations)
            buffer.free()
        both = driver.memory.allocate(10), driver.memory.allocate(10)
        assert both[0].address != both[1].address
        for buffer in both:
            buffer.free()
    assert driver.used_bytes == 0
    buffer = driver.memory.allocate(900)  # nothing is kept any more
    assert driver.used_bytes == 900
    buffer.free()
    assert driver.used_bytes == 0


def test_the_smallest_buffer_that_is_large_enough_is_reused() -> None:
    driver = Driver(100 * MAPPED_BYTES)
    with driver.memory.keeping():
        for buffer in [driver.memory.allocate(mapped * MAPPED_BYTES) for mapped in (11, 10, 12)]:
            buffer.free()
        assert driver.memory.allocate(9 * MAPPED_BYTES).allocated_bytes == 10 * MAPPED_BYTES


def test_a_large_buffer_wastes_too_little_to_leave_out_another() -> None:
    driver = Driver(80 * LARGE_BYTES)
    with driver.memory.keeping():
        for buffer in [driver.memory.allocate(times * LARGE_BYTES) for times in (50, 20)]:
            buffer.free()
        for buffer in [driver.memory.allocate(times * LARGE_BYTES) for times in (22, 40)]:
            buffer.free()
    assert driver.used_bytes == 0


def test_what_is_kept_makes_room_unless_nothing_helps() -> None:
    driver = Driver(10 * MAPPED_BYTES)
    memory = driver.memory
    with memory.keeping():
        memory.allocate(6 * MAPPED_BYTES).free()
        with pytest.raises(MemoryError, match="bytes of device memory"):
            memory.allocate(11 * MAPPED_BYTES)
        memory.allocate(6 * MAPPED_BYTES).free()
        assert driver.allocations == 1
        large = memory.allocate(9 * MAPPED_BYTES)
        assert driver.used_bytes == 9 * MAPPED_BYTES
        with pytest.raises(MemoryError, match=f"{2 * MAPPED_BYTES} bytes of device memory"):
            memory.allocate(2 * MAPPED_BYTES)
        memory.allocate(MAPPED_BYTES).free()
        large.free()
    assert driver.used_bytes == 0


@pytest.mark.parametrize(("error", "left"), [(KeyError, 0), (KernelFault, 1), (DeviceLost, 1)])
def test_memory_goes_back_after_an_error_but_for_a_fault(error: type[Exception], left: int) -> None:
    """After a fault the driver answers each call by another error, and PyCUDA prints it."""
    driver = Driver(10 * MAPPED_BYTES)

    def fail() -> None:
        with driver.memory.keeping():
            driver.memory.allocate(1).free()
            raise error

    with pytest.raises(error):
        fail()
    assert driver.used_bytes == left * MAPPED_BYTES
    driver.memory.allocate(1).free()
    assert driver.used_bytes == left * MAPPED_BYTES
