"""The GPU that a benchmark runs on. Benchmarks that compare with cuBLAS cannot run on the CPU."""

from __future__ import annotations

from tsm2_tune.errors import DeviceError, InputError
from tsm2_tune.tuner.device import cuda
from tsm2_tune.tuner.device.target import HOST, Target, find_target


def gpu(spec: str) -> Target:
    """Return the GPU with this ordinal.

    Raise InputError for "cpu", and DeviceError if there is no CUDA driver.
    """
    if spec == HOST:
        raise InputError("cuBLAS has no host: use a CUDA ordinal")
    if cuda.cuda_device_count() == 0:
        raise DeviceError("no CUDA driver answers, and cuBLAS has no host: run this where there is a GPU")
    return find_target(spec)
