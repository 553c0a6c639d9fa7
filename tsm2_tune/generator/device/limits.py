"""`DeviceLimits`: the hardware limits of a device."""

from __future__ import annotations

from dataclasses import dataclass

from tsm2_tune.generator.scalars import plain

POSITIVE = (
    "warp_threads", "threads_per_block", "threads_per_sm", "blocks_per_sm", "registers_per_block",
    "registers_per_sm", "sms", "sm_clock_mhz", "dram_gbytes_per_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
@plain
class DeviceLimits:
    """The hardware limits of a device, which determine its search spaces.

    A field's description names the attribute of the CUDA driver that contains the limit, if there is such an
    attribute. The compute capability (0, 0) stands for the CPU of the machine on which the program runs.
    """

    name: str  # the device name that the driver reports
    compute_capability: tuple[int, int]  # (major, minor): (9, 0) for an H100
    warp_threads: int  # WARP_SIZE
    threads_per_block: int  # MAX_THREADS_PER_BLOCK
    threads_per_sm: int  # MAX_THREADS_PER_MULTIPROCESSOR
    blocks_per_sm: int  # MAX_BLOCKS_PER_MULTIPROCESSOR
    registers_per_block: int  # MAX_REGISTERS_PER_BLOCK
    registers_per_sm: int  # MAX_REGISTERS_PER_MULTIPROCESSOR
    smem_bytes_per_block: int  # MAX_SHARED_MEMORY_PER_BLOCK
    smem_bytes_per_block_optin: int  # MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    smem_bytes_per_sm: int  # MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    smem_bytes_reserved_per_block: int  # RESERVED_SHARED_MEMORY_PER_BLOCK
    sms: int  # MULTIPROCESSOR_COUNT
    l2_bytes: int  # L2_CACHE_SIZE
    sm_clock_mhz: float  # CLOCK_RATE
    dram_gbytes_per_s: float  # from MEMORY_CLOCK_RATE and GLOBAL_MEMORY_BUS_WIDTH, or from the data sheet
    memory_bytes: int  # total device memory

    def __post_init__(self) -> None:
        for name in POSITIVE:
            if not getattr(self, name) > 0:
                raise ValueError(f"limits of {self.name}: {name} = {getattr(self, name)} is not positive")

    def __hash__(self) -> int:
        """Hash only two fields, which is fast: a search hashes the limits hundreds of thousands of times."""
        return hash((self.name, self.sms))
