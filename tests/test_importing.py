"""Trials of other databases: what is there is recognised, nothing is lost, and what cannot be read is refused."""

from __future__ import annotations

import os
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tsm2_tune
from tests.command import refused, run
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
)  # fmt: skip
from tests.tampering import YESTERDAY, good_database
from tsm2_tune.errors import InputError, StoreError
from tsm2_tune.tuner.compile.cache import cache_folder
from tsm2_tune.tuner.results.merge import files
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome, TimeLimits, Trial, Verdict

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("session_cache")]


def test_both_ways_there_is_the_same_union_and_a_search_goes_on_with_it(two_databases: tuple[Path, Path]) -> None:
    ours, theirs = two_databases
    before = facts(theirs)
    shares = list[float]()
    found = tsm2_tune.import_trials(theirs, ours, on_progress=shares.append)
    assert (shares, shares[-1]) == (sorted(shares), 1.0)
    assert (found.trials, found.known, found.times, found.problems) == (1, 1, 5, 1)
    assert facts(theirs) == before
    tsm2_tune.import_trials(ours, theirs)
    assert (facts(ours), best(ours)) == (facts(theirs), best(theirs))
    assert [row.config for row in best(ours)] == [C128.text, C512.text]
    row = best(ours)[1]
    assert (row.round, row.median_us, row.vendor_us) == (2, 410, 700)
    assert plain_sql(ours, "SELECT count(*) FROM run") == [(2,)]
    with Store.open(ours, create=False) as store:
        tried = store.history(GPU, PROBLEM, *TODAY).tried()
        assert {(one.config, one.is_new) for one in tried} == {(one, False) for one in (C128, C256, C512)}
        store.add_trial(EARLY, replace(trial(1, configuration(64)), measurement=measurement(300)))
        assert [one.is_new for one in store.history(GPU, PROBLEM, *TODAY).tried()] == [False] * 3 + [True]
        assert store.add_final(EARLY, final((configuration(64), 301)), *TODAY) == 3


def test_all_of_a_database_with_every_kind_of_trial_is_imported(tmp_path: Path) -> None:
    good, new = tmp_path / "good.db", tmp_path / "new.db"
    good_database(good)
    said = run("import", str(good), "--db", str(new))
    added = "added 12 trials (0 already present) and 14 measurements, of 4 problems; 2 in quarantine"
    assert (said.exit_code, said.stderr, said.stdout) == (0, "", f"{new}: {added}\n")
    assert facts(new) == facts(good)
    again = run("import", str(good), "--db", str(new))
    assert again.stdout == f"{new}: nothing new: 12 trials already present, of 4 problems\n"


def test_a_database_of_an_older_schema_is_read_and_left_as_it_is(two_databases: tuple[Path, Path]) -> None:
    ours, theirs = two_databases
    downgrade(theirs)
    content = theirs.read_bytes()
    tsm2_tune.import_trials(theirs, ours)
    assert theirs.read_bytes() == content
    assert best(ours)[1].median_us == 410


RIGHT = trial(500, C128)
NEVER: dict[str, Any] = {"measurement": None, "full_verdict": None}
WRONG = replace(RIGHT, outcome=Outcome.WRONG_RESULT, verdict=Verdict(False, 9.0, "C[0, 0]"), **NEVER)
LATE = replace(RIGHT, outcome=Outcome.TIMED_OUT, verdict=None, resources=None, **NEVER)
SHORT, LONG = (replace(LATE, limits=TimeLimits(120.0, seconds)) for seconds in (60.0, 90.0))
UNVERIFIED = replace(RIGHT, full_verdict=None)
OWN = source(C128)


def of_text(text: str, **launch: Any) -> Trial:
    """A trial of a kernel that this version does not make, of this text and launch."""
    return trial(500, C128, source=replace(source(C128, text=text), launch=replace(OWN.launch, **launch)))


VERDICT, KERNELS = RIGHT.full_verdict, "two kernels with one basis"
KEPT = "outcome, full_verdict, is_between, run_limit_seconds"


@pytest.mark.parametrize(
    ("one", "other", "kept", "best_us", "told"),
    [
        (RIGHT, WRONG, [("wrong-result", None, 0, None)], None, "wrong-result is kept"),
        (RIGHT, replace(LATE, outcome=Outcome.CRASHED), [("crashed", None, 0, None)], None, "crashed is kept"),
        (RIGHT, LATE, [("ok", VERDICT, 0, None)], 500, "ok is kept"),
        (SHORT, LONG, [("timed-out", None, 0, 90.0)], None, ""),
        (UNVERIFIED, replace(RIGHT, is_between=True), [("ok", VERDICT, 0, None)], 500, ""),
        (replace(UNVERIFIED, is_between=True), RIGHT, [("ok", VERDICT, 0, None)], 500, ""),
        (trial(500, C128, spread_us=2.0), RIGHT, [("ok", VERDICT, 0, None)], 500, ""),  # two times
        (of_text("int one;"), of_text("int two;"), [("ok", VERDICT, 0, None)] * 2, 505, KERNELS),
        (of_text(OWN.text), of_text(OWN.text, splits=3), [("ok", VERDICT, 0, None)] * 2, 505, KERNELS),
        (of_text(OWN.text), of_text(OWN.text, rows_per_block=64), [("ok", VERDICT, 0, None)] * 2, 505, KERNELS),
        (
            of_text("int older;"),
            RIGHT,
            [("ok", VERDICT, 0, None)] * 2,
            405,
            KERNELS,
        ),  # which ended before, but counts
        (RIGHT, trial(400, C128, basis=YESTERDAY), [("ok", VERDICT, 0, None)] * 2, 500, ""),
    ],
)
def test_which_of_two_trials_counts(
    one: Trial, other: Trial, kept: list[tuple[object, ...]], best_us: float | None, told: str, tmp_path: Path
) -> None:
    """A fault, a right result before one in no time, more time, what was verified or searched, and the kernel of this
    version. Another kernel of the same basis is superseded.
    """
    for number, (first, second) in enumerate(((one, other), (other, one))):
        ours, theirs = (tmp_path / f"{name} {number}.db" for name in ("ours", "theirs"))
        for path, tried in ((ours, first), (theirs, second)):
            vendor = (vendor_measurement(700 if tried is one else 800),)
            timed = final((C128, 505 if tried is one else 405), vendor=vendor) if told == KERNELS else None
            database_of(path, tried, run=EARLY, final=timed)
            ended(path, "2026-01-02T03:05:00+00:00" if tried is one else "2026-01-01T00:00:00+00:00")
        known, here = facts(theirs), plain_sql(ours, "SELECT source_digest FROM trial")
        found = tsm2_tune.import_trials(theirs, ours)
        assert facts(theirs) == known
        assert [told in line for line in found.conflicts] == [True] * bool(told)
        assert (found.trials, found.known) == ((1, 0) if len(kept) == 2 else (0, 1))
        assert plain_sql(ours, f"SELECT {KEPT} FROM trial") == kept
        assert plain_sql(ours, "SELECT source_digest FROM trial WHERE id = 1") == here
        assert plain_sql(ours, "SELECT count(*) FROM trial WHERE superseded") == [(int(told == KERNELS),)]
        times = {tried.measurement for tried in (one, other)} - {None}
        rounds = plain_sql(ours, "SELECT count(*) FROM measurement WHERE round <= 0")
        assert rounds == [(2 if len(kept) == 2 else len(times),)]
        again = tsm2_tune.import_trials(theirs, ours)
        assert (again.trials, again.times, again.changed) == (0, 0, 0)
        assert not (again.conflicts and told == KERNELS)
        tsm2_tune.import_trials(ours, theirs)
        assert facts(ours) == facts(theirs)
        for path in (ours, theirs):
            found_best = [(row.median_us, row.stale) for row in best(path)]
            assert found_best == ([] if best_us is None else [(best_us, int(told == KERNELS and other is not RIGHT))])


def test_what_is_superseded_here_is_not_there_twice_by_a_copy_from_before(tmp_path: Path) -> None:
    ours, before = tmp_path / "ours.db", tmp_path / "before.db"
    database_of(before, trial(500, C128, source=source(C128, text="int older;\n")), final=final((C128, 490)))
    shutil.copy(before, ours)
    with Store.open(ours, create=False) as store:
        store.supersede(GPU, PROBLEM, BASIS)
    superseded = facts(ours)
    found = tsm2_tune.import_trials(before, ours)
    assert (found.trials, found.known, found.times, found.changed, found.conflicts) == (0, 1, 0, 0, ())
    assert facts(ours) == superseded
    with Store.open(ours, create=False) as store:
        store.add_trial(EARLY, trial(400, C128))
        store.supersede(GPU, PROBLEM, BASIS)
    tsm2_tune.import_trials(ours, before)
    tsm2_tune.import_trials(before, ours)
    assert facts(ours) == facts(before)
    for path in (ours, before):
        assert plain_sql(path, "SELECT superseded FROM trial ORDER BY id") == [(1,), (0,)]
        assert [(row.stale, row.median_us) for row in tsm2_tune.best(path)] == [(0, 400.0)]


def test_merged_databases_keep_how_far_a_search_went(path: Path, tmp_path: Path) -> None:
    of_space = "SELECT space_configurations, search_ended FROM trial"
    older, merged = tmp_path / "older.db", tmp_path / "merged.db"
    with Store.open(path, create=True) as store:
        store.add_trial(EARLY, trial(500, strategy="model", space_configurations=1840))
        store.end_search(GPU, PROBLEM, BASIS, "max-trials")
    shutil.copy(path, older)
    downgrade(older)
    for one in (path, older):
        tsm2_tune.import_trials(one, merged)
    assert plain_sql(merged, of_space) == [(1840, "max-trials")]
    with Store.open(older, create=True):
        assert plain_sql(older, of_space) == [(1840, None)]


def test_finals_with_equal_times_are_two_and_lost_times_come_back(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.db", tmp_path / "theirs.db"
    database_of(ours, *(trial(600, config) for config in (C128, C256)))
    shutil.copy(ours, theirs)
    for path in (ours, theirs):
        with Store.open(path, create=False) as store:
            store.add_final(EARLY, final((C128, 500), (C256, 515), vendor=(vendor_measurement(700),)), *TODAY)
    assert tsm2_tune.import_trials(theirs, ours).times == 3
    (part,) = facts(ours).values()
    assert [sorted(us.values["median_us"] for us in one.timed.values()) for one in part.rounds] == [[500, 515]] * 2
    assert tsm2_tune.import_trials(theirs, ours).times == 0
    whole = facts(ours)
    for table, key in (("sample", "measurement_id"), ("measurement", "id")):
        plain_sql(ours, f"DELETE FROM {table} WHERE {key} = (SELECT max(id) FROM measurement)")
    assert tsm2_tune.import_trials(theirs, ours).times == 1
    assert facts(ours) == whole


def test_a_clock_a_year_ahead_hides_nothing_that_comes_later(path: Path, time_of_day: SimpleNamespace) -> None:
    with Store.open(path, create=True) as store:
        time_of_day.ahead_seconds = 365 * 24 * 3600
        store.add_trial(EARLY, trial(400, C128, basis="0" * 64))
        time_of_day.ahead_seconds = 0
        store.add_trial(tuning_run(toolkit="nvcc 13.1"), trial(500, C256, basis=BASIS))
    assert [(row.config, row.stale) for row in tsm2_tune.best(path)] == [(C256.text, 0)]


def test_what_is_no_database_is_refused(two_databases: tuple[Path, Path], tmp_path: Path) -> None:
    ours, _ = two_databases
    places = {name: tmp_path / name for name in ("pipe", "empty", "other", "cut", "newer", "others", "foreign.db")}
    os.mkfifo(places["pipe"])
    places["empty"].touch()
    places["other"].write_text("SELECT 1")
    places["cut"].write_bytes(b"SQLite format 3\0" + bytes(500))
    places["newer"].write_text('{"tsm2_tune": {"version": 99}, "cache": {}}')
    places["others"].write_text('{"cache": {}}')
    plain_sql(places["foreign.db"], "CREATE TABLE t (x)")
    for name, sentence in {
        "pipe": "is not a regular file",
        str(tmp_path): "is not a regular file",
        str(tmp_path / "missing"): "No such file or directory",
        "empty": "holds no results yet",
        "other": "it is neither a database nor a file of trials, nor a T4 file or a cache of Kernel Tuner",
        "foreign.db": "is a database of another program",
        "cut": "is not a SQLite database",
        "newer": "its version is 99, and not 2",
        "others": "tsm2-tune did not write it",
        "pretuned:tpu": "unknown 'pretuned:tpu': the package has pretuned:h100, pretuned:h200",
        "H200": "no file H200: did you mean pretuned:h200, the pretuned kernels?",
        "": "the name of the file is empty: name a database or a file of trials",
        '["tsm2-tune"]\n': "the argument is the content of a file of trials, not its name: write it to a file",
    }.items():
        said = refused("import", str(places.get(name, name)), path=ours)
        assert sentence in said
        assert "tsm2-tune-" not in said.replace(str(tmp_path), "")
    with pytest.raises((InputError, StoreError)):
        tsm2_tune.import_trials("x\0y", ours)


def test_a_trial_that_contradicts_itself_replaces_none(two_databases: tuple[Path, Path]) -> None:
    """By its verdict, say; test_db_check.py has the other contradictions."""
    ours, theirs = two_databases
    before = facts(ours)
    plain_sql(theirs, "UPDATE trial SET verdict_correct = 0 WHERE id = 1")
    assert "trial 1 is ok, but has no right result or time" in refused("import", str(theirs), path=ours)
    assert facts(ours) == before


def test_full_disk_is_named_by_folder(two_databases: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporary folder of the copy, or the folder of the database."""
    ours, theirs = two_databases
    connect = sqlite3.connect
    monkeypatch.setenv("TMPDIR", str(ours.parent))
    for place, sentence in {
        "": f"cannot copy {theirs} to read it (database or disk is full): make {ours.parent} writable, with"
        " space left, or set TMPDIR to another folder",
        str(ours): f"{ours} cannot grow, the disk of {ours.parent} is full: free some space there, then run this"
        " again",
    }.items():

        def small(name: Any, *arguments: Any, place: str = place, **named: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(name, *arguments, **named)
            if name == place or (place and place in str(name)):
                connection.execute("PRAGMA max_page_count = 1")  # no less than there are: none more
            return connection

        monkeypatch.setattr(sqlite3, "connect", small)
        assert refused("import", str(theirs), path=ours) == f"Error: {sentence}\n"


def test_where_no_copy_can_be_made_its_folder_is_named(
    two_databases: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = two_databases
    connect = sqlite3.connect

    def none(name: Any, *arguments: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect("/missing/copy" if name == "" else name, *arguments, **named)
        return connection

    monkeypatch.setattr(sqlite3, "connect", none)
    said = refused("import", str(theirs), path=ours)
    assert said.startswith(f"Error: cannot copy {theirs} to read it (unable to open database file): make")


def test_where_no_text_can_be_converted_its_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, text = tmp_path / "good.db", tmp_path / "good.jsonl"
    good_database(good)
    tsm2_tune.export(good, format="trials", output=text)

    def none(parent: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "workplace", none)
    said = refused("best", path=text)
    assert said.startswith(f"Error: cannot copy {text} to read it (No space left on device): ")
    assert f"make {cache_folder()} writable, with space left, or set XDG_CACHE_HOME" in said
