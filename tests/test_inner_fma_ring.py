"""inner_fma_ring: how its kernels divide a tile, and for which problems a search tries it first."""

from __future__ import annotations

from itertools import product

import pytest

from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.dtypes import FMA_DTYPES
from tsm2_tune.generator.families.inner.fma_ring import (
    LINES,
    RINGS,
    THREADS,
    TILE,
    InnerFmaRingConfig,
    block_k,
    parts_of,
    pitch,
)
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.order import ordered
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us

pytestmark = pytest.mark.slow

H200 = PROFILES["h200"]


@pytest.mark.parametrize("dtype", FMA_DTYPES)
def test_a_tile_is_divided_among_whole_teams(dtype: str) -> None:
    """Each member of a team has its own whole part of the tile, and a chunk is whole vectors."""
    assert all(lines % part == 0 for lines, parts in LINES.items() for part in parts)
    problem = Problem(7, 7, 10**6, dtype, "tn")
    width = 16 // problem.dtype.element_bytes
    for tile, ring in product(product(TILE, TILE), RINGS):
        for part in parts_of(tile):
            config = InnerFmaRingConfig(THREADS, *tile, *part, 0, *ring, splits=1)
            products = block_k(config, problem)
            assert products % config.lanes_of_k == products % width == 0 < products
            assert pitch(config, problem) // width % 2 == 1
            assert pitch(config, problem) % width == 0


def test_odd_numbers_of_columns_are_tried_first() -> None:
    for text in ("2x49x2103597:f32:ntt", "33x3x10640705:f32:ntt", "1x33x19803604:c64:ntt"):
        first = ordered(search_space(Problem.parse(text), H200), 0, candidate_times_us)[:2]
        assert "inner_fma_ring" in [candidate.config.family for candidate in first]
