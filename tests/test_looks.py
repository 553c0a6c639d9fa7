"""Tests that a look at one problem's winner costs the same, however large the rest of the database is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from tests.fabricated import GPU, PROBLEM, configuration, final, plain_sql, trial, tuning_run
from tsm2_tune.errors import StoreError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.search.stored_seeds import stored_seeds

RUN, C128, C256 = tuning_run(), configuration(128), configuration(256)
OTHER = Problem(64, 64, 64, "f64")
GROWS = ("trial", "measurement", "vendor_measurement", "sample", "vendor_sample", "latest")


@contextmanager
def explained(store: Store) -> Iterator[list[str]]:
    """Yield a list that gets SQLite's query plan of each query inside the block."""
    plans = list[str]()

    def explain(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.lstrip().startswith(("SELECT", "WITH")):
            plans.extend(row[-1] for row in cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters))

    event.listen(store.database._engine, "before_cursor_execute", explain)
    yield plans


def whole(plans: Sequence[str]) -> list[str]:
    """Steps that read all of a table that grows."""
    return [plan for plan in plans if plan.split()[:1] == ["SCAN"] and plan.split()[1] in GROWS]


@pytest.mark.parametrize("which", [{"device": GPU, "problem": PROBLEM}, {"problem": PROBLEM}, {"alike": PROBLEM}])
def test_no_table_that_grows_is_read_as_a_whole(which: dict[str, Any], store: Store) -> None:
    for problem in (PROBLEM, OTHER):
        for us, config in ((500, C128), (600, C256)):
            store.add_trial(RUN, trial(us, config, problem=problem))
        store.add_final(RUN, final((C128, 490), (C256, 590), problem=problem), ("tsm2",), trial().basis)
    with explained(store) as plans:
        assert [row.config for row in store.best(**which)] == [C128.text]
    assert whole(plans) == []
    by_index = [plan for plan in plans if "newest_of_family" in plan]
    assert by_index
    assert all(plan.startswith("SEARCH latest ") for plan in by_index)  # others have better ones


def test_problems_nearby_are_looked_at_alone(store: Store) -> None:
    for problem in (PROBLEM, OTHER):
        store.add_trial(RUN, trial(500, C128, problem=problem))
    with explained(store) as plans:
        assert [one.problem for one in stored_seeds(store, PROBLEM, PROFILES["h200"], GPU)] == [PROBLEM]
    assert whole(plans) == []
    assert plans


@pytest.mark.parametrize("change", ["trial SET is_between = 2", "measurement SET low_us = 9e9"])
def test_row_hidden_from_the_view_belongs_to_the_asked_problem(change: str, path: Path) -> None:
    with Store.open(path, create=True) as store:
        for problem in (PROBLEM, OTHER):
            store.add_trial(RUN, trial(problem=problem))
        plain_sql(path, f"UPDATE {change} WHERE id = 2")
        assert len(store.best(device=GPU, problem=PROBLEM)) == 1
        looks: list[Callable[[], object]] = [lambda: store.best(problem=OTHER), lambda: store.best(alike=OTHER)]
        for look in (*looks, store.best):
            with pytest.raises(StoreError, match="trial 2 is not as this"):
                look()
