"""Arrays of PyTorch, CuPy and PyCUDA in an exported module: devices, streams, the fast path, and batches."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.call_log import logged
from tests.fabricated import device_array, module_of, split_trial, trial
from tests.fake_tensors import Cupy, f32
from tests.library_arrays import SHARED_BATCH, GPUArray, array_of
from tests.modules import fresh, launched_on, recorded
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.export.module import launcher_binary


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


# Streams and contexts


def test_what_another_library_is_at_is_waited_for(module: ModuleType, torch: Any) -> None:
    torch.stream = 77
    module.driver.owner = lambda address: 0xAA  # the context that libraries share
    of_torch = arrays("torch", 0x1000, 0x2000, 0x3000)
    assert launched_on(module, of_torch[0], of_torch[1], f32(0x4000)) == (None, ["wait for 77"])
    module.driver.calls.clear()
    assert launched_on(module, f32(0x4000, stream=5), f32(0x5000, stream=5), of_torch[2]) == (77, ["wait for 5"])


def test_the_context_of_gpu_0_stays_current_in_a_thread_without_one(module: ModuleType) -> None:
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


def test_the_driver_is_asked_again_if_pycudas_memory_is_new(module: ModuleType) -> None:
    """The addresses of integers and of other holders may change, too."""
    (a, b, out), asked, owners = arrays("pycuda", 0x1000, 0x2000, 0x3000), list[int](), [0xC0]
    module.driver.owner = lambda address: logged(asked, address, owners[0])
    for owners[0] in (0xC0, 0xC1):  # the memory of the second context has the addresses of the first
        for array in (a, b, out):
            array.gpudata = Memory(int(array.gpudata))
        for _ in range(3):
            asked.clear()
            module.gemm(a, b, out=out)
        assert asked == []
        assert [call for call in module.driver.calls if call.startswith("push")][-1] == f"push {owners[0]:x}"
    holder = a.gpudata = type("Holder", (Memory,), {"__module__": "anybodys"})(0x1000)
    for a.gpudata, address in ((holder, 0x1000), (holder, 0x8000), (0x4000, 0x4000)):
        holder.address = address
        a.__cuda_array_interface__["data"] = (address, False)
        asked.clear()
        module.gemm(a, b, out=out)
        assert (asked[:1], module.driver.launches[-1]["values"][4]) == ([address], address)
    owners[0], out.gpudata = 0xC0, Memory(0x3000)
    module.driver.owner = lambda address: 0xC0 if address == 0x3000 else 0xC1
    with pytest.raises(ValueError, match="out and a are in different CUDA contexts"):
        module.gemm(a, b, out=out)
    del a, b, out, array
    gc.collect()
    assert module._owned == {}


def test_both_ways_to_launch_a_plan_write_their_own_addresses(module: ModuleType) -> None:
    given = arrays("torch", 0x1000, 0x2000, 0x3000)
    product = module.Product.of(*given)
    _, plan, _ = module.prepare_launch(product, module.chosen_or_vendor(product, "error"), None)
    plan.start((0, 0x1000, 0x2000, 0x3000), None, None, given[0])
    plan.start_within(0x4000, 0x5000, 0x6000, 0, 0, 0)
    plan.start((0, 0x1000, 0x2000, 0x3000), None, None, given[0])
    assert [launch["values"][4] for launch in module.driver.launches] == [0x1000, 0x4000, 0x1000]
    with pytest.raises(TypeError, match="a plan needs an out, and a, b and out in a GPU's memory"):
        module.plan(*given[:2], None)


# CuPy's own product, or a kernel


@pytest.mark.parametrize("has_launcher", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("vendor_us", [900.0, 100.0])
def test_a_product_of_cupys_is_computed_on_its_device_and_stream(
    tmp_path: Path, session_cache: None, cupy: Any, vendor_us: float, has_launcher: bool
) -> None:
    """CuPy's empty arrays are at the address 0, and state a stream, which is not waited for."""
    binary, multiplied = launcher_binary() if has_launcher else None, list[tuple[int, int]]()
    vendor: dict[str, Any] = {"cublas_us": vendor_us, "cublas_right": 1}
    small_module: Any = recorded(module_of(tmp_path, Problem(4, 4, 4, "f32"), launcher=binary, **vendor))

    def matmul(a: Any, b: Any, out: Any = None) -> Any:
        number = cupy.cuda.runtime.getDevice()
        return logged(multiplied, (number, cupy.streams[number]), out or Cupy(f32(0x9000), number))

    cupy.matmul = matmul
    a, b, out = (Cupy(f32(at), 1) for at in (0x1000, 0x2000, 0x3000))
    cupy.streams[1] = 77
    for _ in range(3):
        assert small_module.gemm(a, b, out=out) is out
        assert small_module.gemm(a, b).data.device_id == 1
        assert cupy.cuda.runtime.getDevice() == 0
    small_module.gemm(a, b, out=out, stream=77)
    streams = [launch["stream"] for launch in small_module.driver.launches]
    assert (streams, multiplied) == (([77] * 7, []) if vendor_us > 500 else ([], [(1, 77)] * 7))
    shapes, launches = (((4, 0), 0), ((0, 4), 0), ((4, 4), 0x3000)), len(small_module.driver.launches)
    a, b, out = (Cupy(device_array(shape, (4, 16), at=at, stream=5)) for shape, at in shapes)
    assert small_module.gemm(a, b, out=out) is out
    small_module.gemm(a, b)
    assert (multiplied[-2:], len(small_module.driver.launches)) == ([(0, 0)] * 2, launches)


# Batches


KINDS = ("interface", "torch", "cupy", "pycuda")
A, B, OUT = 0x1000, 0x4000, 0x8000


@pytest.fixture(scope="module")
def of_batches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModuleType]:
    """A module of a kernel whose 16 blocks share a batch, for row-major matrices, and of one for single products; and
    one of a kernel that splits k in 3, with tiles of 32 x 4 and one product for each z.
    """
    shared = trial(problem=Problem(4, 3, 5, "f32", "ttt", batch=1000), config=SHARED_BATCH)
    kernels = {
        "sharing": (shared, trial(problem=Problem(64, 4, 64, "f32", "ttt"))),
        "each": (split_trial(Problem(64, 4, 64, "f32", batch=9)),),
    }
    return {name: module_of(tmp_path_factory.mktemp(name), *trials) for name, trials in kernels.items()}


@pytest.fixture
def sharing(of_batches: dict[str, ModuleType]) -> Iterator[ModuleType]:
    with fresh(of_batches["sharing"]) as module:
        recorded(module).driver.has_batches = True
        yield module


@pytest.fixture
def each(of_batches: dict[str, ModuleType]) -> Iterator[ModuleType]:
    with fresh(of_batches["each"]) as module:
        recorded(module).driver.has_batches = module.driver.workspaces = True
        yield module


def array(kind: str, shape: tuple[int, ...], strides: tuple[int, ...], at: int) -> Any:
    """Return a float32 array of the library with these strides in elements."""
    return array_of(kind, device_array(shape, tuple(4 * one for one in strides), at=at))


def repeated(kind: str) -> list[Any]:
    """Return a, b and out of which b is repeated along one of two dimensions: they are one dimension each."""
    given = ((2, 3, 4, 5), (60, 20, 5, 1), A), ((3, 5, 3), (15, 3, 1), B), ((2, 3, 4, 3), (36, 12, 3, 1), OUT)
    return [array(kind, *one) for one in given]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_gets_the_products_and_their_strides(sharing: ModuleType, kind: str) -> None:
    """Also in later calls, which skip the checks, and of a plan."""
    a, b = array(kind, (7, 4, 5), (25, 6, 1), A), array(kind, (7, 5, 3), (0, 3, 1), B)
    out = array(kind, (7, 4, 3), (17, 4, 1), OUT)
    values = [4, 3, 5, 1.0, A, 6, B, 3, 0.0, OUT, 4, 7, 25, 0, 17]
    for _ in range(2):
        assert sharing.gemm(a, b, out=out) is out
    assert sharing.plan(a, b, out)() is out
    sharing.gemm(a, b, out=out, alpha=2, beta=3)
    launches = sharing.driver.launches
    assert [launch["values"] for launch in launches[:3]] == [values] * 3
    assert (launches[3]["values"][3], launches[3]["values"][8]) == (2.0, 3.0)
    assert {tuple(launch["grid"]) for launch in launches} == {(16, 1, 1)}


@pytest.mark.parametrize("kind", KINDS)
def test_each_product_has_a_part_of_the_workspace(each: ModuleType, kind: str) -> None:
    a, b = array(kind, (4, 33, 10), (450, 1, 40), A), array(kind, (4, 10, 5), (60, 1, 11), B)
    out = array(kind, (4, 33, 5), (165, 1, 33), OUT)
    each.gemm(a, b, out=out, stream=77)
    (launch,) = each.driver.launches
    partials, counters = launch["values"][11:13]
    assert launch["values"][:11] == [33, 5, 10, 1.0, A, 40, B, 11, 0.0, OUT, 33]
    assert launch["values"][13:] == [4, 450, 60, 165, 3 * 4 * 32 * 4, 4]
    assert launch["grid"] == [4, 3, 4]
    assert each.driver.zeroed == [(counters, 4 * 4, 77)]
    if kind in ("interface", "pycuda"):
        assert each.driver.memory == {partials: 4 * 4 * 3 * 4 * 32 * 4, counters: 4 * 4 * 4}


@pytest.mark.parametrize("kind", ["torch", "cupy"])
def test_a_new_array_has_the_kernels_order(sharing: ModuleType, each: ModuleType, kind: str) -> None:
    def layout(found: Any) -> tuple[Any, Any]:
        return found.shape, found.stride() if kind == "torch" else tuple(one // 4 for one in found.strides)

    a, b = array(kind, (2, 3, 4, 5), (60, 20, 5, 1), A), array(kind, (2, 3, 5, 3), (45, 15, 3, 1), B)
    of_columns = array(kind, (2, 64, 64), (4096, 1, 64), A), array(kind, (2, 64, 4), (256, 1, 64), B)
    for _ in range(2):
        assert (made := sharing.gemm(a, b)) is sys.modules[kind].made[-1]
        assert layout(made) == ((2, 3, 4, 3), (36, 12, 3, 1))
        launch = sharing.driver.launches[-1]["values"]
        assert launch == [4, 3, 5, 1.0, A, 5, B, 3, 0.0, 0x6000, 3, 6, 20, 15, 12]
        assert layout(each.gemm(*of_columns)) == ((2, 64, 4), (256, 1, 64))
        launch = each.driver.launches[-1]["values"]
        assert (launch[9:11], launch[13:17]) == ([0x6000, 64], [2, 4096, 256, 256])


@pytest.mark.parametrize("kind", ["torch", "cupy"])
def test_the_library_computes_what_is_no_batch(sharing: ModuleType, kind: str) -> None:
    asked = list[Any]()
    library: Any = sys.modules[kind]
    library.matmul = lambda a, b, out=None: logged(asked, (a, b), out)
    a, b, out = repeated(kind)
    assert "are not one dimension of each array" in sharing.choice(a, b, out).reason
    for _ in range(2):
        assert sharing.gemm(a, b, out=out) is out
    assert asked == [(a, b)] * 2
    with pytest.raises(ValueError, match="are not one dimension of each array"):
        sharing.gemm(a, b, out=out, fallback="error")
    for other in ("interface", "pycuda"):  # which have no library
        with pytest.raises(ValueError, match="are not one dimension of each array"):
            sharing.gemm(*repeated(other))
    assert not sharing.driver.launches


@pytest.mark.parametrize(
    ("strides", "places"),
    [  # contiguous: one call
        ((12, 3, 1), [(OUT, 12, 12, 28)]),
        ((16, 4, 1), [(OUT, 16, 12, 28)]),
        ((17, 4, 1), [(OUT + 68 * at, 16, 12, 4) for at in range(7)]),
    ],
)
def test_zeros_are_written_into_each_matrix(sharing: ModuleType, strides: Any, places: list[Any]) -> None:
    found = list[Any]()
    sharing.driver.cuMemsetD2D8Async = lambda *given: logged(found, tuple(given[at].value for at in (0, 1, 3, 4)), 0)
    a, b = array("interface", (7, 4, 5), (20, 5, 1), A), array("interface", (7, 5, 3), (15, 3, 1), B)
    out = array("interface", (7, 4, 3), strides, OUT)
    assert sharing.gemm(a, b, out=out, alpha=0) is out
    assert found == places
