"""How many blocks of a kernel a multiprocessor holds at once, and what limits them."""

from __future__ import annotations

from dataclasses import dataclass

from tsm2_tune.generator.limits import DeviceLimits


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks, warps and threads resident on one multiprocessor."""

    blocks_per_sm: int
    warps_per_sm: int
    threads_per_sm: int
    limited_by: tuple[str, ...]  # of "warps", "blocks", "registers", "shared memory": those that bind
    registers_per_thread_limit: int  # the architecture's


def occupancy(limits: DeviceLimits, *, threads: int, registers: int, smem_bytes: int) -> Occupancy:
    """Occupancy of a kernel with `threads` and `smem_bytes` a block and `registers` a thread."""
    raise AssertionError
