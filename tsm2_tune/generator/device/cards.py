"""Limits of some GPUs, and peak rates that papers publish.

With these limits, search spaces and models can be computed on a machine without the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tsm2_tune.errors import InputError, nearest_name
from tsm2_tune.generator.device.limits import DeviceLimits

KIB = 1024
MIB = 1024**2

# Limits that most cards share. Source: CUDA C++ Programming Guide, technical specifications per compute capability.
_CARD: dict[str, Any] = {
    "warp_threads": 32,
    "threads_per_block": 1024,
    "threads_per_sm": 2048,
    "blocks_per_sm": 32,
    "registers_per_block": 65536,
    "registers_per_sm": 65536,
    "smem_bytes_per_block": 48 * KIB,
    "smem_bytes_per_block_optin": 48 * KIB,
    "smem_bytes_reserved_per_block": 0,
}

_CARDS = (
    # Tesla S2050: one of its four GF100 GPUs, at 1.147 GHz; 148 GB/s without ECC.
    DeviceLimits(**_CARD | {
        "name": "s2050", "compute_capability": (2, 0), "sms": 14, "sm_clock_mhz": 1147.0,
        "threads_per_sm": 1536, "blocks_per_sm": 8,
        "registers_per_block": 32768, "registers_per_sm": 32768, "smem_bytes_per_sm": 48 * KIB,
        "l2_bytes": 768 * KIB, "dram_gbytes_per_s": 148.0, "memory_bytes": 3072 * MIB,
    }),
    # Tesla K40c at its base clock.
    DeviceLimits(**_CARD | {
        "name": "k40c", "compute_capability": (3, 5), "sms": 15, "sm_clock_mhz": 745.0,
        "blocks_per_sm": 16, "smem_bytes_per_sm": 48 * KIB,
        "l2_bytes": 1536 * KIB, "dram_gbytes_per_s": 288.0, "memory_bytes": 12288 * MIB,
    }),
    # Tesla M40, 12 GB.
    DeviceLimits(**_CARD | {
        "name": "m40", "compute_capability": (5, 2), "sms": 24, "sm_clock_mhz": 1112.0,
        "smem_bytes_per_sm": 96 * KIB,
        "l2_bytes": 3 * MIB, "dram_gbytes_per_s": 288.0, "memory_bytes": 12288 * MIB,
    }),
    # Tesla P100, PCIe, 16 GB.
    DeviceLimits(**_CARD | {
        "name": "p100", "compute_capability": (6, 0), "sms": 56, "sm_clock_mhz": 1328.5,
        "smem_bytes_per_sm": 64 * KIB,
        "l2_bytes": 4 * MIB, "dram_gbytes_per_s": 732.0, "memory_bytes": 16384 * MIB,
    }),
    # Tesla V100, SXM2, 16 GB.
    DeviceLimits(**_CARD | {
        "name": "v100", "compute_capability": (7, 0), "sms": 80, "sm_clock_mhz": 1530.0,
        "smem_bytes_per_block_optin": 96 * KIB, "smem_bytes_per_sm": 96 * KIB,
        "l2_bytes": 6 * MIB, "dram_gbytes_per_s": 900.0, "memory_bytes": 16384 * MIB,
    }),
    # A100, SXM4, 80 GB.
    DeviceLimits(**_CARD | {
        "name": "a100", "compute_capability": (8, 0), "sms": 108, "sm_clock_mhz": 1410.0,
        "smem_bytes_per_block_optin": 163 * KIB, "smem_bytes_per_sm": 164 * KIB,
        "smem_bytes_reserved_per_block": 1 * KIB,
        "l2_bytes": 40 * MIB, "dram_gbytes_per_s": 2039.0, "memory_bytes": 81920 * MIB,
    }),
    # H100, SXM5, 80 GB.
    DeviceLimits(**_CARD | {
        "name": "h100", "compute_capability": (9, 0), "sms": 132, "sm_clock_mhz": 1980.0,
        "smem_bytes_per_block_optin": 227 * KIB, "smem_bytes_per_sm": 228 * KIB,
        "smem_bytes_reserved_per_block": 1 * KIB,
        "l2_bytes": 50 * MIB, "dram_gbytes_per_s": 3350.0, "memory_bytes": 81920 * MIB,
    }),
    # H200, SXM, as driver 580 (CUDA 13.0) reports it. The memory has 3201 MHz x 2 and 6016 bits; the data sheet
    # rounds this to 4.8 TB/s.
    DeviceLimits(**_CARD | {
        "name": "h200", "compute_capability": (9, 0), "sms": 132, "sm_clock_mhz": 1980.0,
        "smem_bytes_per_block_optin": 232448, "smem_bytes_per_sm": 233472,
        "smem_bytes_reserved_per_block": 1024,
        "l2_bytes": 62914560, "dram_gbytes_per_s": 3201e6 * 2 * 6016 / 8 / 1e9,
        "memory_bytes": 143771 * MIB,
    }),
)  # fmt: skip

PROFILES: dict[str, DeviceLimits] = {card.name: card for card in _CARDS}


# Profile -> the device name that the driver reports, under which results are stored.
DRIVER_NAMES = {
    "s2050": "Tesla S2050",
    "k40c": "Tesla K40c",
    "m40": "Tesla M40",
    "p100": "Tesla P100-PCIE-16GB",
    "v100": "Tesla V100-SXM2-16GB",
    "a100": "NVIDIA A100-SXM4-80GB",
    "h100": "NVIDIA H100 80GB HBM3",
    "h200": "NVIDIA H200",
}


@dataclass(frozen=True, slots=True)
class PublishedPeak:
    """Peak rates of one GPU and element type as a paper states them."""

    gflops: float  # an FMA counts as two operations
    gbytes_per_s: float
    source: str


# (profile, dtype) -> peak rates. The TSM2 paper states those of f64 only.
PUBLISHED_PEAKS = {
    ("k40c", "f64"): PublishedPeak(1430.0, 288.0, "TSM2 paper, section 4.1"),
    ("m40", "f64"): PublishedPeak(213.0, 288.0, "TSM2 paper, section 4.1"),
    ("p100", "f64"): PublishedPeak(4600.0, 720.0, "TSM2 paper, section 4.1"),
}


def profile_named(name: str) -> DeviceLimits:
    """Return the limits of the GPU called `name`, such as "h200" or "H200". Raise InputError for an unknown name."""
    if name.lower() not in PROFILES:
        known, near = ", ".join(PROFILES), nearest_name(name, PROFILES)
        hint = f"; did you mean {near}?" if near else ""
        raise InputError(f"unknown device {name!r}: expected a GPU's number, cpu, or a GPU model: {known}{hint}")
    return PROFILES[name.lower()]
