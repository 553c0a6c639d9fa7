"""Searches replayed on recorded spaces."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.recorded_spaces import FILE, limits_of, rows_in, rows_of, space_of
from benchmarks.redraw import REGRET
from benchmarks.regret import Ended, Row, drawn, fastest, gains, main, replayed, strategies, table
from tests.databases import database_of
from tests.fabricated import GPU, host_run, trial, tuning_run
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.search.candidates import Why
from tsm2_tune.tuner.search.strategies import exhaustive
from tsm2_tune.tuner.search.strategies.strategy import InOrder

PROBLEM = Problem(1000, 8, 8, "f64")
KEPT = search_space(PROBLEM, PROFILES["h100"], families=["resident_b_fma"]).kept
US = [100.0 - place % 50 for place in range(len(KEPT))]


def recorded(**changes: Any) -> dict[str, Any]:
    """A row in which the fastest are 51 us."""
    trials = [[one.config.text, "ok", us] for one, us in zip(KEPT, US, strict=True)]
    return {"device": "NVIDIA H100 80GB HBM3", "problem": PROBLEM.text, "trials": trials, **changes}


def test_a_space_is_of_the_families_that_were_recorded() -> None:
    of = space_of(recorded())
    assert of.space.families == ("resident_b_fma",)
    assert (of.trials, of.best_us) == (len(KEPT), 51.0)
    with pytest.raises(InputError, match="no bundled card is 'cpu'"):
        limits_of("cpu")


def test_spaces_of_the_host_are_left_out(path: Path) -> None:
    database_of(path, trial(), run=host_run())
    said = CliRunner().invoke(main, ["--db", str(path)])
    assert (said.exit_code, said.stdout) == (2, "")
    assert "has no trial of a GPU, and the host's times are of an emulation: name another --db" in said.stderr
    assert "times of the host, which emulates kernels" in " ".join(
        CliRunner().invoke(main, ["--help"]).stdout.split()
    )
    with Store.open(path, create=False) as store:
        store.add_trial(tuning_run(), trial())
        assert [row["device"] for row in rows_of(store)] == [GPU]


def test_a_search_has_the_recorded_times() -> None:
    of = space_of(recorded())
    found = replayed(exhaustive(of.space), of, most=60)
    assert list(found.best_us) == [min(US[: count + 1]) for count in range(60)]
    assert found.why is Why.MAX_TRIALS
    assert found.regret(of, 1) == pytest.approx(100 / 51 - 1)
    assert found.regret(of, 60) == 0.0


def test_behind_trials_may_win_in_another_order_but_wrong_ones_not() -> None:
    trials = recorded()["trials"]
    trials[0] = [trials[0][0], "behind", 60.0]
    trials[1] = [trials[1][0], "wrong-result", None]
    of = space_of(recorded(trials=trials))
    assert list(replayed(exhaustive(of.space), of, most=2).best_us) == [60.0, 60.0]
    assert replayed(InOrder([KEPT[1]]), of).best_us == [inf]


def test_what_was_not_recorded_is_passed_over() -> None:
    trials = recorded()["trials"]
    of = space_of(recorded(trials=trials[5:]))
    assert len(replayed(exhaustive(of.space), of).best_us) == of.trials == len(KEPT) - 5


def test_a_database_knows_the_fastest_of_another_space() -> None:
    known = fastest(recorded())
    assert (known.problem, [one.us for one in known.choices]) == (PROBLEM, [51.0, 51.0, 52.0])


def test_the_model_is_replayed_with_what_it_is_to_know() -> None:
    of = space_of(recorded())
    known = fastest(recorded(problem=Problem(2000, 8, 8, "f64").text))
    made = strategies(of, [known])
    first = {name: make(0).ask() for name, make in made.items() if not name.startswith("optuna")}
    assert all(one is not None for one in first.values())
    own = first["model, own database alone"]
    assert own is not None
    assert own.config.kernel_text in {one.config.kernel_text for one in known.choices}


def test_tables() -> None:
    rows = [Row("model", "a", 100, (0.3, 0.2, 0.1, 0.01, 0.0)), Row("model", "b", 50, (inf, 0.2, 0.1, 0.03, 0.0))]
    assert table(rows).splitlines()[-1] == "| model | - | 20.0 | 10.0 | 2.0 | 0.0 | 3.0 | 1 of 2 |"
    ended = [Ended("model", "a", 0.01, 0.3, 0.0), Ended("model", "b", 0.01, 0.5, 0.02)]
    assert "| model | 1 | 40.0 | 2.0 | 1 of 2 |" in gains(
        [*ended, *(Ended("model", "a", gain, 1.0, 0.0) for gain in (0.005, 0.02, 0.05))]
    )
    assert set(drawn({"rows": [], "ended": []})) == {"regret", "regret-by-space", "gain"}


def test_the_tables_are_of_the_spaces_as_they_are_now() -> None:
    """A rule that drops or keeps other configurations asks for the tables anew: python -m benchmarks.regret."""
    drawn = {row["problem"]: row["trials"] for row in json.loads(REGRET.read_text(encoding="utf-8"))["rows"]}
    assert drawn == {(of := space_of(row)).problem.text: of.trials for row in rows_in(FILE)}
