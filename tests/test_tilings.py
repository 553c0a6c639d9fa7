"""Into what families divide the work of their kernels: tilings, and decompositions of matrix times vector."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spelling import spelt
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import FAMILIES, family_named
from tsm2_tune.generator.families.gemv import DECOMPOSITIONS, step
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.tiling import Tiling

L = "10000000x8x8:f32"
RING_DMMA = "staged_f32_dmma:threads=128,ring_threads=128,block=128x64x32,stages=2,copy=ca,splits=264,min_blocks=2"
B_IN_SMEM = "resident_b_dmma:threads=256,strips=2,columns=64,depth=64,ring_k=32,stages=4,copy=ca,splits=132"
IN_VECTORS: dict[str, Any] = {"k_padding": 8, "c_vector_bytes": 16}


@pytest.mark.parametrize(
    ("config", "problem", "expected"),
    [
        ("stream_a_fma:threads=64,columns=2,prefetch=8,stages=4,splits=13,row_tiles=2,min_blocks=4",
         "20480x2x20480:f32", Tiling(4, 256, 2, 8, 0, 1.03, **IN_VECTORS)),
        ("resident_b_fma:threads=128,vector_bytes=8,columns=8,prefetch=8,row_tiles=4", L,
         Tiling(4, 256, 8, 64, 0, 1.03, vector_bytes=8, k_padding=8, c_vector_bytes=8)),  # 8 columns
        ("resident_b_fma_held:threads=128,vector_bytes=4,depth=8,columns=8,across=8", L,
         Tiling(4, 128, 8, 8, 8, 1.6, vector_bytes=4, k_padding=8, n_padding=8, c_vector_bytes=4)),
        ("tsm2:version=v3,threads=128,columns=4,prefetch=8", L, Tiling(4, 128, 4, 128, 0, 1.03, **IN_VECTORS)),
        ("ism2:optimisation=1,threads=128,columns=4,prefetch=8,row_tiles=2", L,
         Tiling(4, 128, 4, 128, 0, 1.03, **IN_VECTORS)),
    ],
)  # fmt: skip
def test_a_family_says_into_what_its_kernels_divide_their_work(config: str, problem: str, expected: Tiling) -> None:
    kernel = spelt(config)
    assert FAMILIES[kernel.family].tiling(kernel, Problem.parse(problem), 4) == expected


@pytest.mark.parametrize(
    ("config", "problem", "resident", "expected"),
    [
        # A lane loads and stores vectors up to its part of a row: of C the 2 columns that each of 4 lanes stores.
        ("row_lanes_register_b:threads=128,vector_bytes=8,lanes=4,vectors=2,columns=8,rows=4,row_tiles=2,min_blocks=4",
         "1000000x8x16:f32:ttt", 4, {"vector_bytes": 8, "k_of_vectors": 16, "c_vector_bytes": 8}),
        # Rings copy lines that are no whole vectors element by element.
        (f"{RING_DMMA},warp=64x32", "20480x64x20480:f32", 2,
         {"tile_m": 128, "tile_n": 64, "k_step": 32, "without_vectors": 1.3}),
        (B_IN_SMEM, "1000000x64x64:f32", 1, {"k_per_pass": 64, "tile_n": 64}),  # B in shared memory is a part of k
        # Row tiles in shared memory have all columns and even lines; no sum is divided; a lane is 8 columns wide.
        ("resident_b_fma_ring:threads=128,rows=4,columns=8,stages=2,smem_kb=55,splits=528", "1000000x42x5:f32:ttt", 4,
         {"resident": 4, "tile_m": 128, "tile_n": 0, "without_vectors": 1.0, "k_step": 0, "n_padding": 8}),
    ],
)  # fmt: skip
def test_loads_and_tiles_of_a_family(config: str, problem: str, resident: int, expected: dict[str, Any]) -> None:
    kernel = spelt(config)
    tiling = FAMILIES[kernel.family].tiling(kernel, Problem.parse(problem), resident)
    assert {name: getattr(tiling, name) for name in expected} == expected
    assert tiling.tile_m > 1
    assert tiling.k_step or tiling.k_per_pass > 60


H200 = PROFILES["h200"]


def test_each_corner_is_of_the_decomposition_that_it_is_called_by() -> None:
    for op in ("nn", "ttt"):
        problem = Problem(20480, 1, 20480, "f32", op)
        for name in DECOMPOSITIONS:
            found = family_named("gemv").corner(name, problem, H200)  # type: ignore[attr-defined]
            assert found
            assert {config.decomposition for config in found} == {name}


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "c128"])
@pytest.mark.parametrize("op", ["nn", "tn"])
@pytest.mark.parametrize(("m", "k"), [(10**7, 32), (10**6, 100), (10**4, 3), (100, 1000)])
def test_no_first_choice_has_lanes_or_loads_that_are_past_a_row(m: int, k: int, op: str, dtype: str) -> None:
    problem = Problem(m, 1, k, dtype, op)
    for name in DECOMPOSITIONS:
        for config in family_named("gemv").corner(name, problem, H200):  # type: ignore[attr-defined]
            once = step(config, problem)
            assert config.lanes == 1 or once < 2 * k, config.text
            assert config.prefetch == 1 or config.prefetch // 2 * once < k, config.text
