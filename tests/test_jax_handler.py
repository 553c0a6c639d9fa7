"""Tests of XLA's calls of an exported module: on XLA's CPU, with a fake GPU whose driver records launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from tests.call_log import logged
from tests.fabricated import GPU, module_of, split_trial
from tests.jax_calls import OVER_FIRST, calls, jax, jnp, numbers
from tests.recording_driver import LAUNCH, RecordingDriver, attach, cubin, lent
from tsm2_tune.generator.problem import Problem


class Driver(RecordingDriver):
    def cuCtxGetDevice(self, device: Any) -> int:
        device._obj.value = 0
        return 0


@pytest.fixture(scope="module")
def of_gpu(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """A module of a GPU's winners; its second one splits k, and its third one is for batches and splits k."""
    problems = [Problem(64, 4, 64, "f32", op) for op in ("ttt", "ntt")]
    batch = split_trial(Problem(64, 4, 64, "f32", "ttt", batch=9))
    return module_of(tmp_path_factory.mktemp("of_gpu"), problems[0], split_trial(problems[1], splits=5), batch)


HERE: dict[str, Any] = {"cubin_of": cubin, "PLATFORM_OF_HOST": "none", "_device_name": lambda *_: GPU}


@pytest.fixture
def driver(of_gpu: ModuleType) -> Iterator[Driver]:
    driver = Driver()
    driver.current = 0xC0
    of_gpu._texts.clear()
    with lent(of_gpu):
        attach(of_gpu, driver, **HERE, _stream=lambda call: 0x77)
        yield driver


def launched(driver: Driver, function: Callable[..., Any], *arrays: Any) -> Any:
    """The values of the one launch that the program makes."""
    driver.launches.clear()
    jax.block_until_ready(jax.jit(function)(*arrays))
    (launch,) = driver.launches
    assert launch["stream"] == 0x77
    return launch["values"]


def test_a_kernel_is_loaded_once_and_started_on_xlas_memory(of_gpu: ModuleType, driver: Driver) -> None:
    """XLA may capture the call into a CUDA graph: loading a kernel is then allowed."""
    relaxed: list[bool] = []
    driver.cuModuleLoadData = lambda module, image: logged(relaxed, driver.relaxed, 0)  # type: ignore[method-assign]
    of_gpu._functions.clear()
    for _ in range(2):
        m, n, k, alpha, a, lda, b, ldb, beta, c, ldc = launched(
            driver, of_gpu.jax.matmul, numbers(40, 6), numbers(6, 3)
        )
        assert (m, n, k, alpha, beta, lda, ldb, ldc) == (40, 3, 6, 1, 0, 6, 3, 3)
        assert 0 not in (a, b, c)
    assert (relaxed, driver.relaxed, driver.zeroed) == ([True], False, [])


def test_xla_workspace_counters_are_zeroed_before_each_launch(of_gpu: ModuleType, driver: Driver) -> None:
    def across(x: Any, y: Any) -> Any:
        return of_gpu.jax.dot_general(x, y, OVER_FIRST)

    driver.workspaces = True
    text = jax.jit(across).lower(numbers(6, 40), numbers(6, 3)).as_text()
    (row,) = [row for row in text.splitlines() if "custom_call" in row]
    found = of_gpu.Traced((40, 3, 6), "f32", (True, False)).choice(GPU)
    room_bytes, _ = of_gpu.workspace_layout(found)
    assert f"tensor<{room_bytes}xui8>" in row
    for _ in range(2):
        driver.zeroed.clear()
        *_, partials, counters = launched(driver, across, numbers(6, 40), numbers(6, 3))
        sizes = found.launch.partial_elements(40, 3) * 4, found.launch.counters(40, 3) * 4
        assert (partials % 16, counters % 4) == (0, 0)
        assert partials + sizes[0] <= counters
        assert counters + sizes[1] == partials + room_bytes
        assert driver.zeroed == [(counters, sizes[1] // 4, 0x77)]
    assert driver.memory == {}


def test_a_batch_has_one_launch_and_a_workspace_for_each_product(of_gpu: ModuleType, driver: Driver) -> None:
    driver.workspaces = driver.has_batches = True
    each, of_all = (jax.vmap(of_gpu.jax.matmul, axes) for axes in ((0, 0), (None, 0)))
    for program, a, stride in ((each, numbers(7, 40, 6), 240), (of_all, numbers(40, 6), 0)):
        values = launched(driver, program, a, numbers(7, 6, 3))
        partials, counters = values[11:13]
        assert values[:4] + values[13:17] == [40, 3, 6, 1.0, 7, stride, 18, 120]
        assert (partials % 16, counters % 4) == (0, 0)
        of_each = driver.launches[0]["grid"], values[17] * 4, values[18]
        assert of_each == ([2, 3, 7], 3 * 2 * 32 * 4 * 4, 2)  # splits, tiles and their elements
        assert partials + 7 * values[17] * 4 <= counters
        assert driver.zeroed.pop() == (counters, 7 * values[18], 0x77)


def test_what_cuda_refuses_is_jaxs_error(of_gpu: ModuleType, driver: Driver) -> None:
    driver.cuLaunchKernelEx = LAUNCH(lambda *_: 1)
    said = "INTERNAL: cuLaunchKernelEx failed: CUDA_ERROR_INVALID_VALUE"
    with pytest.raises(jax.errors.JaxRuntimeError, match=said):
        jax.block_until_ready(jax.jit(of_gpu.jax.matmul)(numbers(37, 6), numbers(6, 3)))


def test_without_a_stream_xla_is_told(of_gpu: ModuleType) -> None:
    with lent(of_gpu):
        attach(of_gpu, Driver(), **HERE).current = 0xC0
        with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL: XLA has no stream here"):
            jax.block_until_ready(jax.jit(of_gpu.jax.matmul)(numbers(36, 6), numbers(6, 3)))


def test_jax_computes_what_the_vendor_is_faster_at_or_no_gpu_is_for(of_gpu: Any, driver: Driver) -> None:
    a, b = numbers(41, 6), numbers(6, 3)
    assert calls(of_gpu, of_gpu.jax.matmul, a, b) == 1
    choose = of_gpu.choose
    of_gpu.choose = lambda *given: replace(choose(*given), is_vendor_chosen=True)
    jax.clear_caches()
    assert calls(of_gpu, of_gpu.jax.matmul, a, b) == 0
    of_gpu.choose, of_gpu._device_name = choose, lambda *_: None
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((40, 6), (6, 3))]
    program = jax.export.export(jax.jit(of_gpu.jax.matmul), platforms=["cuda"])(*arrays)
    assert of_gpu.target_of_xla() not in program.mlir_module()
