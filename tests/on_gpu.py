"""Helpers of the tests on a GPU: when they run, and a kernel with its operands in device memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.conftest import compiled
from tests.fabricated import tuning_run
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.device.cuda import CudaDevice, cuda_device_count
from tsm2_tune.tuner.device.support_kernels import Support
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.trial import TuningRun, Verdict
from tsm2_tune.tuner.verify.bound_kernel import BoundKernel, Entry
from tsm2_tune.tuner.verify.checks import Check, probe_checks
from tsm2_tune.tuner.verify.operands import Operands, needed_bytes
from tsm2_tune.tuner.verify.verdict import verify

ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(cuda_device_count() == 0, reason="no CUDA driver answers"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # PyCUDA's own
]


@contextmanager
def loaded_kernel(
    gpu: CudaDevice,
    target: Target,
    support: bytes,
    config: KernelConfig,
    problem: Problem,
    binary: bytes | None = None,
    tuned: Problem | None = None,
) -> Iterator[BoundKernel]:
    """The kernel of the problem `tuned`, or of `problem`, ready to start on operands of `problem`.

    `binary` replaces nvcc's.
    """
    if needed_bytes(problem) > gpu.limits.memory_bytes:
        pytest.skip(f"{problem.text} does not fit in {gpu.limits.name}")
    source = render(tuned or problem, config)
    code = binary or compiled(source.text, source.kernel, target.toolchain, source.defines).code
    operands = Operands(gpu, Support(gpu, support, problem.dtype_name), problem, index_bits=problem.index_bits)
    loaded = BoundKernel(gpu, operands, Entry(code, source.kernel, source.launch))
    try:
        yield loaded
    finally:
        loaded.free()
        operands.free()
        operands.support.free()


def verdict(
    gpu: CudaDevice,
    target: Target,
    support: bytes,
    config: KernelConfig,
    problem: Problem,
    checks: tuple[Check, ...] | None = None,
    binary: bytes | None = None,
    tuned: Problem | None = None,
) -> Verdict:
    """On the problem itself, with the calls of the probes unless others are named."""
    with loaded_kernel(gpu, target, support, config, problem, binary, tuned) as loaded:
        return verify(gpu, loaded.operands, loaded, seed=11, checks=checks or probe_checks(problem, 1))


class Memory:
    """Matrices in device memory, of PyCUDA's, in the device's primary context."""

    def __init__(self) -> None:
        import pycuda.driver as drv

        drv.init()
        self.drv, self.device = drv, drv.Device(0)
        self.context = self.device.retain_primary_context()
        self.context.push()
        self._kept: list[Any] = []

    def put(self, raw: np.ndarray[Any, Any]) -> int:
        """The address of a copy."""
        self._kept.append(self.drv.mem_alloc(max(raw.nbytes, 1)))
        self.drv.memcpy_htod(self._kept[-1], raw)
        return int(self._kept[-1])

    def room(self, size: int) -> int:
        self._kept.append(self.drv.mem_alloc(size))
        return int(self._kept[-1])

    def get(self, address: int, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found = np.empty_like(like)
        self.drv.memcpy_dtoh(found, address)
        return found

    def free(self) -> None:
        self.context.synchronize()
        for one in self._kept:
            one.free()
        self._kept.clear()

    @property
    def run(self) -> TuningRun:
        """A run of the tuner on this GPU."""
        major, minor = self.device.compute_capability()
        return tuning_run(self.device.name(), compute_capability=f"{major}.{minor}")
