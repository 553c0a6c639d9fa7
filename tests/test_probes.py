"""The small problems and the calls on which kernels are verified, without a kernel."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import cast

import pytest

from tests.cases import CASES
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.dtypes import DTYPES, Dtype
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.probes import (
    LONG_BITS,
    LONGEST,
    MOST_REMAINDERS,
    deep_problems,
    long_line_problems,
    long_problems,
    many_tile_problems,
    remainder_problems,
)
from tsm2_tune.generator.problem import LARGEST_32_BIT_OFFSET, Problem
from tsm2_tune.generator.source import INDEX_BITS
from tsm2_tune.tuner.verify.checks import CHECKS, ODD, VECTORS, Magnitude, every_check
from tsm2_tune.tuner.verify.error_bounds import Exactness, exactness
from tsm2_tune.tuner.verify.operands import VECTOR_BYTES, Operand
from tsm2_tune.tuner.verify.verdict import padding
from tsm2_tune.tuner.verify.winner_calls import ON_GPU, calls_for

PAST_16_BITS = 2**16
# Families of single products: test_batches.py has those of batches.
ONCE = {config.family: (config, case) for config, case in reversed(CASES) if not case.is_batched}
EACH = pytest.mark.parametrize(("config", "case"), ONCE.values(), ids=list(ONCE))


def asked(case: Problem) -> Problem:
    return Problem(64, 64, 64, case.dtype_name, case.op)


@EACH
def test_remainders_of_every_extent_come(config: KernelConfig, case: Problem) -> None:
    problem = asked(case)
    periods = family_named(config.family).periods(config, problem)
    problems = remainder_problems(config, problem, most_products=math.inf)
    for name in "m" if problem.is_gram else "mn":
        period = getattr(periods, name)
        assert len({getattr(one, name) % period for one in problems}) == min(period, MOST_REMAINDERS)
    assert len({one.k % periods.k for one in problems}) >= min(periods.k, MOST_REMAINDERS)
    assert periods.k == 1 or {one.k // periods.k for one in problems} >= {0, 1}  # below a whole period, and past it
    # Each extent is tried one past whole where the others are whole.
    tried = remainder_problems(config, problem, most_products=0.0)
    assert replace(problem, m=periods.m, n=periods.m if case.is_gram else periods.n, k=2 * periods.k + 1) in tried
    n = periods.m + 1 if case.is_gram else periods.n
    assert replace(problem, m=periods.m + 1, n=n, k=2 * periods.k) in tried
    assert case.is_gram or replace(problem, m=periods.m, n=periods.n + 1, k=2 * periods.k) in tried


@EACH
def test_extents_blocks_and_turns_do_not_fit_16_bits(config: KernelConfig, case: Problem) -> None:
    problem, family = asked(case), family_named(config.family)
    found = long_problems(config, problem, most_products=math.inf)
    longest = {max("mnk", key=lambda name: getattr(one, name)) for one in found}
    assert longest == ({"m", "k"} if problem.is_gram else {"m", "n", "k"})
    assert {name for name in longest if any(getattr(one, name) > PAST_16_BITS for one in found)} == longest
    launch, periods = family.launch(config, problem), family.periods(config, problem)
    for depth in (PAST_16_BITS * periods.k, PAST_16_BITS * periods.k * launch.splits):
        assert depth >= LONGEST or any(one.k > depth for one in found)
    # Where an extent is just long the others are whole.
    n = periods.m if case.is_gram else periods.n
    just_long = [one for one in found if (one.m, one.n) == (periods.m, n) and one.k > PAST_16_BITS]
    assert {one.k % periods.k for one in just_long} >= {0, (PAST_16_BITS + 1) % periods.k}
    if case.is_gram:
        return
    assert any(one.m > PAST_16_BITS * launch.rows_per_block for one in found)
    assert any(one.n > PAST_16_BITS * launch.columns_per_block for one in found)
    assert any(one.m == PAST_16_BITS + 1 and (one.n, one.k) == (n, 2 * periods.k) for one in found)
    for name, period in (("m", periods.m), ("n", periods.n)):  # some kernels hold an operand if k is one period
        long = [getattr(one, name) for one in found if one.k == periods.k]
        assert any(one > PAST_16_BITS and one % period == 0 for one in long)


@EACH
def test_extents_have_fewer_bits_where_there_is_no_time_for_16(config: KernelConfig, case: Problem) -> None:
    problem = asked(case)
    periods = family_named(config.family).periods(config, problem)
    most_products = 2.0**10 * periods.m * periods.n * periods.k
    found = long_problems(config, problem, most_products=most_products)
    for name in "mk" if problem.is_gram else "mnk":
        assert any(getattr(one, name) > 2 ** min(LONG_BITS) for one in found)


@EACH
def test_every_split_takes_more_turns_than_it_has_stages(config: KernelConfig, case: Problem) -> None:
    problem, family = asked(case), family_named(config.family)
    found, stages = deep_problems(config, problem, most_products=math.inf), int(config.tunables.get("stages", 2))
    deep, longer = found[0], found[stages:]
    per_split = family.periods(config, problem).k * family.launch(config, problem).splits
    turns = [one.k // per_split for one in found[:stages]]
    assert min(turns) > stages
    assert {one % stages for one in turns} == set(range(stages))
    assert deep not in deep_problems(config, problem, most_products=deep.m * deep.n * (deep.k - 1))
    periods = family.periods(config, problem)
    for one in longer:
        assert one.k % periods.k == 0
        assert one.k > 2 * max(one.m, one.n)
        assert periods.m // 2 <= one.m < periods.m or periods.n // 2 <= one.n < periods.n


@EACH
@pytest.mark.parametrize("bits", INDEX_BITS)
def test_a_kernel_is_called_within_its_width_of_index(bits: int, config: KernelConfig, case: Problem) -> None:
    """Past it a program calls the other kernel."""
    offsets = list[int]()
    for call in calls_for(asked(case), config, ON_GPU, bits):
        lines = call.problem.stored.items()
        offsets += [(contiguous + call.padding.get(name, 0)) * count for name, (contiguous, count) in lines]
    assert max(offsets) <= LARGEST_32_BIT_OFFSET if bits == 32 else max(offsets) > 2**32
    assert max(offsets) > LARGEST_32_BIT_OFFSET * 0.99


@EACH
def test_a_grid_whose_size_is_fixed_is_tried_with_more_tiles_than_blocks(config: KernelConfig, case: Problem) -> None:
    problem, launch = asked(case), family_named(config.family).launch(config, asked(case))
    found = many_tile_problems(config, problem, most_products=math.inf)
    assert len(found) == launch.persistent
    assert all(launch.tiles(one.m, one.n) > launch.splits for one in found)
    assert not many_tile_problems(config, problem, most_products=1)


@EACH
def test_long_lines_come_in_a_whole_tile(config: KernelConfig, case: Problem) -> None:
    problem = asked(case)
    (_, whole, *_), _ = long_line_problems(config, problem)
    calls = calls_for(problem, config, ON_GPU, 64)
    assert {PAST_16_BITS + 3, PAST_16_BITS + 8} <= {
        one.padding["A"] for one in calls if one.problem == whole and one.padding
    }


LARGEST_INTEGER = 2  # that operands are filled with


@pytest.mark.parametrize("k", [1, 2, 3, 20480, 10**8])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_large_values_come_near_to_overflow_and_never_reach_it(dtype: Dtype, k: int) -> None:
    exponent = Magnitude.LARGE.exponent(Problem(5, 3, k, dtype.name))
    largest_sum = LARGEST_INTEGER**2 * k * dtype.parts  # for any signs and any order
    size = math.log2(largest_sum) + exponent
    assert dtype.exponents[1] - 2 <= size < dtype.exponents[1]


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_both_factors_of_a_gram_matrix_are_large_or_small_together(dtype: str) -> None:
    problem = Problem(5, 5, 1000, dtype, "tx")
    size = math.log2(LARGEST_INTEGER**2 * problem.k) + 2 * Magnitude.LARGE.exponent(problem)
    assert problem.dtype.exponents[1] - 3 <= size < problem.dtype.exponents[1]
    assert problem.dtype.exponents[0] <= 2 * Magnitude.LEAST.exponent(problem) <= problem.dtype.exponents[0] + 1


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_the_least_values_are_the_least_above_0(dtype: Dtype) -> None:
    least = math.ldexp(1.0, Magnitude.LEAST.exponent(Problem(5, 3, 7, dtype.name)))
    smallest = {"f32": 2.0**-149, "f64": 5e-324, "f16": 2.0**-24, "bf16": 2.0**-133, "tf32": 2.0**-136}
    same = {"c64": "f32", "c128": "f64", "3xtf32": "tf32", "minplus_f32": "f32", "minplus_f64": "f64"}
    assert least == smallest[same.get(dtype.name, dtype.name)]


def test_sums_of_squares_stay_exact_as_long_as_they_fit() -> None:
    for k, expected in ((2**18, Exactness.ALL), (2**20, Exactness.OFF_DIAGONAL), (10**7, Exactness.OFF_DIAGONAL)):
        assert exactness(Problem(8, 8, k, "f32", "tx")) is expected
        assert exactness(Problem(8, 8, k, "f32", "tn")) is Exactness.ALL
    assert exactness(Problem(8, 8, 10**7, "f64", "tx")) is Exactness.ALL


@pytest.mark.parametrize("dtype", ["f32", "c64", "minplus_f32"])
def test_nan_factors_meet_zero_and_nonzero_partners(dtype: str) -> None:
    checks = every_check(Problem(5, 3, 7, dtype))
    nan = [[math.isnan(complex(factor).real) for factor in (one.alpha, one.beta)] for one in checks]
    assert [True, False] in nan
    assert [False, True] in nan
    overwriting = [one for one in checks if math.isnan(one.alpha.real) and one.beta == 0]
    assert overwriting


@pytest.mark.parametrize("dtype", DTYPES)
def test_padded_columns_begin_at_vectors_or_are_of_odd_length(dtype: str) -> None:
    problem = Problem(5, 3, 7, dtype)
    vector = VECTOR_BYTES // problem.dtype.element_bytes
    for name, rows, (given, period) in product("ABC", range(1, 20), ((VECTORS, vector), (ODD, 2))):
        operand, check = SimpleNamespace(name=name, rows=rows), replace(CHECKS[0], padding=given)
        added = padding(cast(Operand, operand), problem, check)
        assert (rows + added) % period == (given is ODD)
        assert added >= given[name]
