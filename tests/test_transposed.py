"""The transposed product, and where a run names it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tests.standing_in import Spied
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.space import OWN
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.search import spaces as planned
from tsm2_tune.tuner.search.spaces import spaces

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("op", "other"), [("nn", "ttt"), ("ttt", "nn"), ("tn", "tnt"), ("ntt", "nt"), ("cn", "tjt"), ("jtt", "nc")]
)
def test_the_transposed_product_is_in_the_same_memory(op: str, other: str) -> None:
    problem = Problem(3, 5, 7, "c64", op)
    assert problem.transposed == Problem(5, 3, 7, "c64", other)
    assert problem.transposed.transposed == problem


TARGET = cast(Target, SimpleNamespace(limits=PROFILES["h200"]))
WIDE, SQUARE = Problem(10, 1000, 100, "f32", "ttt"), Problem(20480, 16, 20480, "f32")
INSTEAD = "; tune the transposed product, whose kernels serve it too: --shapes 1000x10x100 --dtype f32 --op nn"
STRICT = {"min_reuse": 1e9, "min_threads_per_sm": 10**9}  # no configuration passes, transposed or not


@pytest.mark.parametrize(
    ("problem", "guidelines", "families", "remedies"),
    [
        (WIDE, {}, (), INSTEAD),
        (WIDE, {}, ("tsm2", "resident_b_fma"), f"no family computes it{INSTEAD} or name other families"),
        (WIDE, STRICT, (), "; choose another shape"),
        (SQUARE, STRICT, (), "; loosen --guidelines"),
        (SQUARE, STRICT, ("tsm2",), "; loosen --guidelines or name other families"),
    ],
)
def test_what_has_no_configuration_names_what_can_be_tuned(
    problem: Problem, guidelines: dict[str, float], families: tuple[str, ...], remedies: str
) -> None:
    with pytest.raises(InputError) as refused:
        spaces([problem], TARGET, guidelines=guidelines, families=families)
    assert str(refused.value).endswith(remedies)


PROBLEMS = [Problem(4096, 16, 4096, "f32"), Problem(8, 8, 10**6, "f64", "tn"), Problem(10**6, 8, 8, "f32")]


def test_each_space_is_enumerated_at_its_turn(spied: Spied) -> None:
    enumerated = spied(planned, "search_space")
    every = spaces(PROBLEMS, TARGET, guidelines=OWN, families=("tsm2", "inner_fma_ring", "resident_b_fma"))
    assert (len(every), every.problems, enumerated) == (3, tuple(PROBLEMS), [])
    for number, space in enumerate(every, 1):
        assert space.problem == PROBLEMS[number - 1]
        assert [problem for problem, *_ in enumerated] == PROBLEMS[:number]


def test_a_problem_that_has_nothing_is_refused_before_anything_is_tried() -> None:
    with pytest.raises(InputError, match=r"^no configuration left for 8x8x1000000:f64:tn .*: no family"):
        spaces(PROBLEMS, TARGET, guidelines=OWN, families=("tsm2",))
    with pytest.raises(InputError, match=r"^no configuration left for 4096x16x4096:f32 .* by min-threads"):
        spaces(PROBLEMS, TARGET, guidelines={"min_threads_per_sm": 10**6}, families=("tsm2",))
