"""Plans that are made by timing: which ways are timed, how, and what becomes of the fastest."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.fabricated import device_array, imported, trial, tuning_run
from tests.fake_tensors import Tensor, fake_torch
from tests.recording_driver import RecordingDriver, recording
from tsm2_tune.generator.families.tsmr import TsmrConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.export import export
from tsm2_tune.tuner.store import Store

M, N, K = 10000, 8, 20000
KERNELS = {TsmrConfig(64, 1, 8, 16, 4, 13, 1, 4): 380.0, TsmrConfig(128, 1, 8, 16, 4, 13, 1, 4): 390.0}


@pytest.fixture(scope="module")
def two_kernels(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> ModuleType:
    """Of two shapes, each won by a kernel of its own."""
    folder = tmp_path_factory.mktemp("module")
    with Store.open(folder / "results.db", create=True) as store:
        for (config, us), m in zip(KERNELS.items(), (20480, 20000), strict=True):
            problem = Problem(m, N, 20480, "f32")
            tried = trial(us, config, problem=problem, source=render(problem, config))
            store.add_trial(tuning_run(sms=132), replace(tried, resources=replace(tried.resources, blocks_per_sm=4)))
        return imported(export(store, "module"), folder)


@pytest.fixture
def driver(two_kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> RecordingDriver:
    two_kernels.plans.clear()
    found = recording(two_kernels, monkeypatch)
    found.bits, found.workspaces = 32, True
    return found


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """PyTorch, whose `asked` are the products that it was asked for."""
    fake = fake_torch()
    fake.asked = []
    fake.addmm = lambda c, a, b, *, beta, alpha, out: fake.asked.append((alpha, beta)) or out
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def arrays(dtype: str = "<f4") -> list[Any]:
    shapes = ((M, K), (K, N), (M, N))
    return [device_array(shape, at=at << 40, typestr=dtype) for at, shape in enumerate(shapes, start=1)]


def tensors() -> list[Any]:
    return [Tensor(one, dtype="torch.float32") for one in arrays()]


def held(monkeypatch: pytest.MonkeyPatch, log: list[str]) -> None:
    """Let tensors be copied and put back."""
    monkeypatch.setattr(Tensor, "clone", lambda self: log.append("copied") or "what it held", raising=False)
    monkeypatch.setattr(
        Tensor, "__setitem__", lambda self, place, value: log.append(f"put back {value}"), raising=False
    )


def splits_of(launch: dict[str, Any]) -> int:
    return int(launch["grid"][1])


def test_the_way_that_takes_least_becomes_the_plan(two_kernels: ModuleType, driver: RecordingDriver) -> None:
    a, b, out = arrays()
    expected = two_kernels.choice(a, b, out, fallback="error")
    tried = list[tuple[int, int]]()

    def takes(launch: dict[str, Any] | None) -> float:
        assert launch is not None
        tried.append((launch["block"][0], splits_of(launch)))
        return 100.0 if tried[-1] == wanted else 200.0

    ways = two_kernels.contenders(two_kernels.Product.of(a, b, out, conjugates=(False, False), math=None), GPU_NAME)
    wanted = max((w.launch.threads, w.launch.splits) for w in ways if w.launch != expected.launch)
    driver.takes_us = takes
    start = two_kernels.plan(a, b, out, measure=True)
    assert (start.match.launch.threads, start.match.launch.splits) == wanted
    assert start.match.basis == "timed on these arrays, with the L2 dirty 100.0 us"
    assert set(tried) == {(w.launch.threads, w.launch.splits) for w in ways}
    assert tried.count(wanted) == 7
    assert all(tried.count(other) == 1 for other in set(tried) - {wanted})  # twice as slow: once is enough
    assert start() is out
    assert (driver.launches[-1]["block"][0], splits_of(driver.launches[-1])) == wanted
    again = two_kernels.choice(a, b, out, fallback="error")
    assert again == expected  # which gemm goes on to take
    two_kernels.gemm(a, b, out)
    assert splits_of(driver.launches[-1]) == expected.launch.splits


GPU_NAME = "NVIDIA H200"


def test_what_is_timed_lies_between_an_l2_full_of_lines_to_be_written_and_an_event(
    two_kernels: ModuleType, driver: RecordingDriver
) -> None:
    two_kernels.plan(*arrays(), stream=7, measure=True)
    calls = [call for call in driver.calls if call.startswith(("fill", "launch"))]
    first = calls.index("fill on 7")
    assert calls[:first] == ["launch"] * first  # each once before
    assert calls[first:] == ["fill on 7", "fill on 7", "fill on 7", "launch"] * ((len(calls) - first) // 4)
    assert {one["stream"] for one in driver.launches} == {7}
    assert f"allocate {100 << 20}" in driver.calls
    assert f"free {100 << 20}" in driver.calls
    assert driver.marks == {}
    assert driver.pushed == []


def test_the_ways_are_few_near_and_each_another(two_kernels: ModuleType, driver: RecordingDriver) -> None:
    a, b, out = arrays()
    product = two_kernels.Product.of(a, b, out, conjugates=(False, False), math=None)
    ways = two_kernels.contenders(product, GPU_NAME)
    assert ways[0] == two_kernels.choice(a, b, out, fallback="error")
    assert 3 <= len(ways) <= 4  # of each kernel two
    assert len({(w.winner.config, w.launch) for w in ways}) == len(ways)
    assert len({w.winner.config for w in ways}) == 2
    times = [w.expected_us for w in ways[1:]]
    assert times == sorted(times)
    assert max(times) <= 2 * min(w.expected_us for w in ways)


def test_the_vendor_becomes_the_plan_where_it_is_faster(
    two_kernels: ModuleType, driver: RecordingDriver, torch: SimpleNamespace
) -> None:
    a, b, out = tensors()
    driver.takes_us = lambda launch: 80.0 if launch is None else 100.0
    start = two_kernels.plan(a, b, out, alpha=2.0, measure=True)
    assert str(start.match) == (
        "the vendor: timed on these arrays, with the L2 dirty 80.0 us, the fastest kernel 100.0 us"
    )
    launches, asked = len(driver.launches), len(torch.asked)
    assert start() is out
    assert (len(driver.launches), len(torch.asked)) == (launches, asked + 1)
    assert torch.asked[-1] == (2.0, 0)
    driver.takes_us = lambda launch: 120.0 if launch is None else 100.0
    start = two_kernels.plan(a, b, out, measure=True)
    assert start.match.basis == "timed on these arrays, with the L2 dirty 100.0 us, the vendor 120.0 us"
    assert not start.match.loses


def test_what_out_holds_is_put_back_where_beta_keeps_it(
    two_kernels: ModuleType, driver: RecordingDriver, torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    held(monkeypatch, log)
    two_kernels.plan(*tensors(), beta=0.0, measure=True)
    assert log == []
    two_kernels.plan(*tensors(), beta=0.5, measure=True)
    assert log == ["copied", "put back what it held"]
    assert driver.launches[-1]["values"][8] == 0.5
    with pytest.raises(TypeError, match="out: a SimpleNamespace cannot be kept as it is: pass arrays of PyTorch or"):
        two_kernels.plan(*arrays(), beta=0.5, measure=True)
    assert driver.marks == {}


def test_a_captured_stream_and_a_full_gpu_get_a_sentence(two_kernels: ModuleType, driver: RecordingDriver) -> None:
    driver.capturing.add(9)
    with pytest.raises(
        RuntimeError, match="a stream that is captured times nothing: make the plan before the capture"
    ):
        two_kernels.plan(*arrays(), stream=9, measure=True)
    driver.capturing.clear()
    driver.free_bytes = 0
    with pytest.raises(MemoryError, match="the GPU has no room for the 104857600 bytes that are written between"):
        two_kernels.plan(*arrays(), measure=True)
    assert driver.pushed == []


def test_a_way_that_fails_is_left_out(
    two_kernels: ModuleType, driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = two_kernels.choice(*arrays(), fallback="error").winner
    plain = two_kernels.function_of

    def function_of(context: int, number: int, winner: Any, bits: int, arch: str) -> Any:
        if winner is not first:
            raise RuntimeError("no binary")
        return plain(context, number, winner, bits, arch)

    monkeypatch.setattr(two_kernels, "function_of", function_of)
    assert two_kernels.plan(*arrays(), measure=True).match.winner is first

    def refused(start: Any) -> bool:
        return False

    monkeypatch.setattr(two_kernels, "_starts", refused)
    assert not two_kernels.plan(*arrays(), measure=True).match.is_timed  # the one that gemm takes


def test_a_failing_kernel_is_told_when_the_plan_is_made(
    two_kernels: ModuleType, driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise RuntimeError("no binary of any")

    monkeypatch.setattr(two_kernels, "function_of", refused)
    with pytest.raises(RuntimeError, match="no binary of any"):
        two_kernels.plan(*arrays(), measure=True)


def test_arrays_of_two_libraries_leave_the_vendor_out(
    two_kernels: ModuleType, driver: RecordingDriver, torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.takes_us = lambda launch: 80.0 if launch is None else 100.0
    monkeypatch.setattr(two_kernels, "home", lambda matrix: (0xC0, 0))
    a, b, _ = tensors()
    assert two_kernels.plan(a, b, arrays()[2], measure=True).match.is_timed
    assert torch.asked == []


def test_a_vendor_that_fails_is_left_out(
    two_kernels: ModuleType, driver: RecordingDriver, torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    torch.addmm = refused
    found = two_kernels.plan(*tensors(), measure=True).match
    assert (found.is_timed, found.vendor_us) == (True, None)


@pytest.mark.parametrize("measure", [False, True])
def test_a_plan_of_nothing_is_refused(two_kernels: ModuleType, driver: RecordingDriver, measure: bool) -> None:
    a, b, out = (device_array(shape, at=0x1000) for shape in ((0, K), (K, N), (0, N)))
    with pytest.raises(ValueError, match="a plan needs a kernel, and here an extent is 0: call gemm"):
        two_kernels.plan(a, b, out, measure=measure)
