"""Roofline model: the least time of a problem on a device, calculated from the problem's bytes and operations.

Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for multicore architectures",
Communications of the ACM 52 (2009).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.architecture import FLOPS_PER_FMA, HOST, peak_gflops, tensor_fmas
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.dtypes import DTYPES, TF32_DTYPES, Dtype
from tsm2_tune.generator.paper_model import Bound, ModelChoice, choose, unmodelled
from tsm2_tune.generator.problem import Problem


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The measured or published peak rates of a device, in 1e9 bytes or operations per second."""

    read_gbytes_per_s: float  # of a kernel that only reads
    copy_gbytes_per_s: float  # of a copy, counting bytes read plus bytes written
    gflops: tuple[tuple[str, float], ...]  # (dtype name, GFLOPS of the fastest unit); an FMA counts as two

    def memory_us(self, problem: Problem) -> float:
        """Return the least microseconds for reading A and B and writing C, with cold caches."""
        us: float = self.bytes_us(problem.read_bytes, problem.written_bytes)
        return us

    def bytes_us(self, read_bytes: Any, written_bytes: Any) -> Any:
        """Return the least microseconds for reading and writing these bytes. The arguments may be arrays.

        The read rate is `read_gbytes_per_s`. The write rate w follows from the rate of a copy, which writes a byte
        for each byte read: 2/copy = 1/read + 1/w.
        """
        read, copy = self.read_gbytes_per_s, self.copy_gbytes_per_s
        us_per_written_kb = max(2 / copy - 1 / read, 1 / read)
        return (read_bytes / read + written_bytes * us_per_written_kb) * 1e-3

    def arithmetic_us(self, problem: Problem) -> float:
        """Return the least microseconds for the problem's floating-point operations."""
        return problem.flops / dict(self.gflops)[problem.dtype_name] * 1e-3

    def floor_us(self, problem: Problem) -> float:
        """Return the least microseconds for the problem: the larger of its memory and arithmetic times."""
        return max(self.memory_us(problem), self.arithmetic_us(problem))


@dataclass(frozen=True, slots=True)
class Roofline:
    """The bytes and operations of a problem, and the least time that a device needs for them."""

    read_bytes: int  # A and B once each, if beta = 0
    written_bytes: int  # C once
    least_bytes: int  # read and written bytes together
    flops: int  # an FMA counts as two
    intensity: float  # flops per byte
    unit: str  # the device's fastest unit for products of this type
    gflops: float  # peak rate of this unit
    gbytes_per_s: float  # peak rate of the memory for this problem's ratio of reads to writes
    balance: float  # the intensity at which arithmetic takes as long as memory traffic
    bound: Bound
    memory_us: float
    arithmetic_us: float
    least_us: float  # the larger of memory_us and arithmetic_us


def roofline(problem: Problem, limits: DeviceLimits, ceilings: Ceilings) -> Roofline:
    """Return the roofline of the problem on a device with these peak rates.

    Raise InputError if the device cannot compute the problem's element type, or if `ceilings` has no rate for the
    type.
    """
    _check_unit(problem.dtype, limits)
    unit, _ = _fastest(problem.dtype, *_rates(limits))
    gflops = dict(ceilings.gflops).get(problem.dtype_name)
    if gflops is None:
        raise InputError(
            f"the database has no peak rate of {problem.dtype_name} on {limits.name}: tune there again with this"
            " version, or leave --db out"
        )
    memory_us, arithmetic_us = ceilings.memory_us(problem), ceilings.arithmetic_us(problem)
    gbytes_per_s = problem.least_bytes / memory_us * 1e-3
    return Roofline(
        read_bytes=problem.read_bytes,
        written_bytes=problem.written_bytes,
        least_bytes=problem.least_bytes,
        flops=problem.flops,
        intensity=problem.flops / problem.least_bytes,
        unit=unit,
        gflops=gflops,
        gbytes_per_s=gbytes_per_s,
        balance=gflops / gbytes_per_s,
        bound="memory" if memory_us >= arithmetic_us else "compute",
        memory_us=memory_us,
        arithmetic_us=arithmetic_us,
        least_us=max(memory_us, arithmetic_us),
    )


@dataclass(frozen=True, slots=True)
class Modelled:
    """The results of the roofline model and of the TSM2 model for a problem on a device."""

    problem: Problem
    roofline: Roofline
    tsm2: ModelChoice | None  # the result of the TSM2 model; None if it does not cover the problem
    unmodelled: str | None  # the reason if `tsm2` is None


def modelled(problem: Problem, limits: DeviceLimits, ceilings: Ceilings) -> Modelled:
    """Return the results of both models for the problem. Raise InputError if `roofline` raises it."""
    why_not = unmodelled(problem)
    choice = choose(problem, limits) if why_not is None else None
    return Modelled(problem, roofline(problem, limits, ceilings), choice, why_not)


def data_sheet(limits: DeviceLimits) -> Ceilings:
    """Return the peak rates of a device, calculated from its limits.

    The arithmetic rates are multiprocessors x operations per clock x highest clock. The data sheets of H100 and H200
    state 16-bit and TF32 rates at 1830 MHz, which is 8 % less than the highest clock.
    """
    bandwidth = limits.dram_gbytes_per_s
    return Ceilings(bandwidth, bandwidth, gflops_by_dtype(*_rates(limits)))


def gflops_by_dtype(
    fma: Mapping[str, float], mma: Mapping[str, float] | None = None
) -> tuple[tuple[str, float], ...]:
    """Return (dtype name, GFLOPS) for every Dtype: the rate of FMA units or of tensor cores, whichever is higher.

    `fma` maps real element types to the GFLOPS of FMA units. `mma` maps them to the GFLOPS of tensor cores. Complex
    products use FMA units or f64 tensor cores. On f64 tensor cores, a product of c128 consists of four real products.
    A product of c64 needs only three real products there, since f64 has twice the precision. The rate counts it as
    four real products nonetheless.
    """
    return tuple((dtype.name, _fastest(dtype, fma, mma or {})[1]) for dtype in DTYPES.values())


def _fastest(dtype: Dtype, fma: Mapping[str, float], mma: Mapping[str, float]) -> tuple[str, float]:
    """Return the name of the unit that is fastest for this type, and its GFLOPS."""
    real_products = {"c64": 3, "c128": 4}  # on tensor cores; the rate counts four
    of_mma = {"c64": "f64", "c128": "f64", "3xtf32": "tf32"}.get(dtype.name, dtype.name)
    gflops = fma[dtype.rate_name]
    tensor_gflops = mma.get(of_mma, 0.0) * dtype.parts**2 / real_products.get(dtype.name, 1)
    if tensor_gflops > gflops:
        return f"{of_mma} tensor cores", tensor_gflops / dtype.tensor_products
    return f"{dtype.sum.component.name} {dtype.semiring.unit}", gflops / dtype.tensor_products


def _rates(limits: DeviceLimits) -> tuple[dict[str, float], dict[str, float]]:
    """Return two mappings from element type to peak GFLOPS: of FMA units, and of tensor cores."""
    fma = {name: peak_gflops(limits, name) for name, dtype in DTYPES.items() if name == dtype.rate_name}
    a_clock = limits.sms * limits.sm_clock_mhz * FLOPS_PER_FMA / 1e3
    return fma, {name: fmas * a_clock for name, fmas in tensor_fmas(limits.compute_capability).items()}


def _check_unit(dtype: Dtype, limits: DeviceLimits) -> None:
    """Raise InputError if the type needs tensor cores that the GPU lacks."""
    capability = limits.compute_capability
    if dtype.name in TF32_DTYPES and capability != HOST and "tf32" not in tensor_fmas(capability):
        raise InputError(
            f"{limits.name} has no tensor cores for --math {dtype.name}, which need compute capability 8.0 or newer:"
            " leave --math out or name another --device"
        )


def rate_text(gbytes_per_s: float) -> str:
    """Return the rate as text in TB/s, or in GB/s below 100 GB/s."""
    return f"{gbytes_per_s / 1e3:.3g} TB/s" if gbytes_per_s >= 100 else f"{gbytes_per_s:.3g} GB/s"
