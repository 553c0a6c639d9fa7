"""Both operands pass through a multistage pipeline in shared memory.

The schedule `full` computes all of C. The schedule `symmetric` computes half of a Gram matrix X^T X and copies it to
the other half. Each schedule has a kernel with fused multiply-adds (fma) and a kernel on the f64 tensor cores (dmma).
The full schedule also has kernels that multiply f32 (f32_dmma) and complex numbers (complex_dmma) on the f64 tensor
cores.
"""

from tsm2_tune.generator.families.staged.complex_dmma import StagedComplexDmma, StagedComplexDmmaConfig
from tsm2_tune.generator.families.staged.dmma import StagedDmma, StagedDmmaConfig, StagedF32Dmma, StagedF32DmmaConfig
from tsm2_tune.generator.families.staged.fma import StagedFma, StagedFmaConfig
from tsm2_tune.generator.families.staged.symmetric import (
    StagedSymmetricDmma,
    StagedSymmetricFma,
    StagedSymmetricFmaConfig,
)

__all__ = [
    "FAMILIES",
    "StagedComplexDmmaConfig",
    "StagedDmmaConfig",
    "StagedF32DmmaConfig",
    "StagedFmaConfig",
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
