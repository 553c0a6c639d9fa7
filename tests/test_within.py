"""The fewest kernels that serve all shapes, beside every choice that there is; and what each further one buys."""

from __future__ import annotations

import itertools
import random
from itertools import islice

import pytest

from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.export.kernel_sets import set_cover
from tsm2_tune.tuner.export.kernel_sets.set_cover import Costs, bought, fewest
from tsm2_tune.tuner.export.scale_launch import launches

SHAPES = [Problem(1000 * number, 8, 1000, "f32") for number in range(1, 9)]


def drawn(seed: int, kernels: int, share: float) -> dict[str, dict[Problem, float]]:
    """Costs of kernels that serve this share of the shapes; k0 serves what no other one does."""
    numbers = random.Random(seed)
    costs = {
        f"k{number}": {shape: numbers.randrange(20) / 100 for shape in SHAPES if numbers.random() < share}
        for number in range(kernels)
    }
    for shape in SHAPES:
        if not any(shape in of for of in costs.values()):
            costs["k0"][shape] = 0.01
    return costs


def cost_of(names: tuple[str, ...], costs: Costs) -> float | None:
    """Return the total time of the choice, or None if no kernel of it computes one of the shapes."""
    least = [min((costs[name][shape] for name in names if shape in costs[name]), default=None) for shape in SHAPES]
    return None if None in least else sum(one for one in least if one is not None)


def by_trying_all(costs: Costs) -> tuple[int, float]:
    """The least number of kernels, and what the cheapest choice of so many costs."""
    for number in range(1, len(costs) + 1):
        found = [cost_of(names, costs) for names in itertools.combinations(costs, number)]
        if any(one is not None for one in found):
            return number, min(one for one in found if one is not None)
    pytest.fail("a shape is served by none")


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.15, 0.3, 0.5])
@pytest.mark.parametrize("seed", range(25))
def test_no_fewer_kernels_serve_all_and_no_cheaper_ones_as_few(seed: int, share: float) -> None:
    costs = drawn(seed, kernels=12, share=share)
    choice = fewest(costs, SHAPES)
    assert choice is not None
    assert choice.is_proven
    cost = cost_of(choice.kernels, costs)
    assert (len(choice.kernels), cost) == pytest.approx(by_trying_all(costs))
    assert choice == fewest(dict(random.Random(1).sample(list(costs.items()), len(costs))), SHAPES)


def test_the_search_ends_and_says_that_nothing_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = drawn(7, kernels=12, share=0.2)
    monkeypatch.setattr(set_cover, "MOST_STEPS", 1)
    choice = fewest(costs, SHAPES)
    assert choice is not None
    assert not choice.is_proven
    assert cost_of(choice.kernels, costs) is not None


def test_a_shape_has_the_kernel_that_is_fastest_there_if_any() -> None:
    a, b, c = SHAPES[:3]
    costs = {"a": {a: 0.0, b: 0.02}, "b": {b: 0.01, c: 0.0}}
    choice = fewest(costs, [a, b, c])
    assert choice is not None
    assert [choice.serving(costs, shape) for shape in (a, b, c)] == ["a", "b", "b"]
    assert fewest({"k": {a: 0.0}}, [a, b]) is None
    assert fewest({}, [a]) is None


def complete(seed: int, kernels: int = 10) -> dict[str, dict[Problem, float]]:
    """Losses of kernels at every shape, the best one's 0."""
    numbers = random.Random(seed)
    losses = {f"k{number}": {shape: numbers.random() for shape in SHAPES} for number in range(kernels)}
    for shape in SHAPES:
        least = min(of[shape] for of in losses.values())
        for of in losses.values():
            of[shape] -= least
    return losses


@pytest.mark.parametrize("seed", range(10))
def test_each_further_kernel_buys_something(seed: int) -> None:
    losses = complete(seed)
    choice = fewest({name: {s: x for s, x in of.items() if x <= 0.2} for name, of in losses.items()}, SHAPES)
    assert choice is not None
    rows = bought(losses, SHAPES, choice.kernels)
    assert [len(row.kernels) for row in rows][: len(choice.kernels)] == list(range(1, len(choice.kernels) + 1))
    assert [row.kernels for row in rows if row.is_chosen] == [choice.kernels]
    assert all(row.served == len(SHAPES) for row in rows)
    assert all(after.worst <= before.worst for before, after in itertools.pairwise(rows))
    assert all(row.worst > 0.2 for row in rows if len(row.kernels) < len(choice.kernels))
    assert (rows[-1].worst, rows[-1].mean) == (0, 0)
    of_all = [max(of.values()) for of in losses.values()]
    assert rows[0].worst == min(of_all)


def test_what_serves_fewer_shapes_comes_after_what_serves_more() -> None:
    a, b, c = SHAPES[:3]
    losses = {"k": {a: 0.0, b: 3.0}, "l": {c: 0.0}, "m": {b: 0.0}}
    (first, *_) = bought(losses, [a, b, c], ("k", "l", "m"))
    assert (first.kernels, first.served, first.worst) == (("k",), 2, 3.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.config_type.launch_tunables()])
def test_a_kernel_of_every_family_may_be_started_in_several_ways(name: str) -> None:
    every = islice(FAMILIES[name].configurations(), 0, 3000, 100)
    config = next(one for one in every if one.has_splits or "splits" not in one.launch_tunables())
    found = list(launches(config))
    assert config in found
    assert len(found) > 3
    assert {one.kernel_text for one in found} == {config.kernel_text}
