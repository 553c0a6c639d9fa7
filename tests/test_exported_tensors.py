"""Arrays of PyTorch, CuPy and PyCUDA in an exported module: their devices and streams, and the fast path for them."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.fabricated import device_array, module_of
from tests.fake_tensors import Cupy, Parameter, f32
from tests.library_arrays import GPUArray, array_of
from tests.modules import launched_on, recorded
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.export.launcher_build import launcher_binary


@pytest.fixture(autouse=True)
def libraries(torch: Any, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycuda.gpuarray", SimpleNamespace(GPUArray=GPUArray))


def arrays(kind: str, *places: int) -> list[Any]:
    """Return column-major 4x4 arrays of float32."""
    return [array_of(kind, f32(at)) for at in places]


@pytest.mark.parametrize("kind", ["torch", "cupy", "pycuda"])
def test_repeated_products_take_the_fast_path(module: ModuleType, kind: str) -> None:
    a, b, out = arrays(kind, 0x1000, 0x2000, 0x3000)
    module.gemm(a, b, out=out)
    if kind != "pycuda":
        module.gemm(a, b)
    module.Product.of = None  # called by the checks
    others = arrays(kind, 0x4000, 0x5000, 0x6000)
    assert module.gemm(*others) is others[2]
    assert module.gemm(a, b, out=out, alpha=2, beta=1) is out
    if kind != "pycuda":
        assert type(module.gemm(a, b)) is type(a)
    assert len(module.driver.launches) == (3 if kind == "pycuda" else 5)


def test_a_parameter_is_a_tensor(module: ModuleType) -> None:
    module.gemm(*(Parameter(f32(at), dtype="torch.float32") for at in (0x1000, 0x2000, 0x3000)))
    assert len(module.driver.launches) == 1


# Streams and contexts


def test_the_launch_goes_to_cupys_current_stream_of_the_arrays_device(module: ModuleType, cupy: Any) -> None:
    cupy.streams = {0: 5, 1: 77}
    given = [Cupy(f32(at, stream=77), 1) for at in (0x1000, 0x2000, 0x3000)]
    assert launched_on(module, *given) == (77, [])


def test_what_another_library_is_at_is_waited_for(module: ModuleType, torch: Any) -> None:
    torch.stream = 77
    module.driver.owner = lambda address: 0xAA  # the context that libraries share
    of_torch = arrays("torch", 0x1000, 0x2000, 0x3000)
    assert launched_on(module, of_torch[0], of_torch[1], f32(0x4000)) == (None, ["wait for 77"])
    module.driver.calls.clear()
    assert launched_on(module, f32(0x4000, stream=5), f32(0x5000, stream=5), of_torch[2]) == (77, ["wait for 5"])


def test_the_primary_context_of_gpu_0_stays_current_in_a_thread_without_one(module: ModuleType) -> None:
    primary, driver = 0xAA, module.driver
    given = arrays("torch", 0x1000, 0x2000, 0x3000)
    module.gemm(*given)
    assert (driver.current, driver.pushed) == (primary, [])
    driver.current = other = 0xBB
    module.gemm(*given)
    assert driver.current == other
    driver.current = None
    module.gemm(*arrays("interface", 0x1000, 0x2000, 0x3000))  # their context is not the primary one
    assert driver.current is None


def test_a_new_context_with_the_handle_of_an_old_one_gets_its_own_kernel(module: ModuleType) -> None:
    module._functions.clear()
    given = arrays("pycuda", 0x1000, 0x2000, 0x3000)
    module.gemm(*given)

    def context_id(context: Any, number: Any) -> int:
        number._obj.value = 99
        return 0

    module.driver.cuCtxGetId = context_id
    module.gemm(*given)
    module.gemm(*given)
    assert module.driver.calls.count("load") == 2


class Memory:
    """PyCUDA's object that owns memory at an address."""

    __module__ = "pycuda._driver"

    def __init__(self, address: int) -> None:
        self.address = address

    def __int__(self) -> int:
        return self.address


def test_the_driver_is_asked_once_who_owns_pycudas_memory(module: ModuleType) -> None:
    given, asked = arrays("pycuda", 0x1000, 0x2000, 0x3000), list[int]()

    def owner(address: int) -> int:
        asked.append(address)
        return 0xC0

    module.driver.owner = owner
    for array in given:
        array.gpudata = Memory(array.gpudata)
    module.gemm(*given)
    module.gemm(*given)
    asked.clear()
    module.gemm(*given)
    assert (asked, len(module.driver.launches)) == ([], 3)
    given[0].gpudata = int(given[0].gpudata)  # as of a part of an array
    module.gemm(*given)
    assert (asked, len(module.driver.launches)) == ([0x1000], 4)


def test_a_holder_of_memory_for_pycuda_may_change_its_address(module: ModuleType) -> None:
    given, places = arrays("pycuda", 0x1000, 0x2000, 0x3000), []
    holder = given[0].gpudata = type("Holder", (Memory,), {"__module__": "anybodys"})(0x1000)
    for address in (0x1000, 0x1000, 0x8000):
        holder.address = address
        given[0].__cuda_array_interface__["data"] = (address, False)
        module.gemm(*given)
        places.append(module.driver.launches[-1]["values"][4])
    assert places == [0x1000, 0x1000, 0x8000]


def test_new_memory_of_pycuda_at_an_old_address_is_in_its_own_context(module: ModuleType) -> None:
    given = arrays("pycuda", 0x1000, 0x2000, 0x3000)
    for context in (0xC0, 0xC1):
        module.driver.owner = lambda address, context=context: context
        for array in given:
            array.gpudata = Memory(int(array.gpudata))
        module.gemm(*given)
        module.gemm(*given)
        assert [call for call in module.driver.calls if call.startswith("push")][-1] == f"push {context:x}"
    module.driver.owner = lambda address: 0xC0 if address == 0x3000 else 0xC1
    given[2].gpudata = Memory(int(given[2].gpudata))
    with pytest.raises(ValueError, match="out and a are in different CUDA contexts"):
        module.gemm(*given)
    del given, array
    gc.collect()
    assert module._owned == {}


def test_both_ways_to_launch_a_plan_write_their_own_addresses(module: ModuleType) -> None:
    given = arrays("torch", 0x1000, 0x2000, 0x3000)
    product = module.Product.of(*given)
    _, plan, _ = module.prepare_launch(product, module.chosen_or_vendor(product, "error"), None)
    plan.start(0x1000, 0x2000, 0x3000, None, None, 0, given[0])
    plan.start_within(0x4000, 0x5000, 0x6000, 0, 0, 0)
    plan.start(0x1000, 0x2000, 0x3000, None, None, 0, given[0])
    assert [launch["values"][4] for launch in module.driver.launches] == [0x1000, 0x4000, 0x1000]


def test_no_library_is_imported_for_a_stream(module_of_all: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "cupy"):
        monkeypatch.delitem(sys.modules, name)
    assert module_of_all.current_stream(f32(0x1000)) is None
    assert not {"torch", "cupy"} & sys.modules.keys()


def test_a_plan_needs_an_out(module: ModuleType) -> None:
    a, b, _ = arrays("torch", 0x1000, 0x2000, 0x3000)
    with pytest.raises(TypeError, match="a plan needs an out, and a, b and out in a GPU's memory"):
        module.plan(a, b, None)


# CuPy's own product, or a kernel


@pytest.fixture(params=["kernel", "vendor"])
def by(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["plain", pytest.param("compiled", marks=pytest.mark.host)])
def small_module(tmp_path: Path, session_cache: None, by: str, request: pytest.FixtureRequest) -> ModuleType:
    """Return a module of one winner, which is faster than the vendor, or slower."""
    binary = launcher_binary() if request.param == "compiled" else None
    cublas_us = {"kernel": 900.0, "vendor": 100.0}[by]
    problem = Problem(4, 4, 4, "f32")
    return recorded(module_of(tmp_path, problem, launcher=binary, cublas_us=cublas_us, cublas_right=1))


@pytest.fixture
def multiplied(cupy: Any) -> list[tuple[int, int]]:
    """The device and the stream of each of CuPy's own products."""
    found: list[tuple[int, int]] = []

    def matmul(a: Any, b: Any, out: Any = None) -> Any:
        number = cupy.cuda.runtime.getDevice()
        found.append((number, cupy.streams[number]))
        return out or Cupy(f32(0x9000), number)

    cupy.matmul = matmul
    return found


def test_a_product_of_cupys_is_computed_on_its_device_and_stream(
    small_module: ModuleType, cupy: Any, multiplied: list[tuple[int, int]], by: str
) -> None:
    a, b, out = (Cupy(f32(at), 1) for at in (0x1000, 0x2000, 0x3000))
    cupy.streams[1] = 77
    for _ in range(3):
        assert small_module.gemm(a, b, out=out) is out
        assert small_module.gemm(a, b).data.device_id == 1
        assert cupy.cuda.runtime.getDevice() == 0
    small_module.gemm(a, b, out=out, stream=77)
    streams = [launch["stream"] for launch in small_module.driver.launches]
    assert (streams, multiplied) == (([77] * 7, []) if by == "kernel" else ([], [(1, 77)] * 7))


def test_what_is_empty_has_no_memory_and_is_not_waited_for(
    small_module: ModuleType, cupy: Any, multiplied: list[tuple[int, int]]
) -> None:
    """CuPy's empty arrays are at the address 0, and state a stream."""
    shapes = ((4, 0), (0, 4), (4, 4))
    a, b, out = (
        Cupy(device_array(shape, (4, 16), at=at, stream=5)) for shape, at in zip(shapes, (0, 0, 0x3000), strict=True)
    )
    assert small_module.gemm(a, b, out=out) is out
    small_module.gemm(a, b)
    assert (len(multiplied), small_module.driver.launches) == (2, [])
