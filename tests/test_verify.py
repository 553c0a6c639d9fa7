"""Tests of the calls that verification makes, without a kernel."""

from __future__ import annotations

import math

import pytest

from tsm2_tune.generator.problem import DTYPES, Dtype, Problem
from tsm2_tune.tuner.verify.checks import Magnitude, every_check
from tsm2_tune.tuner.verify.error_bounds import Exactness, exactness

LARGEST_INTEGER = 2  # that operands are filled with


@pytest.mark.parametrize("k", [1, 2, 3, 20480, 10**8])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_large_values_come_near_to_overflow_and_never_reach_it(dtype: Dtype, k: int) -> None:
    exponent = Magnitude.LARGE.exponent(Problem(5, 3, k, dtype.name))
    largest_sum = LARGEST_INTEGER**2 * k * dtype.parts  # for any signs and any order
    size = math.log2(largest_sum) + exponent
    assert dtype.exponents[1] - 2 <= size < dtype.exponents[1]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_the_least_values_are_the_least_above_0(dtype: Dtype) -> None:
    least = math.ldexp(1.0, Magnitude.LEAST.exponent(Problem(5, 3, 7, dtype.name)))
    smallest = {"f32": 2.0**-149, "f64": 5e-324, "f16": 2.0**-24, "bf16": 2.0**-133, "tf32": 2.0**-136}
    same = {"c64": "f32", "c128": "f64", "3xtf32": "tf32", "minplus_f32": "f32", "minplus_f64": "f64"}
    assert least == smallest[same.get(dtype.name, dtype.name)]


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_both_factors_of_a_gram_matrix_are_large_or_small_together(dtype: str) -> None:
    problem = Problem(5, 5, 1000, dtype, "tx")
    size = math.log2(LARGEST_INTEGER**2 * problem.k) + 2 * Magnitude.LARGE.exponent(problem)
    assert problem.dtype.exponents[1] - 3 <= size < problem.dtype.exponents[1]
    assert problem.dtype.exponents[0] <= 2 * Magnitude.LEAST.exponent(problem) <= problem.dtype.exponents[0] + 1


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
