"""Finals of other databases: which one is which, and in which order they are."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path

import pytest

import tsm2_tune
from tests.databases import C128, C256, C512, EARLY, TODAY, database_of, facts
from tests.fabricated import BASIS, final, plain_sql, trial, tuning_run, vendor_measurement
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.tuner.results.store import Store

pytestmark = pytest.mark.usefixtures("session_cache")
Times = dict[KernelConfig, float]
SPELT = {config.text: config for config in (C128, C256, C512)}


def rounds(path: Path) -> list[Times]:
    """The finals of PROBLEM in their order, each with its times."""
    (part,) = facts(path).values()
    return [{SPELT[key[0]]: us.values["median_us"] for key, us in one.timed.items()} for one in part.rounds]


def with_trials(path: Path) -> None:
    database_of(path, *(trial(600, config) for config in (C128, C256, C512)), run=EARLY)


def add_final(path: Path, times: Times) -> None:
    with Store.open(path, create=False) as store:
        store.add_final(EARLY, final(*times.items(), vendor=(vendor_measurement(700),)), *TODAY)


FIRST: Times = {C128: 500.0, C256: 515.0}
SECOND: Times = {C128: 530.0, C256: 510.0}


def test_a_copy_of_before_changes_nothing_in_whatever_order(tmp_path: Path) -> None:
    """In one of them a trial was forgotten."""
    whole, before, less = paths = [tmp_path / f"{name}.db" for name in ("whole", "before", "less")]
    with_trials(whole)
    add_final(whole, FIRST)
    shutil.copy(whole, before)
    add_final(whole, SECOND)
    shutil.copy(whole, less)
    with Store.open(less, create=False) as store:
        store.forget([1], (), lambda counts: None)
    ends = list[object]()
    for order in itertools.permutations(paths):
        into = tmp_path / f"{len(ends)}.db"
        for path in (*order, *order):
            tsm2_tune.import_trials(path, into)
        ends.append((rounds(into), [(row.config, row.median_us) for row in tsm2_tune.best(into)]))
    assert ends == [([FIRST, SECOND], [(C256.text, 510.0)])] * 6


def test_finals_with_the_same_times_are_two(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.db", tmp_path / "theirs.db"
    with_trials(ours)
    shutil.copy(ours, theirs)
    for path in (ours, theirs):
        add_final(path, FIRST)
    assert tsm2_tune.import_trials(theirs, ours).times == 3
    assert rounds(ours) == [FIRST, FIRST]
    assert tsm2_tune.import_trials(theirs, ours).times == 0


def test_what_is_more_of_a_final_goes_to_it(tmp_path: Path) -> None:
    whole, less = tmp_path / "whole.db", tmp_path / "less.db"
    with_trials(whole)
    add_final(whole, FIRST)
    shutil.copy(whole, less)
    plain_sql(less, "DELETE FROM sample WHERE measurement_id = (SELECT max(id) FROM measurement)")
    plain_sql(less, "DELETE FROM measurement WHERE id = (SELECT max(id) FROM measurement)")
    assert tsm2_tune.import_trials(whole, less).times == 1
    assert facts(less) == facts(whole)


def test_a_clock_a_year_ahead_hides_nothing_that_comes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "results.db", "0" * 64
    now = time.time_ns()
    with Store.open(path, create=True) as store:
        monkeypatch.setattr(time, "time_ns", lambda: now + 365 * 24 * 3600 * 10**9)
        store.add_trial(EARLY, trial(400, C128, basis=other))
        monkeypatch.undo()
        store.add_trial(tuning_run(toolkit="nvcc 13.1"), trial(500, C256, basis=BASIS))
    assert [(row.config, row.stale) for row in tsm2_tune.best(path)] == [(C256.text, 0)]
