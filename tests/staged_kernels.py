"""Kernels that stage both operands of a product with a huge k, and how a bug is planted in one."""

from __future__ import annotations

from tests.planting import Bug, Shape
from tsm2_tune.generator.families.staged import (
    StagedComplexDmmaConfig,
    StagedDmmaConfig,
    StagedF32DmmaConfig,
    StagedFmaConfig,
)

SHAPE = (16, 16, 1024)

# Rings of a block and of a warp; teams of a few threads, and of two warps.
BLOCK = StagedFmaConfig(128, 128, 16, 16, 128, 3, 2, splits=1, min_blocks=1, rows=8, columns=8, step=4)
WARPS = StagedFmaConfig(128, 32, 32, 16, 16, 2, 1, splits=4, min_blocks=1, rows=8, columns=8, step=1)
GROUPS = StagedFmaConfig(32, 32, 16, 16, 16, 3, 2, splits=72, min_blocks=1, rows=8, columns=8, step=2)
REGISTERS = StagedFmaConfig(128, 128, 16, 16, 128, 2, 0, splits=2, min_blocks=1, rows=8, columns=8, step=2)
MMA_BLOCK = StagedDmmaConfig(
    128, 128, 32, 32, 32, 3, 2, splits=16, min_blocks=1, strips=2, octets=2, fragment_prefetch=0
)
MMA_WARPS = StagedDmmaConfig(
    128, 32, 16, 16, 16, 2, 1, splits=1, min_blocks=1, strips=1, octets=2, fragment_prefetch=1
)
MMA_LARGE = StagedDmmaConfig(
    128, 128, 64, 64, 16, 3, 1, splits=2, min_blocks=1, strips=2, octets=4, fragment_prefetch=1
)

MMA_ODD = StagedDmmaConfig(
    128, 128, 64, 24, 32, 3, 1, splits=7, min_blocks=1, strips=1, octets=3, fragment_prefetch=1
)
MMA_TALL = StagedDmmaConfig(
    128, 128, 64, 32, 16, 3, 1, splits=7, min_blocks=1, strips=2, octets=2, fragment_prefetch=1
)
# Fewer tiles than blocks: k has two panels, and of its tail each other block has a turn and a stretch.
MMA_PANELS = StagedDmmaConfig(
    128, 128, 64, 32, 16, 3, 1, splits=13, min_blocks=1, strips=2, octets=2, fragment_prefetch=1
)
IN_PANELS = (318, 32, 2552)
IN_TURNS = (1725, 32, 64)  # two tiles for each block, and one for stretches: more than the workspace has slots for


# Many blocks: what one tile does not show is left to the probes.
MMA_MANY = StagedDmmaConfig(
    128, 128, 64, 32, 16, 3, 1, splits=20, min_blocks=1, strips=2, octets=2, fragment_prefetch=1
)


def probed(name: str, original: str, planted: str) -> Bug:
    return Bug(f"{name} (many blocks)", MMA_MANY, original, planted, dtype="f64", op="nn", shape=(64, 32, 900))


def panelled(name: str, original: str, planted: str, *, shape: Shape = IN_PANELS) -> Bug:
    return Bug(f"{name} (panels)", MMA_PANELS, original, planted, dtype="f64", op="nn", shape=shape)


def staged(
    name: str, config: StagedFmaConfig, original: str, planted: str, *, dtype: str = "f32", op: str = "tn"
) -> Bug:
    return Bug(name, config, original, planted, dtype=dtype, op=op)


def mma(name: str, config: StagedDmmaConfig, original: str, planted: str, *, op: str = "tn") -> Bug:
    return Bug(f"{name} (mma)", config, original, planted, dtype="f64", op=op)


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
