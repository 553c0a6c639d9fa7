"""The transposed product, and where a run names it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.profiles import PROFILES
from tsm2_tune.generator.transposed import transposed
from tsm2_tune.tuner.job import spaces
from tsm2_tune.tuner.target import Target


@pytest.mark.parametrize(
    ("op", "other"), [("nn", "ttt"), ("ttt", "nn"), ("tn", "tnt"), ("ntt", "nt"), ("cn", "tjt"), ("jtt", "nc")]
)
def test_the_transposed_product_is_in_the_same_memory(op: str, other: str) -> None:
    problem = Problem(3, 5, 7, "c64", op)
    assert transposed(problem) == Problem(5, 3, 7, "c64", other)
    assert transposed(transposed(problem)) == problem


@pytest.mark.parametrize(
    ("guidelines", "instead"),
    [
        ({}, "tune the transposed product 1000x10x100:f32, whose kernels serve it too, "),
        ({"min_reuse": 1e9, "min_threads_per_sm": 1e9}, ""),  # none of that one is left either
    ],
)
def test_what_has_no_configuration_names_the_product_that_serves_it(
    guidelines: dict[str, float], instead: str
) -> None:
    target = cast(Target, SimpleNamespace(limits=PROFILES["h100"]))
    with pytest.raises(InputError) as refused:
        spaces([Problem(10, 1000, 100, "f32", "ttt")], target, guidelines=guidelines, families=())
    assert f"; {instead}loosen --guidelines or name other families" in str(refused.value)
