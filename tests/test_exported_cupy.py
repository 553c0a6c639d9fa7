"""The short way of CuPy's arrays through an exported module, before a CuPy that records what it is asked."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.fabricated import exported, imported, trial, tuning_run, winners
from tests.recording_driver import RecordingDriver
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.export.launcher_build import launcher_binary

SHAPE, STRIDES = (4, 4), (4, 16)  # column-major float32


class Array:
    """A matrix of CuPy's on the device of this number."""

    ndim, shape, strides, dtype = 2, SHAPE, STRIDES, np.dtype(np.float32)
    _c_contiguous = False

    def __init__(self, at: int, number: int) -> None:
        self.data = SimpleNamespace(ptr=at, device_id=number)
        self.__cuda_array_interface__ = {"shape": SHAPE, "strides": STRIDES, "typestr": "<f4", "data": (at, False)}

    @property
    def device(self) -> Any:
        return sys.modules["cupy"].device(self.data.device_id)

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def _same(self, other: Any) -> Array:
        return self

    __add__ = __imul__ = __rmul__ = _same


class FakeCupy(ModuleType):
    """CuPy as far as the module asks it; `multiplied` and `at` are the devices and streams where it multiplied."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.current, self.stream, self.multiplied, self.at = 0, 0, list[int](), list[int]()
        self.ndarray = Array
        self.cuda = SimpleNamespace(
            get_current_stream=lambda number: SimpleNamespace(ptr=self.stream),
            runtime=SimpleNamespace(getDevice=lambda: self.current),
            Stream=SimpleNamespace(null=contextlib.nullcontext()),
            ExternalStream=self._at,
        )

    @contextlib.contextmanager
    def _at(self, stream: int) -> Iterator[None]:
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    def matmul(self, a: Array, b: Array, out: Array | None = None) -> Array:
        self.multiplied.append(self.current)
        self.at.append(self.stream)
        return out or Array(0x9000, self.current)

    def empty(self, shape: Any, dtype: Any, order: str) -> Array:
        return Array(0x8000, self.current)

    @contextlib.contextmanager
    def device(self, number: int) -> Iterator[None]:
        before, self.current = self.current, number
        yield
        self.current = before


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


@pytest.fixture(scope="module", params=["plain", pytest.param("compiled", marks=pytest.mark.host)])
def launcher(session_cache: None, request: pytest.FixtureRequest) -> bytes | None:
    """The compiled launcher, or none."""
    return launcher_binary() if request.param == "compiled" else None


@pytest.fixture(params=["kernel", "vendor"])
def module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: bytes | None, request: pytest.FixtureRequest
) -> ModuleType:
    """A module of one winner, which is faster than the vendor, or slower; the driver records, as `driver`."""
    found, sources = winners(tmp_path, (tuning_run(), trial(problem=Problem(4, 4, 4, "f32"))))
    vendor_us = {"kernel": 900.0, "vendor": 100.0}[request.param]
    rows = [replace(row, cublas_us=vendor_us, cublas_right=1) for row in found]
    module, driver = imported(exported("module", (rows, sources), launcher=launcher), tmp_path), RecordingDriver()
    monkeypatch.setattr(module, "cuda", lambda: driver)
    monkeypatch.setattr(module, "cubin_of", lambda *_: b"cubin")
    monkeypatch.setattr(module, "driver", driver, raising=False)
    monkeypatch.setattr(module, "by", request.param, raising=False)
    return module


def computed(module: ModuleType, cupy: FakeCupy) -> int:
    """Products so far, by the kernel or by the vendor; none was by the other."""
    by = {"kernel": len(module.driver.launches), "vendor": len(cupy.multiplied)}
    done: int = by.pop(module.by)
    assert list(by.values()) == [0]
    return done


def test_the_second_product_takes_the_short_way(
    module: ModuleType, cupy: FakeCupy, launcher: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, out = (Array(at, 0) for at in (0x1000, 0x2000, 0x3000))
    module.gemm(a, b, out=out)
    module.gemm(a, b)
    monkeypatch.setattr(module.Product, "of", None)
    assert module.gemm(a, b, out=out, alpha=2, beta=1) is out
    assert type(module.gemm(a, b)) is Array
    assert computed(module, cupy) == 4
    assert list(module.launchers) == ([] if launcher is None else [Array])


def test_a_product_is_computed_on_its_device_whichever_is_current(module: ModuleType, cupy: FakeCupy) -> None:
    a, b, out = (Array(at, 1) for at in (0x1000, 0x2000, 0x3000))
    for turn in range(3):
        assert module.gemm(a, b, out=out) is out
        assert module.gemm(a, b).data.device_id == 1
        assert cupy.current == 0
        assert computed(module, cupy) == 2 * (turn + 1)
    assert set(cupy.multiplied) <= {1}


def test_a_given_stream_is_where_it_is_computed(module: ModuleType, cupy: FakeCupy) -> None:
    a, b, out = (Array(at, 0) for at in (0x1000, 0x2000, 0x3000))
    for made in (out, None):
        for stream in (None, None, 78, None, 78):
            module.gemm(a, b, out=made, stream=stream)
    streams = [launch["stream"] for launch in module.driver.launches] or cupy.at
    assert [stream or 0 for stream in streams] == 2 * [0, 0, 78, 0, 78]


def test_what_is_empty_has_no_memory_and_is_not_waited_for(module: ModuleType, cupy: FakeCupy) -> None:
    """CuPy's empty arrays are at the address 0, and state a stream."""
    a, b, out = Array(0, 0), Array(0, 0), Array(0x3000, 0)
    for array, shape in ((a, (4, 0)), (b, (0, 4)), (out, SHAPE)):
        array.shape = shape  # type: ignore[misc]
        array.__cuda_array_interface__ |= {"shape": shape, "stream": 5}
    assert module.gemm(a, b, out=out) is out
    assert cupy.multiplied == [0]
    module.gemm(a, b)
    assert cupy.multiplied == [0, 0]
    assert module.driver.launches == []
