"""Operands through a ring in shared memory: `full` computes all of C, `symmetric` half of a Gram matrix.

Both schedules have fused multiply-adds (fma) and f64 tensor cores (mma); the full one has f32 (smma) and complex
numbers (zmma) on these too.
"""

from tsm2_tune.generator.families.staged.fma import Staged, StagedConfig
from tsm2_tune.generator.families.staged.full import FullKernel
from tsm2_tune.generator.families.staged.mma import StagedMma, StagedMmaConfig
from tsm2_tune.generator.families.staged.smma import StagedSmma, StagedSmmaConfig
from tsm2_tune.generator.families.staged.symmetric_fma import Gram, GramConfig
from tsm2_tune.generator.families.staged.symmetric_mma import GramMma, GramMmaConfig
from tsm2_tune.generator.families.staged.zmma import StagedZmma, StagedZmmaConfig

__all__ = [
    "FAMILIES",
    "FullKernel",
    "GramConfig",
    "GramMmaConfig",
    "StagedConfig",
    "StagedMmaConfig",
    "StagedSmmaConfig",
    "StagedZmmaConfig",
]

FAMILIES = (Staged(), StagedMma(), StagedSmma(), StagedZmma(), Gram(), GramMma())
