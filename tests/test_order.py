"""What a search tries first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.profiles import PROFILES
from tsm2_tune.generator.space import search_space
from tsm2_tune.tuner.tune import ordered

H200 = PROFILES["h200"]
R = Problem(20480, 8, 20480, "f32")


@pytest.mark.parametrize("m", [10240, 15360, 20480, 25600, 30720])
def test_every_multiprocessor_has_as_many_blocks(m: int) -> None:
    problem = replace(R, m=m, k=m)
    first = family_named("tsmr").preferred(problem, H200)[0]
    blocks = family_named("tsmr").launch(first, problem).blocks(problem.m, problem.n)
    most = -(-blocks // H200.sms)
    assert blocks > 0.93 * most * H200.sms


def test_shares_of_a_short_k_are_whole_prefetches() -> None:
    problem = Problem(15360, 4, 1920, "f32")
    for config in family_named("tsmr").preferred(problem, H200)[:5]:
        share = -(-problem.k // (config.splits * config.prefetch)) * config.prefetch
        assert share * config.splits < 1.1 * problem.k, config.text


def test_families_that_the_model_calls_hopeless_come_last() -> None:
    tried = [candidate.config.family for candidate in ordered(search_space(R, H200), 0)]
    hopeful = len(family_named("tsmr").preferred(R, H200))
    assert "tsm2" in tried
    assert "tsm2" not in tried[: hopeful // 2]


def test_a_small_c_is_not_for_the_families_of_a_large_one() -> None:
    for name, dtype, op in (("tsmr", "f32", "ntt"), ("tsmr_mma", "f64", "tn"), ("tsmr_zmma", "c128", "cn")):
        assert not family_named(name).preferred(Problem(16, 16, 10**7, dtype, op), H200)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_wide_c_of_a_narrow_a_is_computed_in_groups_of_columns(dtype: str) -> None:
    found = family_named("tsmm").preferred(Problem(10**7, 64, 8, dtype), H200)
    assert [config.columns for config in found] == [16] * len(found) != []
    assert not family_named("tsmm").preferred(Problem(10**7, 64, 64, dtype), H200)


@pytest.mark.parametrize("dtype", ["f32", "f64", "c64"])
@pytest.mark.parametrize("columns", [1, 2, 4])
def test_a_row_major_a_that_is_not_aligned_has_first_choices(dtype: str, columns: int) -> None:
    """Their narrow loads are in the space, and what the rules keep."""
    problem = Problem(9973, columns, 9973, dtype, "tn")
    kept = {candidate.config for candidate in search_space(problem, H200, families=["tsmr_rows"]).kept}
    assert any(config in kept for config in family_named("tsmr_rows").preferred(problem, H200))
