"""Tests and rules for whether a device has the tensor-core instructions that kernels use."""

from __future__ import annotations

from functools import cache

from tsm2_tune.generator.device.architecture import HOST, architecture_of, tensor_fmas
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.rules import Rule

# Oldest compute capabilities with mma.m16n8k8 of f64 (Hopper), and with mma.m16n8k16 of 16-bit types (Ampere).
OLDEST_WITH_F64_MMA, OLDEST_WITH_HALF_MMA = (9, 0), (8, 0)
WITH_WARPGROUP_PRODUCTS = (9, 0)  # the only compute capability with wgmma instructions


def has_f64_tensor_cores(limits: DeviceLimits, problem: Problem) -> bool:
    """Return whether the device has f64 tensor cores that are at least as fast as FMA units for the element type.

    The result is True for the host, which emulates f64 tensor cores. On Hopper, f64 tensor cores are as fast as f32
    FMA units. On chips with slow f64 arithmetic, the rate of f64 tensor cores is a 64th of the rate of f32 FMA units.
    """
    return _has_f64_tensor_cores(limits.compute_capability, problem.dtype_name)


@cache  # called for every configuration
def _has_f64_tensor_cores(capability: tuple[int, int], dtype_name: str) -> bool:
    if capability < OLDEST_WITH_F64_MMA:
        return capability == HOST
    chip = architecture_of(capability)
    return tensor_fmas(capability).get("f64", chip.f64_cores) >= chip.cores(dtype_name)


HAS_F64_TENSOR_CORES = Rule(
    "has-f64-tensor-cores",
    "limit",
    "f64 mma instructions need compute capability 9.0 or newer, and must not be slower than the type's FMAs",
    lambda c: has_f64_tensor_cores(c.limits, c.problem),
    of=(),
)

HAS_HALF_TENSOR_CORES = Rule(
    "has-half-tensor-cores",
    "limit",
    "the mma instruction needs compute capability 8.0 or newer",
    lambda c: c.limits.compute_capability == HOST or c.limits.compute_capability >= OLDEST_WITH_HALF_MMA,
    of=(),
)
