"""The fast path of PyCUDA's arrays through an exported module, with a driver that records its calls."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.fabricated import exported, imported, trial, tuning_run, winners
from tests.recording_driver import RecordingDriver
from tsm2_tune.generator.problem import Problem


class GPUArray:
    """A column-major 4x4 matrix of float32 in the memory at an address."""

    def __init__(self, at: int, shape: tuple[int, int] = (4, 4)) -> None:
        self.shape, self.strides, self.dtype, self.gpudata = shape, (4, 4 * shape[0]), np.dtype(np.float32), at

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        told = {"shape": self.shape, "strides": self.strides, "typestr": self.dtype.str, "stream": None}
        return told | {"data": (self.gpudata, False)}


@pytest.fixture(scope="module")
def module_of_one(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = tmp_path_factory.mktemp("module")
    return imported(
        exported("module", winners(folder, (tuning_run(), trial(problem=Problem(4, 4, 4, "f32"))))), folder
    )


@pytest.fixture
def driver(module_of_one: ModuleType, monkeypatch: pytest.MonkeyPatch) -> RecordingDriver:
    driver = RecordingDriver()
    monkeypatch.setitem(sys.modules, "pycuda.gpuarray", SimpleNamespace(GPUArray=GPUArray))
    monkeypatch.setattr(module_of_one, "cuda", lambda: driver)
    monkeypatch.setattr(module_of_one, "cubin_of", lambda *_: b"cubin")
    for table in ("plans", "starters", "_functions", "_libraries"):
        getattr(module_of_one, table).clear()
    return driver


@pytest.fixture
def arrays() -> list[GPUArray]:
    return [GPUArray(at) for at in (0x1000, 0x2000, 0x3000)]


@pytest.fixture
def module(module_of_one: ModuleType, driver: RecordingDriver, arrays: list[GPUArray]) -> ModuleType:
    """The module after its first product of these arrays."""
    module_of_one.gemm(*arrays)
    return module_of_one


def test_the_second_product_takes_the_fast_path(
    module: ModuleType, driver: RecordingDriver, arrays: list[GPUArray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.Product, "of", None)
    a, b, _ = arrays
    out = GPUArray(0x4000)
    assert module.gemm(a, b, out=out, alpha=2, beta=1, stream=SimpleNamespace(handle=7)) is out
    assert module.gemm(a, b, out=out) is out
    assert [one["stream"] for one in driver.launches] == [None, 7, None]
    assert driver.launches[1]["values"] == [4, 4, 4, 2.0, 0x1000, 4, 0x2000, 4, 1.0, 0x4000, 4]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"b": GPUArray(0)}, TypeError, "b: it has no memory"),
        ({"b": GPUArray(0x2002)}, ValueError, "b: its address is not a multiple"),
        ({"b": GPUArray(0x20000)}, ValueError, "b: its address 0x20000 is not memory of a CUDA device"),
        ({"b": GPUArray(0x8000)}, ValueError, "b and a are in different CUDA contexts"),
        ({"b": GPUArray(0x2000, (3, 4))}, ValueError, "b: expected 4 rows"),
        ({"b": np.ones((4, 4), np.float32)}, TypeError, "one is a NumPy array"),
        ({"out": GPUArray(0x1008)}, ValueError, "out: it shares memory with a"),
        ({"out": GPUArray(0x3000, (4, 5))}, ValueError, "out: expected 4x4"),
        ({"alpha": 1e300}, ValueError, "alpha: too large"),
        ({"stream": "none"}, TypeError, "stream: expected"),
    ],
)
def test_what_is_refused_is_refused_on_the_fast_path(
    module: ModuleType,
    driver: RecordingDriver,
    arrays: list[GPUArray],
    change: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    driver.owner = lambda address: 0xD0 if address == 0x8000 else 0xC0
    with pytest.raises(error, match=message):
        module.gemm(**dict(zip(("a", "b", "out"), arrays, strict=True)) | change)
    assert len(driver.launches) == 1


def test_a_new_context_with_the_handle_of_an_old_one_gets_its_own_kernel(
    module: ModuleType, driver: RecordingDriver, arrays: list[GPUArray], monkeypatch: pytest.MonkeyPatch
) -> None:
    def another(context: Any, number: Any) -> int:
        number._obj.value = 99
        return 0

    monkeypatch.setattr(driver, "cuCtxGetId", another)
    module.gemm(*arrays)
    module.gemm(*arrays)
    assert driver.calls.count("load") == 2
