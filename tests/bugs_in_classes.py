"""Bugs by class: what a careless or a malicious author might plant outside of what a timed call shows.

Where a class has bugs of several families, they are in different ones: what rejects them is no family's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tests.planting import Bug, Shape
from tests.spelling import spelt
from tsm2_tune.generator.config import KernelConfig

TSM2 = spelt("tsm2:version=v3,threads=32,columns=2,prefetch=4")
TSM2_AHEAD = spelt("tsm2:version=v3,threads=32,columns=2,prefetch=8")
TSM2_PLAIN = spelt("tsm2:version=v1,threads=32,columns=2,prefetch=1")
ISM2 = spelt("ism2:optimisation=2,threads=32,columns=2,prefetch=4,row_tiles=2")
TSMM = spelt("resident_b_fma:threads=64,vector_bytes=16,columns=2,prefetch=4,row_tiles=2")
HELD = spelt("resident_b_fma_held:threads=64,vector_bytes=16,depth=8,columns=4,across=32")
TSMM_ROWS = spelt("row_lanes_register_b:threads=128,vector_bytes=16,lanes=2,vectors=2,teams=2,columns=8,rows=4")
TSMR = spelt("stream_a_fma:threads=64,vectors=2,columns=4,prefetch=16,stages=2,row_tiles=2")
TSMR_SPLIT = spelt("stream_a_fma:threads=64,columns=2,prefetch=8,stages=4,splits=3")
TSMR_MMA = spelt("stream_a_dmma:threads=64,strips=1,columns=8,prefetch=32,stages=4,row_tiles=2")
TSMR_ROWS = spelt(
    "row_lanes_shared_b:threads=128,vector_bytes=16,lanes=32,rows=4,columns=8,stages=2,splits=3,strips=6,min_blocks=3"
)
TSMR_HALF = spelt("stream_a_mma16:threads=64,lane_rows=4,columns=16,prefetch=32,stages=2")
TSMR_TF32 = spelt("stream_a_tf32:threads=64,lane_rows=8,columns=16,prefetch=32,stages=2")
TSMT = spelt("inner_fma:threads=128,block=8x8,thread=8x8x2,stages=2,splits=4")
TSMT_MMA = spelt("inner_dmma:threads=128,block=16x16,strips=1,octets=2,step=8,stages=2,splits=3")
FEW = spelt("inner_fma_16bit:threads=128,block=4x4,piece=4,stages=2,splits=4")
STAGED = spelt("staged_fma:threads=64,ring_threads=64,block=16x16x32,stages=3,copy=ca,splits=3,thread=8x8x1")
STAGED_MMA = spelt(
    "staged_dmma:threads=128,ring_threads=32,block=16x16x16,stages=2,copy=ca,warp=16x16,fragment_prefetch=1"
)
STAGED_ZMMA = spelt(
    "staged_complex_dmma:threads=128,ring_threads=128,block=16x16x32,stages=2,copy=registers,splits=2,warp=16x16"
)
STAGED_HALF = spelt("staged_wgmma:threads=128,block=64x32x32,stages=3,splits=2")
GRAM = spelt(
    "staged_symmetric_fma:threads=128,ring_threads=128,block=16,block_k=128,stages=2,copy=registers,splits=2,lines=8,step=2"
)
GRAM_MMA = spelt(
    "staged_symmetric_dmma:threads=128,ring_threads=32,block=16,block_k=16,stages=3,copy=ca,splits=2,warps=1"
)
GEMM = spelt("gemm:block=32x32x8,threads=8x8,threads_a=32x2,threads_b=8x8,read=nc,buffers=2")
GEMV = spelt("gemv:threads=128,lanes=1,rows=4,vector=4,prefetch=8,splits=3")
GEMV_ROWS = spelt("gemv:threads=128,lanes=128,rows=4,vector=2,prefetch=2")
MINPLUS = spelt("minplus:block=64x32x16,threads=8x8,threads_a=16x4,threads_b=4x16,vector=4,read=nc,load=4")
MINPLUS_F64 = spelt("minplus:block=64x32x16,threads=8x8,threads_a=32x2,threads_b=8x8,vector=2,read=nc,load=2")
LADDER = spelt("ladder:step=coarse1d,block=64x64x8,thread=8x1")

STORE = "element = scalar(beta == 0 ?"  # store_C's one statement
KERNEL = "sum_t beta, scalar *__restrict__ C, index_t ldc)\n{"  # where a kernel's body begins
SPLIT_KERNEL = "unsigned *__restrict__ counters)\n{"  # parameters of a kernel with a workspace


class Found(StrEnum):
    """By which of the two a bug is rejected at the latest."""

    TRIAL = "trial"
    FULL = "full"
    ON_GPU = "on a GPU"  # by either, and by a host by neither


@dataclass(frozen=True, slots=True)
class Case:
    """A bug with its class."""

    kind: str
    bug: Bug
    found: Found
    is_slow: bool = False  # on a host: left to the command
    is_open: bool = False  # whether verification accepts it as yet

    @property
    def is_quick(self) -> bool:
        """Return whether the case is among the tests."""
        return not self.is_slow and self.found is not Found.ON_GPU

    @property
    def name(self) -> str:
        bug = self.bug
        return f"{self.kind}: {bug.name} ({bug.config.family}, {bug.dtype}, {bug.op})"


def case(
    kind: str,
    name: str,
    config: KernelConfig,
    original: str,
    planted: str,
    *,
    dtype: str = "f32",
    op: str = "nn",
    shape: Shape | None = None,
    found: Found = Found.TRIAL,
    is_slow: bool = False,
    is_open: bool = False,
) -> Case:
    return Case(kind, Bug(name, config, original, planted, dtype, op, shape), found, is_slow, is_open)


def stored(kind: str, name: str, config: KernelConfig, statement: str, **more: object) -> Case:
    """`statement` stands before the one that stores an element."""
    return case(kind, name, config, STORE, f"{statement}; {STORE}", **more)  # type: ignore[arg-type]


def begun(kind: str, name: str, config: KernelConfig, statement: str, **more: object) -> Case:
    """`statement` is the kernel's first one."""
    splits = int(config.tunables.get("splits", 1)) > 1 or config.family in (
        "staged_fma",
        "staged_complex_dmma",
        "staged_wgmma",
        "staged_symmetric_fma",
        "staged_symmetric_dmma",
    )
    start = SPLIT_KERNEL if splits else KERNEL
    return case(kind, name, config, start, f"{start}\n    {statement};", **more)  # type: ignore[arg-type]
