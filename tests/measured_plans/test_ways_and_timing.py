"""Plans that are made by timing: which ways are timed, how, and what fails."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.call_log import logged
from tests.fabricated import device_array
from tests.measured_plans.helpers import L2_FILL, K, N, arrays, slow_but, started, tensors, ways_to
from tests.threads_on_gpu import in_threads

# Ways to compute a product


def test_the_ways_are_few_near_and_each_another(module: ModuleType) -> None:
    given = arrays()
    ways = ways_to(module, *given)
    assert ways[0] == module.choice(*given, fallback="error")
    assert 3 <= len(ways) <= 4  # two of each kernel
    assert len({(w.winner.config, w.launch) for w in ways}) == len(ways)
    assert len({w.winner.config for w in ways}) == 2
    times = [w.expected_us for w in ways[1:]]
    assert times == sorted(times)
    assert max(times) <= 2 * min(w.expected_us for w in ways)
    assert all(not w.is_transposed and w.other_device is None for w in ways)
    assert all(w.other_device == "another GPU" for w in ways_to(module, *given, device="another GPU"))


def test_kernels_for_the_transposed_product_are_ways_too(module: ModuleType) -> None:
    """A wide row-major C; its tall transposed one lies in the same memory."""
    given = arrays(16, 2 * 10**6, 16)
    ways = ways_to(module, *given)
    transposed = [one for one in ways if one.is_transposed]
    assert len(transposed) == 2  # the ring's launches
    assert {one.winner.op for one in transposed} == {"ttt"}
    module.driver.takes_us = lambda launch: 1.0 if launch["grid"][0] == transposed[0].launch.splits else 1000.0
    start = module.plan(*given, measure=True)
    assert start.match.is_transposed
    start()
    values = module.driver.launches[-1]["values"]
    assert values[:3] == [2 * 10**6, 16, 16]
    assert [values[4], values[6], values[9]] == [2 << 40, 1 << 40, 3 << 40]  # b, a and out


def test_only_what_has_a_binary_is_timed_beside_the_one_that_gemm_takes(module: Any) -> None:
    module.is_compiled = lambda *_: False
    given = arrays()
    module.plan(*given, measure=True)
    expected = module.choice(*given, fallback="error").launch
    assert {started(one) for one in module.driver.launches} == {(expected.threads, expected.splits)}


# Timing


def test_the_way_that_takes_least_becomes_the_plan(module: ModuleType) -> None:
    given, driver = arrays(), module.driver
    expected = module.choice(*given, fallback="error")
    ways = ways_to(module, *given)
    assert len({(w.winner.config, w.launch.splits) for w in ways}) > len({w.winner.config for w in ways})
    for way in ways:  # each in its turn is the fastest
        wanted = way.launch.threads, way.launch.splits
        driver.takes_us, driver.launches = slow_but(wanted), []
        start = module.plan(*given, measure=True)
        assert (start.match.launch.threads, start.match.launch.splits) == wanted
        assert str(start.match).endswith(": timed on these arrays, with the L2 dirty 100.0 us")
        tried = [started(one) for one in driver.launches]
        assert set(tried) == {(w.launch.threads, w.launch.splits) for w in ways}
        assert tried.count(wanted) == 1 + 7
        assert all(tried.count(other) == 1 + 2 for other in set(tried) - {wanted})  # so far behind, twice is enough
        assert start() is given[2]
        assert started(driver.launches[-1]) == wanted
        assert start() is given[2]
        assert len(start.slots) == 1
        assert module.choice(*given, fallback="error") == expected  # which gemm goes on to take
        module.gemm(*given)
        assert started(driver.launches[-1]) == (expected.launch.threads, expected.launch.splits)


def test_each_plan_is_timed_between_events_with_a_dirty_l2(module: ModuleType) -> None:
    module.plan(*arrays(), stream=7, measure=True)
    driver = module.driver
    calls = [call for call in driver.calls if call.startswith(("fill", "event", "launch"))]
    first = calls.index(f"fill {L2_FILL} on 7")
    assert calls[:first] == ["launch"] * first  # each once before
    one = [*[f"fill {L2_FILL} on 7"] * 3, "event on 7", "launch", "event on 7"]
    assert calls[first:] == one * ((len(calls) - first) // len(one))
    assert {launch["stream"] for launch in driver.launches} == {7}
    assert f"allocate {L2_FILL}" in driver.calls
    assert f"free {L2_FILL}" in driver.calls
    assert (driver.events, driver.pushed) == ({}, [])
    driver.l2_bytes, driver.calls = 0, []
    module.plan(*arrays(), stream=7, measure=True)
    assert f"allocate {1 << 24}" in driver.calls


def test_what_the_host_starts_late_is_timed_again_after_more_writing(module: ModuleType) -> None:
    driver = module.driver

    def fills_before_launches() -> list[int]:
        calls = [call.split()[0] for call in driver.calls if call.startswith(("fill", "event", "launch"))]
        rounds = " ".join(calls).split("event launch event")
        return [one.split().count("fill") for one in rounds if "fill" in one]

    driver.host_needs_fills = 10
    module.plan(*arrays(), stream=7, measure=True)
    fills = fills_before_launches()
    ways = len(ways_to(module, *arrays()))
    assert fills[: 3 * ways] == [3, 6, 12] * ways  # the third sample of each way is the first that counts
    assert set(fills[3 * ways :]) == {12}
    driver.host_needs_fills, driver.calls = 10**9, []
    assert module.plan(*arrays(), stream=7, measure=True).match.is_timed  # at last it is taken as it is
    assert max(fills_before_launches()) == 96


def test_late_host_is_detected_by_the_preceding_event(module: ModuleType) -> None:
    driver = module.driver
    module.plan(*arrays(), stream=7, measure=True)
    (before,) = {event for event, _ in driver.queried}
    assert before == 0xE0  # the first that was made
    launches = [count for _, count in driver.queried]
    assert launches == sorted(set(launches))  # each after one launch more
    driver.query_error, driver.calls = 700, []
    module.plan(*arrays(), stream=7, measure=True)
    fills = sum(call.startswith("fill") for call in driver.calls)
    assert fills == 3 * sum(call == "event on 7" for call in driver.calls) // 2  # an error says nothing of the host


def test_a_late_sample_counts_for_nothing(module: Any) -> None:
    told = iter([(900.0, 70.0, True), (10.0, 5.0, False), *[(20.0, 9.0, False)] * 6])
    module._sample = lambda *_: next(told)
    assert module.times_us([lambda: None], arrays()[0], 0xC0, 0, 0) == ([20.0], [5.0])


def test_what_fails_only_while_it_is_timed_takes_for_ever(module: ModuleType) -> None:
    started = list[int]()

    def fails() -> None:
        started.append(len(started))
        if len(started) == 4:
            raise RuntimeError("out of memory")

    times, _ = module.times_us([fails, lambda: None], arrays()[0], 0xC0, 0, 0)
    assert times == [float("inf"), 0.0]


def test_the_memory_between_is_of_the_arrays_library(module: ModuleType, torch: SimpleNamespace) -> None:
    sizes: list[int] = []
    torch.empty = lambda size, **_: logged(sizes, size, SimpleNamespace(data_ptr=lambda: 1 << 50))
    module.plan(*tensors(), measure=True)
    assert L2_FILL in sizes
    assert f"allocate {L2_FILL}" not in module.driver.calls


def test_medians_decide_and_one_bad_sample_of_the_fastest_does_not(module: ModuleType) -> None:
    def timed(*of_each: list[float]) -> Any:
        queues = [iter([1.0, *times]) for times in of_each]  # the first is the start before

        def start(at: int) -> None:
            module.driver.now_us += next(queues[at], 1e9)

        starts = [lambda at=at: start(at) for at in range(len(queues))]
        return module.times_us(starts, arrays()[0], 0xC0, 0, 0)[0]

    assert timed([10.0, 30.0, 30.0, 30.0, 30.0, 30.0, 10.0], [20.0] * 7) == pytest.approx([30.0, 20.0])
    assert timed([500.0, *[10.0] * 6], [100.0] * 2) == pytest.approx([10.0, 100.0])
    assert timed([10.0, *[50.0] * 6], [11.9, 11.9, *[13.0] * 5]) == pytest.approx([50.0, 13.0])
    assert timed([10.0] * 7, [12.1] * 2) == pytest.approx([10.0, 12.1])


def test_the_arrays_are_waited_for_and_their_context_is_current(module: Any) -> None:
    """CuPy's arrays state the stream that they are in use on."""
    a, b, out = arrays()
    a.__cuda_array_interface__["stream"] = 21
    module.plan(a, b, out, stream=7, measure=True)
    calls = module.driver.calls
    assert calls.index("wait for 21") < calls.index("launch")
    module.driver.current = None
    module.plan(*arrays(), measure=True)  # this thread has none
    assert module.driver.pushed == []
    module.driver.devices.clear()
    module.home = lambda matrix: (0xC0, 3)
    module.times_us([lambda: None], a, 0xC0, 3, 7)
    assert module.driver.devices == {3}
    ordinals: list[int] = []
    module.times_us = lambda starts, *more: logged(ordinals, more[2], ([1.0] * 9, [1.0] * 9))
    module.plan(*arrays(), measure=True)
    assert ordinals == [3]


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


@pytest.mark.parametrize("stream", [0, 9])
def test_while_a_stream_is_captured_nothing_is_timed(module: ModuleType, stream: int) -> None:
    module.driver.capturing.add(9)  # also where the product would go to the legacy stream
    with pytest.raises(RuntimeError, match="measure: kernels cannot be timed while a stream is captured: call plan"):
        module.plan(*arrays(), stream=stream, measure=True)
    assert module.driver.launches == []


def test_without_room_to_fill_there_is_a_sentence(module: ModuleType, torch: SimpleNamespace) -> None:
    module.driver.free_bytes = 0
    torch.empty = Mock(side_effect=RuntimeError("out of memory"))
    sentence = (
        "^the GPU has no room for the 104857600 bytes that measuring overwrites between samples: free memory on it,"
    )
    for given in (arrays(), tensors()):
        with pytest.raises(MemoryError, match=sentence):
            module.plan(*given, measure=True)
    assert (module.driver.pushed, module.driver.events) == ([], {})


# Failures


def test_a_way_that_fails_is_left_out(module: Any) -> None:
    first = module.choice(*arrays(), fallback="error").winner
    plain = module.function_of

    def function_of(context: int, number: int, winner: Any, bits: int, arch: str) -> Any:
        if winner is not first:
            raise RuntimeError("no binary")
        return plain(context, number, winner, bits, arch)

    module.function_of = function_of
    assert module.plan(*arrays(), measure=True).match.winner is first
    module._starts = lambda start: False
    assert not module.plan(*arrays(), measure=True).match.is_timed  # the one that gemm takes
    module.plans.clear()
    module.function_of = Mock(side_effect=RuntimeError("no binary of any"))
    with pytest.raises(RuntimeError, match="no binary of any"):
        module.plan(*arrays(), measure=True)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, NotImplementedError])
def test_a_vendor_that_fails_is_left_out(module: ModuleType, torch: SimpleNamespace, error: type[Exception]) -> None:
    torch.mm = Mock(side_effect=error("out of memory"))
    found = module.plan(*tensors(), measure=True).match
    assert (found.is_timed, found.vendor_us) == (True, None)


@pytest.mark.parametrize("measure", [False, True])
def test_a_plan_of_nothing_is_refused(module: ModuleType, measure: bool) -> None:
    a, b, out = (device_array(shape, at=0x1000) for shape in ((0, K), (K, N), (0, N)))
    with pytest.raises(ValueError, match="a plan needs a kernel, and here an extent is 0: call gemm"):
        module.plan(a, b, out, measure=measure)
