"""Products and plans with `measure`: how launches are timed, and what fails."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests.call_log import logged
from tests.fabricated import device_array
from tests.measured_plans.helpers import K, N, arrays, contenders, tensors
from tests.threads_on_gpu import in_threads

L2_FILL = 100 << 20  # twice the size of the L2


# Samples


def fills_before_launches(module: ModuleType) -> list[int]:
    calls = [call.split()[0] for call in module.driver.calls if call.startswith(("fill", "event", "launch"))]
    rounds = " ".join(calls).split("event launch event")
    return [one.split().count("fill") for one in rounds if "fill" in one]


def test_each_launch_is_timed_between_events_with_a_dirty_l2(module: ModuleType, torch: SimpleNamespace) -> None:
    module.plan(*arrays(), stream=7, measure=True)
    driver = module.driver
    calls = [call for call in driver.calls if call.startswith(("fill", "event", "launch"))]
    first = calls.index(f"fill {L2_FILL} on 7")
    assert calls[:first] == ["launch"] * first  # each once before
    one = [*[f"fill {L2_FILL} on 7"] * 3, "event on 7", "launch", "event on 7"]
    assert calls[first:] == one * ((len(calls) - first) // len(one))
    assert {launch["stream"] for launch in driver.launches} == {7}
    assert {f"allocate {L2_FILL}", f"free {L2_FILL}"} <= {*driver.calls}
    assert (driver.events, driver.pushed) == ({}, [])
    driver.l2_bytes, driver.calls = 0, []
    module.plan(*arrays(), stream=7, measure=True)
    assert f"allocate {1 << 24}" in driver.calls
    sizes, driver.l2_bytes, driver.calls = list[int](), 50 << 20, []
    torch.empty = lambda size, **_: logged(sizes, size, SimpleNamespace(data_ptr=lambda: 1 << 50))
    module.plan(*tensors(), measure=True)
    assert (L2_FILL in sizes, f"allocate {L2_FILL}" in driver.calls) == (True, False)


def test_a_launch_that_the_host_starts_late_is_timed_again(module: Any) -> None:
    driver = module.driver
    driver.host_needs_fills = 10
    module.plan(*arrays(), stream=7, measure=True)
    fills, ways = fills_before_launches(module), len(contenders(module, *arrays()))
    assert fills[: 3 * ways] == [3, 6, 12] * ways  # the third sample of each is the first that counts
    assert set(fills[3 * ways :]) == {12}
    assert {event for event, _ in driver.queried} == {0xE0}  # the one before the launch
    driver.host_needs_fills, driver.calls = 10**9, []
    assert module.plan(*arrays(), stream=7, measure=True).match.is_timed  # at last it is taken as it is
    assert max(fills_before_launches(module)) == 96
    driver.query_error, driver.calls = 700, []  # an error says nothing of the host
    module.plan(*arrays(), stream=7, measure=True)
    assert set(fills_before_launches(module)) == {3}
    told = iter([(900.0, 70.0, True), (10.0, 5.0, False), *[(20.0, 9.0, False)] * 6])
    module._sample = lambda *_: next(told)
    assert module.times_us([lambda: None], arrays()[0], 0xC0, 0, 0) == ([20.0], [5.0])


@pytest.mark.parametrize(
    ("of_each", "expected"),
    [
        (([10.0, 30.0, 30.0, 30.0, 30.0, 30.0, 10.0], [20.0] * 7), [30.0, 20.0]),
        (([500.0, *[10.0] * 6], [100.0] * 2), [10.0, 100.0]),
        (([10.0, *[50.0] * 6], [11.9, 11.9, *[13.0] * 5]), [50.0, 13.0]),
        (([10.0] * 7, [12.1] * 2), [10.0, 12.1]),
        (([10.0, 10.0, None], [20.0] * 7), [np.inf, 20.0]),  # fails while it is timed
    ],
)
def test_medians_decide_and_one_bad_sample_does_not(module: ModuleType, of_each: Any, expected: list[float]) -> None:
    queues = [iter([1.0, *times]) for times in of_each]  # the first is the start before

    def start(at: int) -> None:
        module.driver.now_us += next(queues[at], 1e9)

    starts = [lambda at=at: start(at) for at in range(len(queues))]
    assert module.times_us(starts, arrays()[0], 0xC0, 0, 0)[0] == pytest.approx(expected)


def test_the_arrays_are_waited_for_and_their_device_is_asked(module: Any) -> None:
    """CuPy's arrays state the stream that they are in use on."""
    a, b, out = arrays()
    a.__cuda_array_interface__["stream"] = 21
    module.plan(a, b, out, stream=7, measure=True)
    assert module.driver.calls.index("wait for 21") < module.driver.calls.index("launch")
    module.driver.current = None  # this thread has no context
    module.plan(*arrays(), measure=True)
    assert module.driver.pushed == []
    module.home = lambda matrix: (0xC0, 3)
    module.driver.devices.clear()
    module.plan(*arrays(), measure=True)
    assert module.driver.devices == {3}


def test_one_thread_times_at_a_time(module: Any) -> None:
    at_once, most = [0], [0]
    plain = module.times_us

    def times(*given: Any) -> Any:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        found = plain(*given)
        at_once[0] -= 1
        return found

    module.times_us = times
    in_threads([lambda: module.plan(*arrays(), measure=True)] * 8)
    assert most == [1]


# Failures


def test_nothing_is_timed_while_a_stream_is_captured(module: ModuleType, torch: SimpleNamespace) -> None:
    """Nor is it for the legacy stream. A choice that was made before is captured."""
    module.driver.capturing.add(9)
    for stream in (0, 9):
        torch.stream = stream
        for call in (module.plan, module.gemm):
            with pytest.raises(
                RuntimeError, match="measure: kernels cannot be timed while a stream is captured: call"
            ):
                call(*tensors(), measure=True)
    assert module.driver.launches == []
    module.driver.capturing.clear()
    module.gemm(*tensors(), measure=True)
    count = len(module.driver.launches)
    module.driver.capturing.add(9)
    module.gemm(*tensors(), measure=True)
    assert len(module.driver.launches) == count + 1


def test_a_launch_that_fails_is_left_out(module: Any, torch: SimpleNamespace) -> None:
    first, plain = module.choice(*arrays(), fallback="error").winner, module.function_of

    def function_of(context: int, number: int, winner: Any, bits: int, arch: str) -> Any:
        if winner is not first:
            raise RuntimeError("no binary")
        return plain(context, number, winner, bits, arch)

    module.function_of = function_of
    assert module.plan(*arrays(), measure=True).match.winner is first
    module._starts = lambda start: False
    assert not module.plan(*arrays(), measure=True).match.is_timed  # the predicted one
    module.plans.clear()
    module.function_of = Mock(side_effect=RuntimeError("no binary of any"))
    with pytest.raises(RuntimeError, match="no binary of any"):
        module.plan(*arrays(), measure=True)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, NotImplementedError])
def test_a_vendor_that_fails_is_left_out(module: ModuleType, torch: SimpleNamespace, error: type[Exception]) -> None:
    torch.mm = Mock(side_effect=error("out of memory"))
    found = module.plan(*tensors(), measure=True).match
    assert (found.is_timed, found.vendor_us) == (True, None)


def test_a_plan_that_cannot_be_made_is_refused(module: ModuleType, torch: SimpleNamespace) -> None:
    empty = [device_array(shape, at=0x1000) for shape in ((0, K), (K, N), (0, N))]
    for measure in (False, True):
        with pytest.raises(ValueError, match="a plan needs a kernel, and here an extent is 0: call gemm"):
            module.plan(*empty, measure=measure)
    module.driver.free_bytes, torch.empty = 0, Mock(side_effect=RuntimeError("out of memory"))
    for given in (arrays(), tensors()):
        with pytest.raises(
            MemoryError, match=r"^the GPU has no room for the 104857600 bytes that measuring overwrites"
        ):
            module.plan(*given, measure=True)
    assert (module.driver.pushed, module.driver.events) == ([], {})
