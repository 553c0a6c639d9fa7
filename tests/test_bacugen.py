"""The search-space generator of "Autotuning GEMMs for Fermi" has the paper's counts, and its modern form hundreds."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import cycle, product
from typing import Any

import numpy as np
import pytest

from tests.command import run
from tsm2_tune.generator.config import Resources
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.dtypes import FMA_DTYPES
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.families.gemm import GemmConfig
from tsm2_tune.generator.families.gemm.bacugen import (
    MOST_BLK,
    MOST_K_BLK,
    blocks,
    published_occupancy,
    with_reading_grids,
)
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.seeds import first_choices
from tsm2_tune.generator.space.space import OWN, SearchSpace, search_space
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us

pytestmark = pytest.mark.slow

NONE = Guidelines(0, 0, 0)
TABLE_1 = {dtype: Guidelines(512, 2, reuse) for dtype, reuse in (("f32", 3.0), ("f64", 2.0), ("c128", 2.0))}
SHAPES = {"f32": 10000, "c64": 8000, "f64": 8000, "c128": 6000}
OPS = ("nn", "nt", "tt", "tn")  # in the order of Table 2
# Every card with a type, and every type on the card that was measured; every storage order with two types or more.
CARDS = (*zip((card for card in PROFILES if card not in ("s2050", "h200")), cycle(FMA_DTYPES), strict=False),
         *(("h200", dtype) for dtype in FMA_DTYPES))  # fmt: skip
ORDERS = (*zip(FMA_DTYPES, OPS, strict=True), *zip(FMA_DTYPES, OPS[::-1], strict=True),
          *((dtype, "ttt") for dtype in FMA_DTYPES))  # fmt: skip
# Table 2: the tile, the grid of threads, and the grids of threads that read A and B.
WINNERS = {
    "f32": (
        "96 96 16 16 16 32 8 8 32", "96 96 16 16 16 32 8 32 8", "96 96 16 16 16 16 16 32 8",
        "96 96 16 16 16 16 16 16 16",
    ),
    "c64": (
        "64 64 16 16 16 32 8 16 16", "64 64 16 16 16 16 16 16 16", "64 64 16 16 16 16 16 32 8",
        "64 64 16 16 16 16 16 16 16",
    ),
    "f64": ("64 64 16 16 16 16 16 16 16",) * 4,
    "c128": ("24 16 8 8 8 8 8 8 8", "16 24 8 8 8 8 8 8 8", "16 24 8 8 8 4 16 8 8", "24 16 8 8 8 8 8 8 8"),
}  # fmt: skip


def searched(dtype: str, guidelines: Guidelines | None, op: str = "nn", card: str = "s2050") -> SearchSpace:
    size = SHAPES[dtype]
    asked = OWN if guidelines is None else asdict(guidelines)
    return search_space(Problem(size, size, size, dtype, op), PROFILES[card], guidelines=asked, families=["gemm"])


def winner(dtype: str, op: str) -> GemmConfig:
    numbers = map(int, WINNERS[dtype][OPS.index(op)].split())
    tunables: list[Any] = [*numbers, 1, "ca"]
    return GemmConfig(*tunables)


@pytest.mark.parametrize("op", OPS[1:])  # below, a command counts nn's
def test_transposition_turns_grids_and_leaves_their_number(op: str) -> None:
    assert len(searched("f32", NONE, op).kept) == 1_136_490


@pytest.mark.parametrize("dtype", TABLE_1)
@pytest.mark.parametrize("op", OPS)
def test_the_guidelines_of_table_1_keep_the_winners_of_table_2(dtype: str, op: str) -> None:
    space = searched(dtype, TABLE_1[dtype], op)
    assert len(space.kept) == {"f32": 294, "f64": 138, "c128": 84}[dtype]
    assert winner(dtype, op) in {candidate.config for candidate in space.kept}


def test_table_1_and_algorithm_3_disagree_for_cgemm() -> None:
    kept = {reuse: searched("c64", Guidelines(512, 2, reuse)).kept for reuse in (4.0, 4.01, 4.5, 5.0)}
    assert {reuse: len(found) for reuse, found in kept.items()} == {4.0: 138, 4.01: 8, 4.5: 0, 5.0: 0}
    assert winner("c64", "nn") in {candidate.config for candidate in kept[4.0]}


@pytest.mark.parametrize(("m_dim", "n_dim"), [(16, 16), (24, 8), (7, 32)])
def test_every_variant_of_a_grid_is_that_of_the_printed_loops(m_dim: int, n_dim: int) -> None:
    """Algorithm 2 and the first block of Algorithm 3, with the divisibility of the reading grids turned round."""
    threads, expected = m_dim * n_dim, set()
    grids = [(dim, threads // dim) for dim in range(1, threads + 1) if threads % dim == 0]
    for k in range(1, MOST_K_BLK + 1):
        for n, m in product(range(n_dim, MOST_BLK + 1, n_dim), range(m_dim, MOST_BLK + 1, m_dim)):
            if m * k % threads == 0 and k * n % threads == 0:
                of_a = [grid for grid in grids if m % grid[0] == 0 and k % grid[1] == 0]
                of_b = [grid for grid in grids if k % grid[0] == 0 and n % grid[1] == 0]
                expected |= {(m, n, k, m_dim, n_dim, *a, *b) for a, b in product(of_a, of_b)}
    columns = blocks().columns
    chosen = np.flatnonzero((columns["m_dim"] == m_dim) & (columns["n_dim"] == n_dim))
    found = list(zip(*with_reading_grids(chosen, Problem(512, 512, 512, "f32")).values(), strict=True))
    assert set(found) == expected
    assert len(found) == len(expected) == blocks().variants[chosen].sum() > 0


@pytest.mark.parametrize(
    ("threads", "registers", "smem_bytes", "blocks_per_sm"),
    [(32, 8, 0, 8), (256, 8, 0, 6), (256, 32, 0, 4), (256, 24, 12288, 4), (256, 40, 0, 3.2)],
    ids=["blocks", "warps", "registers", "shared memory", "a fraction"],
)
def test_the_published_occupancy_has_four_limits(
    threads: int, registers: int, smem_bytes: int, blocks_per_sm: float
) -> None:
    """An S2050 has 8 blocks, 48 warps, 32,768 registers and 48 KiB of shared memory for each multiprocessor."""
    resources = Resources(threads, registers, max(smem_bytes, 1), 0, 1.0)
    found = published_occupancy(resources, PROFILES["s2050"], registers=registers)
    assert found.blocks_per_sm == pytest.approx(blocks_per_sm)


@pytest.mark.parametrize("op", ["nn", "ttt"])
def test_nothing_vanishes_and_what_is_kept_is_of_the_space(op: str) -> None:
    space = searched("f32", Guidelines(512, 2, 4.0), op, "h200")
    assert len(space.kept) + sum(count for _, count in space.dropped) == space.total
    listed = list(space.kept)
    assert len(listed) == len(space.kept) == len({candidate.config.text for candidate in listed})
    assert [space.kept[place].config for place in (0, 7, -1)] == [listed[place].config for place in (0, 7, -1)]
    gemm = family_named("gemm")
    assert all(gemm.has(candidate.config, space.problem) for candidate in listed)
    for candidate in listed[::97]:
        resources = gemm.resources(candidate.config, space.problem)
        assert isinstance(resources, Resources)
        assert resources.threads == candidate.config.m_dim * candidate.config.n_dim  # type: ignore[attr-defined]
        assert type(resources.smem_bytes) is int


def test_no_other_configuration_is_of_the_space() -> None:
    problem, right = Problem(512, 512, 512, "f32"), winner("f32", "nn")
    assert family_named("gemm").has(right, problem)
    for change in (
        {"m_blk": 100}, {"k_blk": 12}, {"m_dim": 15}, {"m_dim_a": 16}, {"n_dim_b": 16}, {"m_blk": 288}, {"vector": 3},
        {"read": "cg"}, {"m_dim_b": 32, "n_dim_b": 8}, {"load": 3}, {"buffers": 3}, {"buffers": 0},
    ):  # fmt: skip
        assert not family_named("gemm").has(replace(right, **change), problem)


@pytest.mark.parametrize(("card", "dtype"), CARDS)
def test_some_hundreds_are_kept_where_the_user_sets_no_guidelines(card: str, dtype: str) -> None:
    assert 100 <= len(searched(dtype, None, card=card).kept) < 1000


@pytest.mark.parametrize(("dtype", "op"), [*ORDERS, *product(("minplus_f32", "minplus_f64"), OPS)])
def test_what_won_on_an_h200_is_kept_in_every_storage_order(dtype: str, op: str) -> None:
    family = family_named("minplus" if dtype.startswith("minplus") else "gemm")
    size = SHAPES.get(dtype, 4096)
    problem = Problem(size, size, size, dtype, op)
    space = search_space(problem, PROFILES["h200"], families=[family.name])
    kept = space.kept
    assert 100 <= len(kept) < 2000 or family.name == "minplus"
    proposals = first_choices(space, candidate_times_us)
    assert len(proposals) > (family.name == "minplus")
    assert set(proposals) <= {candidate.config for candidate in kept}


def test_the_command_prints_the_counts_and_the_names_of_the_paper() -> None:
    command = "space --device s2050 --family gemm --op nn --dtype f32 --guidelines"
    (found,) = json.loads(run(*command.split(), "none", "--json").output)
    assert found["kept"] == 1_136_490
    assert found["total"] == found["kept"] + sum(found["dropped"].values())
    told = "min-threads-per-sm=512,min-blocks-per-sm=2,min-reuse=3"
    lines = run(*command.split(), told, "--list").output.splitlines()
    assert len(lines) == 294
    texts = [json.loads(line)["tunables"] for line in lines]
    assert {"m_blk": 96, "n_blk": 96, "k_blk": 16, "m_dim": 16, "n_dim": 16, "m_dim_a": 32, "n_dim_a": 8,
            "m_dim_b": 8, "n_dim_b": 32, "vector": 1, "read": "ca", "load": 1, "buffers": 1} in texts  # fmt: skip
    assert all(text["vector"] == 1 and text["read"] == "ca" for text in texts)
