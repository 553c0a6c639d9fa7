"""The order of a full verification: slow calls beside the others, large problems last, several calls ahead."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import compiled
from tests.on_host import ON_HOST
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.device import HostBuffer, HostDevice
from tsm2_tune.tuner.device.interface import KernelFault
from tsm2_tune.tuner.device.support_kernels import FEW_RECORDS, WORST_RECORDS, Support
from tsm2_tune.tuner.results.trial import Verdict
from tsm2_tune.tuner.verify.bound_kernel import BoundKernel, Entry
from tsm2_tune.tuner.verify.checks import checks_of, every_check
from tsm2_tune.tuner.verify.exhaustive import verify_in_full
from tsm2_tune.tuner.verify.operands import Operands, needed_bytes
from tsm2_tune.tuner.verify.verdict import inspect, prepare, verify
from tsm2_tune.tuner.verify.winner_calls import ON_GPU, calls_for
from tsm2_tune.tuner.worker.protocol import Call, FullVerification, Run

pytestmark = ON_HOST

SPLIT = StreamAFmaConfig(64, 1, 2, 4, 2, splits=3, row_tiles=1, min_blocks=1)
RESIDENT = "resident_b_fma:threads=128,vector_bytes=8,vectors=2,columns=16,prefetch=8"
SMALL, DEEP = Problem(70, 3, 40, "f32"), Problem(5, 3, 1000, "f32")
SCALED = ".element[v], beta);"
WRONG_WHERE_DEEP = ".element[v], k > 500 ? sum_t(0) : beta);"
FAULTY_WHERE_DEEP = ".element[v], k > 500 ? *(volatile float *)8 : beta);"


class Watched(HostDevice):
    """The host, as if kernels ran while others are started; says when what was put aside is started."""

    calls_ahead = 9
    messages: list[str]

    def start_concurrently(self, launches: Sequence[Callable[[], None]]) -> list[Callable[[], None]]:
        self.messages.append(f"{len(launches)} aside")
        return super().start_concurrently(launches)


def call(stage: str, problem: Problem, *, is_large: bool = False, is_slow: bool = False) -> Call:
    return Call(stage, problem, checks_of(problem), is_large=is_large, is_slow=is_slow)


CALLS = (
    call("long extents", SMALL, is_large=True),
    call("long extents", DEEP, is_large=True, is_slow=True),
    *(call("remainders", replace(SMALL, m=m)) for m in (1, 2, 3)),
)


def judged(
    device: Watched, support_code: bytes, toolchain: Toolchain, *, planted: str = SCALED
) -> tuple[Verdict, list[str]]:
    """The verdict on the kernel, and the stages in their order."""
    source = render(SMALL, SPLIT)
    assert SCALED in source.text
    binary = compiled(source.text.replace(SCALED, planted), source.kernel, toolchain, source.defines)
    entry = Entry(binary.code, source.kernel, source.launch)
    support = Support(device, support_code, SMALL.dtype_name)
    device.messages = []
    request = FullVerification(SMALL, (Run("so", entry, SMALL.index_bits, CALLS),), seed=3)
    try:
        return verify_in_full(device, support, request, device.messages.append), device.messages
    finally:
        support.free()


def test_slow_calls_start_first_and_large_problems_come_last(support_code: bytes, quickest: Toolchain) -> None:
    verdict, messages = judged(Watched(), support_code, quickest)
    assert verdict.correct
    assert f"every element of {sum(len(one.checks) for one in CALLS)} calls right" in verdict.detail
    groups, aside = 2, len(checks_of(DEEP))  # three problems with four checks each, at most 9 checks in a group
    ahead = ["long extents, started", f"{aside} aside", *groups * ["remainders so"], *aside * ["long extents, ended"]]
    assert messages == [*ahead, "long extents so"]
    wrong, messages = judged(Watched(), support_code, quickest, planted=WRONG_WHERE_DEEP)
    assert not wrong.correct
    assert wrong.detail.startswith(f"{DEEP.text} so, general call: C[")
    assert messages[-1] == "long extents, ended"


def test_a_fault_says_what_ran_beside(support_code: bytes, quickest: Toolchain) -> None:
    """It is met where the device is waited for next: there both calls are named."""
    with pytest.raises(KernelFault, match=DEEP.text):
        judged(Watched(), support_code, quickest, planted=FAULTY_WHERE_DEEP)


def test_without_room_for_all_of_it_nothing_is_put_aside(support_code: bytes, quickest: Toolchain) -> None:
    device = Watched()
    device.limits = replace(device.limits, memory_bytes=4 * len(checks_of(DEEP)) * needed_bytes(DEEP) - 1)
    for planted, is_right in ((SCALED, True), (WRONG_WHERE_DEEP, False)):
        verdict, messages = judged(device, support_code, quickest, planted=planted)
        assert verdict.correct == is_right
        assert messages[1] == "0 aside"
        assert messages[-1] == "long extents so"


class Full(Watched):
    """A device without memory for the second check of what is put aside."""

    left = 0

    def allocate(self, size_bytes: int) -> HostBuffer:
        self.left -= 1
        if self.left == 0:
            raise MemoryError(f"{size_bytes} bytes of memory")
        return super().allocate(size_bytes)


def test_a_call_that_has_room_only_in_part_is_made_again(support_code: bytes, quickest: Toolchain) -> None:
    device = Full()
    buffers_of_support, buffers_of_a_check = 4, 5
    device.left = buffers_of_support + buffers_of_a_check + 1
    verdict, messages = judged(device, support_code, quickest)
    assert verdict.correct
    assert messages[1] == "1 aside"
    assert messages[-2:] == ["long extents so", "long extents so"]


def test_slow_calls_are_those_of_few_blocks() -> None:
    """A block has 256 rows and all columns. Where few rows, many columns or a long k make few blocks work long, other
    calls need not wait.
    """
    asked, config = Problem(1_000_000, 16, 16, "f32"), parse_config(RESIDENT)
    assert config is not None
    extents = {call.problem: call.is_slow for call in calls_for(asked, config, ON_GPU, 32) if call.is_large}
    slow = {problem for problem, is_slow in extents.items() if is_slow}
    assert slow == {one for one in extents if one.m <= 512 and max(one.n, one.k) > 2**16}
    assert len(slow) > 5


RESET, ADDED = "atomic_inc_acq_rel(counter, count - 1);", "atomic_add_acq_rel(counter, 1);"
LAST = "    if (arrives_last("


class Ahead(HostDevice):
    """The host, as if kernels ran while the next are started."""

    calls_ahead = 5  # no divisor of how many checks there are


@pytest.mark.parametrize(
    ("original", "planted", "said"),
    [
        ("", "", "every element of"),
        (RESET, ADDED, "timed call: left the counter of tile 0 at 3, not at 0"),
        (LAST, f"    partials[-2] = 0;\n{LAST}", "timed call: wrote where it must not"),
        (SCALED, ".element[v], sum_t(0));", "general call: C["),
    ],
    ids=["right", "counter", "workspace", "beta"],
)
def test_the_verdict_does_not_depend_on_how_many_calls_are_ahead(
    support_code: bytes, quickest: Toolchain, original: str, planted: str, said: str
) -> None:
    source = render(SMALL, SPLIT)
    text = source.text.replace(original, planted)
    assert (text == source.text) == (original == planted)
    binary = compiled(text, source.kernel, quickest, source.defines)
    found = []
    for device in (HostDevice(), Ahead()):
        support = Support(device, support_code, SMALL.dtype_name)
        operands = Operands(device, support, SMALL, index_bits=SMALL.index_bits)
        loaded = BoundKernel(device, operands, Entry(binary.code, source.kernel, source.launch))
        found.append(verify(device, operands, loaded, seed=3, checks=every_check(SMALL)))
        device.close()
    assert said in found[0].detail
    assert found[1] == found[0]


@pytest.mark.parametrize(
    ("m", "least", "most"), [(200, 1, WORST_RECORDS), (2500, 300, FEW_RECORDS), (30_011, FEW_RECORDS + 1, 2**14)]
)
def test_a_wrong_element_is_found_however_many_threads_compare(
    support_code: bytes, m: int, least: int, most: int
) -> None:
    device = Ahead()
    device.limits = replace(device.limits, sms=300)
    device.support_threads = 256
    problem = Problem(m, 3, 1, "f64")
    support = Support(device, support_code, problem.dtype_name)
    operands = Operands(device, support, problem, index_bits=problem.index_bits)
    check = checks_of(problem)[0]
    prepare(operands, check, seed=3)

    def held(address: int, count: int) -> np.ndarray:
        return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_double)), (count,))

    c = held(operands.c.address, 3 * m)
    right = np.outer(held(operands.b.address, 3), held(operands.a.address, m)).ravel()
    tiles = -(-m // problem.dtype.reference_tile[0])
    assert least <= -(-tiles // 256) * 256 <= most
    c[:] = right
    assert inspect(operands, check) == Verdict(True, 0.0, "")
    for place in (0, 1, m - 1, 3 * m - 1, *range(17, 3 * m, 3 * m // 7)):
        c[place] += 1
        assert f"C[{place % m}, {place // m}] = " in inspect(operands, check).detail
        assert "; 1 of " in inspect(operands, check).detail
        c[place] = right[place]
    operands.free()
    support.free()
