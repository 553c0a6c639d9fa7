"""On a GPU: every template is right, its results have the same bits in every run, and its occupancy is the driver's.

tests/under_sanitizer.py starts the same configurations under compute-sanitizer.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.conftest import compiled
from tests.on_gpu import ON_GPU, loaded_kernel, verdict
from tests.stencil_kernels import STENCILS
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.families.gemm import GemmConfig
from tsm2_tune.generator.families.gemv import GemvConfig
from tsm2_tune.generator.families.gram import GramConfig
from tsm2_tune.generator.families.gram_mma import GramMmaConfig
from tsm2_tune.generator.families.ism2 import Ism2Config
from tsm2_tune.generator.families.ladder import STEPS, LadderConfig
from tsm2_tune.generator.families.minplus import MinplusConfig
from tsm2_tune.generator.families.staged import StagedConfig
from tsm2_tune.generator.families.staged_half import StagedHalfConfig
from tsm2_tune.generator.families.staged_mma import StagedMmaConfig
from tsm2_tune.generator.families.staged_smma import StagedSmmaConfig
from tsm2_tune.generator.families.staged_zmma import StagedZmmaConfig
from tsm2_tune.generator.families.tsm2 import Tsm2Config
from tsm2_tune.generator.families.tsmm import TsmmConfig
from tsm2_tune.generator.families.tsmm_held import TsmmHeldConfig
from tsm2_tune.generator.families.tsmm_mma import TsmmMmaConfig
from tsm2_tune.generator.families.tsmm_ring import TsmmRingConfig
from tsm2_tune.generator.families.tsmm_rows import TsmmRowsConfig
from tsm2_tune.generator.families.tsmr import TsmrConfig
from tsm2_tune.generator.families.tsmr_half import TsmrHalfConfig
from tsm2_tune.generator.families.tsmr_half_ring import TsmrHalfRingConfig
from tsm2_tune.generator.families.tsmr_mma import TsmrMmaConfig
from tsm2_tune.generator.families.tsmr_rows import TsmrRowsConfig
from tsm2_tune.generator.families.tsmr_tf32 import TsmrTf32Config
from tsm2_tune.generator.families.tsmr_tf32_ring import TsmrTf32RingConfig
from tsm2_tune.generator.families.tsmr_zmma import TsmrZmmaConfig
from tsm2_tune.generator.families.tsmt import TsmtConfig
from tsm2_tune.generator.families.tsmt_few import TsmtFewConfig
from tsm2_tune.generator.families.tsmt_half import TsmtHalfConfig
from tsm2_tune.generator.families.tsmt_mma import TsmtMmaConfig
from tsm2_tune.generator.families.tsmt_ring import TsmtRingConfig
from tsm2_tune.generator.families.tsmt_tf32 import TsmtTf32Config
from tsm2_tune.generator.families.tsmt_zmma import TsmtZmmaConfig
from tsm2_tune.generator.occupancy import occupancy
from tsm2_tune.generator.probes import edge_problems
from tsm2_tune.generator.problem import DTYPES, FMA_DTYPES, Problem
from tsm2_tune.generator.profiles import PROFILES
from tsm2_tune.generator.render import render
from tsm2_tune.generator.space import unfit
from tsm2_tune.tuner.checks import CHECKS, probe_checks
from tsm2_tune.tuner.cuda import CudaDevice
from tsm2_tune.tuner.loaded import LoadedKernel
from tsm2_tune.tuner.target import Target
from tsm2_tune.tuner.verify import prepare, verify

pytestmark = ON_GPU

CONFIGS: tuple[KernelConfig, ...] = (
    Tsm2Config("v0", 128, 1, 1),
    Tsm2Config("v1", 64, 4, 1),
    Tsm2Config("v2", 128, 3, 12),
    Tsm2Config("v3", 64, 8, 6),
    Tsm2Config("v3", 256, 2, 32),
    Ism2Config(1, 64, 4, 8, 4),
    Ism2Config(2, 64, 6, 4, 4),
    Ism2Config(2, 32, 2, 6, 64),
    TsmmConfig(64, 8, 2, 4, 8, 2),
    TsmmConfig(128, 16, 1, 8, 2, 1),
    TsmmConfig(64, 16, 2, 6, 16, 4),
    TsmmConfig(256, 4, 1, 8, 8, 1),
    TsmmHeldConfig(128, 16, 8, 4, 64),
    TsmmHeldConfig(64, 8, 16, 8, 8),
    TsmmHeldConfig(256, 4, 4, 2, 16),
)
# Each with a storage order: all that a family knows, over its configurations.
ORDERED: tuple[tuple[KernelConfig, str], ...] = (
    *((config, "nn") for config in CONFIGS),
    (TsmrConfig(128, 1, 8, 8, 4, splits=12, row_tiles=1, min_blocks=1), "nn"),
    (TsmrConfig(64, 2, 4, 16, 2, splits=1, row_tiles=4, min_blocks=1), "nt"),
    (TsmrConfig(256, 1, 3, 4, 2, splits=48, row_tiles=1, min_blocks=2), "nnt"),
    (TsmrConfig(128, 1, 16, 8, 8, splits=6, row_tiles=1, min_blocks=1), "ntt"),
    (TsmrMmaConfig(128, 2, 16, 16, 2, splits=12, row_tiles=1, min_blocks=6), "nn"),
    (TsmrMmaConfig(64, 1, 8, 32, 4, splits=1, row_tiles=4, min_blocks=1), "nt"),
    (TsmrMmaConfig(256, 4, 32, 16, 2, splits=1, row_tiles=1, min_blocks=1), "ntt"),
    (TsmrMmaConfig(128, 2, 8, 16, 2, splits=48, row_tiles=1, min_blocks=6), "tn"),
    (TsmrMmaConfig(128, 1, 64, 32, 2, splits=4, row_tiles=1, min_blocks=1), "ttt"),
    (TsmrMmaConfig(64, 1, 8, 64, 2, splits=1, row_tiles=1, min_blocks=1), "ttt"),
    (TsmmMmaConfig(256, 2, 64, 64, 16, 3, 1, splits=132), "nn"),
    (TsmmMmaConfig(256, 2, 64, 64, 16, 4, 2, splits=16), "ttt"),
    (TsmmMmaConfig(128, 4, 16, 32, 16, 3, 1, splits=264), "tn"),
    (TsmmMmaConfig(384, 2, 64, 32, 16, 3, 1, splits=132, teams=4), "nn"),
    (TsmmMmaConfig(192, 2, 32, 32, 32, 2, 1, splits=16, teams=2), "ttt"),
    (TsmmRingConfig(128, 4, 8, 2, 55, splits=528), "ttt"),
    (TsmmRingConfig(256, 2, 4, 3, 112, splits=264), "tnt"),
    (TsmmRingConfig(128, 1, 2, 1, 74, splits=16), "ttt"),
    (TsmmRowsConfig(128, 16, 4, 1, 1, 16, 8, row_tiles=2, min_blocks=4), "ttt"),
    (TsmmRowsConfig(128, 16, 2, 2, 2, 8, 4, row_tiles=1, min_blocks=3), "tn"),
    (TsmmRowsConfig(128, 8, 16, 1, 2, 4, 2, row_tiles=4, min_blocks=2), "tt"),
    (TsmmRowsConfig(128, 16, 8, 2, 4, 16, 16, row_tiles=1, min_blocks=1), "tnt"),
    (TsmmRowsConfig(128, 16, 1, 2, 8, 8, 4, row_tiles=1, min_blocks=3), "ttt"),
    (TsmmRowsConfig(128, 16, 1, 1, 1, 2, 16, row_tiles=8, min_blocks=8, joined=4), "ttt"),
    (TsmmRowsConfig(128, 16, 1, 1, 1, 4, 8, row_tiles=2, min_blocks=6, joined=2), "tn"),
    (TsmrRowsConfig(256, 16, 32, 4, 8, 1, 2, splits=8, strips=160, min_blocks=2), "ttt"),
    (TsmrRowsConfig(128, 16, 128, 4, 8, 1, 2, splits=20, strips=9, min_blocks=4), "ttt"),
    (TsmrRowsConfig(192, 16, 32, 4, 8, 2, 2, splits=8, strips=9, min_blocks=2), "ttt"),
    (TsmrRowsConfig(256, 16, 256, 4, 4, 1, 2, splits=10, strips=9, min_blocks=2), "ttt"),
    (TsmrRowsConfig(192, 16, 32, 4, 6, 2, 2, splits=8, strips=9, min_blocks=2), "ttt"),
    (TsmrRowsConfig(256, 16, 256, 4, 3, 1, 2, splits=5, strips=9, min_blocks=2), "tn"),
    (TsmrRowsConfig(256, 16, 256, 4, 2, 1, 1, splits=1, strips=7, min_blocks=2), "tn"),
    (TsmrRowsConfig(192, 16, 8, 2, 16, 2, 2, splits=1, strips=40, min_blocks=2), "tn"),
    (TsmrRowsConfig(128, 8, 16, 4, 2, 2, 1, splits=32, strips=9, min_blocks=3), "tt"),
    (TsmrRowsConfig(256, 16, 8, 4, 4, 4, 1, splits=4, strips=7, min_blocks=2), "tnt"),
    (TsmtConfig(128, 16, 16, 8, 8, 4, 2, splits=264, min_blocks=1), "tn"),
    (TsmtConfig(256, 8, 4, 8, 4, 1, 4, splits=16, min_blocks=2), "ntt"),
    (TsmtConfig(128, 2, 1, 2, 1, 2, 1, splits=132, min_blocks=1), "tn"),  # a tile smaller than a vector
    (TsmtConfig(256, 8, 8, 4, 4, 4, 1, splits=40, min_blocks=1), "tn"),  # sums added up by 16 parts of the block
    (TsmrHalfConfig(128, 8, 16, 32, 2, splits=12, row_tiles=1, min_blocks=4), "nn"),
    (TsmrHalfConfig(128, 8, 8, 16, 1, splits=1, row_tiles=4, min_blocks=4), "nt"),
    (TsmrHalfConfig(256, 4, 64, 64, 2, splits=1, row_tiles=1, min_blocks=1), "ntt"),
    (TsmrHalfConfig(128, 2, 32, 128, 2, splits=48, row_tiles=1, min_blocks=4), "tn"),
    (TsmrHalfConfig(128, 4, 64, 64, 4, splits=4, row_tiles=1, min_blocks=2), "ttt"),
    (TsmrHalfConfig(128, 16, 8, 8, 1, splits=1, row_tiles=4, min_blocks=4), "nn"),
    (TsmrHalfConfig(128, 8, 32, 8, 1, splits=1, row_tiles=4, min_blocks=1), "ttt"),
    (TsmrHalfRingConfig(256, 8, 64, 128, 4, splits=3, row_tiles=1, min_blocks=1), "nn"),
    (TsmrHalfRingConfig(128, 8, 32, 64, 2, splits=1, row_tiles=4, min_blocks=3), "nt"),
    (TsmrHalfRingConfig(128, 8, 64, 128, 2, splits=1, row_tiles=4, min_blocks=2), "ttt"),
    (TsmrHalfRingConfig(256, 8, 64, 128, 2, splits=3, row_tiles=1, min_blocks=1), "ttt"),
    (TsmrHalfRingConfig(160, 8, 16, 128, 4, splits=13, row_tiles=1, min_blocks=1), "tn"),
    (TsmrTf32RingConfig(256, 8, 64, 64, 4, splits=3, row_tiles=1, min_blocks=1), "nn"),
    (TsmrTf32RingConfig(128, 8, 32, 64, 2, splits=1, row_tiles=4, min_blocks=2), "ttt"),
    (TsmrTf32Config(128, 8, 32, 32, 2, splits=12, row_tiles=1, min_blocks=3), "nn"),
    (TsmrTf32Config(128, 4, 64, 16, 1, splits=1, row_tiles=4, min_blocks=1), "ntt"),
    (TsmrTf32Config(128, 2, 16, 64, 2, splits=48, row_tiles=1, min_blocks=4), "tn"),
    (TsmrTf32Config(256, 4, 32, 32, 2, splits=4, row_tiles=1, min_blocks=1), "ttt"),
    (TsmtFewConfig(256, 2, 2, 8, 1, splits=528, min_blocks=1), "tn"),
    (TsmtFewConfig(128, 8, 4, 4, 2, splits=16, min_blocks=3), "ntt"),
    (TsmtFewConfig(128, 3, 6, 8, 1, splits=1, min_blocks=1), "nn"),
    (TsmtHalfConfig(256, 16, 16, 1, 2, 256, 2, splits=264), "tn"),
    (TsmtHalfConfig(128, 32, 16, 2, 2, 64, 3, splits=16), "nn"),
    (TsmtHalfConfig(128, 32, 64, 2, 4, 128, 4, splits=1), "tt"),
    (TsmtHalfConfig(256, 64, 64, 4, 4, 128, 2, splits=132), "ntt"),
    (TsmtTf32Config(128, 64, 64, 4, 8, 32, 2, splits=132), "tn"),
    (TsmtTf32Config(128, 16, 32, 1, 2, 64, 4, splits=16), "ntt"),
    (TsmtTf32Config(256, 32, 32, 2, 2, 128, 3, splits=1), "nn"),
    (TsmtRingConfig(256, 16, 8, 4, 4, 0, 16, 3, splits=264), "ntt"),
    (TsmtRingConfig(256, 12, 6, 3, 3, 1, 8, 4, splits=16), "tn"),
    (TsmtRingConfig(256, 64, 3, 8, 3, 1, 32, 2, splits=132), "tt"),
    (TsmtRingConfig(256, 3, 3, 3, 3, 0, 8, 4, splits=40), "nnt"),  # a tile of no whole vectors of sums
    (TsmtMmaConfig(128, 16, 16, 1, 2, 8, 3, splits=132, min_blocks=2), "nt"),
    (TsmtMmaConfig(256, 64, 32, 2, 2, 16, 2, splits=16, min_blocks=1), "tn"),
    (TsmtMmaConfig(256, 8, 8, 1, 1, 32, 1, splits=264, min_blocks=1), "ntt"),  # the tensor core's smaller product
    (StagedHalfConfig(640, 320, 64, 64, 4, splits=132), "nn"),
    (StagedHalfConfig(640, 320, 32, 64, 4, splits=132), "ttt"),
    (StagedHalfConfig(128, 64, 32, 32, 3, splits=264), "nt"),
    (StagedHalfConfig(256, 128, 64, 128, 3, splits=16), "tn"),
    (StagedHalfConfig(128, 128, 32, 32, 6, splits=1), "ntt"),
    (StagedConfig(128, 128, 64, 64, 32, 3, 2, splits=132, min_blocks=1, rows=8, columns=8, step=2), "tn"),
    (StagedConfig(128, 32, 32, 16, 16, 2, 1, splits=16, min_blocks=1, rows=8, columns=16, step=1), "ntt"),
    (StagedConfig(128, 128, 32, 32, 64, 2, 0, splits=396, min_blocks=3, rows=8, columns=8, step=2), "tn"),
    (StagedConfig(64, 64, 8, 16, 32, 4, 2, splits=264, min_blocks=1, rows=8, columns=8, step=1), "nn"),
    (StagedMmaConfig(128, 128, 32, 32, 32, 3, 1, splits=132, min_blocks=1, strips=2, octets=2, ahead=1), "tn"),
    (StagedMmaConfig(128, 128, 64, 64, 16, 2, 0, splits=264, min_blocks=1, strips=2, octets=4, ahead=1), "ntt"),
    (StagedMmaConfig(256, 256, 256, 64, 16, 3, 1, splits=132, min_blocks=1, strips=4, octets=4, ahead=1), "nn"),
    (StagedMmaConfig(128, 128, 64, 32, 32, 3, 1, splits=264, min_blocks=1, strips=2, octets=2, ahead=0), "ttt"),
    (StagedMmaConfig(128, 32, 16, 16, 16, 4, 2, splits=16, min_blocks=1, strips=1, octets=2, ahead=1), "nt"),
    (StagedMmaConfig(256, 256, 256, 48, 16, 4, 1, splits=132, min_blocks=1, strips=4, octets=3, ahead=1), "nn"),
    (StagedMmaConfig(128, 128, 64, 24, 32, 3, 1, splits=264, min_blocks=1, strips=1, octets=3, ahead=1), "ttt"),
    (StagedMmaConfig(128, 128, 64, 24, 32, 2, 0, splits=16, min_blocks=1, strips=1, octets=3, ahead=1), "ntt"),
    # Wide tiles, and how a warp reads where both operands lie along k, neither, or one.
    *(
        (StagedMmaConfig(256, 256, 128, 128, 32, 2, 1, splits=132, min_blocks=1, strips=4, octets=4, ahead=1), op)
        for op in ("nn", "tn", "nt", "ttt", "tnt")
    ),
    (StagedMmaConfig(128, 128, 64, 128, 16, 3, 1, splits=264, min_blocks=1, strips=4, octets=4, ahead=1), "ntt"),
    (StagedSmmaConfig(256, 256, 128, 128, 32, 3, 1, splits=132, min_blocks=1, strips=2, octets=8, ahead=0), "nn"),
    (StagedSmmaConfig(256, 256, 128, 128, 32, 3, 1, splits=132, min_blocks=1, strips=4, octets=4, ahead=0), "ttt"),
    (StagedSmmaConfig(128, 128, 128, 48, 32, 2, 1, splits=264, min_blocks=2, strips=2, octets=6, ahead=0), "nn"),
    (StagedSmmaConfig(128, 128, 128, 24, 32, 2, 1, splits=20, min_blocks=3, strips=2, octets=3, ahead=0), "ttt"),
    (StagedSmmaConfig(128, 128, 128, 64, 32, 3, 1, splits=264, min_blocks=2, strips=4, octets=4, ahead=0), "nn"),
    (StagedSmmaConfig(128, 128, 64, 32, 32, 2, 1, splits=20, min_blocks=4, strips=2, octets=2, ahead=0), "ttt"),
    (StagedSmmaConfig(128, 128, 64, 64, 32, 3, 1, splits=264, min_blocks=2, strips=4, octets=4, ahead=0), "tn"),
    (StagedSmmaConfig(128, 128, 64, 16, 64, 2, 0, splits=16, min_blocks=3, strips=2, octets=2, ahead=0), "ntt"),
    *((step.published, op) for step in STEPS.values() for op in ("nn", "ttt")),
    (LadderConfig("naive", 8, 16, 1, 1, 1), "ttt"),
    (LadderConfig("coarse1d", 32, 32, 2, 16, 1), "nn"),
    (LadderConfig("coarse2d", 64, 128, 8, 4, 8), "ttt"),
    (LadderConfig("vectorised", 128, 64, 16, 8, 4), "nn"),
)
# A matrix and a vector: of each decomposition one, of the last in both orders of A lanes of a warp and of several.
ORDERED += (
    (GemvConfig(128, 1, 1, 1, 8, splits=1), "nn"),
    (GemvConfig(256, 8, 1, 1, 4, splits=6), "tnt"),
    (GemvConfig(128, 1, 4, 1, 4, splits=1), "ttt"),
    (GemvConfig(128, 1, 8, 8, 8, splits=26), "nn"),
    (GemvConfig(128, 1, 4, 4, 8, splits=13), "nn"),
    (GemvConfig(256, 32, 4, 2, 4, splits=1), "nnt"),
    (GemvConfig(256, 128, 16, 1, 2, splits=264), "nt"),
    (GemvConfig(256, 256, 4, 4, 2, splits=1), "tn"),
    (GemvConfig(512, 512, 8, 2, 1, splits=132), "ttt"),
    (GemvConfig(128, 32, 4, 8, 1, splits=3), "tn"),
)
# With complex conjugates.
CONJUGATED: tuple[tuple[KernelConfig, str], ...] = (
    (TsmrConfig(128, 1, 6, 8, 4, splits=12, row_tiles=1, min_blocks=1), "jc"),
    (TsmtConfig(128, 16, 16, 8, 4, 2, 2, splits=132, min_blocks=1), "cn"),
    (TsmtConfig(256, 8, 4, 4, 4, 1, 4, splits=16, min_blocks=2), "jtt"),
    (TsmtConfig(128, 1, 1, 1, 1, 2, 1, splits=132, min_blocks=1), "nc"),
    (TsmmMmaConfig(128, 2, 32, 32, 32, 2, 2, splits=132), "cj"),
    (TsmmMmaConfig(256, 2, 32, 16, 16, 3, 2, splits=20), "jtt"),
    (TsmmMmaConfig(256, 2, 64, 64, 16, 3, 2, splits=132), "nn"),
    (TsmmRingConfig(128, 2, 4, 2, 55, splits=528), "ctt"),
    (TsmmRingConfig(256, 1, 8, 1, 112, splits=132), "tct"),
    (TsmmRowsConfig(128, 16, 4, 1, 2, 4, 8, row_tiles=2, min_blocks=4), "ctt"),
    (TsmmRowsConfig(128, 16, 8, 1, 1, 8, 4, row_tiles=4, min_blocks=4), "tct"),
    (TsmrRowsConfig(192, 16, 32, 4, 8, 1, 2, splits=16, strips=9, min_blocks=2), "cct"),
    (TsmrRowsConfig(128, 16, 128, 2, 8, 1, 2, splits=40, strips=9, min_blocks=3), "cj"),
    (GemvConfig(256, 8, 4, 1, 2, splits=3), "jc"),
    (GemvConfig(256, 128, 2, 1, 2, splits=16), "cjt"),
    (TsmrZmmaConfig(128, 2, 16, 16, 2, splits=12, row_tiles=1, min_blocks=3), "nn"),
    (TsmrZmmaConfig(128, 1, 32, 32, 4, splits=1, row_tiles=4, min_blocks=1), "cjt"),
    (TsmtRingConfig(256, 6, 12, 6, 4, 1, 16, 3, splits=132), "jtt"),
    (TsmtRingConfig(256, 8, 4, 2, 4, 0, 8, 4, splits=16), "cn"),
    (TsmtZmmaConfig(128, 16, 16, 2, 2, 8, 2, splits=264, min_blocks=1), "cn"),
    (TsmtZmmaConfig(256, 8, 16, 1, 1, 16, 1, splits=16, min_blocks=2), "jtt"),
    (StagedZmmaConfig(128, 128, 32, 32, 32, 3, 1, splits=132, min_blocks=1, strips=2, octets=2, ahead=1), "cn"),
    (StagedZmmaConfig(128, 128, 64, 48, 32, 2, 1, splits=132, min_blocks=1, strips=4, octets=3, ahead=1), "jtt"),
    (StagedZmmaConfig(128, 128, 64, 64, 16, 3, 2, splits=3, min_blocks=1, strips=4, octets=4, ahead=1), "nn"),
    (StagedZmmaConfig(128, 128, 16, 16, 64, 2, 0, splits=264, min_blocks=1, strips=2, octets=2, ahead=0), "jtt"),
    (StagedZmmaConfig(256, 256, 64, 64, 16, 4, 1, splits=132, min_blocks=1, strips=4, octets=2, ahead=1), "cj"),
)
# Of a matrix and itself.
OF_ITSELF: tuple[tuple[KernelConfig, str], ...] = (
    (TsmtConfig(256, 8, 8, 8, 8, 1, 2, splits=264, min_blocks=1), "nxt"),
    (TsmtConfig(128, 4, 4, 4, 4, 2, 1, splits=16, min_blocks=1), "tx"),
    (TsmtConfig(128, 16, 16, 8, 4, 2, 1, splits=16, min_blocks=1), "tx"),  # loads it twice
    (GramConfig(128, 128, 64, 32, 2, 0, splits=396, min_blocks=1, lines=8, step=1), "nxt"),
    (GramConfig(128, 128, 32, 64, 3, 1, splits=132, min_blocks=1, lines=8, step=2), "tx"),
    (GramConfig(128, 128, 64, 32, 2, 0, splits=16, min_blocks=1, lines=4, step=1), "txt"),
    (GramConfig(128, 32, 32, 16, 3, 1, splits=264, min_blocks=1, lines=4, step=1), "nx"),
    (GramMmaConfig(128, 128, 64, 32, 2, 0, splits=264, min_blocks=1, warps=2), "nxt"),
    (GramMmaConfig(128, 32, 32, 16, 3, 1, splits=132, min_blocks=1, warps=1), "tx"),
    (GramMmaConfig(128, 128, 64, 32, 3, 1, splits=16, min_blocks=1, warps=1), "tx"),
)
HERMITIAN = {"tx": "cx", "nxt": "jxt", "txt": "cxt", "nx": "jx"}
# Every configuration in the dtypes that its family knows in that order.
CASES = [
    (config, Problem(64, 4, 64, dtype, op))
    for config, op in ORDERED
    for dtype in DTYPES
    if family_named(config.family).supports(Problem(64, 4, 64, dtype, op))
    and int(config.tunables.get("vector_bytes", 16)) // int(config.tunables.get("joined", 1))
    >= DTYPES[dtype].element_bytes
    and unfit(family_named(config.family), config, Problem(64, 4, 64, dtype, op)) is None
] + [
    (config, Problem(64, 4, 64, dtype, op))
    for config, op in CONJUGATED
    for dtype in family_named(config.family).dtypes
    if DTYPES[dtype].is_complex
]
CASES += [
    (config, Problem(64, 64, 64, dtype, one))
    for config, op in OF_ITSELF
    for dtype in DTYPES
    for one in ((op, HERMITIAN[op]) if DTYPES[dtype].is_complex else (op,))
    if family_named(config.family).supports(Problem(64, 64, 64, dtype, one))
]
# What a search tries late, one of a family and type: loads without a policy.
FIRST_OF = {(config.family, case.dtype_name): (config, case) for config, case in reversed(CASES)}
CASES += [(later, case) for config, case in FIRST_OF.values() for later in family_named(config.family).later(config)]
CASES += STENCILS
CASE_NAMES = [f"{config.text}-{problem.dtype_name}-{problem.op}" for config, problem in CASES]
SPLIT = [case for case in CASES if family_named(case[0].family).launch(*case).splits > 1]
# The first choices where C is large both ways, in each case that BLAS has: of many tiles in two bands, and of a few.
GENERAL = [
    (config, problem)
    for dtype in FMA_DTYPES
    for ops in product("ntc" if DTYPES[dtype].is_complex else "nt", repeat=2)
    for shape in ((2611, 1937, 333), (515, 509, 517))
    for problem in (Problem(*shape, dtype, "".join(ops)),)
    for name in ("staged_mma", "staged_smma", "staged_zmma")
    if family_named(name).supports(problem)
    for config in family_named(name).preferred(problem, PROFILES["h200"])[:1]
]
# Offsets in A past 2**31, for v2, v3, ism2 and tsmm; and past 2**32, for each family and order of A that came later.
PAST_INT = (
    *(((70_001, 3, 33_013), config) for config in (CONFIGS[2], CONFIGS[4], CONFIGS[5], CONFIGS[8])),
    *(((150_000_001, 3, 16), config) for config in (CONFIGS[2], CONFIGS[10])),
)
SPLIT_ROWS, ONE_SPLIT = TsmrConfig(256, 1, 3, 4, 2, 48, 1, 2), TsmrConfig(64, 2, 4, 16, 2, 1, 4, 1)
PAST_UNSIGNED = (
    (GemmConfig(128, 8, 16, 32, 4, 32, 4, 16, 8, 1, "nc"), Problem(140_001, 3, 33_013, "f32", "nn")),
    (MinplusConfig(128, 8, 16, 32, 4, 32, 4, 16, 8, 1, "nc"), Problem(140_001, 3, 33_013, "minplus_f32", "nn")),
    (LadderConfig("coalesced", 8, 32, 1, 1, 1), Problem(140_001, 3, 33_013, "f32", "nn")),
    (LadderConfig("vectorised", 64, 64, 16, 8, 8), Problem(140_001, 3, 33_012, "f32", "ttt")),
    (GemvConfig(128, 1, 4, 4, 8, 13), Problem(140_004, 1, 33_013, "f32", "nn")),
    (GemvConfig(256, 8, 8, 4, 1, 1), Problem(280_000_001, 1, 16, "f32", "tn")),
    (SPLIT_ROWS, Problem(140_001, 3, 33_013, "f32", "nnt")),
    (ONE_SPLIT, Problem(280_000_001, 3, 16, "f32", "nt")),  # one split: the sums of more would fill the memory
    (TsmrMmaConfig(128, 2, 16, 16, 2, 12, 1, 6), Problem(140_001, 3, 33_013, "f64", "nn")),
    (TsmrMmaConfig(256, 4, 32, 16, 2, 1, 1, 1), Problem(280_000_001, 3, 16, "f64", "tn")),
    (TsmmMmaConfig(256, 2, 16, 16, 16, 3, 2, 132), Problem(280_000_001, 3, 16, "f32", "nn")),
    (TsmmMmaConfig(256, 2, 16, 16, 16, 3, 2, 132), Problem(280_000_001, 3, 16, "c64", "ttt")),
    (TsmmRowsConfig(128, 16, 4, 1, 1, 4, 8, 2, 4), Problem(280_000_001, 3, 16, "f32", "ttt")),
    (TsmmRingConfig(128, 4, 4, 2, 55, 528), Problem(280_000_001, 3, 17, "f32", "ttt")),
    (TsmmHeldConfig(256, 16, 16, 4, 4), Problem(280_000_001, 3, 16, "f32", "nn")),
    (TsmrRowsConfig(256, 16, 32, 4, 4, 1, 2, 8, 160, 2), Problem(140_001, 3, 33_016, "f32", "tn")),
    (TsmrHalfConfig(128, 8, 16, 32, 2, 12, 1, 4), Problem(140_001, 3, 33_013, "bf16", "nn")),
    (TsmrHalfConfig(128, 4, 32, 16, 1, 1, 8, 1), Problem(280_000_001, 3, 16, "f16", "tn")),
    (StagedHalfConfig(256, 256, 32, 64, 4, 132), Problem(140_001, 3, 33_013, "bf16", "nn")),
    (StagedHalfConfig(256, 256, 32, 32, 3, 264), Problem(280_000_001, 3, 16, "f16", "tn")),
    (TsmrTf32Config(128, 8, 16, 32, 2, 12, 1, 3), Problem(140_001, 3, 33_013, "tf32", "nnt")),
    (TsmtConfig(256, 8, 4, 8, 4, 4, 2, 264, 1), Problem(8, 3, 600_000_011, "f32", "tn")),
    (TsmtMmaConfig(128, 16, 16, 1, 2, 8, 3, 132, 2), Problem(16, 2, 270_000_001, "f64", "nt")),
    (TsmtRingConfig(256, 8, 3, 4, 3, 0, 16, 3, 264), Problem(7, 3, 650_000_011, "f32", "ntt")),
    (TsmtRingConfig(256, 16, 2, 8, 2, 0, 16, 3, 264), Problem(16, 2, 270_000_001, "f32", "tn")),
    (TsmtFewConfig(256, 8, 2, 8, 1, 264, 1), Problem(8, 2, 600_000_008, "bf16", "ntt")),
    (TsmtHalfConfig(256, 16, 16, 1, 2, 256, 2, 264), Problem(16, 2, 270_000_001, "bf16", "ntt")),
    (StagedConfig(128, 128, 16, 16, 128, 2, 0, 264, 1, 8, 8, 4), Problem(16, 2, 270_000_001, "f32", "tn")),
    (StagedMmaConfig(128, 128, 16, 16, 32, 3, 1, 132, 1, 1, 2, 0), Problem(16, 2, 270_000_001, "f64", "nt")),
)
LARGE_CHECKS = 3  # of a probe: of sums, on integers, both dispositions of the leading dimensions, and aligned ones
SHAPES = (
    *((1, 1, 1), (31, 1, 64), (257, 3, 1), (1009, 5, 61), (641, 7, 131), (97, 13, 256)),
    *((2053, 33, 67), (29, 31, 1013), (509, 63, 127)),
)


@pytest.mark.parametrize(("config", "case"), CASES, ids=CASE_NAMES)
def test_template_is_right_at_odd_shapes_and_on_its_probes(
    gpu: CudaDevice, target: Target, gpu_support_path: str, config: KernelConfig, case: Problem
) -> None:
    shapes = [(n, n, m) for m, n, _ in SHAPES] if case.is_gram else SHAPES
    odd = (Problem(*shape, case.dtype_name, case.op) for shape in shapes)
    for problem in (*odd, *edge_problems(config, case)):
        found = verdict(gpu, target, gpu_support_path, config, problem)
        assert found.correct, f"{problem.text}: {found.detail}"


@pytest.mark.parametrize(("config", "problem"), GENERAL, ids=lambda one: one.text)
def test_a_large_c_is_right_and_has_the_same_bits_in_every_run(
    gpu: CudaDevice, target: Target, gpu_support_path: str, config: KernelConfig, problem: Problem
) -> None:
    with loaded_kernel(gpu, target, gpu_support_path, config, problem) as loaded:
        found = verify(gpu, loaded.operands, loaded, seed=11)
        assert found.correct, found.detail
        assert len(results_of(gpu, loaded, runs=10)) == 1


@pytest.mark.parametrize(("shape", "config"), PAST_INT, ids=lambda one: getattr(one, "text", str(one)))
def test_offsets_past_32_bits_are_right(
    gpu: CudaDevice, target: Target, gpu_support_path: str, config: KernelConfig, shape: tuple[int, int, int]
) -> None:
    problem = Problem(*shape, "f32")
    assert problem.index_bits == 64
    found = verdict(gpu, target, gpu_support_path, config, problem, probe_checks(problem, 1)[:LARGE_CHECKS])
    assert found.correct, found.detail


@pytest.mark.parametrize(("config", "problem"), PAST_UNSIGNED, ids=lambda one: one.text)
def test_offsets_past_unsigned_32_bits_are_right_in_every_order(
    gpu: CudaDevice, target: Target, gpu_support_path: str, config: KernelConfig, problem: Problem
) -> None:
    assert problem.m * problem.k > 2**32
    found = verdict(gpu, target, gpu_support_path, config, problem, probe_checks(problem, 1)[:LARGE_CHECKS])
    assert found.correct, found.detail


@pytest.mark.parametrize(("config", "case"), SPLIT, ids=lambda one: one.text)
def test_repeated_runs_give_the_same_bits(
    gpu: CudaDevice, target: Target, gpu_support_path: str, config: KernelConfig, case: Problem
) -> None:
    """The sums of the splits are added up in one order, whichever block ends last."""
    thin = config.family.startswith("tsmt")
    shape = (19, 17, 400_009) if thin else (5003, 17, 20011)
    if case.is_gram:
        shape = (19, 19, 400_009)
    problem = Problem(*shape, case.dtype_name, case.op)
    with loaded_kernel(gpu, target, gpu_support_path, config, problem) as loaded:
        assert len(results_of(gpu, loaded, runs=100)) == 1


def results_of(gpu: CudaDevice, loaded: LoadedKernel, *, runs: int) -> set[bytes]:
    """The different bits that so many runs leave in C."""
    operands = loaded.operands
    found = np.empty(operands.c.buffer.size_bytes, np.uint8)
    results = set()
    for _ in range(runs):
        prepare(operands, CHECKS[-1], seed=5)
        loaded.prepare()
        loaded.start(operands.arguments(alpha=1.0, beta=0.0))
        gpu.download(operands.c.buffer, found)
        results.add(found.tobytes())
    assert not loaded.trouble()
    return results


@pytest.mark.parametrize(("config", "case"), CASES, ids=CASE_NAMES)
def test_occupancy_is_the_drivers(gpu: CudaDevice, target: Target, config: KernelConfig, case: Problem) -> None:
    source = render(case, config)
    binary = compiled(source.text, source.kernel, target.toolchain, source.defines)
    launch = source.launch
    used = gpu.load(binary.path, source.kernel).resources(threads=launch.threads, smem_bytes=launch.smem_bytes)
    fits = occupancy(gpu.limits, threads=launch.threads, registers=used.registers, smem_bytes=used.smem_bytes)
    assert used.blocks_per_sm == fits.blocks_per_sm
