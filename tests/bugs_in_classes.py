"""Bugs by class: what a careless or a malicious author might plant outside of what a timed call shows.

Where a class has bugs of several families, they are in different ones: what rejects them is no family's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tests.planting import Bug, Shape
from tests.spelling import spelt
from tsm2_tune.generator.config import KernelConfig

TSM2 = spelt("tsm2-v3-t32-c2-p4")
TSM2_AHEAD = spelt("tsm2-v3-t32-c2-p8")
TSM2_PLAIN = spelt("tsm2-v1-t32-c2-p1")
ISM2 = spelt("ism2-o2-t32-c2-p4-r2")
TSMM = spelt("tsmm-t64-b16-v1-c2-p4-r2")
HELD = spelt("tsmm_held-t64-b16-d8-c4-n32")
TSMM_MMA = spelt("tsmm_mma-t64-m2-c32-d32-p32-s2-l2-k2-w1")
TSMM_ROWS = spelt("tsmm_rows-t128-b16-l2-v2-w2-c8-p4-r1-m1-j1")
TSMR = spelt("tsmr-t64-v2-c4-p16-s2-k1-r2-b1")
TSMR_SPLIT = spelt("tsmr-t64-v1-c2-p8-s4-k3-r1-b1")
TSMR_MMA = spelt("tsmr_mma-t64-m1-c8-p32-s4-k1-r2-b1")
TSMR_ROWS = spelt("tsmr_rows-t128-b16-l32-r4-c8-v1-s2-k3-p6-m3")
TSMR_HALF = spelt("tsmr_half-t64-m4-c16-p32-s2-k1-r1-b1")
TSMR_TF32 = spelt("tsmr_tf32-t64-m8-c16-p32-s2-k1-r1-b1")
TSMT = spelt("tsmt-t128-m8-n8-r8-c8-p2-s2-k4-b1")
TSMT_MMA = spelt("tsmt_mma-t128-m16-n16-r1-c2-p8-s2-k3-b1")
FEW = spelt("tsmt_few-t128-m4-n4-p4-s2-k4-b1")
STAGED = spelt("staged-t64-w64-m16-n16-d32-s3-l1-k3-b1-r8-c8-p1")
STAGED_MMA = spelt("staged_mma-t128-w32-m16-n16-d16-s2-l1-k1-b1-r1-c2-a1")
STAGED_ZMMA = spelt("staged_zmma-t128-w128-m16-n16-d32-s2-l0-k2-b1-r2-c2-a0")
STAGED_HALF = spelt("staged_half-t128-m64-n32-d32-s3-k2")
GRAM = spelt("gram-t128-w128-m16-d128-s2-l0-k2-b1-c8-p2")
GRAM_MMA = spelt("gram_mma-t128-w32-m16-d16-s3-l1-k2-b1-a1")
GEMM = spelt("gemm-m32-n32-k8-x8-y8-xa32-ya2-xb8-yb8-v1-nc-l1-s2")
GEMM_PIECES = spelt("gemm-m64-n64-k8-x8-y8-xa32-ya2-xb4-yb16-v2-nc-l2-s1")
GEMV = spelt("gemv-t128-l1-r4-v4-p8-k3")
GEMV_ROWS = spelt("gemv-t128-l128-r4-v2-p2-k1")
MINPLUS = spelt("minplus-m64-n32-k16-x8-y8-xa16-ya4-xb4-yb16-v4-nc-l4-s1")
MINPLUS_F64 = spelt("minplus-m64-n32-k16-x8-y8-xa32-ya2-xb8-yb8-v2-nc-l2-s1")
LADDER = spelt("ladder-coarse1d-m64-n64-k8-r8-c1")

STORE = "element = scalar(beta == 0 ?"  # store_C's one statement
KERNEL = "sum_t beta, scalar *__restrict__ C, index_t ldc)\n{"  # where a kernel's body begins
SPLIT_KERNEL = "unsigned *__restrict__ counters)\n{"  # of one with a workspace


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
        """Whether it is among the tests."""
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
        "staged",
        "staged_zmma",
        "staged_half",
        "gram",
        "gram_mma",
    )
    start = SPLIT_KERNEL if splits else KERNEL
    return case(kind, name, config, start, f"{start}\n    {statement};", **more)  # type: ignore[arg-type]
