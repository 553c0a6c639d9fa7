"""When a run enumerates the spaces of its problems: each at its turn, but it knows at once where one has nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.space import OWN, search_space
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.search import spaces as planned

H200 = PROFILES["h200"]
TARGET = cast(Target, SimpleNamespace(limits=H200))
PROBLEMS = [Problem(4096, 16, 4096, "f32"), Problem(8, 8, 10**6, "f64", "tn"), Problem(10**6, 8, 8, "f32")]


@pytest.mark.slow
def test_each_space_is_enumerated_at_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    enumerated: list[Problem] = []

    def search(problem: Problem, *args: Any, **named: Any) -> Any:
        enumerated.append(problem)
        return search_space(problem, *args, **named)

    monkeypatch.setattr(planned, "search_space", search)
    spaces = planned.spaces(PROBLEMS, TARGET, guidelines=OWN, families=("tsm2", "inner_fma_ring", "resident_b_fma"))
    assert (len(spaces), spaces.problems, enumerated) == (3, tuple(PROBLEMS), [])
    for number, space in enumerate(spaces, 1):
        assert space.problem == PROBLEMS[number - 1]
        assert enumerated == PROBLEMS[:number]
    assert [space.problem for space in spaces[1:]] == PROBLEMS[1:]


def test_a_problem_that_has_nothing_is_refused_before_anything_is_tried() -> None:
    with pytest.raises(InputError, match=r"^no configuration left for 8x8x1000000:f64:tn .*: no family"):
        planned.spaces(PROBLEMS, TARGET, guidelines=OWN, families=("tsm2",))
    with pytest.raises(InputError, match=r"^no configuration left for 4096x16x4096:f32 .* by min-threads"):
        planned.spaces(PROBLEMS, TARGET, guidelines={"min_threads_per_sm": 10**6}, families=("tsm2",))
