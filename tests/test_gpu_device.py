"""On a GPU: what the driver says, what is measured there, and the arrays that the exported module takes."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import pytest
from numpy import float32, int32, int64, uint64

from tests.fabricated import plain_sql
from tests.on_gpu import ON_GPU
from tests.processes import python, succeed
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.tuner.device.cuda import CudaDevice
from tsm2_tune.tuner.device.cuda_kernel import CudaKernel
from tsm2_tune.tuner.device.interface import LaunchConfig
from tsm2_tune.tuner.measure.l2_state import stream
from tsm2_tune.tuner.measure.timing import Effort, measure
from tsm2_tune.tuner.results.trial import Cache

pytestmark = [*ON_GPU, pytest.mark.alone]


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


def test_a_cold_cache_is_slower_than_a_warm_one(gpu: CudaDevice, gpu_support: bytes) -> None:
    """Reading a quarter of the L2 a second time: the flush before each sample must make a difference.

    Both launches are queued while the flush runs, so that no time of the host's is in between.
    """
    size = gpu.limits.l2_bytes // 4 // 4096 * 4096
    data, sink = gpu.allocate(size), gpu.allocate(4096)
    gpu.drv.memset_d32(data.address, 0x3F800000, size // 4)
    kernel = gpu.load(gpu_support, "stream_read")

    def read(times: int) -> None:
        for _ in range(times):
            kernel(
                (uint64(data.address), int64(size // 16), uint64(sink.address)),
                LaunchConfig(blocks=-(-size // (64 * 256)), threads=256),
            )

    # The least of the samples, which other processes on this GPU disturb least.
    once = min(measure(gpu, lambda: read(1), Effort()).samples_us)
    twice = min(measure(gpu, lambda: read(2), Effort()).samples_us)
    assert twice - once < 0.9 * once


def test_what_a_late_host_takes_is_not_in_the_time(gpu: CudaDevice, gpu_support: bytes) -> None:
    """A library whose Python is slow to launch is such a host. Compares the medians of two measurements."""
    size = gpu.limits.l2_bytes // 4096 * 4096
    data, sink = gpu.allocate(size), gpu.allocate(4096)
    gpu.drv.memset_d32(data.address, 0x3F800000, size // 4)
    kernel = gpu.load(gpu_support, "flush_read")

    def after(seconds: float) -> float:
        def launch() -> None:
            time.sleep(seconds)
            stream(kernel, data.address, size, sink.address)

        return measure(gpu, launch, Effort(max_samples=9)).median_us

    assert after(0.0005) < 1.2 * after(0.0) + 2
    data.free()
    sink.free()


def test_states_of_the_l2_differ(gpu: CudaDevice, gpu_support: bytes) -> None:
    """A warm quarter of the L2 is read faster than one from memory; where lines are dirty, evict-first loads of much
    wait for them, and plain ones hardly: each by the least of its samples.
    """
    small, large = (size // 4096 * 4096 for size in (gpu.limits.l2_bytes // 4, 20 * gpu.limits.l2_bytes))
    data, sink = gpu.allocate(large), gpu.allocate(4096)
    gpu.drv.memset_d32(data.address, 0x3F800000, large // 4)
    evict_first, plain = (gpu.load(gpu_support, name) for name in ("stream_read", "flush_read"))

    def least_us(kernel: CudaKernel, size: int, cache: Cache) -> float:
        return min(measure(gpu, lambda: stream(kernel, data.address, size, sink.address), Effort(), cache).samples_us)

    assert least_us(plain, small, Cache.WARM) < 0.9 * least_us(plain, small, Cache.CLEAN)
    slower = {
        kernel: least_us(kernel, large, Cache.DIRTY) / least_us(kernel, large, Cache.CLEAN)
        for kernel in (evict_first, plain)
    }
    assert slower[plain] < slower[evict_first]
    data.free()
    sink.free()


def test_what_is_started_aside_runs_beside_the_rest(gpu: CudaDevice, gpu_support: bytes) -> None:
    """One warp works for some tenths of a second; meanwhile other kernels start and end, and are waited for."""
    slow, quick = gpu.load(gpu_support, "rate_f32"), gpu.load(gpu_support, "rate_f32")
    sink = gpu.allocate(4096)

    def work(kernel: CudaKernel, turns: int) -> None:
        kernel((int32(turns), float32(0.999), uint64(sink.address)), LaunchConfig(blocks=1, threads=32))

    for kernel in (slow, quick):
        work(kernel, 1)
    begun = time.perf_counter()
    (wait,) = gpu.start_concurrently([lambda: work(slow, 2**26)])
    for _ in range(100):
        work(quick, 1)
        gpu.synchronise()
    meanwhile = time.perf_counter() - begun
    wait()
    assert meanwhile < 0.5 * (time.perf_counter() - begun)
    sink.free()


def test_memory_that_was_kept_is_given_back(gpu: CudaDevice) -> None:
    free_bytes, _ = gpu.drv.mem_get_info()
    with gpu.keeping_memory():
        addresses = set()
        for _ in range(3):
            buffer = gpu.allocate(2**30)
            addresses.add(buffer.address)
            buffer.free()
        assert len(addresses) == 1
        assert gpu.drv.mem_get_info()[0] <= free_bytes - 2**30
    assert gpu.drv.mem_get_info()[0] == free_bytes


@pytest.fixture(scope="module")
def exported_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    # Without the vendor, which these products would be given to where it is faster
    tune = "--device 0 --shapes 4096x8x512,1e5x4x4 --dtype f32,f64 --max-trials 4 --no-vendor --db r.db"
    for command in (tune, "export --db r.db --format module --output best_kernels.py"):
        python("-m", "tsm2_tune", *command.split(), cwd=folder, check=True)
    return folder / "best_kernels.py"


@pytest.mark.parametrize("library", ["pycuda", "torch", "cupy"])
def test_the_exported_module_takes_arrays_of(library: str, exported_module: Path) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    succeed("tests.exported_on_gpu", exported_module, library)


def test_an_export_verifies_binaries_that_nobody_did(exported_module: Path) -> None:
    """A verdict without a digest of its machine code gets one, and the next export finds it."""
    database = exported_module.with_name("r.db")
    codes = "SELECT verified_code FROM trial WHERE full_verdict IS NOT NULL ORDER BY id"
    before = plain_sql(database, codes)
    assert len(before) > 1
    plain_sql(database, "UPDATE trial SET verified_code = NULL")
    said = [exported_again(database) for _ in range(2)]
    assert ["compiled by this machine's compiler" in one for one in said] == [True, False], said
    winners = [row for row in plain_sql(database, codes) if row[0] is not None]
    assert winners
    assert set(winners) <= set(before)


def exported_again(database: Path) -> str:
    done = python("-m", "tsm2_tune", "export", "--db", database.name, "--output", "again.py", cwd=database.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
