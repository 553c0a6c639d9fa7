"""Into what each family says that its kernels divide their work."""

from __future__ import annotations

from typing import Any

import pytest

from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.families.published import Ism2Config, Tsm2Config
from tsm2_tune.generator.families.resident_b import (
    ResidentBDmmaConfig,
    ResidentBFmaConfig,
    ResidentBFmaHeldConfig,
    ResidentBFmaRingConfig,
)
from tsm2_tune.generator.families.row_lanes import RowLanesRegisterBConfig
from tsm2_tune.generator.families.staged import StagedF32DmmaConfig
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.tiling import Tiling

L = (10**7, 8, 8)


@pytest.mark.parametrize(
    ("config", "shape", "expected"),
    [
        (
            StreamAFmaConfig(64, 1, 2, 8, 4, 13, 2, 4),
            (20480, 2, 20480),
            Tiling(4, 256, 2, 8, 0, 1.03, k_padding=8, c_vector_bytes=16),
        ),
        (
            ResidentBFmaConfig(128, 8, 1, 8, 8, 4),
            L,
            Tiling(4, 256, 8, 64, 0, 1.03, vector_bytes=8, k_padding=8, c_vector_bytes=8),
        ),  # 8 columns
        (
            ResidentBFmaHeldConfig(128, 4, 8, 8, 8),
            L,
            Tiling(4, 128, 8, 8, 8, 1.6, vector_bytes=4, k_padding=8, n_padding=8, c_vector_bytes=4),
        ),
        (Tsm2Config("v3", 128, 4, 8), L, Tiling(4, 128, 4, 128, 0, 1.03, k_padding=8, c_vector_bytes=16)),
        (Ism2Config(1, 128, 4, 8, 2), L, Tiling(4, 128, 4, 128, 0, 1.03, k_padding=8, c_vector_bytes=16)),
    ],
)
def test_a_family_says_into_what_its_kernels_divide_their_work(
    config: Any, shape: tuple[int, int, int], expected: Tiling
) -> None:
    problem = Problem(*shape, "f32", "nn")
    assert FAMILIES[config.family].tiling(config, problem, 4) == expected


def test_a_lane_with_b_in_registers_loads_and_stores_vectors_up_to_its_part_of_a_row() -> None:
    lanes = {"lanes": 4, "vectors": 2, "teams": 1, "columns": 8}
    config = RowLanesRegisterBConfig(128, 8, **lanes, rows=4, row_tiles=2, min_blocks=4)
    tiling = FAMILIES["row_lanes_register_b"].tiling(config, Problem(10**6, 8, 16, "f32", "ttt"), 4)
    assert (tiling.vector_bytes, tiling.k_of_vectors) == (8, 16)
    assert tiling.c_vector_bytes == 8  # of the 2 columns that each of the 4 lanes stores


def test_rings_copy_lines_that_are_no_whole_vectors_element_by_element() -> None:
    config = StagedF32DmmaConfig.parse(
        "staged_f32_dmma:threads=128,ring_threads=128,block=128x64x32,stages=2,copy=ca,splits=264,min_blocks=2,warp=64x32"
    )
    assert config is not None
    tiling = FAMILIES["staged_f32_dmma"].tiling(config, Problem(20480, 64, 20480, "f32", "nn"), 2)
    assert (tiling.tile_m, tiling.tile_n, tiling.k_step, tiling.without_vectors) == (128, 64, 32, 1.3)


def test_b_in_shared_memory_is_a_part_of_k() -> None:
    config = ResidentBDmmaConfig.parse(
        "resident_b_dmma:threads=256,strips=2,columns=64,depth=64,ring_k=32,stages=4,copy=ca,splits=132"
    )
    assert config is not None
    tiling = FAMILIES["resident_b_dmma"].tiling(config, Problem(10**6, 64, 64, "f32", "nn"), 1)
    assert tiling.k_per_pass == 64
    assert tiling.tile_m > 1
    assert tiling.tile_n == 64


def test_row_tiles_in_shared_memory_have_all_columns_and_even_lines() -> None:
    config = ResidentBFmaRingConfig(128, 4, 8, 2, 55, splits=528)
    tiling = FAMILIES["resident_b_fma_ring"].tiling(config, Problem(10**6, 42, 5, "f32", "ttt"), 4)
    assert (tiling.resident, tiling.tile_m, tiling.tile_n, tiling.without_vectors) == (4, 128, 0, 1.0)
    assert (tiling.k_step, tiling.k_per_pass > 64) == (0, True)  # no sum is divided among blocks
    assert tiling.n_padding == 8  # width of a lane
