"""The exported module: how it matches a product to a kernel, what it refuses, and what it launches."""

from __future__ import annotations

import ctypes
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import EllipsisType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.fabricated import (
    GPU,
    PROBLEM,
    configuration,
    exported,
    host_run,
    imported,
    source,
    trial,
    tuning_run,
    winners,
)
from tsm2_tune.generator.config import Launch
from tsm2_tune.generator.problem import LARGEST_32_BIT_OFFSET, Problem
from tsm2_tune.generator.render import render

HOST = host_run()

# The module's choice


@pytest.fixture(scope="module")
def gpu_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    k40 = tuning_run("Tesla K40c", compute_capability="3.5")
    shapes = [Problem(20480, n, 20480, "f32") for n in (4, 16)] + [Problem(10**7, 8, 8, "f32")]
    found = winners(
        tmp_path_factory.mktemp("winners"),
        *((tuning_run(), trial(problem=shape)) for shape in shapes),
        (k40, trial(problem=Problem(20480, 8, 20480, "f32"))),
        (k40, trial(problem=Problem(20480, 8, 20480, "f64"))),
        (HOST, trial(problem=Problem(20480, 8, 20480, "f64"))),
    )
    return exported("module", found)


@pytest.fixture
def gpu_module(gpu_text: str, tmp_path: Path) -> ModuleType:
    return imported(gpu_text, tmp_path)


def test_the_exact_shape_comes_first(gpu_module: ModuleType) -> None:
    match = gpu_module.match(20480, 16, 20480, "f32", GPU)
    assert str(match) == "exact"
    assert (match.distance, match.winner.n) == (0, 16)


@pytest.mark.parametrize(
    ("shape", "nearest"),
    [
        ((20480, 9, 20480), (20480, 16, 20480)),  # log(16/9) < log(9/4)
        ((20480, 7, 20480), (20480, 4, 20480)),
        ((10**6, 8, 16), (10**7, 8, 8)),
        ((1, 1, 1), (20480, 4, 20480)),
    ],
)
def test_then_the_nearest_by_log_ratios(
    gpu_module: ModuleType, shape: tuple[int, int, int], nearest: tuple[int, int, int]
) -> None:
    match = gpu_module.match(*shape, np.float32, GPU)
    assert (match.winner.m, match.winner.n, match.winner.k) == nearest
    assert match.distance == pytest.approx(np.linalg.norm(np.log(np.divide(shape, nearest))))
    assert str(match) == f"nearest {'x'.join(map(str, nearest))} at distance {match.distance:.1f}"


def test_another_gpus_winner_only_where_there_is_none(gpu_module: ModuleType) -> None:
    assert gpu_module.match(20480, 8, 20480, "f32", GPU).winner.device == GPU
    match = gpu_module.match(20480, 8, 20480, "f64", GPU)
    assert match.winner.device == "Tesla K40c"
    assert str(match) == f"exact, tuned on Tesla K40c: no winners for {GPU}, tune there for its own"


def test_a_host_and_a_gpu_never_stand_in_for_each_other(gpu_module: ModuleType) -> None:
    assert gpu_module.match(1, 1, 1, "f64").winner.device == "Some CPU"
    with pytest.raises(LookupError, match="no f32 kernel tuned on a host"):
        gpu_module.match(1, 1, 1, "f32")


def test_match_refuses_what_is_no_shape_or_dtype(gpu_module: ModuleType) -> None:
    with pytest.raises(ValueError, match="0x1x1: every dimension"):
        gpu_module.match(0, 1, 1, "f32", GPU)
    with pytest.raises(TypeError, match="expected float32 or float64"):
        gpu_module.match(1, 1, 1, np.int32, GPU)


# The module's arguments


def device_array(
    shape: tuple[int, ...], strides: tuple[int, ...] | EllipsisType | None = ..., *, at: int = 0x1000, **changes: Any
) -> SimpleNamespace:
    """An object with the interface of an array in device memory; column-major float32 where not said otherwise."""
    interface: dict[str, Any] = {"shape": shape, "typestr": "<f4", "data": (at, False), "version": 3}
    interface["strides"] = (4, 4 * shape[0]) if strides is ... else strides
    return SimpleNamespace(__cuda_array_interface__=interface | changes)


@pytest.mark.parametrize(
    ("shape", "strides", "ld"),
    [
        ((6, 3), (4, 24), 6),
        ((6, 3), (4, 40), 10),  # a block of a larger matrix
        ((1, 3), (400, 4), 1),  # one row: its own stride says nothing
        ((1, 3), (4, 28), 7),
        ((6, 1), (4, 4), 6),  # one column likewise
        ((1, 1), (0, 0), 1),
    ],
)
def test_column_major_layouts(
    gpu_module: ModuleType, shape: tuple[int, int], strides: tuple[int, int], ld: int
) -> None:
    assert gpu_module._Matrix.of("a", device_array(shape, strides)).ld == ld


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"strides": (12, 4)}, ValueError, r"a: expected a column-major 6x3 matrix.*got \(12, 4\)"),
        ({"strides": None}, ValueError, "column-major"),  # the interface's None is row-major
        ({"strides": (4, 20)}, ValueError, "column-major"),  # columns overlap
        ({"strides": (4, 0)}, ValueError, "column-major"),
        ({"strides": (4, -24)}, ValueError, "column-major"),
        ({"strides": (4, 26)}, ValueError, "column-major"),
        ({"shape": (6,)}, ValueError, r"a: expected a matrix.*\(6,\)"),
        ({"shape": (0, 3)}, ValueError, "expected a matrix"),
        ({"typestr": "<i4"}, TypeError, "a: expected float32 or float64, got int32"),
        ({"typestr": ">f4"}, TypeError, "expected float32 or float64"),
        ({"data": (0x1001, False)}, ValueError, "not a multiple of 4"),
        ({"mask": object()}, TypeError, "masked"),
    ],
)
def test_what_is_no_operand(
    gpu_module: ModuleType, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        gpu_module.gemm(device_array(**({"shape": (6, 3)} | changes)), device_array((3, 2)))


A, B = device_array((6, 3), at=0x1000), device_array((3, 2), at=0x2000)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((A, device_array((4, 2))), ValueError, "b: expected 3 rows, as a has columns, got 4x2"),
        ((A, B, device_array((6, 3))), ValueError, "out: expected 6x2, got 6x3"),
        ((A, B, device_array((6, 2), data=(0x3000, True))), ValueError, "out: it is read-only"),
        ((A, B, device_array((6, 2), at=0x1008)), ValueError, "out: it shares memory with a"),
        ((A, device_array((3, 2), (8, 24), typestr="<f8")), TypeError, "b: expected float32 as a, got float64"),
        ((A, np.zeros((3, 2), np.float32, order="F")), TypeError, "a and b: one is a NumPy array"),
        (([[1.0]], B), TypeError, "a: expected a device array.*got list"),
    ],
)
def test_what_is_no_product(
    gpu_module: ModuleType, arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        gpu_module.gemm(*arguments)


def test_beta_needs_a_matrix_to_scale(gpu_module: ModuleType) -> None:
    with pytest.raises(ValueError, match="beta = 2: give the matrix that it scales as out"):
        gpu_module.gemm(A, B, beta=2)


def test_arrays_must_be_where_kernels_were_tuned(tmp_path: Path) -> None:
    a = np.zeros((2, 2), np.float32, order="F")
    with pytest.raises(TypeError, match="tuned on GPUs only: pass device arrays"):
        imported(exported("module", winners(tmp_path, (tuning_run(), trial()))), tmp_path).gemm(a, a)
    (tmp_path / "results.db").unlink()
    with pytest.raises(RuntimeError, match="tuned on a host only: pass NumPy arrays"):
        imported(exported("module", winners(tmp_path, (HOST, trial()))), tmp_path).gemm(A, B)


# The module on the host


@pytest.fixture
def host_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, list[dict[str, Any]]]:
    """A module of host winners, whose kernels NumPy computes here, and the calls that it makes."""
    calls: list[dict[str, Any]] = []

    def run_on_host(text: str, kernel: str, defines: tuple[str, ...], arguments: list[Any], **launch: Any) -> None:
        m, n, k, alpha, a, lda, b, ldb, beta, c, ldc = arguments
        assert (m, n, k) == (*c.shape, a.shape[1])
        c[...] = alpha * (a @ b) + (beta * c if beta else 0)
        calls.append({"text": text, "kernel": kernel, "defines": defines, "leading": (lda, ldb, ldc), **launch})

    monkeypatch.setitem(sys.modules, "tsm2_tune.tuner.host", SimpleNamespace(run_on_host=run_on_host))
    shapes = (Problem(512, 8, 256, "f32"), Problem(512, 8, 256, "f64"))
    found = winners(tmp_path, *((HOST, trial(problem=shape)) for shape in shapes))
    return imported(exported("module", found), tmp_path), calls


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_arrays_run_on_the_host(
    host_module: tuple[ModuleType, list[dict[str, Any]]], dtype: type[np.floating[Any]]
) -> None:
    module, calls = host_module
    random = np.random.default_rng(1)
    a = np.asfortranarray(random.random((300, 20)), dtype)[7:207]  # leading dimension 300
    b = np.asfortranarray(random.random((20, 3)), dtype)
    c = module.gemm(a, b)
    assert c.flags.f_contiguous
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)
    expected = 2 * (a @ b) - c
    assert module.gemm(a, b, out=c, alpha=2, beta=-1) is c
    np.testing.assert_allclose(c, expected, rtol=1e-4)
    assert calls[0]["leading"] == (300, 20, 200)
    assert (calls[0]["kernel"], calls[0]["defines"]) == ("tsm2", ("INDEX_BITS=32",))
    assert (calls[0]["blocks"], calls[0]["threads"], calls[0]["smem_bytes"]) == (2, 128, 4096)
    assert str(module.choice(a, b)).startswith("nearest 512x8x256")


@pytest.mark.host
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("dtype_name", ["f32", "f64"])
def test_a_real_kernel_runs_on_the_host(tmp_path: Path, dtype_name: str) -> None:
    problem, config = Problem(64, 4, 32, dtype_name), configuration(threads=32, columns=4, prefetch=4)
    found = winners(tmp_path, (HOST, trial(problem=problem, config=config, source=render(problem, config))))
    module = imported(exported("module", found), tmp_path)
    random = np.random.default_rng(1)
    dtype = module.DTYPES[dtype_name]
    whole = np.asfortranarray(random.random((100, 37)), dtype)
    a, b = whole[3:98], np.asfortranarray(random.random((37, 5)), dtype)
    c = module.gemm(a, b)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)
    module.gemm(a, b, out=c, alpha=0.5, beta=2)
    np.testing.assert_allclose(c, 2.5 * (a @ b), rtol=1e-5)


def test_a_tampered_module_runs_nothing(host_module: tuple[ModuleType, list[dict[str, Any]]]) -> None:
    module, calls = host_module
    for digest in module.KERNELS:
        module.KERNELS[digest] += "// more"
    a = np.ones((4, 4), order="F")
    with pytest.raises(RuntimeError, match="does not match its digest"):
        module.gemm(a, a)
    assert calls == []


def test_blocks_of_one_matrix_may_be_operands(host_module: tuple[ModuleType, list[dict[str, Any]]]) -> None:
    module, _ = host_module
    whole = np.asfortranarray(np.random.default_rng(1).random((10**4, 8)))
    b = np.asfortranarray(np.eye(8))
    module.gemm(whole[:5000], b, out=whole[5000:])  # their addresses interleave, and do not overlap
    np.testing.assert_allclose(whole[5000:], whole[:5000])
    with pytest.raises(ValueError, match="out: it shares memory with a"):
        module.gemm(whole[:5000], b, out=whole[4999:9999])


# The module on a GPU, against a driver that records what it is asked


class RecordingDriver:
    """CUDA's driver as far as the module calls it: every array belongs to context 0xC0 of a GPU, or to `owner`."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.launches: list[dict[str, Any]] = []
        self.owner: Callable[[int], int | None] = lambda address: 0xC0
        self.waited: list[int] = []
        self.optin: list[int] = []

    def cuInit(self, flags: int) -> int:
        return 0

    def cuPointerGetAttribute(self, value: Any, attribute: int, address: Any) -> int:
        value._obj.value = 0 if attribute == 9 else self.owner(address.value)
        return 0 if address.value < 0x10000 else 1

    def cuGetErrorName(self, status: int, name: Any) -> int:
        name._obj.value = b"CUDA_ERROR_INVALID_VALUE"
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        return 0

    def cuDeviceGetName(self, name: Any, length: int, device: Any) -> int:
        name.value = GPU.encode()
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        value._obj.value = {75: 9, 76: 0}[attribute]
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        context._obj.value = 0xAA
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        self.calls.append(f"push {context.value:x}")
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        self.calls.append("pop")
        return 0

    def cuCtxGetId(self, context: Any, number: Any) -> int:
        number._obj.value = context.value
        return 0

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:
        self.calls.append("load")
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        function._obj.value = 0xF0
        return 0

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:
        self.optin.append(value)
        return 0

    def cuStreamSynchronize(self, stream: Any) -> int:
        self.waited.append(stream.value)
        return 0

    def cuLaunchKernel(self, function: Any, *rest: Any) -> int:
        *shape, smem_bytes, stream, pointers, _ = rest
        index = ctypes.c_int32 if self.bits == 32 else ctypes.c_int64
        types = [index] * 3 + [ctypes.c_float, ctypes.c_uint64, index] * 1
        types += [ctypes.c_uint64, index, ctypes.c_float, ctypes.c_uint64, index]
        values = [kind.from_address(pointer).value for kind, pointer in zip(types, pointers, strict=True)]
        self.calls.append("launch")
        self.launches.append(
            {"grid": shape[:3], "block": shape[3:], "smem": smem_bytes, "stream": stream.value, "values": values}
        )
        return 0

    bits = 32


@pytest.fixture
def driver(gpu_module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> RecordingDriver:
    driver = RecordingDriver()
    monkeypatch.setattr(gpu_module, "_cuda", lambda: driver)
    return driver


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What PyCUDA's compiler is asked for."""
    asked: list[dict[str, Any]] = []

    def compile_cuda(text: str, **options: Any) -> bytes:
        asked.append({"text": text, **options})
        return b"cubin"

    monkeypatch.setitem(sys.modules, "pycuda", ModuleType("pycuda"))
    monkeypatch.setitem(sys.modules, "pycuda.compiler", SimpleNamespace(compile=compile_cuda))
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    return asked


OUT = device_array((6, 2), (4, 32), at=0x3000)


def test_the_launch_is_as_the_kernel_expects(
    gpu_module: ModuleType, driver: RecordingDriver, compiled: list[dict[str, Any]]
) -> None:
    assert gpu_module.gemm(A, B, out=OUT, alpha=2, beta=0.5) is OUT
    assert gpu_module.gemm(A, B, out=OUT, stream=77) is OUT
    first, second = driver.launches
    assert first["values"] == [6, 2, 3, 2.0, 0x1000, 6, 0x2000, 3, 0.5, 0x3000, 8]
    assert first["grid"] == [1, 1, 1]
    assert first["block"] == [128, 1, 1]
    assert (first["smem"], first["stream"], second["stream"]) == (4096, None, 77)
    assert driver.calls == ["push c0", "load", "launch", "pop", "push c0", "launch", "pop"]
    (asked,) = compiled  # once
    assert asked["options"] == ["-std=c++17", "-DINDEX_BITS=32"]
    assert (asked["arch"], asked["target"], asked["no_extern_c"]) == ("sm_90", "cubin", True)


def test_a_kernel_is_loaded_once_into_each_context(
    gpu_module: ModuleType, driver: RecordingDriver, compiled: list[dict[str, Any]]
) -> None:
    for owner in (0xC0, 0xC1, None):  # None: memory that belongs to no context, so the device's primary one
        driver.owner = lambda address, owner=owner: owner
        gpu_module.gemm(A, B, out=OUT)
    assert [call for call in driver.calls if call.startswith("push")] == ["push c0", "push c1", "push aa"]
    assert driver.calls.count("load") == 3
    assert len(compiled) == 1


def test_operands_of_two_contexts_are_refused(gpu_module: ModuleType, driver: RecordingDriver) -> None:
    driver.owner = lambda address: 0xC1 if address == 0x2000 else 0xC0
    with pytest.raises(ValueError, match="b and a are not of one CUDA context"):
        gpu_module.gemm(A, B, out=OUT)
    with pytest.raises(ValueError, match="a: its address 0x10000 is no memory of a CUDA device"):
        gpu_module.gemm(device_array((6, 3), at=0x10000), B, out=OUT)


def test_wide_matrices_get_wide_indices(
    gpu_module: ModuleType, driver: RecordingDriver, compiled: list[dict[str, Any]]
) -> None:
    ld = LARGEST_32_BIT_OFFSET // 3
    gpu_module.gemm(device_array((6, 3), (4, 4 * ld), at=0x8000), B, out=OUT)
    driver.bits = 64
    gpu_module.gemm(device_array((6, 3), (4, 4 * (ld + 1)), at=0x8000), B, out=OUT)
    assert [options["options"][-1] for options in compiled] == ["-DINDEX_BITS=32", "-DINDEX_BITS=64"]
    assert driver.launches[1]["values"][:6] == [6, 2, 3, 1.0, 0x8000, ld + 1]


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (None, None),
        (77, 77),
        (SimpleNamespace(handle=77), 77),  # PyCUDA
        (SimpleNamespace(handle=ctypes.c_void_p(77)), 77),  # Numba
        (SimpleNamespace(ptr=77), 77),  # CuPy
        (SimpleNamespace(cuda_stream=0), None),  # PyTorch
    ],
)
def test_streams_of_every_library(
    gpu_module: ModuleType, driver: RecordingDriver, compiled: list[dict[str, Any]], stream: Any, handle: int | None
) -> None:
    gpu_module.gemm(A, B, out=OUT, stream=stream)
    assert driver.launches[0]["stream"] == handle


def test_what_is_no_stream(gpu_module: ModuleType, driver: RecordingDriver, compiled: list[dict[str, Any]]) -> None:
    with pytest.raises(TypeError, match="stream: expected a stream, its handle or None, got str"):
        gpu_module.gemm(A, B, out=OUT, stream="default")
    assert driver.calls[-1] == "pop"


def test_an_arrays_other_stream_is_waited_for(
    gpu_module: ModuleType, driver: RecordingDriver, compiled: list[dict[str, Any]]
) -> None:
    for array_stream in (None, 1, 77):
        gpu_module.gemm(device_array((6, 3), at=0x1000, stream=array_stream), B, out=OUT)
    gpu_module.gemm(device_array((6, 3), at=0x1000, stream=77), B, out=OUT, stream=77)
    assert driver.waited == [77]


def test_much_shared_memory_is_asked_for(
    tmp_path: Path,
    driver: RecordingDriver,
    compiled: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = replace(source(configuration(), text="// large\n"), launch=Launch(128, 128, 100_000))
    found = winners(tmp_path, (tuning_run(), trial(problem=PROBLEM, source=large)))
    module = imported(exported("module", found), tmp_path)
    monkeypatch.setattr(module, "_cuda", lambda: driver)
    module.gemm(A, B, out=OUT)
    assert driver.optin == [100_000]
    assert driver.launches[0]["smem"] == 100_000


def test_without_a_driver_it_says_so(gpu_module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(RuntimeError, match=r"no CUDA driver: .* not found"):
        gpu_module.gemm(A, B, out=OUT)
