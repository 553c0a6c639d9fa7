"""Tests of the stored results that `best`, `show` and `export` select, and of the problems that they print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import completed, refused, run
from tests.databases import database_of
from tests.fabricated import GPU, configuration, plain_sql, trial, tuning_run
from tsm2_tune.api.selection import selected
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome

pytestmark = pytest.mark.slow

R = "20480x16x20480"
PROBLEMS = Problem.parse(f"{R}:f32"), Problem.parse(f"{R}:f64"), Problem(10**7, 8, 8, "f32")


@pytest.fixture
def database(path: Path) -> str:
    """A database with a winner of each problem, one of them on another device."""
    with Store.open(path, create=True) as store:
        for number, problem in enumerate(PROBLEMS):
            run_of = tuning_run("other") if number == 2 else tuning_run()
            store.add_trial(run_of, trial(500.0 + number, configuration(128), problem=problem))
    return str(path)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((), PROBLEMS),
        (("--shapes", "20480x16x20480"), PROBLEMS[:2]),
        (("--shapes", "20480x16x20480,1e7x8x8", "--dtype", "f32"), (PROBLEMS[0], PROBLEMS[2])),
        (("--shapes", PROBLEMS[1].text), PROBLEMS[1:2]),
        (("--shapes", f"{PROBLEMS[1].text},1e7x8x8"), PROBLEMS[1:]),
        (("--dtype", "f64"), PROBLEMS[1:2]),
        (("--op", "nn"), PROBLEMS),
        (("--device", "other"), PROBLEMS[2:]),
        (("--device", GPU, "--dtype", "f32"), PROBLEMS[:1]),
        (("--device", GPU.split()[-1].lower()), PROBLEMS[:2]),
    ],
)
def test_only_what_was_asked_for_is_shown(given: tuple[str, ...], found: tuple[Problem, ...], database: str) -> None:
    expected = sorted(problem.text for problem in found)
    best = json.loads(run("best", "--db", database, "--json", *given).output)["best"]
    assert sorted(Problem(*(row[name] for name in ("m", "n", "k", "dtype", "op"))).text for row in best) == expected
    shown = json.loads(run("show", "--db", database, "--json", *given).output)
    assert sorted(line["problem"] for line in shown) == expected
    exported = completed("export", "--db", database, "--format", "json", "--output", "-", *given)
    assert len(json.loads(exported.output)["best"]) == len(expected)


def test_of_many_only_some_are_named(path: Path) -> None:
    database_of(path, *(trial(500.0, configuration(128), problem=Problem(m, 8, 8, "f32")) for m in range(10, 20)))
    named = ", ".join(f"{m}x8x8" for m in range(10, 18))
    assert f"--shapes {named} and 2 more\n" in run("best", "--db", str(path), "--shapes", "8x8x8").output


EVERY = "f32:ttt f32:ntt f32:nxt f32:nn f32:tn f32:tx c64:jtt c64:jxt c64:nn c64:tx c64:cx tf32:nn"


@pytest.mark.parametrize(
    ("dtype", "op", "layout", "found"),
    [
        (None, None, None, EVERY),
        (None, None, "row", "f32:ttt f32:ntt f32:nxt c64:jtt c64:jxt"),
        (None, None, "column", "f32:nn f32:tn f32:tx c64:nn c64:tx c64:cx tf32:nn"),
        (None, "nn,tn", "row", "f32:ttt f32:ntt"),
        (None, "gram", "row", "f32:nxt c64:jxt"),
        (None, "gram", None, "f32:tx c64:tx c64:cx"),
        ("f32", None, None, "f32:ttt f32:ntt f32:nxt f32:nn f32:tn f32:tx tf32:nn"),
        ("tf32", None, None, "tf32:nn"),
        ("Complex64", None, None, "c64:jtt c64:jxt c64:nn c64:tx c64:cx"),
    ],
)
def test_types_ops_and_layouts_are_selected_as_they_are_tuned(
    dtype: str | None, op: str | None, layout: str | None, found: str
) -> None:
    which = selected(None, None, dtype, op, layout=layout)
    assert [one for one in EVERY.split() if Problem.parse(f"8x8x8:{one}") in which] == found.split()


def test_a_database_without_a_winner_says_so(path: Path) -> None:
    result = run("best", "--db", database_of(path, trial(outcome=Outcome.CRASHED)))
    assert (result.exit_code, f"{path} has no winner yet: tune first" in result.stderr) == (1, True)
    assert json.loads(run("best", "--json", "--db", str(path)).stdout)["best"] == []


def test_an_unknown_outcome_is_refused(path: Path) -> None:
    database_of(path, trial(outcome=Outcome.CRASHED))
    plain_sql(path, "UPDATE trial SET outcome = 'skipped'")  # as a newer version might store it
    for command in ("best", "export --format csv -o -", "predict --shapes 8x8x8"):
        assert "another version may have stored it" in refused(*command.split(), path=path)


def test_a_device_that_may_be_several_is_asked_for_by_more(database: str, path: Path) -> None:
    with Store.open(path, create=True) as store:
        for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200"):
            store.add_trial(tuning_run(name), trial())
    assert run("best", "--db", str(path), "--device", "h100").exit_code == 0
    several = f"the device 'nvidia' may be 'NVIDIA H100 80GB HBM3' or 'NVIDIA H200' in {path}: use a longer name"
    assert refused("best", "--device", "nvidia", path=path) == f"Error: {several}\n"
