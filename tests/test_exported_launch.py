"""An exported module launches kernels, as a driver records them, and leaves other products to the vendor."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.call_log import logged
from tests.fabricated import (
    GPU,
    configuration,
    device_array,
    exported,
    handmade,
    host_run,
    imported,
    kernels_of,
    module_of,
    source,
    trial,
    tuning_run,
    winners,
)
from tests.fake_tensors import Tensor, conjugate, f32, matrix
from tests.modules import OUT, A, B, recorded
from tests.processes import python, succeed
from tests.recording_driver import RecordingDriver, attach, cubin
from tsm2_tune.generator.config import Launch
from tsm2_tune.generator.problem import LARGEST_32_BIT_OFFSET, Problem
from tsm2_tune.tuner.device.cuda import cuda_device_count
from tsm2_tune.tuner.export.cubins import compiled_cubins
from tsm2_tune.tuner.export.module import launcher_binary, module_text

pytestmark = pytest.mark.slow

LIMIT_SECONDS = 400  # limit of a process with a module on a GPU: libraries compile kernels of their own


@pytest.fixture
def driver(gpu_module: ModuleType) -> RecordingDriver:
    return gpu_module.driver  # type: ignore[no-any-return]


def test_the_launch_is_as_the_kernel_expects(gpu_module: ModuleType, driver: RecordingDriver) -> None:
    assert gpu_module.gemm(A, B, out=OUT, alpha=2, beta=0.5) is OUT
    assert gpu_module.gemm(A, B, out=OUT, stream=77) is OUT
    first, second = driver.launches
    values = [6, 2, 3, 2.0, 0x1000, 6, 0x2000, 3, 0.5, 0x3000, 8]
    assert first == {"grid": [1, 1, 1], "block": [128, 1, 1], "smem": 4096, "stream": None, "values": values}
    assert second["stream"] == 77
    started = ["push c0", "launch", "pop"]
    assert driver.calls == ["push c0", "load", "pop", *started, *started]
    driver.current = 0xC0
    gpu_module.gemm(A, B, out=OUT)
    assert driver.calls[-2:] == ["pop", "launch"]  # the context is current
    driver.current = None
    for owner, calls in (
        (0xC1, ["push c1", "load", "pop", "push c1", "launch", "pop"]), (None, ["push aa", "load", "pop", "launch"]),
    ):  # fmt: skip
        driver.calls.clear()
        driver.owner = partial(lambda owner, address: owner, owner)
        gpu_module.gemm(A, B, out=OUT)
        assert driver.calls == calls
    ((_, bits, arch),) = gpu_module.compiled  # once
    assert (bits, arch) == (32, "sm_90a")


def test_load_loads_the_kernels_that_products_here_get(tmp_path: Path) -> None:
    """Those of another GPU are loaded for types that were not tuned here. Only those of this GPU must load."""
    other = tuning_run("Tesla K40c", compute_capability="3.5")
    tried = [(tuning_run(), "f32"), (other, "f32"), (other, "f64"), (host_run(), "f64")]
    problems = [Problem(4096, 8, 512, dtype) for _, dtype in tried]
    kernels = [trial(problem=one, source=handmade(one, splits=at + 2)) for at, one in enumerate(problems)]
    module: Any = recorded(module_of(tmp_path, *zip((run for run, _ in tried), kernels, strict=True)))
    module.driver.owner = lambda address: 0xAA  # the context that libraries share
    module.load()
    for typestr, size in (("<f4", 4), ("<f8", 8)):
        module.gemm(*(device_array((4, 4), (size, 4 * size), at=at << 12, typestr=typestr) for at in (1, 2, 3)))
    assert module.driver.calls.count("load") == 4  # two kernels, each with indices of 32 and 64 bits
    for at, refused in (
        (0, pytest.raises(RuntimeError, match="no binary for sm_90a, and no NVRTC")),
        (1, nullcontext()),
    ):
        module.WINNERS, module._compiled = module.WINNERS[at:], {}
        module.compiled_here = Mock(side_effect=RuntimeError("no NVRTC"))
        module._functions.clear()
        with refused:
            module.load()


@pytest.mark.parametrize("place", [0, 1, 2])
def test_large_matrices_and_long_sums_get_wide_indices(gpu_module: Any, driver: RecordingDriver, place: int) -> None:
    shapes = (6, 3), (3, 2), (6, 2)
    lines = shapes[place][1]
    for driver.bits, more in ((32, 0), (64, 1)):
        ld = LARGEST_32_BIT_OFFSET // lines + more
        # Each starts behind where a narrow one before it ends, and a wide one is the last in memory.
        starts = [0x8000 if at == place else 0x1000 * (at + 1) for at in range(3)]
        strides = [(4, 4 * (ld if at == place else shape[0])) for at, shape in enumerate(shapes)]
        described = zip(shapes, strides, starts, strict=True)
        gpu_module.gemm(*(device_array(shape, step, at=start) for shape, step, start in described))
        assert driver.launches[-1]["values"][(5, 7, 10)[place]] == ld
        k = LARGEST_32_BIT_OFFSET // 2 + more  # an index is up to a step past k, which may be as long as k
        a, b = device_array((1, k), (4, 4), at=0x1000), device_array((k, 1), (4, 4 * k), at=0x1000)
        gpu_module.gemm(a, b, out=device_array((1, 1), (4, 4), at=0x100))
        assert driver.launches[-1]["values"][2] == k
    assert [bits for _, bits, _ in gpu_module.compiled] == [32, 64]


def test_streams_of_every_library(gpu_module: ModuleType, driver: RecordingDriver) -> None:
    for of_library, handle in (
        ({"handle": 77}, 77), ({"handle": ctypes.c_void_p(77)}, 77), ({"ptr": 77}, 77), ({"cuda_stream": 0}, None),
    ):  # fmt: skip
        gpu_module.gemm(A, B, out=OUT, stream=SimpleNamespace(**of_library))
        assert driver.launches[-1]["stream"] == handle
    for array_stream, stream in ((None, None), (1, None), (77, None), (77, 77)):
        gpu_module.gemm(device_array((6, 3), at=0x1000, stream=array_stream), B, out=OUT, stream=stream)
    assert [call for call in driver.calls if call.startswith("wait")] == ["wait for 77"]


def test_much_shared_memory_is_asked_for(tmp_path: Path) -> None:
    large = replace(source(configuration()), launch=Launch(128, 128, 100_000))
    module = recorded(module_of(tmp_path, trial(source=large)))
    module.gemm(A, B, out=OUT)
    assert (module.driver.optin, module.driver.launches[0]["smem"]) == ([100_000], 100_000)


def test_without_a_driver_it_says_so(plain_module: Any) -> None:
    plain_module.ctypes = SimpleNamespace(**vars(ctypes) | {"CDLL": Mock(side_effect=OSError("no such file"))})
    with pytest.raises(RuntimeError, match=r"no CUDA driver: .* not found"):
        plain_module.gemm(A, B, out=OUT)


# On a GPU


@pytest.mark.gpu
@pytest.mark.skipif(cuda_device_count() == 0, reason="no CUDA driver answers")
@pytest.mark.parametrize("has_launcher", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("library", ["pycuda", "torch", "cupy"])
def test_arrays_of_every_storage_order_on_a_gpu(tmp_path: Path, library: str, has_launcher: bool) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    problems = [Problem(4096, 8, 512, "f32", op) for op in ("nn", "tn", "nt", "ntt", "ttt")]
    problems.append(Problem(4096, 8, 512, "c64", "cn"))
    found = winners(tmp_path, *((tuning_run(), trial(problem=one, source=handmade(one))) for one in problems))
    imported(exported("module", found, launcher=launcher_binary() if has_launcher else None), tmp_path)
    succeed("tests.exported_on_gpu", tmp_path / "best_kernels.py", library, timeout=LIMIT_SECONDS)


@pytest.mark.gpu
@pytest.mark.skipif(cuda_device_count() == 0, reason="no CUDA driver answers")
@pytest.mark.parametrize("has_binaries", [True, False])
def test_a_module_runs_where_no_nvcc_is(tmp_path: Path, has_binaries: bool) -> None:
    """Without any compiler, or with NVRTC."""
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("cupy is not installed")
    problems = [Problem(4096, 8, 512, "f32", op) for op in ("nn", "ttt")]
    found = winners(tmp_path, *((tuning_run(), trial(problem=one, source=handmade(one))) for one in problems))
    kernels = kernels_of(found)
    cubins = compiled_cubins(kernels, print)[0] if has_binaries else {}
    imported(module_text(kernels, {}, "results.db", cubins), tmp_path)
    refused = "compiled_here" if has_binaries else "_by_nvcc"
    program = f"""
import sys
for missing in ("pycuda", "pycuda.driver", "tsm2_tune", "tsm2_tune.runtime"):
    sys.modules[missing] = None
sys.path.insert(0, {str(tmp_path)!r})
import best_kernels as best
def refuse(*_):
    raise AssertionError("a compiler was asked")
best.{refused} = refuse
import cupy
for order in "CF":
    a, b = cupy.random.rand(4099, 517, dtype="f4"), cupy.random.rand(517, 5, dtype="f4")
    a, b = cupy.asarray(a, order=order), cupy.asarray(b, order=order)
    assert cupy.allclose(best.gemm(a, b), a.astype("f8") @ b.astype("f8"), rtol=1e-4)
"""
    environment = {"PATH": "/nowhere", "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
    environment |= {
        name: os.environ[name]
        for name in ("HOME", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "CUDA_PATH")
        if name in os.environ
    }
    answer = python("-c", program, timeout=200, env=environment, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr


# Products that are left to the arrays' library, and so to the vendor's kernels


def tensors() -> list[Tensor]:
    return [Tensor(f32(at), dtype="torch.float32") for at in (0x1000, 0x2000, 0x3000)]


def test_the_vendor_computes_what_it_is_faster_at(losing: ModuleType) -> None:
    driver = attach(losing, cubin_of=cubin)
    a, b, out = tensors()
    chosen = losing.choice(a, b, out)
    assert isinstance(chosen, losing.Vendor)
    assert str(chosen).endswith("tuned for this shape; with the L2 clean 500.0 us measured, cublasSgemm 400.0 us")
    assert losing.choice(a, b, out, fallback="error").winner.x_cublas == 0.8
    for _ in range(2):
        assert losing.gemm(a, b, out=out, alpha=2) is out
        assert losing.gemm(a, b, out=out, fallback="error") is out
    assert (losing.asked, len(driver.launches)) == ([(a, b, 2, 0)] * 2, 2)
    losing.Product.of = None  # later calls skip the checks
    assert losing.gemm(a, b, out=out, beta=1) is out
    assert losing.asked[-1] == (a, b, 1, 1)


@pytest.mark.parametrize("is_own", [False, True])
def test_a_kernel_that_does_not_compile_is_left_to_the_vendor(tmp_path: Path, torch: Any, is_own: bool) -> None:
    """If it was tuned on this GPU, the call raises the error."""
    tuned_on = tuning_run() if is_own else tuning_run("NVIDIA B200", compute_capability="10.0")
    module: Any = module_of(tmp_path, Problem(4, 4, 4, "f32"), run=tuned_on)
    compiled, asked = Mock(side_effect=RuntimeError("NVRTC does not compile it")), list[Any]()
    attach(module, compiled_here=compiled)
    torch.mm = lambda a, b, out: logged(asked, (a, b), out)
    a, b, out = tensors()
    said = "this module has no binary for sm_90a, and NVRTC does not compile it"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=said):
            module.gemm(a, b, out=out, fallback="error")
        with pytest.raises(RuntimeError, match=said) if is_own else nullcontext():
            assert module.gemm(a, b, out=out) is out
    assert (len(asked), compiled.call_count) == (0 if is_own else 2, 1)
    for given in ((a, b, out), (a, b)):
        assert is_own or said in module.choice(*given).reason
    module.why_not_compiled = lambda *_: None
    for given in ((a, b, out), (a, b)):
        assert isinstance(module.choice(*given), module.Match)


@pytest.mark.parametrize("has_out", [False, True])
def test_the_vendors_product_is_on_the_stream_of_the_call(losing: Any, torch: Any, has_out: bool) -> None:
    streams = list[int]()
    losing.at_stream = lambda array, handle: logged(streams, handle, nullcontext())
    torch.stream = 77
    a, b, out = tensors()
    for stream in (None, None, 5):
        losing.gemm(a, b, out=out if has_out else None, stream=stream)
    assert len(losing.asked) == 3
    assert streams == [77, 5]  # the second call skipped the checks, and used the current stream


@pytest.mark.parametrize("is_right", [0, 1])
def test_the_vendors_time_counts_if_its_result_was_right(tmp_path: Path, torch: Any, is_right: int) -> None:
    beside: dict[str, Any] = {"cublas_us": 400.0, "cublas_right": is_right, "cublas_routine": "cublasSgemm"}
    module = module_of(tmp_path, Problem(4, 4, 4, "f32"), **beside)
    assert module.match(4, 4, 4, "f32", GPU).vendor_us == (400.0 if is_right else None)
    assert module.match(4, 4, 5, "f32", GPU).is_vendor_chosen == bool(is_right)  # no time can be predicted there


def test_the_vendor_gets_no_out_within_b_and_no_second_conjugate(losing: Any, module: Any, torch: Any) -> None:
    places = ((2, 4), 0x1000), ((4, 64), 0x2000), ((2, 64), 0x3000), ((2, 64), 0x2000 + 1016)  # b has 1024 bytes
    a, b, out, in_b = (Tensor(device_array(shape, at=at), dtype="torch.float32", ndim=2) for shape, at in places)
    losing.gemm(a, b, out=out)
    with pytest.raises(ValueError, match="out: it shares memory with b"):
        losing.gemm(a, b, out=in_b)
    assert len(losing.asked) == 1
    a, b, out = conjugate(matrix(6, 3)), Tensor(matrix(3, 2, at=0x2000)), Tensor(matrix(6, 2, at=0x3000))
    assert module.gemm(a, b, out=out, alpha=2) is out  # no kernel is for it
    assert losing.asked[1:] == [(a, b, 2, 0)]
