"""Finals of other databases, and that no order of imports matters."""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import tsm2_tune
from tests.databases import C128, C256, C512, EARLY, TODAY, database_of, ended, facts
from tests.fabricated import BASIS, PROBLEM, final, kernel, plain_sql, source, trial, tuning_run, vendor_measurement
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.tuner.results.merge.union import union
from tsm2_tune.tuner.results.records import current_kernel
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


@pytest.mark.slow
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


def test_a_clock_a_year_ahead_hides_nothing_that_comes_later(tmp_path: Path, time_of_day: SimpleNamespace) -> None:
    path, other = tmp_path / "results.db", "0" * 64
    with Store.open(path, create=True) as store:
        time_of_day.ahead_seconds = 365 * 24 * 3600
        store.add_trial(EARLY, trial(400, C128, basis=other))
        time_of_day.ahead_seconds = 0
        store.add_trial(tuning_run(toolkit="nvcc 13.1"), trial(500, C256, basis=BASIS))
    assert [(row.config, row.stale) for row in tsm2_tune.best(path)] == [(C256.text, 0)]


def random_database(path: Path, rng: random.Random) -> None:
    """Some of a few trials and finals, of which other databases may have the same."""
    runs = [tuning_run(uuid=f"GPU-{which}", started_at=f"2026-01-0{which}T00:00:00+00:00") for which in (1, 2, 3)]
    with Store.open(path, create=True) as store:
        for config in (C128, C256, C512):
            for one in rng.sample(runs, k=1):
                us = 500.0 + int(one.identity.uuid[-1]) + config.threads / 100
                verdict = rng.choice((None, "right"))
                made = rng.choice((source(config, text="int older;\n"), kernel(config, PROBLEM)))
                store.add_trial(one, trial(us, config, full_verdict=verdict, source=made))
        for one in sorted(rng.sample(runs, k=rng.randint(0, 3)), key=lambda run: run.started_at):
            at = int(one.identity.uuid[-1])
            store.add_final(
                one, final((C128, 480.0 + at), (C256, 490 + at), vendor=(vendor_measurement(600.0 + at),)), *TODAY
            )
    ended(path, "2026-01-05T00:00:00+00:00")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_imports_matters(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    paths = [tmp_path / f"{which}.db" for which in range(3)]
    for path in paths:
        random_database(path, rng)
    ends = []
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0, 1, 0)):
        path = tmp_path / f"{''.join(map(str, order))}.db"
        for which in order:
            tsm2_tune.import_trials(paths[which], path)
        ends.append(facts(path))
    assert ends[0] == ends[1] == ends[2]
    (part,) = ends[0].values()
    assert union(part, part, lambda tried: current_kernel(PROBLEM, tried.values) is not None) is part
