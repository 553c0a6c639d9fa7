"""On a GPU: every template is right, its results have the same bits in every run, and its occupancy is the driver's.

tests/under_sanitizer.py starts the same configurations under compute-sanitizer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.cases import CASES, GENERAL, PAST_INT, PAST_UNSIGNED
from tests.conftest import compiled
from tests.on_gpu import ON_GPU, loaded_kernel, verdict
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.occupancy import occupancy
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.probes import edge_problems
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.runtime.cuda import compilers
from tsm2_tune.runtime.cuda.driver import device_of
from tsm2_tune.tuner.device.cuda import CudaDevice
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.verify.bound_kernel import BoundKernel
from tsm2_tune.tuner.verify.checks import CHECKS, probe_checks
from tsm2_tune.tuner.verify.verdict import prepare, verify

pytestmark = ON_GPU

CASE_NAMES = [f"{config.text}-{problem.dtype_name}-{problem.op}" for config, problem in CASES]
SPLIT = [case for case in CASES if family_named(case[0].family).launch(*case).splits > 1]
OF_EACH_FAMILY = {config.family: (config, problem) for config, problem in reversed(CASES)}  # the first of it
LARGE_CHECKS = 3  # of a probe: of sums, on integers, both dispositions of the leading dimensions, and aligned ones
SHAPES = (
    *((1, 1, 1), (31, 1, 64), (257, 3, 1), (1009, 5, 61), (641, 7, 131), (97, 13, 256)),
    *((2053, 33, 67), (29, 31, 1013), (509, 63, 127)),
)
BATCHES = (
    *((2, 1, 1, 1), (1009, 3, 1, 8), (301, 5, 7, 3), (64, 8, 8, 8), (257, 13, 11, 17), (3, 31, 2, 33)),
    *((65_537, 2, 3, 2), (7, 32, 32, 16)),
)


def odd_problems(config: KernelConfig, case: Problem) -> list[Problem]:
    """Return problems with uneven extents; a batch for a family of batches."""
    if not case.is_batched:
        return [with_extents(case, *shape) for shape in SHAPES]
    family = family_named(config.family)
    found = [with_extents(case, m, n, k, batch) for batch, m, n, k in BATCHES]
    return [problem for problem in found if family.supports(problem) and family.computes(config, problem)]


def with_extents(case: Problem, m: int, n: int, k: int, batch: int = 1) -> Problem:
    """Return the problem with other extents; a Gram matrix has n rows."""
    m, n, k = (n, n, m) if case.is_gram else (m, n, k)
    return replace(case, m=m, n=n, k=k, batch=batch)


@pytest.mark.parametrize(("config", "case"), CASES, ids=CASE_NAMES)
def test_template_is_right_at_odd_shapes_and_on_its_probes(
    gpu: CudaDevice, target: Target, gpu_support: bytes, config: KernelConfig, case: Problem
) -> None:
    for problem in (*odd_problems(config, case), *edge_problems(config, case)):
        found = verdict(gpu, target, gpu_support, config, problem, tuned=case)
        assert found.correct, f"{problem.text}: {found.detail}"


@pytest.mark.parametrize(("config", "problem"), OF_EACH_FAMILY.values(), ids=list(OF_EACH_FAMILY))
def test_a_kernel_that_an_exported_module_compiles_is_right(
    gpu: CudaDevice,
    target: Target,
    gpu_support: bytes,
    config: KernelConfig,
    problem: Problem,
) -> None:
    """By NVRTC, which this needs."""
    bits, (_, architecture) = problem.index_bits, device_of(0)
    binary = compilers._by_nvrtc(render(problem, config).text, bits, architecture)
    found = verdict(gpu, target, gpu_support, config, problem, binary=binary)
    assert found.correct, found.detail


@pytest.mark.parametrize(("config", "problem"), GENERAL, ids=lambda one: one.text)
def test_a_large_c_is_right_and_has_the_same_bits_in_every_run(
    gpu: CudaDevice, target: Target, gpu_support: bytes, config: KernelConfig, problem: Problem
) -> None:
    with loaded_kernel(gpu, target, gpu_support, config, problem) as loaded:
        found = verify(gpu, loaded.operands, loaded, seed=11)
        assert found.correct, found.detail
        assert len(results_of(gpu, loaded, runs=10)) == 1


@pytest.mark.alone  # operands of up to 80 GB
@pytest.mark.parametrize(("config", "problem"), [*PAST_INT, *PAST_UNSIGNED], ids=lambda one: one.text)
def test_offsets_past_32_bits_are_right(
    gpu: CudaDevice, target: Target, gpu_support: bytes, config: KernelConfig, problem: Problem
) -> None:
    assert problem.index_bits == 64
    assert (config, problem) in PAST_INT or problem.m * problem.k > 2**32
    found = verdict(gpu, target, gpu_support, config, problem, probe_checks(problem, 1)[:LARGE_CHECKS])
    assert found.correct, found.detail


@pytest.mark.parametrize(("config", "case"), SPLIT, ids=lambda one: one.text)
def test_repeated_runs_give_the_same_bits(
    gpu: CudaDevice, target: Target, gpu_support: bytes, config: KernelConfig, case: Problem
) -> None:
    """The sums of the splits are added up in one order, whichever block ends last."""
    thin = config.family.startswith("inner_fma")
    if case.is_batched:
        problem = replace(case, batch=100_003)
    elif case.is_gram:
        problem = replace(case, m=19, n=19, k=400_009)
    else:
        problem = replace(case, m=19 if thin else 5003, n=17, k=400_009 if thin else 20011)
    with loaded_kernel(gpu, target, gpu_support, config, problem) as loaded:
        assert len(results_of(gpu, loaded, runs=100)) == 1


def results_of(gpu: CudaDevice, loaded: BoundKernel, *, runs: int) -> set[bytes]:
    """The different bits that so many runs leave in C."""
    operands = loaded.operands
    found = np.empty(operands.c.buffer.size_bytes, np.uint8)
    results = set()
    for _ in range(runs):
        prepare(operands, CHECKS[-1], seed=5)
        loaded.prepare()
        loaded.start(operands.arguments(alpha=1.0, beta=0.0))
        gpu.download(operands.c.buffer, found)
        results.add(found.tobytes())
    if loaded.counters is not None:
        left = np.empty(loaded.counters.count, np.uint32)
        gpu.download(loaded.counters.buffer, left)
        assert not left.any()
    return results


@pytest.mark.parametrize(("config", "case"), CASES, ids=CASE_NAMES)
def test_occupancy_is_the_drivers(gpu: CudaDevice, target: Target, config: KernelConfig, case: Problem) -> None:
    source = render(case, config)
    binary = compiled(source.text, source.kernel, target.toolchain, source.defines)
    launch = source.launch
    used = gpu.load(binary.code, source.kernel).resources(threads=launch.threads, smem_bytes=launch.smem_bytes)
    fits = occupancy(gpu.limits, threads=launch.threads, registers=used.registers, smem_bytes=used.smem_bytes)
    assert used.blocks_per_sm == fits.blocks_per_sm
