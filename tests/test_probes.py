"""The small problems on which kernels are verified, without a kernel."""

from __future__ import annotations

import math

import pytest

from tests.test_gpu import CASES
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.probes import MOST_REMAINDERS, PAST_16_BITS, long_problems, remainder_problems
from tsm2_tune.generator.problem import Problem

ONCE = {config.family: (config, case) for config, case in reversed(CASES)}
EACH = pytest.mark.parametrize(("config", "case"), ONCE.values(), ids=list(ONCE))


def asked(case: Problem) -> Problem:
    return Problem(64, 64, 64, case.dtype_name, case.op)


@EACH
def test_every_remainder_of_every_extent_comes(config: KernelConfig, case: Problem) -> None:
    problem = asked(case)
    periods = family_named(config.family).periods(config, problem)
    problems = remainder_problems(config, problem, most_products=math.inf)
    for name in "m" if problem.is_gram else "mn":
        period = getattr(periods, name)
        assert len({getattr(one, name) % period for one in problems}) == min(period, MOST_REMAINDERS)
    assert len({one.k % periods.k for one in problems}) == min(periods.k, MOST_REMAINDERS)
    assert periods.k == 1 or {one.k // periods.k for one in problems} >= {0, 1}  # below a whole period, and past it


@EACH
def test_where_few_can_be_tried_they_are_spread(config: KernelConfig, case: Problem) -> None:
    every = remainder_problems(config, asked(case), most_products=math.inf)
    few = remainder_problems(config, asked(case), most_products=1.0)
    assert few == every[:1]


@EACH
def test_extents_do_not_fit_16_bits(config: KernelConfig, case: Problem) -> None:
    problem = asked(case)
    found = long_problems(config, problem, most_products=math.inf)
    longest = {max("mnk", key=lambda name: getattr(one, name)) for one in found}
    assert longest == ({"m", "k"} if problem.is_gram else {"m", "n", "k"})
    wide = [one for one in found if max(one.m, one.n, one.k) > PAST_16_BITS]
    assert len(found) - len(wide) == problem.is_gram  # which has one of more than 8 bits besides
