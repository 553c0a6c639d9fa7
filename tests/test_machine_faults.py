"""A run whose machine fails in the middle ends in one sentence, and what it told is stored; the next one goes on.

A database that is locked or has no room, a run that comes back late, clocks that disagree.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from tests.fabricated import plain_sql
from tests.simulated import KERNELS, SHAPES, Simulated
from tsm2_tune.errors import StoreError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.space.space import SearchSpace
from tsm2_tune.tuner.results.storage.retry import Lost
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Trial
from tsm2_tune.tuner.runs.events import ProblemEvent, TrialStored
from tsm2_tune.tuner.runs.leases import Leases
from tsm2_tune.tuner.runs.problem_queue import tune_problems
from tsm2_tune.tuner.runs.signals import Stopped
from tsm2_tune.tuner.search.candidates import Candidates
from tsm2_tune.tuner.search.fixed_list import candidate_of
from tsm2_tune.tuner.search.strategies import exhaustive

PROBLEM = SHAPES[0]
TIMES = {(config.text, PROBLEM): 100.0 + 10 * place for place, config in enumerate(KERNELS)}
WHOLE = [(config.text, "ok") for config in KERNELS]


def searching(store: Store, executor: Simulated | None = None) -> Iterator[ProblemEvent]:
    """A run that tries all of KERNELS, each of which is stored before it is told."""
    executor = executor or Simulated(store, TIMES, storage_seconds=0.0)
    kept = [candidate_of(config, PROBLEM, PROFILES["h200"]) for config in KERNELS]
    space = SearchSpace(PROBLEM, PROFILES["h200"], ("tsm2",), kept, (), ())
    return tune_problems([space], executor, store, make_strategy=exhaustive, families=("tsm2",))


def stored(path: Path) -> list[tuple[object, ...]]:
    return plain_sql(path, "SELECT config, outcome FROM trial ORDER BY id")


def assert_each_is_stored_once(path: Path) -> None:
    assert sorted(stored(path)) == sorted(WHOLE)
    assert plain_sql(path, "SELECT count(*) FROM measurement WHERE round = 0") == [(len(WHOLE),)]
    assert plain_sql(path, "SELECT count(*) FROM best") == [(1,)]


def assert_the_next_run_goes_on(path: Path) -> None:
    before = len(stored(path))
    with Store.open(path, create=True) as store:
        events = list(searching(store))
    assert sum(isinstance(event, TrialStored) for event in events) == len(WHOLE) - before
    assert stored(path) == WHOLE
    assert_each_is_stored_once(path)
    assert plain_sql(path, "SELECT owner FROM lease WHERE owner <> ''") == []


def told_until_it_ends(events: Iterator[ProblemEvent], at: int, fail: Callable[[], object]) -> tuple[list[str], str]:
    """The configurations that a run tells of; after so many the machine fails, and the run by this sentence."""
    told = []
    try:
        for event in events:
            if isinstance(event, TrialStored):
                told.append(event.trial.config.text)
                if len(told) == at:
                    fail()
    except StoreError as error:
        return told, str(error)
    return told, "no failure"


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_database_that_is_locked_for_long_ends_the_run(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other, Store.open(path, create=True) as store:
        told, said = told_until_it_ends(searching(store), 3, lambda: other.execute("BEGIN IMMEDIATE"))
    assert said == f"{path} is locked by another program: wait until it has ended, then run this again"
    assert stored(path) == WHOLE[: len(told)]
    plain_sql(path, "UPDATE lease SET expires_at = 0")  # the run could not give them back; its process is this one
    assert_the_next_run_goes_on(path)


def test_a_disk_that_fills_up_ends_the_run(path: Path) -> None:
    with Store.open(path, create=True) as store:

        def fill() -> None:
            with store.database.transaction() as connection:
                connection.exec_driver_sql("PRAGMA max_page_count = 1")  # no less than there are: none more

        told, said = told_until_it_ends(searching(store), 3, fill)
    full = f"{path} cannot grow, the disk of {path.parent} is full: free some space there, then run this again"
    assert (said, stored(path)) == (full, WHOLE[: len(told)])
    assert 3 <= len(told) < len(WHOLE)
    assert_the_next_run_goes_on(path)


def test_a_signal_ends_a_run_though_its_database_is_away(path: Path) -> None:
    """The trials that a lost server cannot store are counted, and the signal ends the run."""

    class Interrupted(Simulated):
        def tune(self, search: Candidates, *more: Any) -> Iterator[Trial]:
            yield from islice(super().tune(search, *more), 3)
            raise Stopped

    class HeldLeases(Leases):
        def release(self, *_: Any) -> NoReturn:
            raise Lost("away")

    class Away(Store):
        def add_trials(self, *_: Any, **__: Any) -> NoReturn:
            raise Lost("away")

        def leases(self, device_name: str) -> Leases:
            return HeldLeases(self.database, device_name)

    with Away.open(path, create=True) as store, pytest.raises(Stopped) as ended:
        list(searching(store, Interrupted(store, TIMES, storage_seconds=60.0)))
    assert ended.value.unstored == 3
    assert stored(path) == []


def test_a_run_that_hangs_and_comes_back_late_doubles_nothing(path: Path) -> None:
    """The other run takes over its problem, since it no longer renews its lease. Then both try its configurations."""
    with Store.open(path, create=True) as store, Store.open(path, create=True) as other:
        late = searching(store)
        told = [next(one for one in late if isinstance(one, TrialStored)).trial_id]
        plain_sql(path, "UPDATE lease SET expires_at = 1.0")
        told += [one.trial_id for one in (*searching(other), *late) if isinstance(one, TrialStored)]
    assert sorted(told) == list(range(1, len(WHOLE) + 1)), "each is told once, by who stored it"
    assert_each_is_stored_once(path)


@pytest.mark.parametrize("ahead", [-3600, 3600])
def test_clocks_that_disagree_double_nothing(ahead: int, path: Path, time_of_day: SimpleNamespace) -> None:
    """The second machine's clock is an hour off, so that it takes the first one for dead, and the first one it."""
    with Store.open(path, create=True) as store, Store.open(path, create=True) as other:
        runs = {0: searching(store), ahead: searching(other)}
        told = dict.fromkeys(runs, 0)
        while runs:
            for offset in list(runs):
                time_of_day.ahead_seconds = offset
                event = next(runs[offset], None)
                told[offset] += isinstance(event, TrialStored)
                if event is None:
                    del runs[offset]
    assert all(told.values())
    assert_each_is_stored_once(path)
