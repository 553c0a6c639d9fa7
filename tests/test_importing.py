"""Trials of other databases: what is there is recognised, and nothing is lost."""

from __future__ import annotations

import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import tsm2_tune
from tests.command import run
from tests.databases import C128, C256, C512, EARLY, TODAY, best, database_of, ended, facts
from tests.fabricated import (
    BASIS,
    GPU,
    PROBLEM,
    configuration,
    downgrade,
    final,
    measurement,
    plain_sql,
    source,
    trial,
    tuning_run,
    vendor_measurement,
)
from tests.tampering import YESTERDAY, good_database
from tsm2_tune.console import tables
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Final, Outcome, TimeLimits, Verdict

pytestmark = pytest.mark.usefixtures("session_cache")


def test_both_ways_there_is_the_same_union(two_databases: tuple[Path, Path]) -> None:
    ours, theirs = two_databases
    before = facts(theirs)
    found = tsm2_tune.import_trials(theirs, ours)
    assert (found.trials, found.known, found.times, found.problems) == (1, 1, 5, 1)
    assert facts(theirs) == before
    tsm2_tune.import_trials(ours, theirs)
    assert facts(ours) == facts(theirs)
    assert [row.config for row in best(ours)] == [C128.text, C512.text]
    assert best(ours) == best(theirs)
    row = best(ours)[1]
    assert (row.round, row.median_us, row.vendor_us) == (2, 410, 700)
    assert plain_sql(ours, "SELECT count(*) FROM run") == [(2,)]


def test_each_device_keeps_its_times_in_order(tmp_path: Path) -> None:
    here, there = tmp_path / "here.db", tmp_path / "there.db"
    for path, run_, us in ((here, EARLY, 500.0), (there, tuning_run("NVIDIA H100"), 600.0)):
        timed = replace(measurement(us), samples_us=(us + 1, us - 1, us))
        vendor = (replace(vendor_measurement(us), measurement=timed),)
        database_of(path, trial(us, C128), run=run_, final=Final(PROBLEM, ((C128, timed),), vendor))
    tsm2_tune.import_trials(there, here)
    of_kernel = "sample JOIN measurement ON measurement_id = measurement.id AND round = 1"
    of_vendor = "vendor_sample JOIN vendor_measurement AS measurement ON measurement_id = measurement.id"
    for table in (of_kernel, of_vendor):
        query = f"SELECT device_name, us FROM {table} JOIN run ON run.id = run_id ORDER BY device_name, ordinal"
        expected = [(name, us + step) for name, us in (("NVIDIA H100", 600), (GPU, 500)) for step in (1, -1, 0)]
        assert plain_sql(here, query) == expected
    assert len(facts(here)) == 2
    assert [len(one.vendor) for part in facts(here).values() for one in part.rounds] == [1, 1]


def test_all_of_a_database_with_every_kind_of_trial_is_imported(tmp_path: Path) -> None:
    good, new = tmp_path / "good.db", tmp_path / "new.db"
    good_database(good)
    said = run("import", str(good), "--db", str(new))
    assert (said.exit_code, said.stderr) == (0, "")
    added = "added 12 trials (0 already present) and 14 measurements, of 4 problems; 2 in quarantine"
    assert said.stdout == f"{new}: {added}\n"
    assert facts(new) == facts(good)
    again = run("import", str(good), "--db", str(new))
    assert again.stdout == f"{new}: nothing new: 12 trials already present, of 4 problems\n"
    assert run("best", "--db", str(new), "--json").stdout.count("config") == len(best(good))


def test_a_database_of_an_older_schema_is_read_and_left_as_it_is(
    two_databases: tuple[Path, Path], tmp_path: Path
) -> None:
    _, theirs = two_databases
    downgrade(theirs)
    content = theirs.read_bytes()
    tsm2_tune.import_trials(theirs, tmp_path / "new.db")
    assert theirs.read_bytes() == content
    assert [row.median_us for row in best(tmp_path / "new.db")] == [410]


@pytest.mark.parametrize("is_text", [False, True])
def test_an_import_tells_how_far_it_is(two_databases: tuple[Path, Path], tmp_path: Path, is_text: bool) -> None:
    source = two_databases[0]
    if is_text:
        source = tmp_path / "trials.jsonl"
        tsm2_tune.export(two_databases[0], format="trials", output=source)
    shares = list[float]()
    tsm2_tune.import_trials(source, tmp_path / "new.db", on_progress=shares.append)
    assert shares == sorted(shares)
    assert (len(shares) > 1 or not is_text, shares[-1]) == (True, 1.0)


def test_what_takes_its_time_says_how_much_is_left(terminal: StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.5, 30.0])
    monkeypatch.setattr(tables, "monotonic", lambda: next(clock))
    with tables.waiting("importing x") as show:
        show(0.1)
        show(0.25)
    assert "importing x: 25%, about 90 s left" in terminal.getvalue()


def test_older_trials_make_no_newer_ones_stale(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.db", tmp_path / "theirs.db"
    for path, basis, when in ((ours, BASIS, "2026-05-05"), (theirs, YESTERDAY, "2026-04-04")):
        database_of(path, trial(500 if path == ours else 400, C128, basis=basis), run=EARLY)
        ended(path, f"{when}T00:00:00+00:00")
    tsm2_tune.import_trials(theirs, ours)
    tsm2_tune.import_trials(ours, theirs)
    for path in (ours, theirs):
        assert [(row.median_us, row.stale) for row in best(path)] == [(500, 0)]
        with Store.open(path, create=False) as store:
            (row,) = store.best()
            assert [one.basis for one in store.current(EARLY.identity.name)] == [BASIS]
            assert store.trial(row.trial_id).current
            assert [one.stale for one in (store.row(1), store.row(2))].count(1) == 1


NEVER = {"measurement": None, "full_verdict": None}
WRONG = {"outcome": Outcome.WRONG_RESULT, "verdict": Verdict(False, 9.0, "C[0, 0]")} | NEVER
LATER: dict[str, Any] = {"outcome": Outcome.TIMED_OUT, "verdict": None, "resources": None} | NEVER
FAULT = LATER | {"outcome": Outcome.CRASHED}


@pytest.mark.parametrize(
    ("changes", "outcome"), [(WRONG, Outcome.WRONG_RESULT), (FAULT, Outcome.CRASHED), (LATER, Outcome.OK)]
)
def test_a_fault_anywhere_counts_and_a_right_one_before_one_in_no_time(
    changes: dict[str, Any], outcome: Outcome, tmp_path: Path
) -> None:
    for first, second in (("a", "b"), ("b", "a")):
        paths = {name: tmp_path / f"{first}{name}.db" for name in "ab"}
        for name, path in paths.items():
            database_of(path, trial(500, C128) if name == "a" else replace(trial(500, C128), **changes), run=EARLY)
        found = tsm2_tune.import_trials(paths[second], paths[first])
        (told,) = found.conflicts
        assert told.endswith(f"{outcome.value} is kept")
        kept = plain_sql(paths[first], "SELECT outcome, full_verdict IS NOT NULL, count(*) FROM trial")
        assert kept == [(outcome.value, outcome == Outcome.OK, 1)]
        assert plain_sql(paths[first], "SELECT count(*) FROM sample") == [(3,)]


@pytest.mark.parametrize("searched", ["ours", "theirs"])
def test_what_was_verified_in_full_or_searched_anywhere_is_known_then(searched: str, tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}.db" for name in ("ours", "theirs")}
    for name, path in paths.items():
        verdict = "right in 9 calls" if name == "theirs" else None
        database_of(path, trial(500, C128, full_verdict=verdict, is_between=name != searched), run=EARLY)
    ended(paths["ours"], "2026-01-02T03:05:00+00:00")
    tsm2_tune.import_trials(paths["theirs"], paths["ours"])
    assert plain_sql(paths["ours"], "SELECT full_verdict, is_between FROM trial") == [("right in 9 calls", 0)]


def test_of_trials_that_timed_out_the_one_that_had_more_time_counts(tmp_path: Path) -> None:
    short, long = tmp_path / "short.db", tmp_path / "long.db"
    for path, seconds in ((short, 60.0), (long, 90.0)):
        database_of(path, replace(trial(500, C128), limits=TimeLimits(120.0, seconds), **LATER), run=EARLY)
    for path, other in ((short, long), (long, short)):
        tsm2_tune.import_trials(other, path)
        assert plain_sql(path, "SELECT run_limit_seconds FROM trial") == [(90.0,)]


def test_another_kernel_of_the_same_basis_is_superseded_and_told(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.db", tmp_path / "theirs.db"
    for path, text, us in ((ours, "int one;\n", 490), (theirs, "int other;\n", 480)):
        timed = final((C128, us), vendor=(vendor_measurement(us + 100),))
        database_of(path, trial(500, C128, source=source(C128, text=text)), final=timed)
    said = run("import", str(theirs), "--db", str(ours))
    assert said.exit_code == 0
    assert f"conflict: {C128.text} for {PROBLEM.text} on NVIDIA H200: two kernels with one basis" in said.stderr
    assert "added 1 trial (0 already present) and 3 measurements" in said.stdout  # the vendor's, too
    again = run("import", str(theirs), "--db", str(ours))
    assert (again.stderr, again.stdout.startswith(f"{ours}: nothing new: 1 trial already present")) == ("", True)
    tsm2_tune.import_trials(ours, theirs)
    assert facts(ours) == facts(theirs)
    texts = (
        "SELECT trial.id, text, superseded FROM trial JOIN source ON digest = source_digest"
        " JOIN paragraph ON key = paragraphs ORDER BY text"
    )
    assert [row[1] for row in plain_sql(ours, texts)] == ["int one;\n", "int other;\n"]
    assert sorted(row[2] for row in plain_sql(ours, texts)) == [0, 1]
    assert [plain_sql(path, texts)[at][0] for at, path in enumerate((ours, theirs))] == [1, 1]  # as before
    times = plain_sql(ours, f"SELECT median_us FROM measurement JOIN ({texts}) AS t ON trial_id = t.id"
                            " WHERE round > 0 ORDER BY text")  # fmt: skip
    assert times == [(490,), (480,)]
    assert plain_sql(ours, "SELECT median_us FROM vendor_measurement ORDER BY median_us") == [(580,), (590,)]


def test_of_two_kernels_of_a_configuration_the_one_counts_that_is_made_so(tmp_path: Path) -> None:
    older, now = tmp_path / "older.db", tmp_path / "now.db"
    for path, made in ((older, source(C128, text="int older;\n")), (now, None)):
        database_of(path, trial(500, C128) if made is None else trial(400, C128, source=made), run=EARLY)
    ended(older, "2026-01-01T00:00:00+00:00")  # the first by all else
    assert [row.stale for row in tsm2_tune.best(older)] == [1]
    for path, other in ((now, older), (older, now)):
        tsm2_tune.import_trials(other, path)
        assert [(row.stale, row.median_us) for row in tsm2_tune.best(path)] == [(0, 500.0)]


@pytest.mark.parametrize("launch", [{"splits": 3}, {"rows_per_block": 64}])
def test_a_text_that_is_started_otherwise_is_another_kernel(launch: dict[str, Any], tmp_path: Path) -> None:
    ours, theirs, plain = tmp_path / "ours.db", tmp_path / "theirs.db", source(C128)
    for path, changes in ((ours, {}), (theirs, launch)):
        with Store.open(path, create=True) as store:
            made = replace(plain, launch=replace(plain.launch, **changes))
            store.add_trial(EARLY, trial(500, C128, source=made))
    found = tsm2_tune.import_trials(theirs, ours)
    assert (found.trials, found.known, found.times, len(found.conflicts)) == (1, 0, 1, 1)


def test_what_is_superseded_here_is_not_there_twice_by_a_copy_from_before(tmp_path: Path) -> None:
    ours, before = tmp_path / "ours.db", tmp_path / "before.db"
    older = source(C128, text="int older;\n")
    database_of(before, trial(500, C128, source=older), final=final((C128, 490)))
    shutil.copy(before, ours)
    with Store.open(ours, create=False) as store:
        store.supersede(EARLY.identity.name, PROBLEM, BASIS)
    superseded = facts(ours)
    found = tsm2_tune.import_trials(before, ours)
    assert (found.trials, found.known, found.times, found.changed, found.conflicts) == (0, 1, 0, 0, ())
    assert facts(ours) == superseded
    with Store.open(ours, create=False) as store:
        store.add_trial(EARLY, trial(400, C128))
        store.supersede(EARLY.identity.name, PROBLEM, BASIS)
    tsm2_tune.import_trials(ours, before)
    tsm2_tune.import_trials(before, ours)
    assert facts(ours) == facts(before)
    for path in (ours, before):
        assert plain_sql(path, "SELECT superseded FROM trial ORDER BY id") == [(1,), (0,)]
        assert [(row.stale, row.median_us) for row in tsm2_tune.best(path)] == [(0, 400.0)]


def test_a_search_goes_on_with_what_was_imported(two_databases: tuple[Path, Path]) -> None:
    ours, theirs = two_databases
    tsm2_tune.import_trials(theirs, ours)
    with Store.open(ours, create=False) as store:
        tried = store.history(EARLY.identity.name, PROBLEM, *TODAY).tried()
        assert {one.config for one in tried} == {C128, C256, C512}
        assert not any(one.is_new for one in tried)
        store.add_trial(EARLY, replace(trial(1, configuration(64)), measurement=measurement(300)))
        assert [one.is_new for one in store.history(EARLY.identity.name, PROBLEM, *TODAY).tried()] == [False] * 3 + [
            True
        ]
        assert store.add_final(EARLY, final((configuration(64), 301)), *TODAY) == 3
