"""The first choices of TSMT with rings: the clocks that it counts, and how a tile is divided."""

from __future__ import annotations

from itertools import product

import pytest

from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.dtypes import FMA_DTYPES
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.families.inner.fma_ring import (
    LINES,
    RINGS,
    THREADS,
    TILE,
    InnerFmaRingConfig,
    block_k,
    clocks,
    parts_of,
    pitch,
    place,
    team,
    wavefronts,
)
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.order import ordered
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us

pytestmark = pytest.mark.slow

H200 = PROFILES["h200"]


@pytest.mark.parametrize(
    ("places", "element_bytes", "expected"),
    [
        (list(range(32)), 4, 1),
        ([2 * lane for lane in range(32)], 4, 2),
        ([33 * lane for lane in range(32)], 4, 1),
        ([7] * 32, 4, 1),
        (list(range(32)), 8, 2),
        ([lane // 2 for lane in range(32)], 8, 1),  # lanes side by side read the same
        ([lane // 4 * 2 + lane % 2 for lane in range(32)], 8, 1),  # lanes one apart do
        ([lane % 16 for lane in range(32)], 8, 2),  # others do
        (list(range(32)), 16, 4),
    ],
)
def test_shared_memory_serves_a_warp_in_so_many_clocks(places: list[int], element_bytes: int, expected: int) -> None:
    assert wavefronts(places, element_bytes) == expected


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
            down, across = tile[0] // part[0], tile[1] // part[1]
            places = {place(config, member) for member in range(team(config))}
            assert places == set(product(range(down), range(across))), config.text


def test_neighbouring_slices_avoid_bank_conflicts() -> None:
    """33 columns: those of neighbouring products are one bank apart."""
    problem = Problem(33, 3, 10**7, "f32", "ntt")
    near, far = (InnerFmaRingConfig(THREADS, 40, 3, 8, 3, together, 16, 3, splits=264) for together in (0, 1))
    assert clocks(far, problem) < clocks(near, problem)


def test_odd_numbers_of_columns_are_tried_first_and_powers_of_two_not() -> None:
    for text, within in (
        ("2x49x2103597:f32:ntt", 2), ("33x3x10640705:f32:ntt", 2), ("1x33x19803604:c64:ntt", 2),
        ("61x2x16162068:f64:ntt", 3),
    ):  # fmt: skip
        first = ordered(search_space(Problem.parse(text), H200), 0, candidate_times_us)[:within]
        assert "inner_fma_ring" in [candidate.config.family for candidate in first]
    for text in ("16x16x10000000:f32:ntt", "8x8x10000000:f64:tn", "64x64x1000000:c64:cn"):
        assert not family_named("inner_fma_ring").proposals(Problem.parse(text), H200)
