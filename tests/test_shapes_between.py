"""Shapes between tuned ones, and the kernels that planning names for them."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest

from tests.times_between import shape
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.intermediate_shapes import (
    KERNELS_OF_A_SHAPE,
    LEAST_DISTANCE,
    kernels_between,
    shapes_between,
)
from tsm2_tune.generator.space.order import MOST_PREDICTED
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us

H200 = PROFILES["h200"]


ENDS = shape(1000, 1, 1000), shape(1000, 64, 1000)


@pytest.mark.parametrize(
    ("tuned", "between"),
    [
        ([shape(4096, 4, 1024), shape(1024, 16, 4096)], [shape(2048, 8, 2048)]),
        (ENDS, [shape(1000, 8, 1000)]),
        ([*ENDS, shape(1000, 8, 1000)], [shape(1000, 3, 1000), shape(1000, 23, 1000)]),
        # nearer to the mean of the ends than these are, and not so near that it is the mean
        ([*ENDS, shape(2000, 8, 1000)], [shape(1414, 3, 1000), shape(1414, 23, 1000)]),
        ([shape(4, 4, 1000, op="tx"), shape(64, 64, 1000, op="tx")], [shape(16, 16, 1000, op="tx")]),
        ([shape(20480, n, 20480) for n in (1, 2, 4, 8)], [shape(20480, n, 20480) for n in (3, 6)]),  # of 1 and 2: 1
        ([shape(1000, 8, 1000), shape(int(1000 * exp(2 * LEAST_DISTANCE) * 0.98), 8, 1000)], []),
        ([shape(1000, 8, 1000)], []),
    ],
)
def test_between_two_shapes_there_is_their_mean(tuned: list[Problem], between: list[Problem]) -> None:
    assert sorted(shapes_between(tuned)) == sorted(between)


def test_what_rounds_to_a_tuned_shape_is_not_between() -> None:
    tiny = shapes_between([shape(1, 1, 1), shape(1, 2, 1), shape(2, 1, 1)])
    assert len(tiny) == len({*tiny})
    assert set(tiny).isdisjoint([shape(1, 1, 1), shape(1, 2, 1), shape(2, 1, 1)])


def test_the_farthest_come_first_and_there_are_no_more_than_tuned_ones() -> None:
    tuned = [shape(m, n, 1000) for m in (1000, 4000, 1_000_000) for n in (1, 8, 64)]
    found = shapes_between(tuned)
    assert len(found) == len(tuned)
    assert len({*found}) == len(found)
    assert found[0].m == 63_246  # between 4,000 and 1,000,000
    assert set(found).isdisjoint(tuned)
    more = shapes_between(tuned, 96)
    assert more[: len(found)] == found
    assert len(found) < len(more) < 96
    assert shapes_between(tuned, 2) == found[:2]


@pytest.mark.parametrize("op", ["nn", "ttt", "tn"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_planning_names_kernels_of_searches_for_each_shape(dtype: str, op: str) -> None:
    tuned = [shape(3, 5, 10**6, dtype, op), shape(40, 3, 10**5, dtype, op), shape(64, 64, 10**6, dtype, op)]
    found = kernels_between(tuned, H200, candidate_times_us)
    of_shape = {one: sum(one in at for at in found.values()) for one in shapes_between(tuned)}
    assert of_shape
    assert set(of_shape.values()) <= {*range(1, KERNELS_OF_A_SHAPE + 1)}
    for text, at in found.items():
        for problem, config in at.items():
            family = family_named(config.family)
            assert config.kernel_text == text
            assert family.supports(problem)
            assert not family.only_by_name


def test_what_is_expected_far_behind_the_first_choice_is_no_kernel() -> None:
    tuned = [shape(3, 5, 10**6, op="tn"), shape(40, 3, 10**5, op="tn"), shape(64, 64, 10**6, op="tn")]
    first = kernels_between(tuned, H200, candidate_times_us)
    found = kernels_between(tuned, H200, lambda every: np.float64(1.01 * MOST_PREDICTED) ** np.arange(len(every)))
    assert sum(len(at) for at in found.values()) == len(shapes_between(tuned))
    assert len(first) > len(found)
