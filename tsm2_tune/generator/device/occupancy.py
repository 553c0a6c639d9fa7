"""Occupancy: the resident blocks of a kernel on a multiprocessor, and the resources that limit them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from tsm2_tune.generator.device.architecture import Architecture, architecture_of
from tsm2_tune.generator.device.limits import DeviceLimits

Ints = np.ndarray[Any, np.dtype[Any]]
UNLIMITED = 2**31 - 1  # the blocks that a resource allows if the kernel does not use it


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The blocks, warps and threads of a kernel that are resident on one multiprocessor."""

    blocks_per_sm: int
    warps_per_sm: int
    threads_per_sm: int
    limited_by: tuple[str, ...]  # resources: "warps", "blocks", "registers", "shared memory"
    registers_per_thread_limit: int  # the most registers that the architecture allows for a thread


@lru_cache(maxsize=8192)  # a search space has few different arguments
def occupancy(limits: DeviceLimits, *, threads: int, registers: int, smem_bytes: int) -> Occupancy:
    """Return the occupancy of a kernel with `threads` and `smem_bytes` per block and `registers` per thread.

    `smem_bytes` is static and dynamic shared memory together, without the driver's reserved bytes. The result is 0
    blocks if the kernel exceeds a limit per block or thread. The number of blocks equals the result of the CUDA
    driver function cuOccupancyMaxActiveBlocksPerMultiprocessor for a kernel that has opted in to large shared memory
    and lets the driver divide the memory between shared memory and L1 cache. `architecture.py` cites the sources of
    the limits.
    """
    if threads < 1 or registers < 0 or smem_bytes < 0:
        raise ValueError(f"no kernel has {threads} threads, {registers} registers, {smem_bytes} shared bytes")
    architecture = architecture_of(limits.compute_capability)
    warps = rounded_up(threads, limits.warp_threads) // limits.warp_threads
    blocks_by = {
        "warps": 0 if threads > limits.threads_per_block else limits.threads_per_sm // limits.warp_threads // warps,
        "blocks": limits.blocks_per_sm,
        "registers": _blocks_by_registers(limits, architecture, registers, warps),
        "shared memory": int(_blocks_by_smem(limits, architecture, smem_bytes)),
    }
    blocks = min(blocks_by.values())
    return Occupancy(
        blocks_per_sm=blocks,
        warps_per_sm=blocks * warps,
        threads_per_sm=blocks * threads,
        limited_by=tuple(resource for resource, most in blocks_by.items() if most == blocks),
        registers_per_thread_limit=architecture.registers_per_thread,
    )


def occupancies(limits: DeviceLimits, *, threads: Ints, registers: Ints, smem_bytes: Ints) -> Occupancy:
    """Return the occupancy of many kernels: arguments and results are arrays, and `limited_by` is empty."""
    architecture = architecture_of(limits.compute_capability)
    warps = -(-threads // limits.warp_threads)
    by_registers = _table_by_registers(limits, int(warps.max(initial=1)))
    blocks = np.minimum.reduce(
        [
            np.where(threads > limits.threads_per_block, 0, limits.threads_per_sm // limits.warp_threads // warps),
            np.full_like(threads, limits.blocks_per_sm),
            by_registers[np.minimum(registers, len(by_registers) - 1), warps - 1],
            _blocks_by_smem(limits, architecture, smem_bytes),
        ]
    )
    return Occupancy(
        blocks_per_sm=blocks,
        warps_per_sm=blocks * warps,
        threads_per_sm=blocks * threads,
        limited_by=(),
        registers_per_thread_limit=architecture.registers_per_thread,
    )


@cache
def _table_by_registers(limits: DeviceLimits, most_warps: int) -> Ints:
    """Return the results of `_blocks_by_registers` for each number of registers and of warps, minus 1, as an array.

    The last row is for every number of registers above a thread's limit.
    """
    architecture = architecture_of(limits.compute_capability)
    rows = range(architecture.registers_per_thread + 2)
    warps = range(1, most_warps + 1)
    return np.array(
        [[_blocks_by_registers(limits, architecture, row, one) for one in warps] for row in rows], np.int64
    )


def rounded_up(count: int, unit: int) -> int:
    """Return `count` rounded up to a multiple of `unit`."""
    return -(-count // unit) * unit


def _blocks_by_registers(limits: DeviceLimits, architecture: Architecture, registers: int, warps: int) -> int:
    if registers > architecture.registers_per_thread:
        return 0
    if registers == 0:
        return UNLIMITED
    unit = architecture.register_unit * (2 if registers in architecture.double_unit_at else 1)
    registers_per_warp = rounded_up(registers * limits.warp_threads, unit)
    checked = architecture.checked_partitions
    if checked is not None and _blocks_in_partitions(limits, checked, registers_per_warp, warps) == 0:
        return 0
    return _blocks_in_partitions(limits, architecture.register_partitions, registers_per_warp, warps)


def _blocks_in_partitions(limits: DeviceLimits, partitions: int, registers_per_warp: int, warps: int) -> int:
    """Return the number of blocks whose registers fit in a register file with this number of partitions.

    The registers of a warp are all in one partition. The registers of one block are limited too. In the check of that
    limit, the number of warps of the block is rounded up to a multiple of the partitions.
    """
    if registers_per_warp * rounded_up(warps, partitions) > limits.registers_per_block:
        return 0
    warps_per_partition = limits.registers_per_sm // partitions // registers_per_warp
    return warps_per_partition * partitions // warps


def _blocks_by_smem(limits: DeviceLimits, architecture: Architecture, smem_bytes: Any) -> Any:
    """Return the number of blocks. The argument and the result may be arrays."""
    reserved = limits.smem_bytes_reserved_per_block
    allocated = rounded_up(smem_bytes + reserved, architecture.smem_unit_bytes)
    # GPUs older than Volta have no opt-in limit; their drivers report the normal limit for it, or 0.
    most = max(limits.smem_bytes_per_block, limits.smem_bytes_per_block_optin) + reserved
    blocks = np.where(allocated > 0, limits.smem_bytes_per_sm // np.maximum(allocated, 1), UNLIMITED)
    return np.where(allocated > most, 0, blocks)
