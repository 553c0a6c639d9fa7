"""Tests of the comparison of the times in two databases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.repeated import main
from tests.databases import database_of
from tests.fabricated import BASIS, GPU, configuration, final, trial, tuning_run
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome

SLIM, WIDE, THIRD = configuration(64), configuration(128), configuration(256)
OTHER = Problem(1000, 4, 2000, "f64")


def database(path: Path, times: dict[str, float], winner: float, uuid: str, device: str = GPU) -> Path:
    run = tuning_run(device, uuid=uuid)
    with Store.open(path, create=True) as store:
        for config in (SLIM, WIDE, THIRD):
            if config.text in times:
                store.add_trial(run, trial(times[config.text], config))
        store.add_trial(run, trial(5.0, SLIM, problem=OTHER))
        store.add_trial(run, trial(3.0, WIDE, problem=OTHER, outcome=Outcome.WRONG_RESULT, measurement=None))
        store.add_final(run, final((SLIM, winner)), (SLIM.family,), BASIS)
    return path


def said(*arguments: object, status: int = 0) -> str:
    ended = CliRunner().invoke(main, [str(one) for one in arguments])
    assert ended.exit_code == status, ended.exception
    return ended.output


@pytest.fixture
def databases(tmp_path: Path) -> tuple[Path, Path]:
    first = database(tmp_path / "a.db", {SLIM.text: 100.0, WIDE.text: 200.0}, 99.0, "GPU-1")
    return first, database(tmp_path / "b.db", {SLIM.text: 103.0, THIRD.text: 120.0}, 100.5, "GPU-2")


def test_pairs_are_those_that_both_have(databases: tuple[Path, Path], tmp_path: Path) -> None:
    lines = said(*databases, "--output", tmp_path / "found.json").splitlines()
    assert lines[0] == f"{GPU}, two cards: 1 of 1 winners are the same."
    assert lines[4:] == [
        "| trials, under 10 us | 1 | 1.000 | 1.000 | 1.000 | 100.0 % | 100.0 % | 100.0 % |",
        "| trials, 10 to 100 us | 0 |  |  |  |  |  |  |",
        "| trials, 100 us and more | 1 | 1.030 | 1.030 | 1.030 | 0.0 % | 0.0 % | 100.0 % |",
        "| all trials | 2 | 1.002 | 1.015 | 1.028 | 50.0 % | 50.0 % | 100.0 % |",
        "| winners | 1 | 1.015 | 1.015 | 1.015 | 0.0 % | 100.0 % | 100.0 % |",
    ]
    assert said("--table", tmp_path / "found.json").splitlines() == lines


def test_a_shorter_time_counts_as_a_longer_one(databases: tuple[Path, Path]) -> None:
    assert "| winners | 1 | 0.985 | 0.985 | 0.985 | 0.0 % | 100.0 % | 100.0 % |" in said(*reversed(databases))


def test_what_cannot_be_compared_gets_a_sentence(databases: tuple[Path, Path], tmp_path: Path) -> None:
    other = database(tmp_path / "c.db", {SLIM.text: 100.0}, 99.0, "GPU-3", device="another GPU")
    assert "no trial in common" in said(databases[0], other, status=2)
    assert "expected two databases" in said(databases[0], status=2)
    assert "exists" in said(*databases, "--output", databases[0], status=2)
    for content in ("[]", '{"rows": [{"us": [1, "x"]}], "winners": []}', "{"):
        (tmp_path / "found.json").write_text(content)
        assert "no file of" in said("--table", tmp_path / "found.json", status=2)


def test_states_of_the_cache_are_not_mixed(databases: tuple[Path, Path], tmp_path: Path) -> None:
    database_of(tmp_path / "d.db", trial(100.0, SLIM, cache=Cache.DIRTY))
    assert "no trial in common" in said(databases[0], tmp_path / "d.db", status=2)


def test_what_two_cards_measured_is_a_file_of_it() -> None:
    path = Path(__file__).parents[1] / "benchmarks/results/h200-two-cards.json"
    found = json.loads(path.read_text())
    assert not found["one_card"]
    trust = (path.parents[2] / "docs/trust.md").read_text()
    assert said("--table", path).split("\n\n")[1].strip() in trust
