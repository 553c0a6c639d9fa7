"""Operands through a ring in shared memory: `full` computes all of C, `symmetric` half of a Gram matrix.

Both schedules have fused multiply-adds (fma) and the f64 tensor cores (dmma); the full one has f32 (f32_dmma) and
complex numbers (complex_dmma) on these too.
"""

from tsm2_tune.generator.families.staged.complex_dmma import StagedComplexDmma, StagedComplexDmmaConfig
from tsm2_tune.generator.families.staged.dmma import StagedDmma, StagedDmmaConfig
from tsm2_tune.generator.families.staged.f32_dmma import StagedF32Dmma, StagedF32DmmaConfig
from tsm2_tune.generator.families.staged.fma import StagedFma, StagedFmaConfig
from tsm2_tune.generator.families.staged.full import FullKernel
from tsm2_tune.generator.families.staged.symmetric_dmma import StagedSymmetricDmma, StagedSymmetricDmmaConfig
from tsm2_tune.generator.families.staged.symmetric_fma import StagedSymmetricFma, StagedSymmetricFmaConfig

__all__ = [
    "FAMILIES",
    "FullKernel",
    "StagedComplexDmmaConfig",
    "StagedDmmaConfig",
    "StagedF32DmmaConfig",
    "StagedFmaConfig",
    "StagedSymmetricDmmaConfig",
    "StagedSymmetricFmaConfig",
]

FAMILIES = (
    StagedFma(),
    StagedDmma(),
    StagedF32Dmma(),
    StagedComplexDmma(),
    StagedSymmetricFma(),
    StagedSymmetricDmma(),
)
