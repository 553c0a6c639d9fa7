"""Properties of each compute capability that drivers do not report, with their sources."""

from __future__ import annotations

from dataclasses import dataclass

from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.dtypes import dtype_named

ComputeCapability = tuple[int, int]
HOST: ComputeCapability = (0, 0)

FLOPS_PER_FMA = 2
ISSUED_SINCE_7_0 = 128  # thread instructions per clock per multiprocessor: four warp instructions


@dataclass(frozen=True, slots=True)
class Architecture:
    """Properties of one compute capability. Latencies are in clocks of a multiprocessor of an idle device."""

    compute_capability: ComputeCapability
    name: str
    registers_per_thread: int  # the most that one thread can have
    register_unit: int  # registers are allocated to a warp in multiples of this
    register_partitions: int  # equal parts of the register file; the registers of a warp are in one part
    smem_unit_bytes: int  # shared memory is allocated to a block in multiples of this
    f32_cores: int  # single-precision FMAs per clock per multiprocessor
    f64_cores: int  # double-precision FMAs per clock per multiprocessor
    memory_latency_clocks: float
    f32_latency_clocks: float  # from an FMA to another one that needs its result
    f64_latency_clocks: float
    # Fermi rounds a warp's registers up to twice the unit if a thread has one of these counts.
    double_unit_at: tuple[int, ...] = ()
    # Register partitions of another chip of the family. A block must fit that chip too, since the driver checks both.
    checked_partitions: int | None = None

    def cores(self, dtype_name: str) -> float:
        """Return the real multiply-adds per clock per multiprocessor, without tensor cores.

        A multiply-add of a semiring without an FMA instruction needs two instructions. In f32 since compute
        capability 9.0, two multiply-adds need only three instructions, since one instruction computes the minimum of
        three numbers. In f64, the f64 cores execute all of these instructions. In f32, units other than the f32 cores
        compute minima, so the issue rate is the limit: 128 thread instructions per clock since compute capability
        7.0.
        """
        dtype = dtype_named(dtype_name)
        is_f64, instructions = dtype.sum.component.name == "f64", dtype.semiring.instructions
        cores = self.f64_cores if is_f64 else self.f32_cores
        if is_f64 or instructions == 1:
            return cores / instructions
        issued = max(cores, ISSUED_SINCE_7_0) if self.compute_capability >= (7, 0) else cores
        return min(cores, issued / (1.5 if self.compute_capability >= (9, 0) else instructions))

    def fma_latency_clocks(self, dtype_name: str) -> float:
        """Return the latency in clocks from an FMA to another FMA that needs its result."""
        latencies = {"f32": self.f32_latency_clocks, "f64": self.f64_latency_clocks}
        return latencies[dtype_named(dtype_name).sum.component.name]


FERMI_DOUBLE_UNIT = (21, 22, 29, 30, 37, 38, 45, 46)
# Registers and units: CUDA C++ Programming Guide, technical specifications per compute capability; cuda_occupancy.h
# of CUDA 13.0, and of CUDA 7.0 with the CUDA Occupancy Calculator for 2.x and 3.0. Cores: CUDA C++ Best Practices
# Guide, throughput of native arithmetic instructions (FMA results per clock per multiprocessor).
# Latencies of 2.x: CUDA C Programming Guide 4.2 (22 clocks; 400 to 800 for memory, of which the mean is used); up to
# 7.5: Arafa et al., arXiv:1905.08778; of 8.0: Luo et al., arXiv:2402.13499; of memory of 8.9, 9.0, 10.0, 12.0:
# github.com/markdewing/AI_kernels, pointer chase. Others are those of the architecture before.
# Columns: capability, name, registers per thread, register unit, partitions, shared-memory unit, f32 and f64 cores,
# latencies of memory, f32 FMA and f64 FMA.
_ROWS = (
    # The CPU runs one block at a time per core. Two 256-bit FMA units and the latency of DRAM are assumed.
    Architecture(HOST, "host", 255, 1, 1, 1, 16, 8, 300, 4, 4),
    Architecture((2, 0), "Fermi GF100", 63, 64, 2, 128, 32, 16, 600, 22, 22, FERMI_DOUBLE_UNIT),
    Architecture((2, 1), "Fermi GF10x", 63, 64, 2, 128, 48, 4, 600, 22, 22, FERMI_DOUBLE_UNIT),
    # 63 registers are from the guide; cuda_occupancy.h of CUDA 13.0 has 255 for all of 3.x.
    Architecture((3, 0), "Kepler GK10x", 63, 256, 4, 256, 192, 8, 331, 9, 10),
    Architecture((3, 2), "Kepler GK20A", 255, 256, 4, 256, 192, 8, 331, 9, 10),
    Architecture((3, 5), "Kepler GK110", 255, 256, 4, 256, 192, 64, 331, 9, 10),
    Architecture((3, 7), "Kepler GK210", 255, 256, 4, 256, 192, 64, 331, 9, 10),
    Architecture((5, 0), "Maxwell GM10x", 255, 256, 4, 256, 128, 4, 379, 6, 48),
    Architecture((5, 2), "Maxwell GM20x", 255, 256, 4, 256, 128, 4, 379, 6, 48),
    Architecture((5, 3), "Maxwell GM20B", 255, 256, 4, 256, 128, 4, 379, 6, 48),
    # A block that does not fit on GP10x, which has 4 partitions, may not run on GP100 either.
    Architecture((6, 0), "Pascal GP100", 255, 256, 2, 256, 64, 32, 482, 6, 8, checked_partitions=4),
    # The f64 latency of the chips with 4 f64 cores is assumed to be Maxwell's.
    Architecture((6, 1), "Pascal GP10x", 255, 256, 4, 256, 128, 4, 482, 6, 48),
    Architecture((6, 2), "Pascal GP10B", 255, 256, 4, 256, 128, 4, 482, 6, 48),
    Architecture((7, 0), "Volta GV100", 255, 256, 4, 256, 64, 32, 362, 4, 8),
    Architecture((7, 2), "Volta GV11B", 255, 256, 4, 256, 64, 32, 362, 4, 8),
    Architecture((7, 5), "Turing TU10x", 255, 256, 4, 256, 64, 2, 424, 4, 40),
    Architecture((8, 0), "Ampere GA100", 255, 256, 4, 128, 64, 32, 466, 4, 8),
    Architecture((8, 6), "Ampere GA10x", 255, 256, 4, 128, 128, 2, 466, 4, 40),
    Architecture((8, 7), "Ampere GA10B", 255, 256, 4, 128, 128, 2, 466, 4, 40),
    Architecture((8, 9), "Ada AD10x", 255, 256, 4, 128, 128, 2, 636, 4, 40),
    Architecture((9, 0), "Hopper GH100", 255, 256, 4, 128, 128, 64, 690, 4, 8),
    Architecture((10, 0), "Blackwell B200", 255, 256, 4, 128, 128, 64, 860, 4, 8),
    # The next two chips are assumed to have 2 f64 cores, as other chips with slow f64 have (B300: 1.2 TFLOPS).
    Architecture((10, 3), "Blackwell B300", 255, 256, 4, 128, 128, 2, 860, 4, 40),
    Architecture((11, 0), "Blackwell Thor", 255, 256, 4, 128, 128, 2, 860, 4, 40),
    Architecture((12, 0), "Blackwell GB20x", 255, 256, 4, 128, 128, 2, 936, 4, 40),
    Architecture((12, 1), "Blackwell GB10", 255, 256, 4, 128, 128, 2, 936, 4, 40),
)

ARCHITECTURES = {row.compute_capability: row for row in _ROWS}
OLDEST_GPU = (2, 0)

# Dense FMAs per clock per multiprocessor of the tensor cores, by element type. 16-bit products are added up in f32.
# Sources: NVIDIA's white papers of Volta, Turing, A100, GA102, Ada and H100; for other chips, the rate in the data
# sheet over multiprocessors x clock x 2. Some cards with these chips have half the rate in 16 bits. f64 is omitted if
# tensor cores are no faster than FMA units.
_HALF_OF_7 = {"f16": 512}
_OF_8_6 = {"f16": 512, "bf16": 512, "tf32": 256}
_OF_10 = {"f16": 4096, "bf16": 4096, "tf32": 2048}
TENSOR_FMAS: dict[ComputeCapability, dict[str, int]] = {
    (7, 0): _HALF_OF_7,
    (7, 2): _HALF_OF_7,
    (7, 5): _HALF_OF_7,
    (8, 0): {"f16": 1024, "bf16": 1024, "tf32": 512, "f64": 64},
    (8, 6): _OF_8_6,
    (8, 7): {"f16": 1024, "bf16": 1024, "tf32": 512},
    (8, 9): _OF_8_6,
    (9, 0): {"f16": 2048, "bf16": 2048, "tf32": 1024, "f64": 128},
    (10, 0): _OF_10,
    (10, 3): _OF_10,
    (11, 0): _OF_10,
    (12, 0): _OF_8_6,
    (12, 1): _OF_8_6,
}


def architecture_of(compute_capability: ComputeCapability) -> Architecture:
    """Return the properties of this compute capability. Raise InputError for a GPU older than Fermi.

    For an unknown capability, return the properties of the newest known capability that is older. Then
    `compute_capability` of the result differs from the argument.
    """
    if compute_capability in ARCHITECTURES:
        return ARCHITECTURES[compute_capability]
    if compute_capability < OLDEST_GPU:
        major, minor = compute_capability
        raise InputError(f"compute capability {major}.{minor}: expected 2.0 or newer")
    return ARCHITECTURES[max(known for known in ARCHITECTURES if known < compute_capability)]


def tensor_fmas(compute_capability: ComputeCapability) -> dict[str, int]:
    """Return element type -> dense tensor-core FMAs per clock per multiprocessor; empty without tensor cores."""
    return TENSOR_FMAS.get(architecture_of(compute_capability).compute_capability, {})


def peak_gflops(limits: DeviceLimits, dtype_name: str) -> float:
    """Return the peak GFLOPS without tensor cores: multiprocessors x cores x clock x 2. An FMA counts as two.

    The clock is the highest that the driver reports. Data sheets calculate peak rates with the boost clock, which can
    be lower.
    """
    cores = architecture_of(limits.compute_capability).cores(dtype_name)
    return limits.sms * cores * limits.sm_clock_mhz * FLOPS_PER_FMA / 1e3
