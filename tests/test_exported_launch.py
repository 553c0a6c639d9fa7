"""The exported module on a GPU: what it launches and the memory it keeps, against a driver that records its calls."""

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

from tests.fabricated import (
    GPU,
    PROBLEM,
    configuration,
    device_array,
    exported,
    handmade,
    host_run,
    imported,
    module_of,
    source,
    trial,
    tuning_run,
    winners,
)
from tests.modules import OUT, A, B, recorded
from tests.processes import python, succeed
from tests.recording_driver import RecordingDriver
from tsm2_tune.generator.config import Launch
from tsm2_tune.generator.problem import LARGEST_32_BIT_OFFSET, Problem
from tsm2_tune.tuner.device.cuda import cuda_device_count
from tsm2_tune.tuner.export import export_text
from tsm2_tune.tuner.export.cubins import compiled_cubins
from tsm2_tune.tuner.export.launcher_build import launcher_binary
from tsm2_tune.tuner.export.measured_times import NOTHING_KNOWN

LIMIT_SECONDS = 400  # limit of a process with a module on a GPU: libraries compile kernels of their own


@pytest.fixture
def driver(gpu_module: ModuleType) -> RecordingDriver:
    found: RecordingDriver = gpu_module.driver
    return found


def test_the_launch_is_as_the_kernel_expects(gpu_module: ModuleType, driver: RecordingDriver) -> None:
    assert gpu_module.gemm(A, B, out=OUT, alpha=2, beta=0.5) is OUT
    assert gpu_module.gemm(A, B, out=OUT, stream=77) is OUT
    first, second = driver.launches
    assert first["values"] == [6, 2, 3, 2.0, 0x1000, 6, 0x2000, 3, 0.5, 0x3000, 8]
    assert first["grid"] == [1, 1, 1]
    assert first["block"] == [128, 1, 1]
    assert (first["smem"], first["stream"], second["stream"]) == (4096, None, 77)
    started = ["push c0", "launch", "pop"]
    assert driver.calls == ["push c0", "load", "pop", *started, *started]
    ((_, bits, arch),) = gpu_module.compiled  # once
    assert (bits, arch) == (32, "sm_90a")
    driver.current = 0xC0
    gpu_module.gemm(A, B, out=OUT)
    assert driver.calls[-2:] == ["pop", "launch"]  # the context is current


def test_a_kernel_is_loaded_once_into_each_context(gpu_module: ModuleType, driver: RecordingDriver) -> None:
    for owner in (0xC0, 0xC1, None):  # None: memory that belongs to no context, so the device's primary one
        driver.owner = partial(lambda owner, address: owner, owner)
        gpu_module.gemm(A, B, out=OUT)
    assert [call for call in driver.calls if call.startswith("push")][::2] == ["push c0", "push c1", "push aa"]
    assert driver.calls.count("load") == 3
    assert len(gpu_module.compiled) == 1


def test_load_loads_all_that_products_here_get(tmp_path: Path) -> None:
    """It loads another GPU's kernels only for types that were not tuned here, and no kernels of a host."""
    other = tuning_run("Tesla K40c", compute_capability="3.5")
    tried = [(tuning_run(), "f32"), (other, "f32"), (other, "f64"), (host_run(), "f64")]
    runs, problems = zip(*((run, Problem(4096, 8, 512, dtype)) for run, dtype in tried), strict=True)
    kernels = [trial(problem=one, source=handmade(one, splits=at + 2)) for at, one in enumerate(problems)]
    module = recorded(module_of(tmp_path, *zip(runs, kernels, strict=True)))
    module.driver.owner = lambda address: 0xAA  # the context that libraries share
    module.load()
    assert module.driver.calls.count("load") == 4  # two kernels, each with indices of 32 and 64 bits
    for typestr, size in (("<f4", 4), ("<f8", 8)):
        a, b, c = (device_array((4, 4), (size, 4 * size), at=at, typestr=typestr) for at in (0x1000, 0x2000, 0x3000))
        module.gemm(a, b, out=c)
    assert module.driver.calls.count("load") == 4


def test_load_says_what_does_not_load_of_this_gpus_own(tmp_path: Path) -> None:
    for device in (GPU, "Tesla K40c"):
        (tmp_path / device).mkdir()
        module: Any = recorded(module_of(tmp_path / device, PROBLEM, run=tuning_run(device)))
        module.compiled_here = Mock(side_effect=RuntimeError("NVRTC was not found"))
        refused = pytest.raises(RuntimeError, match="no binary for sm_90a, and NVRTC was not found")
        with refused if device == GPU else nullcontext():
            module.load()


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_wide_matrix_gets_wide_indices(gpu_module: ModuleType, driver: RecordingDriver, place: int) -> None:
    shapes = (6, 3), (3, 2), (6, 2)
    lines = shapes[place][1]
    for driver.bits, more in ((32, 0), (64, 1)):
        ld = LARGEST_32_BIT_OFFSET // lines + more
        # Each starts behind where a narrow one before it ends, and a wide one is the last in memory.
        starts = [0x8000 if at == place else 0x1000 * (at + 1) for at in range(3)]
        strides = [(4, 4 * (ld if at == place else shape[0])) for at, shape in enumerate(shapes)]
        described = zip(shapes, strides, starts, strict=True)
        a, b, out = (device_array(shape, step, at=start) for shape, step, start in described)
        gpu_module.gemm(a, b, out=out)
        assert driver.launches[-1]["values"][(5, 7, 10)[place]] == ld
    assert [bits for _, bits, _ in gpu_module.compiled] == [32, 64]


@pytest.mark.parametrize("more", [0, 1])
def test_long_sums_get_wide_indices(gpu_module: ModuleType, driver: RecordingDriver, more: int) -> None:
    """An index runs up to a step past k, which may be as long as k is."""
    k, driver.bits = LARGEST_32_BIT_OFFSET // 2 + more, 64 if more else 32
    a, b = device_array((1, k), (4, 4), at=0x1000), device_array((k, 1), (4, 4 * k), at=0x1000)
    gpu_module.gemm(a, b, out=device_array((1, 1), (4, 4), at=0x100))
    assert [bits for _, bits, _ in gpu_module.compiled] == [driver.bits]


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
    gpu_module: ModuleType, driver: RecordingDriver, stream: Any, handle: int | None
) -> None:
    gpu_module.gemm(A, B, out=OUT, stream=stream)
    assert driver.launches[0]["stream"] == handle


def test_an_arrays_other_stream_is_waited_for(gpu_module: ModuleType, driver: RecordingDriver) -> None:
    for array_stream in (None, 1, 77):
        gpu_module.gemm(device_array((6, 3), at=0x1000, stream=array_stream), B, out=OUT)
    gpu_module.gemm(device_array((6, 3), at=0x1000, stream=77), B, out=OUT, stream=77)
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
    rows, sources = found
    text = export_text(
        rows,
        "module",
        sources=sources,
        database="results.db",
        known=NOTHING_KNOWN,
        cubins=compiled_cubins(rows, sources, print)[0] if has_binaries else {},
    )
    imported(text, tmp_path)
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
