"""Each test is of one layer, and three seeds have all planted bugs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import layers
from tests.planting import TRIAL, Bug
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem

BUG = Bug("none", Tsm2Config("v0", 32, 1, 1), Problem(8, 8, 8, "f32"), "", "", TRIAL)


def item_of(*marks: str, path: str = "tests/test_problem.py", fixtures: Any = (), **params: Any) -> Any:
    """Return a fake of a collected test."""
    added: list[str] = []
    return SimpleNamespace(
        nodeid=f"{path}::test_something", fixturenames=fixtures, callspec=SimpleNamespace(params=params),
        iter_markers=lambda: [SimpleNamespace(name=mark) for mark in marks], add_marker=added.append,
        get_closest_marker=lambda name: name if name in added else None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("test", "layer"),
    [
        (item_of(), "unit"),
        (item_of(path=min(layers.SLOW)), "slow"),
        (item_of("slow"), "slow"),
        (item_of("host"), "host"),
        (item_of(fixtures=["worker", "toolchain"]), "host"),
        (item_of("host", bug=BUG), "planted"),
        (item_of("gpu", bug=BUG), "gpu"),
    ],
)
def test_a_test_is_of_the_first_layer_that_fits(test: Any, layer: str) -> None:
    assert layers.layer_of(test) == layer


def test_three_seeds_have_all_planted_bugs_and_each_has_its_own() -> None:
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    thirds = []
    for seed in range(3):
        items = [*(item_of(path=f"tests/test_{number}.py", bug=BUG) for number in range(300)), item_of()]
        layers.put_in_layers(SimpleNamespace(option=SimpleNamespace(third_of_planted=seed), hook=hook), items)  # type: ignore[arg-type]
        thirds.append({item.nodeid for item in items[:-1]})
        assert 70 < len(thirds[-1]) < 130
    assert sum(map(len, thirds)) == len(set.union(*thirds)) == 300
