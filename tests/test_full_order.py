"""The order of a full verification: slow calls are started beside the others, large problems come last, and the calls
of a stage are judged together; none of it changes the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

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
from tsm2_tune.tuner.device.support_kernels import Support
from tsm2_tune.tuner.results.trial import Verdict
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.verify.checks import checks_of
from tsm2_tune.tuner.verify.exhaustive import verify_in_full
from tsm2_tune.tuner.verify.operands import needed_bytes
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


def parse_document(
    device: Watched, support_path: str, toolchain: Toolchain, *, planted: str = SCALED
) -> tuple[Verdict, list[str]]:
    """The verdict on the kernel, and the stages in their order."""
    source = render(SMALL, SPLIT)
    assert SCALED in source.text
    binary = compiled(source.text.replace(SCALED, planted), source.kernel, toolchain, source.defines)
    entry = Entry(binary.path, source.kernel, source.launch)
    support = Support(device, support_path, SMALL.dtype_name)
    device.messages = []
    request = FullVerification(SMALL, (Run("so", entry, SMALL.index_bits, CALLS),), seed=3)
    try:
        return verify_in_full(device, support, request, device.messages.append), device.messages
    finally:
        support.free()


def test_slow_calls_start_first_and_large_problems_come_last(support_path: str, quickest: Toolchain) -> None:
    verdict, messages = parse_document(Watched(), support_path, quickest)
    assert verdict.correct
    assert f"every element of {sum(len(one.checks) for one in CALLS)} calls right" in verdict.detail
    groups = 2  # three problems with four checks each, at most 9 checks in a group
    aside = len(checks_of(DEEP))
    assert messages == [
        "long extents, started",
        f"{aside} aside",
        *groups * ["remainders so"],
        *aside * ["long extents, ended"],
        "long extents so",
    ]


def test_what_is_wrong_aside_is_told_with_its_problem(support_path: str, quickest: Toolchain) -> None:
    verdict, messages = parse_document(Watched(), support_path, quickest, planted=WRONG_WHERE_DEEP)
    assert not verdict.correct
    assert verdict.detail.startswith(f"{DEEP.text} so, general call: C[")
    assert messages[-1] == "long extents, ended"


def test_a_fault_says_what_ran_beside(support_path: str, quickest: Toolchain) -> None:
    """It is met where the device is waited for next: there both calls are named."""
    with pytest.raises(KernelFault, match=DEEP.text):
        parse_document(Watched(), support_path, quickest, planted=FAULTY_WHERE_DEEP)


def test_without_room_for_all_of_it_nothing_is_put_aside(support_path: str, quickest: Toolchain) -> None:
    device = Watched()
    device.limits = replace(device.limits, memory_bytes=4 * len(checks_of(DEEP)) * needed_bytes(DEEP) - 1)
    for planted, is_right in ((SCALED, True), (WRONG_WHERE_DEEP, False)):
        verdict, messages = parse_document(device, support_path, quickest, planted=planted)
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


def test_a_call_that_has_room_only_in_part_is_made_again(support_path: str, quickest: Toolchain) -> None:
    device = Full()
    buffers_of_support, buffers_of_a_check = 4, 5
    device.left = buffers_of_support + buffers_of_a_check + 1
    verdict, messages = parse_document(device, support_path, quickest)
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
