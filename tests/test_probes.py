"""The small problems of the full verification meet what the edges of a configuration alone do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.test_render import SOURCES
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.probes import LONGEST, PAST_16_BITS, long_problems, remainder_problems
from tsm2_tune.generator.problem import Problem

FIRST_OF_EACH_FAMILY = tuple({config.family: (config, case) for config, case in SOURCES}.values())
BY_FAMILY = pytest.mark.parametrize(
    ("config", "case"), FIRST_OF_EACH_FAMILY, ids=[config.family for config, _ in FIRST_OF_EACH_FAMILY]
)


@BY_FAMILY
def test_each_extent_is_tried_one_past_whole_where_the_others_are_whole(config: KernelConfig, case: Problem) -> None:
    periods = family_named(config.family).periods(config, case)
    tried = remainder_problems(config, case, most_products=0.0)
    assert replace(case, m=periods.m, n=periods.m if case.is_gram else periods.n, k=2 * periods.k + 1) in tried
    n = periods.m + 1 if case.is_gram else periods.n
    assert replace(case, m=periods.m + 1, n=n, k=2 * periods.k) in tried
    assert case.is_gram or replace(case, m=periods.m, n=periods.n + 1, k=2 * periods.k) in tried


@BY_FAMILY
def test_where_there_is_room_each_split_has_a_long_k(config: KernelConfig, case: Problem) -> None:
    splits = family_named(config.family).launch(config, case).splits
    longest = max(problem.k for problem in long_problems(config, case, most_products=float("inf")))
    assert longest > PAST_16_BITS * (splits if splits <= 100 else 1)
    assert longest <= LONGEST
