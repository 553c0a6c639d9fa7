"""What verification asks of a kernel, without one."""

from __future__ import annotations

import math

import pytest

from tsm2_tune.generator.problem import DTYPES, Dtype, Problem
from tsm2_tune.tuner.verify import Magnitude

LARGEST_INTEGER = 2  # that operands are filled with


@pytest.mark.parametrize("k", [1, 2, 3, 20480, 10**8])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_large_values_come_near_to_overflow_and_never_reach_it(dtype: Dtype, k: int) -> None:
    exponent = Magnitude.LARGE.exponent(Problem(5, 3, k, dtype.name))
    largest_sum = LARGEST_INTEGER**2 * k * dtype.parts  # whatever the signs and the order
    size = math.log2(largest_sum) + exponent
    assert dtype.exponents[1] - 2 <= size < dtype.exponents[1]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_the_least_values_are_the_least_above_0(dtype: Dtype) -> None:
    least = math.ldexp(1.0, Magnitude.LEAST.exponent(Problem(5, 3, 7, dtype.name)))
    smallest = {"f32": 2.0**-149, "f64": 5e-324, "f16": 2.0**-24, "bf16": 2.0**-133, "tf32": 2.0**-136}
    assert least == smallest[{"c64": "f32", "c128": "f64", "3xtf32": "tf32"}.get(dtype.name, dtype.name)]
