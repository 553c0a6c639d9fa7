"""Plans that are made by timing: which ways are timed, how, and what becomes of the fastest."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.fabricated import device_array, imported, trial, tuning_run
from tests.fake_tensors import Cupy, Tensor, fake_cupy, fake_torch
from tests.recording_driver import recording
from tsm2_tune.generator.families.tsmm_ring import TsmmRingConfig
from tsm2_tune.generator.families.tsmr import TsmrConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.export import export
from tsm2_tune.tuner.store import Store

GPU_NAME = "NVIDIA H200"
M, N, K = 10000, 8, 20000
L2_FILL = 100 << 20  # twice what the L2 holds
NARROW, WIDE = TsmrConfig(64, 1, 8, 16, 4, 13, 1, 4), TsmrConfig(128, 1, 8, 16, 4, 13, 1, 4)
RING = TsmmRingConfig(128, 4, 8, 2, 55, splits=528)
WON = (  # by each kernel, and its time there
    (NARROW, Problem(20480, N, 20480, "f32"), 380.0),
    (WIDE, Problem(20000, N, 20480, "f32"), 390.0),
    (RING, Problem(10**6, 16, 16, "f32", "ttt"), 35.0),
)


@pytest.fixture(scope="module")
def module_of_all(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> ModuleType:
    """Two kernels of column-major operands, one of row-major ones for a tall C."""
    folder = tmp_path_factory.mktemp("module")
    with Store.open(folder / "results.db", create=True) as store:
        for config, problem, us in WON:
            tried = trial(us, config, problem=problem, source=render(problem, config))
            store.add_trial(tuning_run(sms=132), replace(tried, resources=replace(tried.resources, blocks_per_sm=4)))
        return imported(export(store, "module"), folder)


@pytest.fixture
def module(module_of_all: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The same before a driver that records, as `driver`; every kernel has a binary."""
    module_of_all.plans.clear()
    driver = recording(module_of_all, monkeypatch)
    driver.workspaces = True
    monkeypatch.setattr(module_of_all, "is_compiled", lambda *_: True)
    monkeypatch.setattr(module_of_all, "driver", driver, raising=False)
    return module_of_all


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """PyTorch: `asked` are the products that it was asked for, each of which takes `takes_us`."""
    fake = fake_torch()
    fake.asked, fake.takes_us, fake.driver = [], 50.0, None

    def addmm(c: Any, a: Any, b: Any, *, beta: Any, alpha: Any, out: Any) -> Any:
        fake.asked.append((a, b, out, alpha, beta, fake.stream))
        if fake.driver is not None:
            fake.driver.now_us += fake.takes_us
        return "another tensor of the same memory"

    @contextlib.contextmanager
    def stream(given: Any) -> Any:
        before, fake.stream = fake.stream, 0 if given is None else given
        yield
        fake.stream = before

    fake.addmm, fake.cuda.stream = addmm, stream
    fake.cuda.ExternalStream = lambda handle, device: handle
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def arrays(m: int = M, n: int = N, k: int = K, order: str = "F") -> list[Any]:
    shapes = ((m, k), (k, n), (m, n))
    strides = [(4, 4 * rows) if order == "F" else (4 * columns, 4) for rows, columns in shapes]
    return [
        device_array(shape, lies, at=at << 40)
        for at, (shape, lies) in enumerate(zip(shapes, strides, strict=True), start=1)
    ]


def tensors(*shape: int, order: str = "F") -> list[Any]:
    return [Tensor(one, dtype="torch.float32") for one in arrays(*shape, order=order)]


def ways_to(module: ModuleType, *given: Any, device: str = GPU_NAME) -> Any:
    product = module.Product.of(*given, conjugates=(False, False), math=None)
    return module.contenders(product, device)


def started(launch: dict[str, Any]) -> tuple[int, int]:
    """The kernel, by its threads, and its splits."""
    return launch["block"][0], launch["grid"][1]


def slow_but(wanted: tuple[int, int], us: float = 100.0) -> Callable[[dict[str, Any]], float]:
    return lambda launch: us if started(launch) == wanted else 2 * us


# Which ways there are


def test_the_ways_are_few_near_and_each_another(module: ModuleType) -> None:
    given = arrays()
    ways = ways_to(module, *given)
    assert ways[0] == module.choice(*given, fallback="error")
    assert 3 <= len(ways) <= 4  # of each kernel two
    assert len({(w.winner.config, w.launch) for w in ways}) == len(ways)
    assert len({w.winner.config for w in ways}) == 2
    times = [w.expected_us for w in ways[1:]]
    assert times == sorted(times)
    assert max(times) <= 2 * min(w.expected_us for w in ways)
    assert all(w.across is None and w.other_device is None for w in ways)
    assert all(w.other_device == "another GPU" for w in ways_to(module, *given, device="another GPU"))


def test_what_is_expected_far_behind_is_not_timed(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ABOUT", 1.0)
    ways = ways_to(module, *arrays())
    assert all(one.expected_us <= ways[0].expected_us for one in ways)
    monkeypatch.setattr(module, "ABOUT", 1e9)
    monkeypatch.setattr(module, "LAUNCHES_OF_A_KERNEL", 10)
    assert len(ways_to(module, *arrays())) > 4
    monkeypatch.setattr(module, "MOST_CONTENDERS", 3)
    assert len(ways_to(module, *arrays())) == 3


def test_kernels_for_the_transposed_product_are_ways_too(
    module: ModuleType, torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wide row-major C: of it, and of its tall transposed one, which lies in the same memory."""
    given = arrays(16, 2 * 10**6, 16)
    monkeypatch.setattr(module, "ABOUT", 1e9)
    ways = ways_to(module, *given)
    across = [one for one in ways if one.swapped]
    assert len(across) == 2  # the ring's launches
    assert {one.winner.op for one in ways} == {"nn", "ttt"}
    assert {one.winner.op for one in across} == {"ttt"}
    assert {one.across for one in across} == {(2 * 10**6, 16, 16)}
    driver = module.driver
    ring = across[0].launch.threads, 1
    driver.takes_us = lambda launch: 1.0 if launch["grid"][0] == across[0].launch.splits else 1000.0
    start = module.plan(*given, measure=True)
    assert start.match.swapped
    assert ring[0] == start.match.launch.threads
    start()
    values = driver.launches[-1]["values"]
    assert values[:3] == [2 * 10**6, 16, 16]
    assert [values[4], values[6], values[9]] == [2 << 40, 1 << 40, 3 << 40]  # b, a and out


def test_ways_are_of_the_same_conjugates_and_of_gram_kernels_where_they_may_be(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def candidates(name: str, orders: Any, conjugates: Any, is_gram: bool, on_host: bool) -> Any:
        seen.append((conjugates, is_gram, on_host))
        return (), ()

    chosen = module.choice(*arrays(), fallback="error")
    monkeypatch.setattr(module, "choose", lambda *_: chosen)
    monkeypatch.setattr(module, "_candidates", candidates)
    a, _, out = [device_array((64, 64), at=at << 40) for at in (1, 2, 3)]
    same = device_array((64, 64), (256, 4), at=1 << 40)
    a = device_array((64, 64), (4, 256), at=1 << 40)
    module.contenders(module.Product.of(same, a, out, conjugates=(False, False), math=None), GPU_NAME)
    typed = [device_array((64, 64), (8, 512), at=at << 40, typestr="<c8") for at in (1, 2, 3)]
    module.contenders(module.Product.of(*typed, conjugates=(True, False), math=None), GPU_NAME)
    assert seen == [((False, False), True, False), ((True, False), False, False)]


def test_only_what_has_a_binary_is_timed_beside_the_one_that_gemm_takes(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "is_compiled", lambda *_: False)
    given = arrays()
    module.plan(*given, measure=True)
    expected = module.choice(*given, fallback="error").launch
    assert {started(one) for one in module.driver.launches} == {(expected.threads, expected.splits)}


# How they are timed


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
        assert start.match.basis == "timed on these arrays, with the L2 dirty 100.0 us"
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


def test_each_is_timed_between_two_events_after_the_l2_is_full_of_lines_to_be_written(module: ModuleType) -> None:
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


def test_the_memory_between_is_of_the_arrays_library(module: ModuleType, torch: SimpleNamespace) -> None:
    sizes: list[int] = []
    torch.empty = lambda size, **_: sizes.append(size) or SimpleNamespace(data_ptr=lambda: 1 << 50)
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


def test_the_arrays_are_waited_for_and_their_context_is_current(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CuPy's arrays state the stream that they are in use on."""
    a, b, out = arrays()
    a.__cuda_array_interface__["stream"] = 21
    module.plan(a, b, out, stream=7, measure=True)
    calls = module.driver.calls
    assert calls.index("wait for 21") < calls.index("launch")
    module.driver.current = None
    module.plan(*arrays(), measure=True)  # of a thread that has none
    assert module.driver.pushed == []
    module.driver.devices.clear()
    monkeypatch.setattr(module, "home", lambda matrix: (0xC0, 3))
    module.times_us([lambda: None], a, 0xC0, 3, 7)
    assert module.driver.devices == {3}
    ordinals: list[int] = []
    monkeypatch.setattr(module, "times_us", lambda starts, *more: ordinals.append(more[2]) or ([1.0] * 9, [1.0] * 9))
    module.plan(*arrays(), measure=True)
    assert ordinals == [3]


def test_one_thread_times_at_a_time(module: ModuleType) -> None:
    at_once, most = [0], [0]
    plain = module.times_us

    def times(*given: Any) -> Any:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        found = plain(*given)
        at_once[0] -= 1
        return found

    module.times_us = times
    try:
        threads = [threading.Thread(target=lambda: module.plan(*arrays(), measure=True)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        module.times_us = plain
    assert most == [1]


@pytest.mark.parametrize("stream", [0, 9])
def test_while_a_stream_is_captured_nothing_is_timed(module: ModuleType, stream: int) -> None:
    module.driver.capturing.add(9)  # also where the product would go to the legacy stream
    with pytest.raises(RuntimeError, match="measure: nothing is timed while a stream is captured: make the plan"):
        module.plan(*arrays(), stream=stream, measure=True)
    assert module.driver.launches == []


def test_without_room_to_fill_there_is_a_sentence(module: ModuleType, torch: SimpleNamespace) -> None:
    module.driver.free_bytes = 0
    sentence = "the GPU has no room for the 104857600 bytes that are written between timings: free memory on it, also"
    with pytest.raises(MemoryError, match=sentence):
        module.plan(*arrays(), measure=True)

    def full(size: int, **_: Any) -> Any:
        raise RuntimeError("out of memory")

    torch.empty = full
    with pytest.raises(MemoryError, match=sentence):
        module.plan(*tensors(), measure=True)
    assert (module.driver.pushed, module.driver.events) == ([], {})


# What fails


def test_a_way_that_fails_is_left_out(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    first = module.choice(*arrays(), fallback="error").winner
    plain = module.function_of

    def function_of(context: int, number: int, winner: Any, bits: int, arch: str) -> Any:
        if winner is not first:
            raise RuntimeError("no binary")
        return plain(context, number, winner, bits, arch)

    monkeypatch.setattr(module, "function_of", function_of)
    assert module.plan(*arrays(), measure=True).match.winner is first
    monkeypatch.setattr(module, "_starts", lambda start: False)
    assert not module.plan(*arrays(), measure=True).match.is_timed  # the one that gemm takes


def test_a_failing_kernel_is_told_when_the_plan_is_made(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise RuntimeError("no binary of any")

    monkeypatch.setattr(module, "function_of", refused)
    with pytest.raises(RuntimeError, match="no binary of any"):
        module.plan(*arrays(), measure=True)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, NotImplementedError])
def test_a_vendor_that_fails_is_left_out(module: ModuleType, torch: SimpleNamespace, error: type[Exception]) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise error("out of memory")

    torch.addmm = refused
    found = module.plan(*tensors(), measure=True).match
    assert (found.is_timed, found.vendor_us) == (True, None)


@pytest.mark.parametrize("measure", [False, True])
def test_a_plan_of_nothing_is_refused(module: ModuleType, measure: bool) -> None:
    a, b, out = (device_array(shape, at=0x1000) for shape in ((0, K), (K, N), (0, N)))
    with pytest.raises(ValueError, match="a plan needs a kernel, and here an extent is 0: call gemm"):
        module.plan(a, b, out, measure=measure)


# The vendor


def test_the_vendor_becomes_the_plan_where_it_is_faster(module: ModuleType, torch: SimpleNamespace) -> None:
    a, b, out = tensors()
    torch.driver, torch.takes_us, module.driver.takes_us = module.driver, 8000.0, lambda launch: 10000.0
    start = module.plan(a, b, out, alpha=2.0, measure=True)
    assert str(start.match) == (
        "the vendor: timed on these arrays, with the L2 dirty 8000.0 us, the fastest kernel 10000.0 us"
    )
    launches, torch.asked = len(module.driver.launches), []
    assert start() is out
    assert len(module.driver.launches) == launches
    assert torch.asked == [(a, b, out, 2.0, 0, 0)]
    torch.stream = 33  # that is current at the call
    start()
    assert torch.asked[-1][-1] == 33
    on_stream = module.plan(a, b, out, stream=77, measure=True)
    assert torch.asked[-1][-1] == 77  # where it is timed too
    torch.stream, torch.asked = 33, []
    on_stream()
    assert torch.asked[-1][-1] == 77
    torch.takes_us = 12000.0
    start = module.plan(a, b, out, measure=True)
    assert start.match.basis == "timed on these arrays, with the L2 dirty 10000.0 us, the vendor 12000.0 us"
    assert not start.match.loses


def test_what_the_host_needs_to_start_the_vendor_counts(module: ModuleType, torch: SimpleNamespace) -> None:
    torch.driver, torch.takes_us, module.driver.takes_us = module.driver, 0.5, lambda launch: 1.0
    found = module.plan(*tensors(), measure=True).match  # which no Python starts in less than a microsecond
    assert (found.is_timed, found.vendor_us) == (True, pytest.approx(0.5))


def test_the_vendor_multiplies_plain_tensors_by_both_factors(module: ModuleType, torch: SimpleNamespace) -> None:
    plain = [object() for _ in range(3)]
    given = tensors()
    for tensor, one in zip(given, plain, strict=True):
        tensor.detach = lambda one=one: one
    product = module.Product.of(*given, conjugates=(False, False), math=None)
    multiply = module.vendors_of(product, 2.0, 0.5)
    assert multiply.args == (*plain, 2.0, 0.5, (False, False))


@pytest.mark.parametrize("asked", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("bits", [(False, False), (True, False), (False, True)])
def test_the_vendor_is_asked_for_conjugates_that_no_bit_says(
    module: ModuleType, torch: SimpleNamespace, asked: tuple[bool, bool], bits: tuple[bool, bool]
) -> None:
    described = [device_array((64, 64), (8, 512), at=at << 40, typestr="<c8") for at in (1, 2, 3)]
    a, b, out = [Tensor(one, dtype="torch.complex64") for one in described]
    a.is_conj, b.is_conj = (lambda: bits[0]), (lambda: bits[1])
    product = module.Product.of(a, b, out, conjugates=asked, math=None)
    assert module.vendors_of(product, None, None).args[-1] == asked


def test_what_the_vendor_computes_otherwise_is_not_its(module: ModuleType, torch: SimpleNamespace) -> None:
    def product(*given: Any, math: str | None = None) -> Any:
        return module.Product.of(*given, conjugates=(False, False), math=math)

    assert module.vendors_of(product(*tensors()), 1, 0) is not None
    assert module.vendors_of(product(*tensors(), math="tf32"), 1, 0) is None
    assert module.vendors_of(product(*tensors(), math="minplus"), None, None) is None
    a, b, _ = tensors()
    assert module.vendors_of(product(a, b, arrays()[2]), 1, 0) is None  # of two libraries
    vectors = [device_array((K,), (4,), at=2 << 40), device_array((M,), (4,), at=3 << 40)]
    column = [Tensor(one, dtype="torch.float32") for one in vectors]
    assert module.vendors_of(product(a, *column), 1, 0) is None
    assert module.vendors_of(product(*arrays()), 1, 0) is None


def test_cupy_multiplies_without_factors_alone(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, asked = fake_cupy(), list[Any]()
    fake.matmul = lambda a, b, out: asked.append((a, b, out)) or out
    monkeypatch.setitem(sys.modules, "cupy", fake)
    a, b, out = [Cupy(one) for one in arrays()]
    for one in (a, b, out):
        one.ndim = 2
    product = module.Product.of(a, b, out, conjugates=(False, False), math=None)
    assert module.vendors_of(product, None, None)() is out
    assert asked == [(a, b, out)]
    assert module.vendors_of(product, 2.0, None) is None
    assert module.vendors_of(product, None, 0.5) is None


# What out holds


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, torch: SimpleNamespace) -> list[str]:
    """What becomes of tensors, which can be copied and put back."""
    log: list[str] = []
    monkeypatch.setattr(Tensor, "clone", lambda self: log.append("copied") or "what it held", raising=False)
    put = lambda self, place, value: log.append(f"put back {value}")  # noqa: E731
    monkeypatch.setattr(Tensor, "__setitem__", put, raising=False)

    @contextlib.contextmanager
    def inference_mode() -> Any:
        log.append("in inference mode")
        yield

    torch.inference_mode = inference_mode
    return log


def test_what_out_holds_is_put_back_where_beta_keeps_it(
    module: ModuleType, held: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module.plan(*tensors(), beta=0.0, measure=True)
    module.plan(*tensors(), measure=True)
    assert held == []
    module.plan(*tensors(), alpha=3.0, beta=0.5, measure=True)
    assert held == ["copied", "in inference mode", "put back what it held"]
    assert [module.driver.launches[-1]["values"][at] for at in (3, 8)] == [3.0, 0.5]
    with pytest.raises(TypeError, match="out: a SimpleNamespace cannot be kept as it is: pass arrays of PyTorch or"):
        module.plan(*arrays(), beta=0.5, measure=True)
    module.driver.free_bytes, held[:] = 0, []
    monkeypatch.setattr(module, "scratch", lambda *_: None)
    with pytest.raises(MemoryError, match="no room"):
        module.plan(*tensors(), beta=0.5, measure=True)
    assert held[-1] == "put back what it held"


def test_of_minplus_beta_0_keeps_what_out_holds(module: ModuleType, held: list[str]) -> None:
    def kept(**factors: Any) -> bool:
        held.clear()
        product = module.Product.of(*tensors(), conjugates=(False, False), math="minplus")
        found = module.choice(*tensors(), fallback="error")
        module.contenders, plain = lambda *_: [found], module.contenders
        try:
            module.fastest_way(product, found, factors.get("alpha"), factors.get("beta"), None, None)
        finally:
            module.contenders = plain
        return "copied" in held

    assert kept(beta=0.0)
    assert not kept(beta=np.inf)
    assert not kept()


def test_a_copy_that_cannot_be_made_is_told(
    module: ModuleType, torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any) -> Any:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(Tensor, "clone", full, raising=False)
    with pytest.raises(MemoryError, match="out: what it holds cannot be kept: CUDA out of memory"):
        module.plan(*tensors(), beta=0.5, measure=True)


# What is kept


def test_plans_of_ways_that_lost_are_not_kept(module: ModuleType) -> None:
    module.plan(*arrays(), measure=True)
    assert len(module.plans) <= 2  # the one that gemm takes, and the fastest


def test_plans_differ_by_all_that_their_launch_depends_on(module: ModuleType) -> None:
    """Two that differ in one of these alone are not one."""
    given = arrays(64, 64, 64)
    product = module.Product.of(*given, conjugates=(False, False), math=None)
    found = module.choice(*given, fallback="error")
    other = next(w for w in module.WINNERS if w.op == found.winner.op and w is not found.winner)
    ring = next(w for w in module.WINNERS if w.op == "ttt")
    matches = [
        found,
        replace(found, winner=other),
        replace(found, launch=replace(found.launch, rows_per_block=2 * found.launch.rows_per_block)),
        replace(found, launch=found.launch.with_splits(found.launch.splits + 1)),
        replace(found, winner=ring, launch=ring.launch, across=(64, 64, 64)),
    ]
    assert len({id(module.ready(product, match, None)[1]) for match in matches}) == len(matches)
    plans = {id(module.ready(product, match, None)[1]) for match in matches}
    assert plans == {id(plan) for plan in module.plans.values()}  # and each is kept
    gaps = [device_array((64, 64), (4, 400), at=at << 40) for at in (1, 2, 3)]
    (lds, leading) = (
        module.ready(module.Product.of(*of, conjugates=(False, False), math=None), found, None)[1].leading
        for of in (given, gaps)
    )
    assert (lds, leading) == ((64, 64, 64), (100, 100, 100))
    square, longer = arrays(64, 64, 64), arrays(64, 64, 32)
    longer[0], longer[1] = device_array((64, 32), (4, 256), at=1 << 40), device_array((32, 64), (4, 256), at=2 << 40)
    made = [
        module.ready(module.Product.of(*of, conjugates=(False, False), math=None), found, None)[1]
        for of in (square, longer)
    ]
    assert made[0].shape != made[1].shape
    vector = [
        device_array((64, 64), (4, 256), at=1 << 40),
        *(device_array((64,), (4,), at=at << 40) for at in (2, 3)),
    ]
    column = [device_array(shape, at=at << 40) for at, shape in enumerate(((64, 64), (64, 1), (64, 1)), start=1)]
    made = [
        module.ready(module.Product.of(*of, conjugates=(False, False), math=None), found, None)[1]
        for of in (vector, column)
    ]
    assert [one.out_shape for one in made] == [(64,), (64, 1)]


def test_a_plan_keeps_its_stream_alive(module: ModuleType) -> None:
    class Stream:
        handle = 7

    given = Stream()
    start = module.plan(*arrays(), stream=given)
    count = sys.getrefcount(given)
    del start
    assert sys.getrefcount(given) == count - 1
