"""Each test is of one layer, a bare pytest runs the first of them, and three seeds have all planted bugs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import layers
from tests.planting import TRIAL, Bug
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem

ROOT = Path(__file__).parents[1]
ARGS = pytest.Config.ArgsSource.ARGS
TESTPATHS = pytest.Config.ArgsSource.TESTPATHS
BUG = Bug("none", Tsm2Config("v0", 32, 1, 1), Problem(8, 8, 8, "f32"), "", "", TRIAL)


def item_of(*marks: str, path: str = "tests/test_problem.py", fixtures: Any = (), **params: Any) -> Any:
    """Return a fake of a collected test."""
    added: list[str] = []
    return SimpleNamespace(
        nodeid=f"{path}::test_something",
        iter_markers=lambda: [SimpleNamespace(name=mark) for mark in marks],
        get_closest_marker=lambda name: name if name in added else None,
        add_marker=added.append,
        fixturenames=fixtures,
        callspec=SimpleNamespace(params=params),
    )


def config_of(source: Any = ARGS, seed: int | None = None, **more: Any) -> Any:
    option = {"markexpr": "", "keyword": "", "third_of_planted": seed} | more
    return SimpleNamespace(
        args_source=source,
        option=SimpleNamespace(**option),
        addinivalue_line=lambda *_: None,
        hook=SimpleNamespace(pytest_deselected=lambda items: None),
    )


@pytest.mark.parametrize(
    ("test", "layer"),
    [
        (item_of(), "unit"),
        (item_of(path=min(layers.SLOW)), "slow"),
        (item_of("slow"), "slow"),
        (item_of("host"), "host"),
        (item_of(fixtures=["worker", "toolchain"]), "host"),
        (item_of("host", path=min(layers.SLOW)), "slow"),
        (item_of("host", bug=BUG), "planted"),
        (item_of("gpu", bug=BUG), "gpu"),
    ],
    ids=["plain", "slow", "marked slow", "marked", "compiling", "slow on the host", "planted", "gpu"],
)
def test_a_test_is_of_the_first_layer_that_fits(test: Any, layer: str) -> None:
    assert layers.layer_of(test) == layer


@pytest.mark.parametrize(
    ("asked", "spreads"),
    [
        ({}, True),
        ({"source": ARGS}, False),
        ({"markexpr": "slow"}, False),
        ({"keyword": "layers"}, False),
        ({"usepdb": True}, False),
        ({"capture": "no"}, False),
        ({"collectonly": True}, False),
        ({"numprocesses": 0}, False),
    ],
    ids=str,
)
def test_a_bare_pytest_has_several_processes(asked: dict[str, Any], spreads: bool) -> None:
    nothing: dict[str, Any] = dict.fromkeys(("usepdb", "collectonly"), False)
    nothing |= {"capture": "fd", "numprocesses": None, "dist": "no"}
    config = config_of(**({"source": TESTPATHS} | nothing | asked))
    before = dict(vars(config.option))
    layers.spread(config)
    if spreads:
        assert (1 <= config.option.numprocesses <= 4, config.option.dist) == (True, "worksteal")
    else:
        assert vars(config.option) == before
    worker = config_of(TESTPATHS, **nothing)
    worker.workerinput = {}
    layers.spread(worker)
    assert worker.option.numprocesses is None, "a process of pytest-xdist starts none of its own"


def test_without_xdist_one_process_runs_them() -> None:
    config = config_of(TESTPATHS, usepdb=False, capture="fd", collectonly=False)
    layers.spread(config)
    assert not hasattr(config.option, "numprocesses")


def test_files_of_other_layers_are_not_read_where_unit_tests_alone_run() -> None:
    slow, unit = ROOT / min(layers.SLOW), ROOT / "tests/test_problem.py"
    assert layers.is_of_other_layers(slow, config_of(markexpr="unit"))
    assert layers.is_of_other_layers(ROOT / "tests/test_gpu.py", config_of(markexpr="unit"))
    assert not layers.is_of_other_layers(unit, config_of(markexpr="unit"))
    for expression in ("", "slow", "host", "unit or slow"):
        assert not layers.is_of_other_layers(slow, config_of(markexpr=expression))


def test_files_without_unit_tests_are_there() -> None:
    assert [path for path in sorted(layers.WITHOUT_UNIT) if not (ROOT / path).exists()] == []


def test_a_unit_test_in_a_file_without_any_is_refused() -> None:
    path = min(layers.WITHOUT_UNIT - layers.SLOW)
    layers.put_in_layers(config_of(), [item_of("host", path=path)])
    with pytest.raises(pytest.UsageError, match=f"{path}::test_something is a unit test"):
        layers.put_in_layers(config_of(), [item_of(path=path)])


@pytest.mark.parametrize(
    ("config", "expression"),
    [
        (config_of(TESTPATHS), "unit"),
        (config_of(ARGS), ""),
        (config_of(TESTPATHS, markexpr="host"), "host"),
        (config_of(TESTPATHS, keyword="barrier"), ""),
    ],
    ids=["nothing", "path", "marks", "keyword"],
)
def test_unit_tests_run_where_nothing_is_asked_for(config: Any, expression: str) -> None:
    layers.choose(config)
    assert config.option.markexpr == expression
    node = SimpleNamespace(workerinput={}, config=config)  # a process of pytest-xdist
    layers.tell_worker(node)
    worker = config_of(ARGS)
    worker.workerinput = node.workerinput
    layers.choose(worker)
    assert worker.option.markexpr == expression


def test_three_seeds_have_all_planted_bugs_and_each_has_its_own() -> None:
    planted = [item_of(path=f"tests/test_{number}.py", bug=BUG) for number in range(300)]
    others = [item_of(), item_of("host")]
    thirds = []
    for seed in (0, 1, 2, 3):
        items = [*planted, *others]
        layers.put_in_layers(config_of(seed=seed), items)
        assert items[-2:] == others
        thirds.append({item.nodeid for item in items[:-2]})
        assert 70 < len(thirds[-1]) < 130
        assert f"by --third-of-planted={seed}" in layers.header(config_of(seed=seed))[1]
    assert thirds[3] == thirds[0]
    assert sum(map(len, thirds[:3])) == len(set.union(*thirds[:3])) == 300
    items = [*planted]
    layers.put_in_layers(config_of(), items)
    assert items == planted
