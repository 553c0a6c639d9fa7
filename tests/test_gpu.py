"""On a GPU: every template is right, occupancy is the driver's, the exported module takes every library's arrays.

The tests named `template` run well under compute-sanitizer:

    compute-sanitizer --tool racecheck python -m pytest tests/test_gpu.py -k template
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ONCE, compiled
from tsm2_tune.errors import TuneError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.ism2 import Ism2Config
from tsm2_tune.generator.families.tsm2 import Tsm2Config
from tsm2_tune.generator.families.tsmm import TsmmConfig
from tsm2_tune.generator.occupancy import occupancy
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.profiles import PROFILES
from tsm2_tune.generator.render import render, support_source
from tsm2_tune.tuner.cuda import CudaDevice, cuda_device_count
from tsm2_tune.tuner.loaded import Entry, LoadedKernel
from tsm2_tune.tuner.measure import measure
from tsm2_tune.tuner.operands import Operands, Support
from tsm2_tune.tuner.target import Target, find_target
from tsm2_tune.tuner.trial import Verdict
from tsm2_tune.tuner.verify import PROBE_CHECKS, verify

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(cuda_device_count() == 0, reason="no CUDA driver answers"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # PyCUDA's own
]

CONFIGS: tuple[KernelConfig, ...] = (
    Tsm2Config("v0", 128, 1, 1),
    Tsm2Config("v1", 64, 4, 1),
    Tsm2Config("v2", 128, 3, 12),
    Tsm2Config("v3", 64, 8, 6),
    Tsm2Config("v3", 256, 2, 32),
    Ism2Config(1, 64, 4, 8, 4),
    Ism2Config(2, 64, 6, 4, 4),
    Ism2Config(2, 32, 2, 6, 64),
    TsmmConfig(64, 8, 2, 4, 8, 2),
    TsmmConfig(128, 16, 1, 8, 2, 1),
    TsmmConfig(64, 16, 2, 6, 16, 4),
)
SHAPES = ((1, 1, 1), (31, 1, 64), (257, 3, 1), (1009, 5, 61), (641, 7, 131), (97, 13, 256), (2053, 33, 67))


@pytest.fixture(scope="module")
def target() -> Target:
    try:
        return find_target("0")
    except TuneError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def gpu_support_path(target: Target) -> str:
    return compiled(support_source(), "", target.toolchain).path


@pytest.fixture(scope="module")
def gpu(gpu_support_path: str) -> Iterator[CudaDevice]:
    device = CudaDevice(0, gpu_support_path)
    yield device
    device.close()


def verdict(gpu: CudaDevice, target: Target, support: str, config: KernelConfig, problem: Problem) -> Verdict:
    source = render(problem, config)
    binary = compiled(source.text, source.kernel, target.toolchain, source.defines)
    operands = Operands(gpu, Support(gpu, support, problem.dtype_name), problem, index_bits=problem.index_bits)
    loaded = LoadedKernel(gpu, operands, Entry(binary.path, source.kernel, source.launch))
    try:
        return verify(gpu, operands, loaded, seed=11, checks=PROBE_CHECKS)
    finally:
        loaded.free()
        operands.free()
        operands.support.free()


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.text)
def test_template_is_right_at_odd_shapes(
    gpu: CudaDevice, target: Target, gpu_support_path: str, config: KernelConfig, dtype: str
) -> None:
    for shape in SHAPES:
        found = verdict(gpu, target, gpu_support_path, config, Problem(*shape, dtype))
        assert found.correct, f"{shape}: {found.detail}"


@pytest.mark.parametrize("shape", [(70001, 3, 33013), (150_000_001, 3, 16)], ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.text)
def test_offsets_past_32_bits_are_right(
    gpu: CudaDevice, target: Target, gpu_support_path: str, config: KernelConfig, shape: tuple[int, int, int]
) -> None:
    problem = Problem(*shape, "f32")
    assert problem.index_bits == 64
    found = verdict(gpu, target, gpu_support_path, config, problem)
    assert found.correct, found.detail


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.text)
def test_occupancy_is_the_drivers(gpu: CudaDevice, target: Target, config: KernelConfig, dtype: str) -> None:
    source = render(Problem(64, 4, 64, dtype), config)
    binary = compiled(source.text, source.kernel, target.toolchain, source.defines)
    launch = source.launch
    used = gpu.load(binary.path, source.kernel).resources(threads=launch.threads, smem_bytes=launch.smem_bytes)
    assert (
        used.blocks_per_sm
        == occupancy(
            gpu.limits, threads=launch.threads, registers=used.registers, smem_bytes=used.smem_bytes
        ).blocks_per_sm
    )


def test_the_bundled_h200_is_what_the_driver_says(gpu: CudaDevice) -> None:
    if gpu.limits.name != "NVIDIA H200":
        pytest.skip(f"this is a {gpu.limits.name}")
    bundled = PROFILES["h200"]
    different = {
        name
        for name in bundled.__slots__
        if getattr(bundled, name) != pytest.approx(getattr(gpu.limits, name)) and name not in ("name", "memory_bytes")
    }
    assert different == set()


def test_ceilings_are_below_the_data_sheet(gpu: CudaDevice) -> None:
    ceilings = gpu.ceilings()
    assert 0.5 * gpu.limits.dram_gbytes_per_s < ceilings.copy_gbytes_per_s < ceilings.read_gbytes_per_s
    assert ceilings.read_gbytes_per_s < gpu.limits.dram_gbytes_per_s


def test_a_cold_cache_is_slower_than_a_warm_one(gpu: CudaDevice, gpu_support_path: str) -> None:
    """Reading half of the L2 again: the flush before each sample must make a difference."""
    from numpy import int64, uint64

    size = gpu.limits.l2_bytes // 4 // 4096 * 4096
    data, sink = gpu.allocate(size), gpu.allocate(4096)
    gpu.drv.memset_d32(data.address, 0x3F800000, size // 4)
    kernel = gpu.load(gpu_support_path, "stream_read")

    def read(times: int) -> None:
        for _ in range(times):
            kernel(
                (uint64(data.address), int64(size // 16), uint64(sink.address)),
                blocks=-(-size // (64 * 256)),
                threads=256,
            )

    once = measure(gpu, lambda: read(1), ONCE).median_us
    five_times = measure(gpu, lambda: read(5), ONCE).median_us
    assert (five_times - once) / 4 < 0.9 * once


@pytest.fixture(scope="module")
def exported_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    command = [sys.executable, "-m", "tsm2_tune"]
    tune = [
        "--device",
        "0",
        "--shapes",
        "4096x8x512,1e5x4x4",
        "--dtype",
        "f32,f64",
        "--max-trials",
        "4",
        "--db",
        "r.db",
    ]
    export = ["export", "--db", "r.db", "--format", "module", "--output", "best_kernels.py"]
    subprocess.run([*command, *tune], cwd=folder, check=True)
    subprocess.run([*command, *export], cwd=folder, check=True)
    return folder / "best_kernels.py"


@pytest.mark.parametrize("library", ["pycuda", "torch", "cupy"])
def test_the_exported_module_takes_arrays_of(library: str, exported_module: Path) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    script = Path(__file__).with_name("exported_on_gpu.py")
    answer = subprocess.run(
        [sys.executable, str(script), str(exported_module), library], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
