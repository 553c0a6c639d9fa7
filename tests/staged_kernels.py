"""Kernels that stage both operands of a product on the f64 tensor cores, one for each type."""

from __future__ import annotations

from tsm2_tune.generator.families.staged import StagedComplexDmmaConfig, StagedDmmaConfig, StagedF32DmmaConfig

# Few threads, because they are slow on the host. Bands have two rows of tiles; in f64, whose tile is wide, six.
SPLIT_DMMA = {
    "f64": StagedDmmaConfig(
        128, 128, 16, 128, 16, 3, 1, splits=4, min_blocks=1, strips=1, octets=4, fragment_prefetch=1
    ),
    "f32": StagedF32DmmaConfig(
        32, 32, 32, 32, 16, 3, 1, splits=4, min_blocks=1, strips=2, octets=4, fragment_prefetch=0
    ),
    "c64": StagedComplexDmmaConfig(
        32, 32, 16, 16, 16, 3, 1, splits=4, min_blocks=1, strips=2, octets=2, fragment_prefetch=1
    ),
    "c128": StagedComplexDmmaConfig(
        32, 32, 16, 16, 8, 3, 1, splits=4, min_blocks=1, strips=2, octets=2, fragment_prefetch=1
    ),
}
