"""Tests of which time, and which of several results, counts."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest

import tsm2_tune
from tests.databases import database_of, facts
from tests.fabricated import (
    BASIS,
    PROBLEM,
    configuration,
    final,
    measurement,
    plain_sql,
    trial,
    tuning_run,
    vendor_measurement,
)
from tests.processes import python
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import LoadedResources

pytestmark = pytest.mark.usefixtures("session_cache")
RUN, FAST, LEAN, THIRD = tuning_run(), configuration(128), configuration(256), configuration(512)
OF = ("tsm2",), BASIS


def test_what_was_not_in_the_leaders_final_does_not_tie_with_it(tmp_path: Path) -> None:
    """The one with fewer registers has an overlapping time of an earlier final."""
    path = tmp_path / "results.db"
    with Store.open(path, create=True) as store:
        for config, registers in ((FAST, 64), (LEAN, 32)):
            tried = trial(500, config, resources=LoadedResources(registers, 0, 4096, 8))
            store.add_trial(RUN, tried)
        store.add_final(RUN, final((LEAN, 480.5)), *OF)
        store.add_final(RUN, final((FAST, 480.0)), *OF)
    (row,) = tsm2_tune.best(path)
    assert (row.config, row.ties) == (FAST.text, 1)


@pytest.mark.parametrize(("us", "winner"), [(460, FAST), (450, THIRD)])
def test_without_a_final_a_kernel_must_be_faster_than_the_finalists_by_5_percent(
    us: float, winner: KernelConfig, tmp_path: Path
) -> None:
    with Store.open(tmp_path / "results.db", create=True) as store:
        for config, median_us in ((FAST, 470), (LEAN, 475), (THIRD, us)):
            store.add_trial(RUN, trial(median_us, config))
        store.add_final(RUN, final((FAST, 480.0), (LEAN, 490.0)), *OF)
        assert store.best()[0].config == winner.text


def test_an_export_has_the_time_of_the_last_final(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    with Store.open(path, create=True) as store:
        store.add_trial(RUN, trial(500, FAST))
        for us in (490, 470):
            store.add_final(RUN, final((FAST, us)), *OF)
    found = tsm2_tune.export(path, format="t4", products=PROBLEM.text).text
    assert found is not None
    (result,) = json.loads(found)["results"]
    assert result["measurements"][0]["value"] == 0.47


def test_times_of_one_median_and_different_intervals_are_two(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.db", tmp_path / "theirs.db"
    for path, spread in ((ours, 1.0), (theirs, 2.0)):
        database_of(path, replace(trial(500, FAST), measurement=measurement(500, spread)), run=RUN)
    tsm2_tune.import_trials(theirs, ours)
    (part,) = facts(ours).values()
    (tried,) = part.trials.values()
    assert (tried.first is not None, len(tried.others)) == (True, 1)


def test_the_vendors_times_go_with_the_last_trial_of_their_final(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    with Store.open(path, create=True) as store:
        for config in (FAST, LEAN):
            store.add_trial(RUN, trial(500, config))
        store.add_final(RUN, final((FAST, 480), vendor=(vendor_measurement(700),)), *OF)
        counts = []
        for number in (2, 1):
            store.forget([number], (), lambda counts: None)
            counts.append(plain_sql(path, "SELECT count(*) FROM vendor_measurement"))
    assert counts == [[(1,)], [(0,)]]
    assert plain_sql(path, "SELECT count(*) FROM vendor_sample") == [(0,)]


ROUND_TRIP = """
import sys
from tests import fabricated as made
import tsm2_tune
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.tuner.results.store import Store
run, config = made.tuning_run(), made.configuration()
with Store.open("first.db", create=True) as store:
    store.add_trial(run, made.trial(500, config))
    store.add_final(run, made.final((config, 480), vendor=(made.vendor_measurement(700),)), ("tsm2",), made.BASIS)
tsm2_tune.export("first.db", format="trials", output="first.jsonl")
tsm2_tune.import_trials("first.jsonl", "second.db")
tsm2_tune.export("second.db", format="trials", output="second.jsonl")
tsm2_tune.import_trials("first.db", "second.db")
(row,) = tsm2_tune.best("second.db")
print(row.median_us, row.vendor_us, open("first.jsonl").read() == open("second.jsonl").read())
"""


def test_a_text_goes_round_without_asserts(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    said = python("-O", "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{ROUND_TRIP}", cwd=tmp_path)
    assert (said.stdout, said.stderr) == ("480.0 700.0 True\n", "")


PURE = {"isinstance", "is_dataclass"}


def test_no_assert_of_the_package_does_work() -> None:
    """`python -O` leaves asserts out."""
    for path in (Path(tsm2_tune.__file__).parent).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assert):
                inner = list(ast.walk(node.test))
                calls = [getattr(one.func, "id", None) for one in inner if isinstance(one, ast.Call)]
                assert set(calls) <= PURE, (path, node.lineno)
                assert not any(isinstance(one, ast.NamedExpr | ast.Await | ast.Yield) for one in inner)
