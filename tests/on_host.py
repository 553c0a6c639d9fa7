"""Helpers of the tests on the host: when they run, and kernels of their own."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tsm2_tune.errors import ToolMissing
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.compile.compiler import compile_text
from tsm2_tune.tuner.compile.nvcc import nvcc_path
from tsm2_tune.tuner.compile.shared_objects import COMPILERS
from tsm2_tune.tuner.device.emulator.device import HostBuffer, HostDevice, HostKernel
from tsm2_tune.tuner.device.emulator.toolchain import host_toolchain
from tsm2_tune.tuner.device.interface import LaunchConfig
from tsm2_tune.tuner.results.trial import Binary
from tsm2_tune.tuner.verify.operands import Operand


def has_compiler() -> bool:
    try:
        host_toolchain()
    except ToolMissing:
        return False
    return True


ON_HOST = [
    pytest.mark.slow,
    pytest.mark.usefixtures("session_cache"),
    pytest.mark.skipif(not has_compiler(), reason=f"no C++ compiler: none of {', '.join(COMPILERS)} in PATH"),
]

IN_C = [  # for what is built of C
    pytest.mark.slow,
    pytest.mark.usefixtures("toolchain", "session_cache"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]

SHARED = "extern __shared__ __align__(16) unsigned char shared_bytes[];"

REVERSED_IN_BLOCKS = f"""
extern "C" __global__ void __launch_bounds__(256) k(const float *__restrict__ from, float *__restrict__ to)
{{
    {SHARED}
    float *staged = reinterpret_cast<float *>(shared_bytes);
    const int first = blockIdx.x * blockDim.x;
    #pragma unroll 1
    for (int step = 0; step < 3; ++step) {{
        __syncthreads();
        staged[threadIdx.x] = from[first + threadIdx.x] + step;
        __syncthreads();
        to[first + threadIdx.x] = staged[blockDim.x - 1 - threadIdx.x];
    }}
}}
"""

# The value of the thread before, by way of shared memory.
PREVIOUS = f"""
extern "C" __global__ void k(float *to, int barrier)
{{
    {SHARED}
    float *staged = reinterpret_cast<float *>(shared_bytes);
    staged[threadIdx.x] = threadIdx.x;
    if (barrier)
        __syncthreads();
    to[threadIdx.x] = threadIdx.x > 0 ? staged[threadIdx.x - 1] : 0;
}}
"""

# Threads that wait for others, which do not come.
STUCK = """extern "C" __global__ void k(int kind) {
    if (kind == 0 && threadIdx.x == 40) return;
    if (kind == 1 && threadIdx.x >= 40) {
        __syncthreads();
    } else if (kind < 2) {
        __syncthreads();
    }
    if (kind == 2 && threadIdx.x != 40)
        __shfl_sync(0xFFFFFFFFu, 1.0f, 0);
    if (kind == 3 && threadIdx.x != 40)
        __syncwarp();
    __syncthreads();
    if (kind == 4)
        __shfl_sync(0x3u, 1.0f, 0);
    if (kind == 5 && threadIdx.x < 3)
        __shfl_sync(0x7u, 1.0f, 5);
    if (kind == 6 && threadIdx.x < 32)
        __shfl_sync(threadIdx.x < 16 ? 0xFFFFFFFFu : 0xFFFF0001u, 1.0f, 0);
    if (kind == 7 && threadIdx.x < 16)
        __shfl_sync(0xFFFFFFFFu, 1.0f, 0);
    else if (kind == 7 && threadIdx.x < 32)
        __shfl_sync(0xFFFFFFFFu, 2.0f, 0);
}"""


def binary(text: str) -> bytes:
    compiled = compile_text(text, kernel="k", defines=(), toolchain=host_toolchain(), limit_seconds=60)
    assert isinstance(compiled, Binary), compiled.detail
    return compiled.code


def load(device: HostDevice, text: str, kernel: str = "k") -> HostKernel:
    return device.load(binary(text), kernel)


def filled(device: HostDevice, values: np.ndarray[Any, Any]) -> HostBuffer:
    buffer = device.allocate(values.nbytes)
    device.upload(values, buffer)
    return buffer


def floats(device: HostDevice, buffer: HostBuffer) -> np.ndarray[Any, Any]:
    values = np.empty(buffer.size_bytes // 4, np.float32)
    device.download(buffer, values)
    return values


def pointer(buffer: HostBuffer, offset_bytes: int = 0) -> np.uint64:
    return np.uint64(buffer.address + offset_bytes)


def launch_k(device: HostDevice, text: str, *arguments: np.generic, **shape: int) -> None:
    load(device, text)(arguments, LaunchConfig(**{"blocks": 1, "threads": 32, **shape}))
    device.synchronise()


def has_nvcc() -> bool:
    try:
        return bool(nvcc_path())
    except ToolMissing:
        return False


needs_nvcc = pytest.mark.skipif(not has_nvcc(), reason="no nvcc")


def upload_operand(device: HostDevice, operand: Operand, problem: Problem, matrix: npt.NDArray[np.float64]) -> None:
    component = problem.dtype.component
    buffer = np.empty(operand.buffer.size_bytes // component.element_bytes, component.numpy_name)
    lines = (matrix if operand.row_major else matrix.swapaxes(0, 1)).ravel()
    buffer[operand.front * problem.dtype.parts :][: lines.size] = lines
    device.upload(buffer, operand.buffer)
