"""Bugs by class: what a careless or a malicious author might plant outside of what a timed call shows.

Where a class has bugs of several families, they are in different ones: what rejects them is no family's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tests.planting import Bug, Shape
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.gemm import GemmConfig
from tsm2_tune.generator.families.gemv import GemvConfig
from tsm2_tune.generator.families.gram import GramConfig
from tsm2_tune.generator.families.gram_mma import GramMmaConfig
from tsm2_tune.generator.families.ism2 import Ism2Config
from tsm2_tune.generator.families.ladder import STEPS
from tsm2_tune.generator.families.minplus import MinplusConfig
from tsm2_tune.generator.families.staged import StagedConfig
from tsm2_tune.generator.families.staged_half import StagedHalfConfig
from tsm2_tune.generator.families.staged_mma import StagedMmaConfig
from tsm2_tune.generator.families.staged_zmma import StagedZmmaConfig
from tsm2_tune.generator.families.tsm2 import Tsm2Config
from tsm2_tune.generator.families.tsmm import TsmmConfig
from tsm2_tune.generator.families.tsmm_held import TsmmHeldConfig
from tsm2_tune.generator.families.tsmm_mma import TsmmMmaConfig
from tsm2_tune.generator.families.tsmm_rows import TsmmRowsConfig
from tsm2_tune.generator.families.tsmr import TsmrConfig
from tsm2_tune.generator.families.tsmr_half import TsmrHalfConfig
from tsm2_tune.generator.families.tsmr_mma import TsmrMmaConfig
from tsm2_tune.generator.families.tsmr_rows import TsmrRowsConfig
from tsm2_tune.generator.families.tsmr_tf32 import TsmrTf32Config
from tsm2_tune.generator.families.tsmt import TsmtConfig
from tsm2_tune.generator.families.tsmt_few import TsmtFewConfig
from tsm2_tune.generator.families.tsmt_mma import TsmtMmaConfig

TSM2 = Tsm2Config("v3", threads=32, columns=2, prefetch=4)
TSM2_AHEAD = Tsm2Config("v3", threads=32, columns=2, prefetch=8)
TSM2_PLAIN = Tsm2Config("v1", threads=32, columns=2, prefetch=1)
ISM2 = Ism2Config(2, threads=32, columns=2, prefetch=4, row_tiles=2)
TSMM = TsmmConfig(threads=64, vector_bytes=16, vectors=1, columns=2, prefetch=4, row_tiles=2)
HELD = TsmmHeldConfig(64, 16, 8, 4, 32)
TSMM_MMA = TsmmMmaConfig(64, 2, 32, 32, 32, 2, 2, splits=2)
TSMM_ROWS = TsmmRowsConfig(128, 16, 2, 2, 2, 8, 4, row_tiles=1, min_blocks=1)
TSMR = TsmrConfig(64, 2, 4, 16, 2, splits=1, row_tiles=2, min_blocks=1)
TSMR_SPLIT = TsmrConfig(64, 1, 2, 8, 4, splits=3, row_tiles=1, min_blocks=1)
TSMR_MMA = TsmrMmaConfig(64, 1, 8, 32, 4, splits=1, row_tiles=2, min_blocks=1)
TSMR_ROWS = TsmrRowsConfig(128, 16, 32, 4, 8, 1, 2, splits=3, strips=6, min_blocks=3)
TSMR_HALF = TsmrHalfConfig(64, 4, 16, 32, 2, splits=1, row_tiles=1, min_blocks=1)
TSMR_TF32 = TsmrTf32Config(64, 8, 16, 32, 2, splits=1, row_tiles=1, min_blocks=1)
TSMT = TsmtConfig(128, 8, 8, 8, 8, step=2, stages=2, splits=4, min_blocks=1)
TSMT_MMA = TsmtMmaConfig(128, 16, 16, 1, 2, step=8, stages=2, splits=3, min_blocks=1)
FEW = TsmtFewConfig(128, 4, 4, piece=4, stages=2, splits=4, min_blocks=1)
STAGED = StagedConfig(64, 64, 16, 16, 32, 3, 1, splits=3, min_blocks=1, rows=8, columns=8, step=1)
STAGED_MMA = StagedMmaConfig(128, 32, 16, 16, 16, 2, 1, splits=1, min_blocks=1, strips=1, octets=2, ahead=1)
STAGED_ZMMA = StagedZmmaConfig(128, 128, 16, 16, 32, 2, 0, splits=2, min_blocks=1, strips=2, octets=2, ahead=0)
STAGED_HALF = StagedHalfConfig(128, 64, 32, 32, 3, splits=2)
GRAM = GramConfig(128, 128, 16, 128, 2, 0, splits=2, min_blocks=1, lines=8, step=2)
GRAM_MMA = GramMmaConfig(128, 32, 16, 16, 3, 1, splits=2, min_blocks=1, warps=1)
GEMM = GemmConfig(32, 32, 8, 8, 8, 32, 2, 8, 8, vector=1, read="nc", load=1, buffers=2)
GEMM_PIECES = GemmConfig(64, 64, 8, 8, 8, 32, 2, 4, 16, vector=2, read="nc", load=2)
GEMV = GemvConfig(128, 1, 4, 4, 8, splits=3)
GEMV_ROWS = GemvConfig(128, 128, 4, 2, 2, splits=1)
MINPLUS = MinplusConfig(64, 32, 16, 8, 8, 16, 4, 4, 16, vector=4, read="nc", load=4)
MINPLUS_F64 = MinplusConfig(64, 32, 16, 8, 8, 32, 2, 8, 8, vector=2, read="nc", load=2)
LADDER = STEPS["coarse1d"].published

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
