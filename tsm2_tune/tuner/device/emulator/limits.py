"""Limits of the CPU as a device that emulates a GPU."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.tuner.device.emulator.toolchain import cpu_name

WARP_THREADS = 32
UNKNOWN_CACHE_BYTES = 32 << 20
UNKNOWN_MEMORY_BYTES = 1 << 30
UNIT_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def host_limits() -> DeviceLimits:
    """Return the limits of the CPU as a device. The limits of a block and of an SM are those of the H200.

    With a GPU's limits, the same configurations are dropped on the CPU as on a GPU. The clock and the bandwidth are
    round numbers for the performance model.
    """
    return DeviceLimits(
        name=f"cpu {cpu_name()}",
        compute_capability=(0, 0),
        warp_threads=WARP_THREADS,
        threads_per_block=1024,
        threads_per_sm=2048,
        blocks_per_sm=32,
        registers_per_block=65536,
        registers_per_sm=65536,
        smem_bytes_per_block=48 << 10,
        smem_bytes_per_block_optin=227 << 10,
        smem_bytes_per_sm=228 << 10,
        smem_bytes_reserved_per_block=1 << 10,
        sms=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        l2_bytes=last_level_cache_bytes(),
        sm_clock_mhz=2000.0,
        dram_gbytes_per_s=20.0,
        memory_bytes=memory_bytes(),
    )


def last_level_cache_bytes() -> int:
    """Return the size of the first core's largest cache, as Linux reports it; UNKNOWN_CACHE_BYTES elsewhere."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        match = re.fullmatch(r"(\d+)([KMG]?)", _text(path))
        if match is not None:
            sizes.append(int(match[1]) * UNIT_BYTES[match[2]])
    return max(sizes) or UNKNOWN_CACHE_BYTES


def memory_bytes() -> int:
    """Return the size of the physical memory, or the limit of the process's control group if the limit is smaller."""
    physical = str(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    version_2, version_1 = "memory.max", "memory/memory.limit_in_bytes"
    sizes = [physical, *(_text(Path("/sys/fs/cgroup") / name) for name in (version_2, version_1))]
    return min((int(size) for size in sizes if size.isdigit() and int(size)), default=UNKNOWN_MEMORY_BYTES)


def _text(path: Path) -> str:
    """Return the file's text; "" if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
