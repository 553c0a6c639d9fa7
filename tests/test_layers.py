"""Each test is of one layer, and the parts together have every slow test once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import layers
from tests.planting import TRIAL, Bug
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem

BUG = Bug("none", Tsm2Config("v0", 32, 1, 1), Problem(8, 8, 8, "f32"), "", "", TRIAL)


def item_of(*marks: str, number: int = 0, fixtures: Any = (), **params: Any) -> Any:
    """Return a fake of a collected test."""
    added: list[str] = []
    return SimpleNamespace(
        nodeid=f"tests/test_problem.py::{number}", fixturenames=fixtures, callspec=SimpleNamespace(params=params),
        iter_markers=lambda: [SimpleNamespace(name=mark) for mark in marks], add_marker=added.append,
        get_closest_marker=lambda name: name if name in added else None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("test", "layer"),
    [
        (item_of(), "unit"),
        (item_of("slow"), "slow"),
        (item_of(fixtures=["worker", "toolchain"]), "slow"),
        (item_of(bug=BUG), "slow"),
        (item_of("gpu", "slow", bug=BUG), "gpu"),
    ],
)
def test_a_test_is_of_one_layer(test: Any, layer: str) -> None:
    assert layers.layer_of(test) == layer


def test_the_parts_have_every_slow_test_once_and_all_other_tests() -> None:
    parts, others = [], [item_of(), item_of("gpu")]
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    for number in range(4):
        items = [*(item_of("slow", number=number) for number in range(400)), *others]
        option = SimpleNamespace(part=layers.part(f"{number + 8}/4"), markexpr="")
        config: Any = SimpleNamespace(option=option, hook=hook)
        layers.pytest_collection_modifyitems(config, items)
        assert items[-2:] == others
        assert layers.pytest_report_header(config)[1] == f"slow tests: part {number} of 0 to 3"
        parts.append({item.nodeid for item in items[:-2]})
        assert 70 < len(parts[-1]) < 130
    assert sum(map(len, parts)) == len(set.union(*parts)) == 400


@pytest.mark.parametrize("text", ["", "3", "3/0", "-1/8", "a/8"])
def test_a_part_is_a_number_and_a_count(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}$"):
        layers.part(text)
